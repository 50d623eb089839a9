"""What of a script is right at some stages only, against the stage of a plan and those that may follow."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from core.preflight.cases import H200, refusing, staged
from ranks.harness import ask_ranks

from zerowiz.core.preflight.examine import examine
from zerowiz.core.preflight.facts import PreflightInput
from zerowiz.core.preflight.stages import STAGE_ROWS, wrong_stages
from zerowiz.core.script.facts import StageKind, ValueSource
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.strategies import DDP, STRATEGIES, ZERO1, ZERO2, ZERO3, ZERO3_OFFLOAD
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration

UNKNOWN, NEVER, ALWAYS = ValueSource(), ValueSource(value=False), ValueSource(value=True)
CODES = {row.rule.code for row in STAGE_ROWS.values()}


def severities(job: PreflightInput) -> list[str]:
    return [each.severity.value for each in examine(job) if each.rule.code in CODES]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        *((staged(StageKind.ALONE, each), ["error"]) for each in (DDP, ZERO1, ZERO2, ZERO3)),
        (staged(StageKind.ALONE_SHARDED, ZERO3), ["error"]),
        (staged(StageKind.ALONE_SHARDED, ZERO3_OFFLOAD), ["error"]),
        (staged(StageKind.ALONE_SHARDED, ZERO2), []),
        (staged(StageKind.ALONE, ZERO2, machine=replace(H200, gpus=H200.gpus[:1])), []),
        (staged(StageKind.NO_SYNC, ZERO1), []),
        (staged(StageKind.NO_SYNC, ZERO2), ["error"]),
        (staged(StageKind.NO_SYNC, ZERO3), ["error"]),
        (staged(StageKind.EVALUATES_FIRST, ZERO2), ["error"]),
        (staged(StageKind.EVALUATES_FIRST, ZERO3), []),
        # It may be of no matter what the script does with an empty weight.
        (staged(StageKind.READS, ZERO3), ["warning"]),
        (staged(StageKind.READS, ZERO2), []),
        # A path that not every run takes, or none.
        (staged(StageKind.ALONE, ZERO2, UNKNOWN), ["warning"]),
        (staged(StageKind.ALONE, ZERO2, ALWAYS), ["error"]),
        (staged(StageKind.ALONE, ZERO2, UNKNOWN, NEVER), []),
        # What only a further attempt comes to.
        (staged(StageKind.NO_SYNC, ZERO1, escalates=True), ["warning"]),
        (staged(StageKind.READS, ZERO2, escalates=True), ["warning"]),
        (staged(StageKind.EVALUATES_FIRST, ZERO3, escalates=True), []),
        (refusing("auto_find_batch_size", strategy=ZERO3), ["error"]),
        (refusing("auto_find_batch_size", strategy=ZERO2), []),
        (refusing("save_only_model", "load_best_model_at_end", strategy=DDP), ["error"]),
        (refusing("save_only_model", strategy=ZERO3), []),
        (
            refusing("auto_find_batch_size", strategy=ZERO3, integration=Integration.ACCELERATE),
            [],
        ),
    ],
)
def test_what_is_wrong_at_a_stage_ends_a_launch_there_and_is_a_warning_elsewhere(
    job: PreflightInput, expected: list[str]
) -> None:
    assert expected == severities(job)


@pytest.mark.parametrize("kind", StageKind)
def test_a_row_names_another_stage_where_there_is_a_right_one(kind: StageKind) -> None:
    for strategy in STRATEGIES:
        found = [each for each in examine(staged(kind, strategy)) if each.rule.code in CODES]
        assert (strategy.stage in STAGE_ROWS[kind].stages) is bool(found)
        for each in found:
            named = [int(fix[-2]) for fix in each.fixes if "$stage" in fix]
            right = {0, 1, 2, 3} - STAGE_ROWS[kind].stages
            assert bool(right) is bool(named)
            assert right.issuperset(named)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (staged(StageKind.NO_SYNC, ZERO2), {2, 3}),
        (staged(StageKind.NO_SYNC, ZERO2, UNKNOWN), set()),
        (staged(StageKind.READS, ZERO2), set()),
        (refusing("auto_find_batch_size", strategy=ZERO2), {3}),
    ],
)
def test_the_wrong_stages_of_a_script_are_those_that_would_end_its_launch(
    job: PreflightInput, expected: set[int]
) -> None:
    assert job.planned is not None
    run = job.planned.script
    assert run is not None
    assert expected == wrong_stages(run, job.planned.integration, 2)


def test_a_script_that_saves_by_itself_is_wrong_at_stage_3_unless_it_has_adapters() -> None:
    from core.preflight.cases import saving

    planned = saving(ZERO2).planned
    assert planned is not None
    assert planned.script is not None
    assert {3} == wrong_stages(planned.script, Integration.HF, 2)
    facts = replace(planned.script.facts, trains_adapters=True)
    assert not wrong_stages(ScriptRun(facts), Integration.HF, 2)


# What the calls really do, on two ranks.


REFUSED_ANYWAY = {"save_only_model": "ValueError", "second trainer": "NotImplementedError"}
OF_ACCELERATE = {
    "clip_grad_value_": "Exception",
    "two models": "AssertionError",
    "no_sync": "AssertionError",
}
WRITTEN_ALONE = {
    "save_checkpoint": "done",
    "guarded": "done",
    "save_16bit_model alone": "done",
    "forward alone": "done",
    "save_checkpoint alone": "waits",
}
REALLY: Mapping[str, Mapping[str, object]] = {
    "trainer:2": {
        **REFUSED_ANYWAY,
        "auto_find_batch_size": "done",
        "rows": 64,
        "evaluate first": "ValueError",
        "guarded": "done",
        "save_model alone": "done",
    },
    "trainer:3": {
        **REFUSED_ANYWAY,
        "auto_find_batch_size": "ValueError",
        "rows": 0,
        "evaluate first": "done",
        "guarded": "RuntimeError",
        "save_model alone": "waits",
    },
    "adapters:2": {"merged": 32 * 32},
    "adapters:3": {"merged": 0},
    "accelerate:2": {**OF_ACCELERATE, "guarded": "done", "get_state_dict alone": "done"},
    "accelerate:3": {
        **OF_ACCELERATE,
        "guarded": "RuntimeError",
        "get_state_dict alone": "waits",
    },
    "engine:1": {"average": "done", "no_sync": "done", **WRITTEN_ALONE},
    "engine:2": {"average": "done", "no_sync": "AssertionError", **WRITTEN_ALONE},
    "engine:3": {
        "average": "RuntimeError",
        "no_sync": "AssertionError",
        "save_checkpoint": "done",
        "guarded": "RuntimeError",
        "save_16bit_model alone": "waits",
    },
    # A model without its optimizer is refused at every stage.
    **{f"unprepared:{stage}": {"step": "AssertionError"} for stage in (0, 1, 2)},
    "unprepared:3": {"step": "AttributeError"},
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, dict[str, Any]]:
    """What rank 0 of each job saw."""
    folder, script = tmp_path_factory.mktemp("stages"), Path(__file__).with_name("stage_ranks.py")
    asked = [{"ranks": 2, "kind": job[:-2], "stage": int(job[-1])} for job in REALLY]
    seen = [first for first, _ in ask_ranks(script, asked, folder)]
    return dict(zip(REALLY, seen, strict=True))


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("job", REALLY)
def test_the_libraries_do_what_the_rows_say(job: str, jobs: Mapping[str, dict[str, Any]]) -> None:
    found = dict(jobs[job])
    assert found.pop("raised") is None, found
    # What the script's own call writes, as a part of what the fix writes; `guarded` is that call in
    # a rank that zerowiz prepared, where all else saves as before.
    itself, gathered = found.pop("itself", None), found.pop("gathered", None)
    assert REALLY[job] == found
    if gathered is not None:
        # What is written at stage 3 without gathering has the names of the weights alone.
        assert itself / gathered < 0.4 if job.endswith("3") else itself / gathered > 0.9
