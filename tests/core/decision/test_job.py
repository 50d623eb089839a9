"""Which settings no run had together, and what is said of a job with such settings."""

import json
from itertools import combinations, product

import pytest
from accuracy.figures import MEASURED_PAIRS
from accuracy.grid import askable_points, encode_measured_pairs
from measured.rows import read_every_row, read_model

from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.decision.flowchart import Constraints, Decision, decide
from zerowiz.core.decision.job import (
    Job,
    Pair,
    PairedSetting,
    accumulation_of,
    bf16_emulated,
    find_never_together,
    native_precision,
    point_of,
)
from zerowiz.core.decision.remedies import find_remedies
from zerowiz.core.decision.uncertainty import Assumption
from zerowiz.core.job_end import Cause, decide_again, memory_of
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.machine.types import Accelerator, Gpu, Host, Machine, MachineSource
from zerowiz.core.memory.allocations import MemoryKind
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.strategies import (
    DDP,
    FLOWCHART_STRATEGIES,
    STRATEGIES,
    ZERO1,
    ZERO2,
    ZERO2_OFFLOAD,
    ZERO3,
    ZERO3_OFFLOAD,
)
from zerowiz.core.strategy_types import OffloadChoice, Strategy
from zerowiz.core.structs import replace
from zerowiz.core.workload import Method, Precision, Workload
from zerowiz.probe.files import read_gpu_table, read_measured_pairs
from zerowiz.ui.sentences import interval, never_together

A, B = PairedSetting.STRATEGY, PairedSetting.METHOD
TWO: frozenset[Pair] = frozenset({((A, "zero3-offload"), (B, "full")), ((A, "zero2"), (B, "lora"))})
HOLE: Pair = ((A, "zero3-offload"), (B, "lora"))


def test_the_shipped_table_holds_the_pairs_of_the_measured_runs() -> None:
    text = encode_measured_pairs(read_every_row())
    assert text == MEASURED_PAIRS.read_text(encoding="utf-8")
    assert json.loads(text)["pairs"] == sorted(
        [[list(setting) for setting in pair] for pair in read_measured_pairs()]
    )


@pytest.mark.parametrize(
    ("method", "measured", "missing"),
    [
        ("full", TWO, ()),
        ("lora", TWO, (HOLE,)),
        # No run had it at all: that is a doubt of its own.
        ("qlora", TWO, ()),
        # Nothing is known of runs.
        ("lora", frozenset(), ()),
    ],
)
def test_a_hole_is_a_pair_of_values_that_were_measured_apart(
    method: str, measured: frozenset[Pair], missing: tuple[Pair, ...]
) -> None:
    assert missing == find_never_together({A: "zero3-offload", B: method}, measured)


@pytest.mark.parametrize(
    ("micro_steps", "named"), [(1, "1"), (2, "2"), (7, "2"), (8, "8"), (64, "8")]
)
def test_micro_steps_are_one_some_or_many(micro_steps: int, named: str) -> None:
    assert named == accumulation_of(micro_steps)


def test_a_run_is_in_no_hole() -> None:
    for point in askable_points(read_every_row()):
        assert () == find_never_together(point, read_measured_pairs())


def job(measured: frozenset[Pair]) -> Job:
    return Job(
        machine=parse_spec("2xH200", read_gpu_table()),
        model=read_model("llama-3.2-1b"),
        workload=Workload(method=Method.LORA),
        measured_pairs=measured,
    )


def test_a_job_in_a_hole_is_named_and_less_sure() -> None:
    model = job(frozenset()).model
    known, hole = (evaluate(job(pairs), ZERO3_OFFLOAD).interval for pairs in (frozenset(), TWO))
    assert known is not None
    assert hole is not None
    assert (HOLE,) == hole.never_together
    assert {Assumption.NEVER_TOGETHER} == {*hole.assumptions} - {*known.assumptions}
    assert hole.low_bytes < known.low_bytes < known.high_bytes < hole.high_bytes
    said = "never measured together: ZeRO-3 with everything offloaded and LoRA"
    assert said in interval(hole, model)
    assert "never measured together" not in interval(known, model)


def test_every_value_that_a_job_can_have_has_words() -> None:
    """But for families and optimizers, which are called by their own names."""
    family = read_model("llama-3.2-1b").architecture.family
    named = {PairedSetting.FAMILY, PairedSetting.OPTIMIZER}
    for strategy, method, steps in product(STRATEGIES, Method, (1, 2, 8)):
        step = Workload(method=method, accumulation_steps=steps)
        point = point_of(family, strategy, step, steps)
        for pair in combinations([item for item in point.items() if item[0] not in named], 2):
            (_, one), (_, other) = pair
            assert f"{one} and {other}" != never_together(pair)


