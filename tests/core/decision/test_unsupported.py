"""The table of what DeepSpeed fails on: each row is reached, and what works stays asked for."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from zerowiz.core.decision.job import Job
from zerowiz.core.decision.unsupported import COMBINATIONS, Asked, refuse_unsupported
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.strategies import (
    DDP,
    STRATEGIES,
    ZERO1,
    ZERO2,
    ZERO2_OFFLOAD,
    ZERO3,
    ZERO3_OFFLOAD,
    ZERO3_OFFLOAD_OPTIMIZER,
)
from zerowiz.core.strategy_types import Strategy
from zerowiz.core.structs import replace
from zerowiz.core.workload import (
    OPTIMIZERS,
    Integration,
    Optimizer,
    Precision,
    StateDtype,
    Workload,
)
from zerowiz.errors import UsageError
from zerowiz.probe.files import read_gpu_table

MACHINE = parse_spec("4xA100-40GB", read_gpu_table())
JOB = Job(machine=MACHINE, model=model_from_size("7b", 7 * 10**9), workload=Workload())
NVME = replace(JOB, nvme_path="/nvme")
HPZ = replace(JOB, hpz=True)
QUANTIZED = replace(JOB, quantized_weights=True)
HALF = replace(JOB, state_dtype=StateDtype.BF16)
ON_CPU = replace(JOB, machine=replace(MACHINE, accelerator=Accelerator.CPU))
HF, ACCELERATE, DEEPSPEED = Integration.HF, Integration.ACCELERATE, Integration.DEEPSPEED


def autocast(precision: Precision) -> Job:
    return replace(JOB, workload=Workload(precision=Precision.FP32, torch_autocast=precision))


def stepping(optimizer: Optimizer) -> Job:
    return replace(JOB, workload=Workload(optimizer=optimizer))


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    job: Job
    strategy: Strategy
    integration: Integration = HF
    script_has_optimizer: bool = True

    @property
    def refused(self) -> str | None:
        """The message, where there is one."""
        try:
            refuse_unsupported(
                self.job,
                self.strategy,
                self.integration,
                script_has_optimizer=self.script_has_optimizer,
            )
        except UsageError as error:
            return error.message
        return None

    @property
    def rows(self) -> list[str]:
        """The names of the rows that are asked for."""
        asked = Asked(
            job=self.job,
            strategy=self.strategy,
            integration=self.integration,
            script_has_optimizer=self.script_has_optimizer,
        )
        return [row.name for row in COMBINATIONS if row.is_asked(asked)]


REFUSED: Mapping[str, tuple[Case, ...]] = {
    "nvme-below-stage-3": (Case(job=NVME, strategy=ZERO2_OFFLOAD),),
    "nvme-without-offload": (Case(job=NVME, strategy=ZERO3), Case(job=NVME, strategy=DDP)),
    "nvme-with-bf16-states": (
        Case(job=replace(NVME, state_dtype=StateDtype.BF16), strategy=ZERO3_OFFLOAD),
    ),
    "nvme-with-8-bit-adam": (
        Case(
            job=replace(stepping(Optimizer.ADAMW_8BIT), nvme_path="/nvme"), strategy=ZERO3_OFFLOAD
        ),
    ),
    "nvme-parameters-with-hpz": (Case(job=replace(NVME, hpz=True), strategy=ZERO3_OFFLOAD),),
    "hpz-below-stage-3": (Case(job=HPZ, strategy=ZERO2), Case(job=HPZ, strategy=DDP)),
    "quantized-weights-below-stage-3": (Case(job=QUANTIZED, strategy=ZERO1),),
    "quantized-weights-with-autocast": (
        Case(job=replace(autocast(Precision.BF16), quantized_weights=True), strategy=ZERO3),
    ),
    "quantized-weights-on-cpu": (
        Case(job=replace(ON_CPU, quantized_weights=True), strategy=ZERO3),
    ),
    "fp16-autocast-with-zero": tuple(
        Case(job=autocast(Precision.FP16), strategy=each) for each in STRATEGIES if each.stage
    ),
    "bf16-states-without-zero": (Case(job=HALF, strategy=DDP),),
    "8-bit-adam-by-name": (
        Case(
            job=stepping(Optimizer.ADAMW_8BIT),
            strategy=ZERO1,
            integration=DEEPSPEED,
            script_has_optimizer=False,
        ),
    ),
    "bf16-states-with-offload-and-own-optimizer": (
        Case(job=HALF, strategy=ZERO2_OFFLOAD, integration=DEEPSPEED),
        Case(job=HALF, strategy=ZERO3_OFFLOAD, integration=ACCELERATE),
    ),
}

FINE: Mapping[str, Case] = {
    "the Trainer's own optimizer is not built yet": Case(job=HALF, strategy=ZERO2_OFFLOAD),
    "the config names AdamW": Case(
        job=HALF, strategy=ZERO3_OFFLOAD, integration=DEEPSPEED, script_has_optimizer=False
    ),
    "bf16 states on the GPU": Case(job=HALF, strategy=ZERO1, integration=DEEPSPEED),
    "NVMe for all": Case(job=NVME, strategy=ZERO3_OFFLOAD),
    "NVMe for the optimizer": Case(job=NVME, strategy=ZERO3_OFFLOAD_OPTIMIZER),
    "NVMe for the optimizer with hpZ": Case(
        job=replace(NVME, hpz=True), strategy=ZERO3_OFFLOAD_OPTIMIZER
    ),
    "hpZ on one node": Case(job=HPZ, strategy=ZERO3),
    "hpZ with offload": Case(job=HPZ, strategy=ZERO3_OFFLOAD),
    "no hpZ, below stage 3": Case(job=replace(JOB, hpz=False), strategy=ZERO2),
    "int8 gathers": Case(job=QUANTIZED, strategy=ZERO3),
    "fp16 autocast without ZeRO": Case(job=autocast(Precision.FP16), strategy=DDP),
    "bf16 autocast with offload": Case(job=autocast(Precision.BF16), strategy=ZERO2_OFFLOAD),
    "bf16 autocast without ZeRO": Case(job=autocast(Precision.BF16), strategy=DDP),
    "8-bit Adam at stage 3": Case(job=stepping(Optimizer.ADAMW_8BIT), strategy=ZERO3),
    "SGD with offload": Case(job=stepping(Optimizer.SGD), strategy=ZERO3_OFFLOAD),
}

EVERY_REFUSED = [
    pytest.param(name, case, id=f"{name} {case.strategy.name}")
    for name, cases in REFUSED.items()
    for case in cases
]


def test_every_row_has_a_case() -> None:
    assert [row.name for row in COMBINATIONS] == list(REFUSED)


@pytest.mark.parametrize(("name", "case"), EVERY_REFUSED)
def test_a_row_alone_refuses_its_case_with_its_message(name: str, case: Case) -> None:
    row = next(row for row in COMBINATIONS if row.name == name)
    assert [name] == case.rows
    assert row.message.format(strategy=case.strategy.name) == case.refused


@pytest.mark.parametrize("case", FINE.values(), ids=FINE.keys())
def test_what_deepspeed_does_fine_with_is_not_refused(case: Case) -> None:
    assert case.refused is None


@pytest.mark.parametrize("optimizer", Optimizer)
def test_an_optimizer_is_written_into_a_config_or_refused(optimizer: Optimizer) -> None:
    case = Case(
        job=stepping(optimizer),
        strategy=ZERO1,
        integration=DEEPSPEED,
        script_has_optimizer=False,
    )
    assert (case.refused is None) is (OPTIMIZERS[optimizer].ds_type is not None)


@pytest.mark.parametrize("integration", Integration)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.name)
@pytest.mark.parametrize("precision", Precision)
def test_a_job_that_asks_for_nothing_special_is_never_refused(
    precision: Precision, strategy: Strategy, integration: Integration
) -> None:
    job = replace(JOB, workload=Workload(precision=precision))
    assert Case(job=job, strategy=strategy, integration=integration).refused is None


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.FP32])
def test_bf16_states_of_other_weights_are_refused_before(precision: Precision) -> None:
    job = replace(HALF, workload=Workload(precision=precision))
    with pytest.raises(UsageError, match='needs `precision="bf16"`'):
        _ = job.counted_workload
