"""What every recipe starts from."""

from pathlib import Path

import pytest
from recipes.copying import Copy


@pytest.fixture
def copied(tmp_path: Path) -> Copy:
    """A fresh copy of the repository."""
    return Copy(tmp_path / "repository")