# What died for want of memory is not planned again; nothing else changes.

TABLE = read_gpu_table()
HOST = Host(total_bytes=10**12, available_bytes=10**12)
FOUR = replace(parse_spec("4xA100-80GB-SXM", TABLE), host=HOST)
JOB = Job(
    machine=FOUR,
    model=read_model("llama-3.2-1b"),
    workload=Workload(micro_batch=4, gradient_checkpointing=True),
)


def chosen(decision: Decision) -> str | None:
    return None if decision.chosen is None else decision.chosen.strategy.name


def test_the_decision_goes_one_strategy_up_each_time_and_then_ends() -> None:
    decision = decide(JOB, Constraints())
    taken = [chosen(decision)]
    while decision.chosen is not None:
        decision = decide_again(decision, decision.chosen.strategy, MemoryKind.GPU)
        taken.append(chosen(decision))
    places = [
        [s.name for s in FLOWCHART_STRATEGIES].index(name) for name in taken if name is not None
    ]
    assert "ddp" == taken[0]
    assert taken[-1] is None
    assert sorted(set(places)) == places


def test_a_strategy_that_spares_nothing_more_does_not_fit_either() -> None:
    decision = decide(JOB, Constraints(stage=2))
    again = decide_again(decision, ZERO2, MemoryKind.GPU)
    assert {"ddp", "zero1", "zero2"} == {
        one.strategy.name for one in again.evaluated if one.ran_out
    }
    need_bytes = decision.of(ZERO2).device_bytes
    for one in again.evaluated:
        assert one.runs == (one.ran_out is None)
        assert not one.runs or one.device_bytes < need_bytes


@pytest.mark.parametrize(
    ("constraints", "died_of", "expected"),
    [
        # A stage that was asked for is where it begins; offload that was refused stays refused.
        (Constraints(stage=2), (ZERO2,), "zero3"),
        (Constraints(offload=OffloadChoice.NONE), (DDP, ZERO2, ZERO3), None),
    ],
)
def test_what_was_asked_for_stays(
    constraints: Constraints, died_of: tuple[Strategy, ...], expected: str | None
) -> None:
    decision = decide(JOB, constraints)
    for strategy in died_of:
        decision = decide_again(decision, strategy, MemoryKind.GPU)
    assert expected == chosen(decision)


def test_after_the_host_was_too_small_a_strategy_that_builds_less_there_is_taken() -> None:
    decision = decide(JOB, Constraints(offload=OffloadChoice.AUTO))
    again = decide_again(decision, ZERO2_OFFLOAD, MemoryKind.HOST)
    assert again.of(ZERO3).ran_out is None
    assert again.of(ZERO2_OFFLOAD).ran_out is not None


@pytest.mark.parametrize("cause", Cause)
def test_only_memory_is_worth_another_attempt(cause: Cause) -> None:
    expected = {Cause.CUDA_OOM: MemoryKind.GPU, Cause.HOST_OOM: MemoryKind.HOST}.get(cause)
    assert expected is memory_of(cause, lives_on_host=False)
    # A rank on the CPU has the memory of its host as its own.
    assert (None if expected is None else MemoryKind.GPU) is memory_of(cause, lives_on_host=True)


# The precision of a job follows what its machine computes natively.

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
        (gpu((6, 0)), FP32),
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
        (gpu((7, 0)), Workload(precision=BF16), True),
        (gpu((8, 0)), Workload(precision=BF16), False),
        (gpu((6, 0)), Workload(precision=FP16), False),
    ],
)
def test_only_what_is_known_to_lack_bf16_emulates_it(
    machine: Machine, workload: Workload, expected: bool
) -> None:
    assert expected is bool(bf16_emulated(machine, workload))


@pytest.mark.parametrize(
    ("machine", "expected"), [(NATIVE, True), (UNKNOWN, True), (EMULATED, False)]
)
def test_bf16_is_a_remedy_only_where_it_is_not_known_to_be_emulated(
    machine: Machine, expected: bool
) -> None:
    """A budget that ZeRO-1 keeps in bf16, and not in fp32."""
    model, stage_1 = model_from_size("100m", 10**8), Constraints(stage=1)
    job = Job(machine=machine, model=model, workload=Workload(precision=FP32))
    halved = replace(job, workload=Workload(precision=BF16))
    needs = [evaluate(each, ZERO1).device_bytes for each in (halved, job)]
    decision = decide(replace(job, budget_bytes=sum(needs) // 2), stage_1)
    assert decision.chosen is None
    changes = [dict(remedy.change) for remedy in find_remedies(decision)]
    assert expected is ({"precision": "bf16"} in changes)
