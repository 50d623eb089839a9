"""Whatever is typed ends soon, in a documented code and one line; `make test-faults` tries 2,000."""

from pathlib import Path

import pytest
from faults.bounded import misses, run_bounded
from faults.command_lines import command_line
from faults.zoo import build_zoo

from zerowiz.cli.commands import COMMANDS

SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_command_line_ends_as_it_should(seed: int, tmp_path: Path) -> None:
    build_zoo(tmp_path / "zoo")
    ended = run_bounded(tmp_path / "zoo", command_line(seed))
    assert [] == misses(ended), (ended.words, ended.stderr)


def test_the_lines_of_a_seed_are_always_the_same() -> None:
    lines = [command_line(seed) for seed in range(300)]
    assert lines == [command_line(seed) for seed in range(300)]
    assert COMMANDS.keys() == {words[0] for words in lines}
