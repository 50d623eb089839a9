"""The arithmetic as people have been told it; GB is 1e9 bytes."""

import pytest

from zerowiz.core.decision.evaluate import Verdict, evaluate
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.machine.types import Gpu, Host, Interconnect, LinkClass, Machine, MachineSource
from zerowiz.core.memory.allocations import MemoryKind, Phase
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.memory.estimate import Estimate, rule_of_thumb_estimate
from zerowiz.core.memory.rank_sizes import StrategyRow, rank_sizes
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.model.types import Model
from zerowiz.core.strategies import DDP, ZERO1, ZERO2, ZERO2_OFFLOAD, ZERO3, ZERO3_OFFLOAD
from zerowiz.core.workload import Accounting, Precision, StateDtype, Workload

GB = 10**9
SEVEN = model_from_size("7b", 7 * GB)
ONE = model_from_size("1b", GB)


def by_rule(
    model: Model,
    workload: Workload,
    ranks: int,
    strategy: StrategyRow,
    state_dtype: StateDtype | None = None,
) -> Estimate:
    rank = rank_sizes(model, workload, ranks, strategy, DEEPSPEED_DEFAULTS)
    return rule_of_thumb_estimate(model, rank, state_dtype)


def parts_gb(estimate: Estimate, memory: MemoryKind = MemoryKind.GPU) -> dict[str, float]:
    return {kind: size_bytes / GB for kind, size_bytes, _ in estimate.peaks(memory)[Phase.STEP]}


@pytest.mark.parametrize(
    ("strategy", "ranks", "parameters", "gradients", "optimizer", "total"),
    [
        (DDP, 1, 14, 14, 28, 60),
        (DDP, 4, 14, 14, 28, 60),
        (ZERO1, 4, 14, 14, 7, 39),
        (ZERO2, 4, 14, 3.5, 7, 28.5),
        (ZERO3, 4, 3.5, 3.5, 7, 18),
    ],
)
def test_7b_in_bf16_is_the_table_that_people_know(
    strategy: StrategyRow,
    ranks: int,
    parameters: float,
    gradients: float,
    optimizer: float,
    total: float,
) -> None:
    predicted = by_rule(SEVEN, Workload(), ranks, strategy)
    expected = {
        "parameters": parameters,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": 4,
    }
    assert expected == parts_gb(predicted)
    assert total == predicted.peak_bytes / GB


@pytest.mark.parametrize(
    ("strategy", "verdict"),
    [(DDP, Verdict.DOES_NOT_FIT), (ZERO2, Verdict.FITS), (ZERO3, Verdict.FITS)],
)
def test_7b_on_four_gpus_of_40_gb_is_judged_by_it(strategy: StrategyRow, verdict: Verdict) -> None:
    machine = Machine(
        source=MachineSource.FILE,
        gpus=tuple(Gpu(index=i, name="a", free_bytes=40 * GB) for i in range(4)),
        interconnect=Interconnect(link_class=LinkClass.NVLINK_ALL),
        host=Host(),
    )
    job = PlanInput(
        machine=machine, model=SEVEN, workload=Workload(), accounting=Accounting.TEXTBOOK
    )
    assert verdict is evaluate(job, strategy).verdict


def test_1b_in_fp32_saves_9_gb_a_gpu_under_zero2() -> None:
    """12 bytes a parameter of gradients and Adam states, divided by four."""
    fp32 = Workload(precision=Precision.FP32)
    whole, shared = (parts_gb(by_rule(ONE, fp32, 4, s)) for s in (DDP, ZERO2))
    assert 12 == whole["gradients"] + whole["optimizer"]
    assert 3 == shared["gradients"] + shared["optimizer"]


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_fp32_adam_states_are_8_bytes_a_parameter_and_zero1_divides_them(ranks: int) -> None:
    predicted = by_rule(ONE, Workload(), ranks, ZERO1, StateDtype.FP32)
    assert 8 / ranks == parts_gb(predicted)["optimizer"]


@pytest.mark.parametrize("state_dtype", [None, *StateDtype])
def test_the_moments_are_in_the_models_precision_unless_somebody_said(
    state_dtype: StateDtype | None,
) -> None:
    states = parts_gb(by_rule(ONE, Workload(), 1, DDP, state_dtype))
    assert {None: 4, StateDtype.BF16: 4, StateDtype.FP32: 8}[state_dtype] == states["optimizer"]


@pytest.mark.parametrize(
    ("strategy", "on_host"),
    [
        (ZERO2, {}),
        (ZERO2_OFFLOAD, {"optimizer": 7}),
        (ZERO3_OFFLOAD, {"optimizer": 7, "parameters": 3.5}),
    ],
)
def test_what_is_offloaded_moves_to_the_host(
    strategy: StrategyRow, on_host: dict[str, float]
) -> None:
    assert on_host == parts_gb(by_rule(SEVEN, Workload(), 4, strategy), MemoryKind.HOST)
