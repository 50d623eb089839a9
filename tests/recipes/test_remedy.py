"""The recipe `a remedy`: a reference that is run before training, and not held while it trains."""

import json

import pytest
from recipes.copying import Copy, read_recipes

pytestmark = pytest.mark.slow

MODULE = "zerowiz/core/decision/remedy.py"
CASES = "tests/core/remedies/test_find.py"

REMEDY = """\
def precompute(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    \"\"\"The reference's log-probabilities from before training.\"\"\"
    w = job.workload
    if w.trainer is Trainer.DPO and w.resolved_reference is Reference.MODEL:
        yield _step(job, constraints, reference=Reference.PRECOMPUTED)


"""
CASE = """\
    "preferences": refused(
        parse_spec("8xA100-40GB", TABLE),
        Workload(trainer=Trainer.DPO, sequence_tokens=512, gradient_checkpointing=True),
        Constraints(stage=2),
        model=model_from_size("7b", 7 * 10**9),
    ),
"""
PLAN = (
    *("plan", "--machine", "8xA100-40GB", "--model", "7b", "--trainer", "dpo", "--stage", "2"),
    *("--seq-len", "512", "--gradient-checkpointing", "--json"),
)


def changes(copied: Copy) -> list[dict[str, object]]:
    """What would help a job that does not fit."""
    done = copied.zerowiz(*PLAN)
    assert 4 == done.returncode, done.stderr
    return [remedy["change"] for remedy in json.loads(done.stdout)["remedies"]]


def test_a_remedy_touches_its_module_and_its_case(copied: Copy) -> None:
    recipe = read_recipes()["a remedy"]

    assert {"--reference": "precomputed"} not in changes(copied)
    copied.insert(MODULE, REMEDY, before="# The same result, later.")
    copied.edit(MODULE, "    recompute,\n", "    recompute,\n    precompute,\n")
    copied.edit(MODULE, "    Precision,\n", "    Precision,\n    Reference,\n")
    assert {"--reference": "precomputed"} in changes(copied)
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.insert(CASES, CASE, before='    "rule of thumb": refused(')
    copied.edit(CASES, "    StateDtype,\n", "    StateDtype,\n    Trainer,\n")
    assert set() == copied.failed(CASES)
    copied.check_files(recipe)
