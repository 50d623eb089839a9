"""The precision of a job follows what its machine computes natively."""

import pytest

from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.decision.flowchart import Constraints, decide
from zerowiz.core.decision.plan_input import PlanInput, emulates_bf16, native_precision
from zerowiz.core.decision.remedies import find_remedies
from zerowiz.core.machine.types import Accelerator, Gpu, Host, Machine, MachineSource
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.strategies import ZERO1
from zerowiz.core.structs import replace
from zerowiz.core.workload import Precision, Workload

BF16, FP16, FP32 = Precision.BF16, Precision.FP16, Precision.FP32
GIB = 2**30


def cpu(*, computes_bf16: bool | None) -> Machine:
    return Machine(
        source=MachineSource.CPU,
        accelerator=Accelerator.CPU,
        gpus=tuple(Gpu(index=i, name="CPU rank", free_bytes=4 * GIB) for i in range(2)),
        host=Host(available_bytes=8 * GIB, computes_bf16=computes_bf16),
    )


NATIVE, EMULATED, UNKNOWN = (cpu(computes_bf16=each) for each in (True, False, None))


def gpu(capability: tuple[int, int] | None) -> Machine:
    # The CPU beside a GPU computes nothing of the step.
    return Machine(
        source=MachineSource.NVML,
        gpus=(Gpu(index=0, name="GPU", compute_capability=capability),),
        host=Host(computes_bf16=False),
    )


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (NATIVE, BF16),
        (EMULATED, FP32),
        (UNKNOWN, BF16),
        (gpu((9, 0)), BF16),
        (gpu((7, 0)), FP16),
        (gpu(None), BF16),
    ],
)
def test_a_job_that_names_no_precision_gets_what_the_machine_computes(
    machine: Machine, expected: Precision
) -> None:
    assert expected is native_precision(machine)
    assert FP32 is native_precision(machine, BF16)


@pytest.mark.parametrize(
    ("machine", "workload", "expected"),
    [
        (EMULATED, Workload(precision=BF16), True),
        (EMULATED, Workload(precision=FP32, torch_autocast=BF16), True),
        (EMULATED, Workload(precision=FP32), False),
        (EMULATED, Workload(precision=FP16), False),
        (NATIVE, Workload(precision=BF16), False),
        (UNKNOWN, Workload(precision=BF16), False),
        (gpu((7, 0)), Workload(precision=BF16), False),
    ],
)
def test_only_a_cpu_that_is_known_to_lack_bf16_emulates_it(
    machine: Machine, workload: Workload, expected: bool
) -> None:
    assert expected is emulates_bf16(machine, workload)


@pytest.mark.parametrize(
    ("machine", "expected"), [(NATIVE, True), (UNKNOWN, True), (EMULATED, False)]
)
def test_bf16_is_a_remedy_only_where_it_is_not_known_to_be_emulated(
    machine: Machine, expected: bool
) -> None:
    """A budget that ZeRO-1 keeps in bf16, and not in fp32."""
    model, stage_1 = model_from_size("100m", 10**8), Constraints(stage=1)
    job = PlanInput(machine=machine, model=model, workload=Workload(precision=FP32))
    halved = replace(job, workload=Workload(precision=BF16))
    needs = [evaluate(each, ZERO1).device_bytes for each in (halved, job)]
    decision = decide(replace(job, budget_bytes=sum(needs) // 2), stage_1)
    assert decision.chosen is None
    changes = [dict(remedy.change) for remedy in find_remedies(decision)]
    assert expected is ({"precision": "bf16"} in changes)
