"""The flat copy of the weights at ZeRO-1 and ZeRO-2, beside ranks that built an engine on full GPUs."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from measured.rows import read_model
from paths import TESTS

from zerowiz.core.memory.allocations import AllocationKind, Phase, moment_bytes
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.memory.estimate import Estimate, estimate
from zerowiz.core.memory.rank_sizes import rank_sizes
from zerowiz.core.model.types import Tensor
from zerowiz.core.strategies import ZERO1, ZERO2, ZERO2_OFFLOAD
from zerowiz.core.structs import replace
from zerowiz.core.workload import Workload

Row = Mapping[str, Any]
ROWS: list[Row] = json.loads((TESTS / "measured" / "2026-11-flattening.json").read_text())
LAYER = Tensor(name="layer", shape=(8192, 8192), copies=40, linear=True)
MODEL = replace(read_model("llama-2-7b"), tensors=(LAYER,), params=LAYER.numel * LAYER.copies)
STRATEGIES = {(1, "none"): ZERO1, (2, "none"): ZERO2, (2, "cpu"): ZERO2_OFFLOAD}


def predicted(row: Row) -> Estimate:
    strategy = STRATEGIES[row["stage"], row["offload"]]
    rank = rank_sizes(MODEL, Workload(), row["ranks"], strategy, DEEPSPEED_DEFAULTS)
    whole = estimate(MODEL, rank)
    return whole if row["path"] == "cuda" else whole.flattened_on_host


@pytest.mark.parametrize("row", ROWS)
def test_it_is_made_where_the_free_memory_says(row: Row) -> None:
    assert (row["free_bytes_before"] >= row["weights_bytes"]) is (row["path"] == "cuda")


# SGD has no states here, and no loss scaling: what is left out is what an optimizer adds to init.
@pytest.mark.parametrize("row", [row for row in ROWS if row["lacked_bytes"] is None])
def test_the_peak_of_init_is_the_measured_one(row: Row) -> None:
    moments = predicted(row).moments[Phase.INIT]
    assert row["gpu_peak_bytes"] == max(map(moment_bytes, moments))


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row["lacked_bytes"] and row["offload"] == "cpu"]
)
def test_what_ran_out_of_memory_is_the_copy_of_the_share(row: Row) -> None:
    copies = {
        allocation.size_bytes
        for moment in predicted(row).moments[Phase.INIT]
        for allocation in moment
        if allocation.kind is AllocationKind.SHARE_COPY
    }
    assert {row["lacked_bytes"]} == copies


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row["lacked_bytes"] and row["path"] == "cpu"]
)
def test_the_host_holds_the_weights_twice_meanwhile(row: Row) -> None:
    """And the interpreter: 1.2 GB in the runs that flattened nothing there."""
    assert row["host_peak_bytes"] - 2 * row["weights_bytes"] == pytest.approx(1.2e9, abs=1e8)
