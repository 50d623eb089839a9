"""What the tests of several modules of the worker need."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank."""
    from torch import distributed

    store = f"file://{tmp_path / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
