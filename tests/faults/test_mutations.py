"""A damaged machine file, config, model or script ends in one line, or in what it still says."""

from pathlib import Path

import pytest
from faults.bounded import misses, run_bounded
from faults.mutations import damage
from faults.zoo import build_zoo


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_file_ends_as_it_should(seed: int, tmp_path: Path) -> None:
    build_zoo(tmp_path / "zoo")
    ended = run_bounded(tmp_path / "zoo", damage(seed, tmp_path / "zoo"))
    assert [] == misses(ended), (ended.words, ended.stderr)
