"""The planned class and rate against what NCCL's collectives reached on the same machine."""

import json
from typing import Any

import pytest
from paths import TESTS
from recorded import play, recording

from zerowiz.core.machine.types import Machine

GIB = 2**30
RUNS = json.loads((TESTS / "measured" / "links.json").read_text())["runs"]
OVER_NVLINK, OVER_HOST = RUNS
# Of the nominal rate, with messages of 1 GiB: what docs/concepts/links.md says. A gather has half
# the bytes of an all-reduce of that size, and reaches less.
BANDS = {True: (0.55, 0.75), False: (0.35, 0.50)}


def planned(run: dict[str, Any]) -> Machine:
    """The recording is of the same kind of machine."""
    return play(recording("h200-x2"), environ=run["environ"])


def large(run: dict[str, Any]) -> dict[str, int]:
    return {
        row["collective"]: row["busbw_bytes_per_s"]
        for row in run["rows"]
        if row["size_bytes"] == GIB
    }


@pytest.mark.parametrize("run", RUNS, ids=["nvlink", "host"])
def test_a_large_collective_reaches_the_stated_part_of_the_planned_rate(
    run: dict[str, Any],
) -> None:
    link = planned(run).interconnect
    assert link.bytes_per_s is not None
    low, high = BANDS[link.is_fast]
    assert {"all_reduce", "all_gather", "reduce_scatter"} == large(run).keys()
    for name, measured in large(run).items():
        assert low <= measured / link.bytes_per_s <= high, name


@pytest.mark.parametrize("run", RUNS, ids=["nvlink", "host"])
def test_nccl_searched_rings_for_less_than_is_nominal(run: dict[str, Any]) -> None:
    rings, link = run["nccl_rings"], planned(run).interconnect
    assert link.bytes_per_s is not None
    assert 0.6 <= rings["searched"] * rings["bytes_per_s_each"] / link.bytes_per_s <= 0.85


def test_fast_was_ten_times_as_fast_as_slow() -> None:
    assert planned(OVER_NVLINK).is_fast
    assert not planned(OVER_HOST).is_fast
    for name, measured in large(OVER_NVLINK).items():
        assert measured > 10 * large(OVER_HOST)[name]
