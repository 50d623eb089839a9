"""What died for want of memory is not planned again; nothing else changes."""

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest
from measured.rows import read_model
from paths import ROOT

from zerowiz.core.decision.flowchart import Constraints, Decision, OffloadChoice, decide
from zerowiz.core.decision.plan_input import History, PlanInput, RanOut
from zerowiz.core.decision.remedies import find_remedies
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import Host
from zerowiz.core.memory.allocations import MemoryKind
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.outcome import Cause, decide_again, memory_of, remember
from zerowiz.core.strategies import DDP, FLOWCHART_STRATEGIES, ZERO2, ZERO2_OFFLOAD, ZERO3
from zerowiz.core.strategy import Strategy
from zerowiz.core.structs import decode, encode, replace
from zerowiz.core.workload import StateDtype, Workload
from zerowiz.probe.package_data import read_gpu_table

TABLE = read_gpu_table()
HOST = Host(total_bytes=10**12, available_bytes=10**12)
FOUR = replace(parse_spec("4xA100-80GB-SXM", TABLE), host=HOST)
JOB = PlanInput(
    machine=FOUR,
    model=read_model("llama-3.2-1b"),
    workload=Workload(micro_batch=4, gradient_checkpointing=True),
)
DAY = "2026-11-22"


def died(decision: Decision, strategy: Strategy, memory: MemoryKind = MemoryKind.GPU) -> RanOut:
    seen = remember(decision, strategy, memory, DAY)
    assert seen is not None
    return seen


def chosen(decision: Decision) -> str | None:
    return None if decision.chosen is None else decision.chosen.strategy.name


def test_the_decision_goes_one_strategy_up_each_time_and_then_ends() -> None:
    decision = decide(JOB, Constraints())
    taken = [chosen(decision)]
    while decision.chosen is not None:
        decision = decide_again(decision, died(decision, decision.chosen.strategy))
        taken.append(chosen(decision))
    places = [
        [s.name for s in FLOWCHART_STRATEGIES].index(name) for name in taken if name is not None
    ]
    assert "ddp" == taken[0]
    assert taken[-1] is None
    assert sorted(set(places)) == places


def test_a_strategy_that_spares_nothing_more_does_not_fit_either() -> None:
    decision = decide(JOB, Constraints(stage=2))
    again = decide_again(decision, died(decision, ZERO2))
    assert {"ddp", "zero1", "zero2"} == {
        one.strategy.name for one in again.evaluated if one.ran_out
    }
    need_bytes = decision.of(ZERO2).device_bytes
    for one in again.evaluated:
        assert one.runs == (one.ran_out is None)
        assert not one.runs or one.device_bytes < need_bytes


def test_a_stage_that_was_asked_for_is_where_it_begins() -> None:
    decision = decide(JOB, Constraints(stage=2))
    assert "zero3" == chosen(decide_again(decision, died(decision, ZERO2)))


def test_offload_that_was_refused_stays_refused() -> None:
    decision = decide(JOB, Constraints(offload=OffloadChoice.NONE))
    for strategy in (DDP, ZERO2, ZERO3):
        decision = decide_again(decision, died(decision, strategy))
    assert chosen(decision) is None


def test_after_the_host_was_too_small_a_strategy_that_builds_less_there_is_taken() -> None:
    decision = decide(JOB, Constraints(offload=OffloadChoice.AUTO))
    again = decide_again(decision, died(decision, ZERO2_OFFLOAD, MemoryKind.HOST))
    assert again.of(ZERO3).ran_out is None
    assert again.of(ZERO2_OFFLOAD).ran_out is not None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "zero2"),
        ({"workload": replace(JOB.workload, micro_batch=8)}, "zero2"),
        ({"workload": replace(JOB.workload, accumulation_steps=8)}, "zero2"),
        ({"workload": replace(JOB.workload, micro_batch=2)}, "ddp"),
        ({"workload": replace(JOB.workload, sequence_tokens=128)}, "ddp"),
        ({"workload": replace(JOB.workload, gradient_checkpointing=False, micro_batch=4)}, "ddp"),
        ({"model": model_from_size("900m", 900_000_000)}, "ddp"),
        ({"machine": replace(FOUR, gpus=FOUR.gpus[:2])}, "ddp"),
    ],
)
def test_it_holds_for_this_job_and_larger_steps_of_it(
    change: Mapping[str, object], expected: str
) -> None:
    seen = died(decide(JOB, Constraints()), DDP)
    other = replace(JOB, ran_out=(seen,), **change)  # type: ignore[arg-type]
    assert expected == chosen(decide(other, Constraints()))


@pytest.mark.parametrize(
    ("more_bytes", "expected"), [(0, "zero2"), (1_000_000_000, "zero2"), (10_000_000_000, "ddp")]
)
def test_with_more_room_it_is_tried_again(more_bytes: int, expected: str) -> None:
    small = replace(JOB, budget_bytes=40_000_000_000)
    seen = died(decide(small, Constraints()), DDP)
    again = replace(JOB, budget_bytes=40_000_000_000 + more_bytes, ran_out=(seen,))
    assert expected == chosen(decide(again, Constraints()))


def test_optimizer_states_in_another_format_are_another_job() -> None:
    seen = died(decide(JOB, Constraints()), ZERO2)
    other = replace(JOB, state_dtype=StateDtype.BF16, ran_out=(seen,))
    assert other.key != JOB.key
    assert not any(one.ran_out for one in decide(other, Constraints()).evaluated)


KEY = """
from zerowiz.core.decision.plan_input import job_key
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.workload import Workload
from zerowiz.probe.package_data import read_gpu_table
machine = parse_spec("4xA100-40GB", read_gpu_table())
print(job_key(machine, model_from_size("1b", 1_000_000_000), Workload(), None))
"""


def test_a_job_has_the_same_key_in_every_process() -> None:
    keys = set()
    for seed in range(4):
        environ = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)}
        argv = [sys.executable, "-c", KEY]
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True)
        keys.add(done.stdout)
    assert 1 == len(keys)


def test_remedies_that_change_the_job_are_not_held_back_by_it() -> None:
    decision = decide(
        replace(JOB, workload=replace(JOB.workload, gradient_checkpointing=False)), Constraints()
    )
    for strategy in FLOWCHART_STRATEGIES:
        decision = decide_again(decision, died(decision, strategy))
    assert chosen(decision) is None
    assert any("gradient_checkpointing" in remedy.change for remedy in find_remedies(decision))


def test_nothing_is_learned_where_nobody_knows_how_much_room_there_was() -> None:
    unknown = replace(FOUR, gpus=tuple(replace(gpu, free_bytes=None) for gpu in FOUR.gpus))
    decision = decide(replace(JOB, machine=unknown), Constraints(stage=2, force=True))
    assert remember(decision, ZERO2, MemoryKind.GPU, DAY) is None


def test_the_latest_death_of_a_strategy_replaces_the_one_before() -> None:
    first = died(decide(JOB, Constraints()), DDP)
    later, other = replace(first, seen_on="2026-11-23"), replace(first, strategy="zero1")
    history = History().plus(first).plus(other).plus(later)
    assert (other, later) == history.ran_out


def test_a_history_is_read_as_it_was_written() -> None:
    history = History().plus(died(decide(JOB, Constraints()), DDP))
    assert history == decode(History, encode(history), "ran_out")


@pytest.mark.parametrize("cause", Cause)
def test_only_memory_is_worth_another_attempt(cause: Cause) -> None:
    expected = {Cause.CUDA_OOM: MemoryKind.GPU, Cause.HOST_OOM: MemoryKind.HOST}.get(cause)
    assert expected is memory_of(cause)
