"""What of a script is right at some stages only, against the stage of a plan and those that may follow."""

import json
import sys
from pathlib import Path

import pytest
from core.preflight.cases import H200, refusing, staged
from ranks.harness import rank_environ, run

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
    assert expected == wrong_stages(run, job.planned.integration, 2)
    assert not wrong_stages(None, Integration.HF, 2)


def test_a_script_that_saves_by_itself_is_wrong_at_stage_3_unless_it_has_adapters() -> None:
    from core.preflight.cases import saving

    planned = saving(ZERO2).planned
    assert planned is not None
    assert planned.script is not None
    assert {3} == wrong_stages(planned.script, Integration.HF, 2)
    facts = replace(planned.script.facts, trains_adapters=True)
    assert not wrong_stages(ScriptRun(facts), Integration.HF, 2)


# What the calls really do, on two ranks.


def seen(kind: str, stage: int, folder: Path) -> dict[str, object]:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    script = Path(__file__).parent / "stage_ranks.py"
    done = run((*launcher, script, kind, str(stage), folder), rank_environ(folder / "r"), folder)
    assert 0 == done.returncode, done.stderr
    read: dict[str, object] = json.loads((folder / "seen.json").read_text())
    return read


def saved(found: dict[str, object]) -> float:
    """What the script's own call writes, as a part of what the fix writes."""
    itself, gathered = found.pop("itself"), found.pop("gathered")
    assert isinstance(itself, int)
    assert isinstance(gathered, int)
    return itself / gathered


REFUSED_ANYWAY = {"save_only_model": "ValueError", "second trainer": "NotImplementedError"}
OF_ACCELERATE = {
    "clip_grad_value_": "Exception",
    "two models": "AssertionError",
    "no_sync": "AssertionError",
}


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "stage", "expected"),
    [
        (
            "trainer",
            2,
            {
                **REFUSED_ANYWAY,
                "auto_find_batch_size": "done",
                "rows": 64,
                "evaluate first": "ValueError",
                "save_model alone": "done",
            },
        ),
        (
            "trainer",
            3,
            {
                **REFUSED_ANYWAY,
                "auto_find_batch_size": "ValueError",
                "rows": 0,
                "evaluate first": "done",
                "save_model alone": "waits",
            },
        ),
        ("adapters", 2, {"merged": 32 * 32}),
        ("adapters", 3, {"merged": 0}),
        ("accelerate", 2, {**OF_ACCELERATE, "get_state_dict alone": "done"}),
        ("accelerate", 3, {**OF_ACCELERATE, "get_state_dict alone": "waits"}),
        (
            "engine",
            1,
            {
                "average": "done",
                "no_sync": "done",
                "save_16bit_model alone": "done",
                "forward alone": "done",
                "save_checkpoint alone": "waits",
            },
        ),
        (
            "engine",
            2,
            {
                "average": "done",
                "no_sync": "AssertionError",
                "save_16bit_model alone": "done",
                "forward alone": "done",
                "save_checkpoint alone": "waits",
            },
        ),
        (
            "engine",
            3,
            {
                "average": "RuntimeError",
                "no_sync": "AssertionError",
                "save_16bit_model alone": "waits",
            },
        ),
    ],
)
def test_the_libraries_do_what_the_rows_say(
    kind: str, stage: int, expected: dict[str, object], folder: Path
) -> None:
    found = seen(kind, stage, folder)
    part = saved(found)
    assert expected == found
    # What is written at stage 3 without gathering has the names of the weights alone.
    assert part < 0.4 if stage == 3 else part > 0.9


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "error"),
    [(0, "AssertionError"), (1, "AssertionError"), (2, "AssertionError"), (3, "AttributeError")],
)
def test_a_model_without_its_optimizer_is_refused_at_every_stage(
    stage: int, error: str, folder: Path
) -> None:
    assert {"step": error} == seen("unprepared", stage, folder)
