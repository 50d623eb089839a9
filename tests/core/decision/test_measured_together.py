"""Which settings no run had together, and what is said of a job with such settings."""

import json

import pytest
from accuracy.figures import MEASURED_RUNS
from accuracy.grid import encode_measured_runs, measured_runs
from measured.rows import read_every_row, read_model

from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.decision.plan_input import (
    MeasuredRuns,
    Pair,
    PairedSetting,
    PlanInput,
    accumulation_of,
    decode_measured_runs,
    find_never_together,
    pairs_of,
    point_of,
)
from zerowiz.core.decision.uncertainty import Assumption
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.strategies import STRATEGIES, ZERO3_OFFLOAD
from zerowiz.core.workload import Method, Workload
from zerowiz.probe.package_data import read_gpu_table, read_measured_pairs
from zerowiz.ui.sentences import interval, never_together

A, B = PairedSetting.STRATEGY, PairedSetting.METHOD
TWO = MeasuredRuns(settings=(A, B), runs=(("zero3-offload", "full"), ("zero2", "lora")))
HOLE: Pair = ((A, "zero3-offload"), (B, "lora"))


def test_the_shipped_table_holds_the_settings_of_the_measured_runs() -> None:
    runs = measured_runs(read_every_row())
    assert encode_measured_runs(runs) == MEASURED_RUNS.read_text(encoding="utf-8")
    assert runs == decode_measured_runs(json.loads(encode_measured_runs(runs)))
    assert runs.pairs() == read_measured_pairs()


@pytest.mark.parametrize(
    ("method", "missing"),
    [
        ("full", ()),
        ("lora", (HOLE,)),
        # No run had it at all: that is a doubt of its own.
        ("qlora", ()),
    ],
)
def test_a_hole_is_a_pair_of_values_that_were_measured_apart(
    method: str, missing: tuple[Pair, ...]
) -> None:
    assert missing == find_never_together({A: "zero3-offload", B: method}, TWO.pairs())


def test_nothing_is_a_hole_where_nothing_is_known_of_runs() -> None:
    assert () == find_never_together({A: "zero3-offload", B: "lora"}, frozenset())


@pytest.mark.parametrize(
    ("micro_steps", "named"), [(1, "1"), (2, "2"), (7, "2"), (8, "8"), (64, "8")]
)
def test_micro_steps_are_one_some_or_many(micro_steps: int, named: str) -> None:
    assert named == accumulation_of(micro_steps)


def test_a_run_is_in_no_hole() -> None:
    measured = read_measured_pairs()
    runs = decode_measured_runs(json.loads(MEASURED_RUNS.read_text(encoding="utf-8")))
    for run in runs.runs:
        point = dict(zip(runs.settings, run, strict=True))
        assert () == find_never_together(point, measured)


def job(measured: frozenset[Pair]) -> PlanInput:
    return PlanInput(
        machine=parse_spec("2xH200", read_gpu_table()),
        model=read_model("llama-3.2-1b"),
        workload=Workload(method=Method.LORA),
        measured_pairs=measured,
    )


def test_a_job_in_a_hole_is_named_and_less_sure() -> None:
    model = job(frozenset()).model
    known, hole = (
        evaluate(job(pairs), ZERO3_OFFLOAD).interval for pairs in (frozenset(), TWO.pairs())
    )
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
    model = read_model("llama-3.2-1b")
    named = {PairedSetting.FAMILY, PairedSetting.OPTIMIZER}
    for strategy in STRATEGIES:
        for method in Method:
            for steps in (1, 2, 8):
                step = Workload(method=method, accumulation_steps=steps)
                point = point_of(model.architecture.family, strategy, step, steps)
                for pair in pairs_of({k: v for k, v in point.items() if k not in named}):
                    (_, one), (_, other) = pair
                    assert f"{one} and {other}" != never_together(pair)
