"""Whatever happens to a real DeepSpeed job: its status tells it, and nothing is left of it."""

import random
from pathlib import Path

import pytest
from kills.cases import CASES, misses, run_case

pytestmark = pytest.mark.deepspeed

# A rank that ends by itself, one that is killed, and a job that is asked to end.
SAMPLED = {"a rank raises", "a rank is killed", "TERM in a step"}
# Each other part of a job that can end first, in a save and at the start too.
SLOW = {"deepspeed is killed", "zerowiz is killed in a save", "INT in a save", "TERM at the start"}


def _marks(name: str) -> list[pytest.MarkDecorator]:
    if name in SAMPLED:
        return []
    return [pytest.mark.slow] if name in SLOW else [pytest.mark.slow, pytest.mark.thorough]


def test_what_is_sampled_has_a_case() -> None:
    assert SAMPLED | SLOW < {*CASES}


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in CASES])
def test_the_status_is_right_and_nothing_is_left(name: str, tmp_path: Path) -> None:
    chance = random.Random(name)  # noqa: S311 - no secret
    ended = run_case(CASES[name], tmp_path, chance)
    assert [] == misses(CASES[name], ended), ended.stderr[-4000:].decode(errors="replace")
