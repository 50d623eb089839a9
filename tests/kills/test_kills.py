"""Whatever happens to a real DeepSpeed job: its status tells it, and nothing is left of it."""

import random
from pathlib import Path

import pytest
from kills.cases import CASES, misses, run_case

pytestmark = pytest.mark.deepspeed

# One way for each part of a job that can end first, and one in the middle of a save.
SAMPLED = {
    *("a rank raises", "a rank is killed", "deepspeed is killed"),
    *("TERM in a step", "INT in a save"),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SAMPLED else pytest.mark.slow) for name in CASES],
)
def test_the_status_is_right_and_nothing_is_left(name: str, tmp_path: Path) -> None:
    chance = random.Random(name)  # noqa: S311 - no secret
    ended = run_case(CASES[name], tmp_path, chance)
    assert [] == misses(CASES[name], ended), ended.stderr[-4000:].decode(errors="replace")
