"""The cluster of the tests of nodes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes.harness import Cluster, make_cluster, why_not


@pytest.fixture(scope="session")
def possible() -> None:
    """Skip where this host cannot make nodes."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def cluster(possible: None, tmp_path: Path) -> Iterator[Cluster]:  # noqa: ARG001
    """A head and three nodes, new for every test: some lose one."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with make_cluster(folder, 3) as made:
        yield made
