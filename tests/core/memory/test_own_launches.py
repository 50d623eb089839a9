"""Hold the prediction to what `zerowiz launch` itself measured on real GPUs: no formula saw these."""

import json

import pytest
from measured.rows import Row, buffers_of, read_model
from paths import TESTS

from zerowiz.core.memory.estimate import Estimate, estimate
from zerowiz.core.memory.rank_sizes import rank_sizes
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.workload import StateDtype, Workload

PATH = TESTS / "measured" / "launches.jsonl"
ROWS: list[Row] = [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]


def predict(row: Row) -> Estimate:
    """The plan of this launch, with the buffers that its written config had."""
    model = read_model(row["model"])
    workload = Workload(
        micro_batch=row["micro_batch"],
        sequence_tokens=row["sequence_tokens"],
        accumulation_steps=row["accumulation_steps"],
        gradient_checkpointing=row["gradient_checkpointing"],
        optimizer_state_dtype=StateDtype(row["optimizer_state_dtype"]),
    )
    strategy = next(s for s in STRATEGIES if s.name == row["strategy"])
    buffers = buffers_of({**row, "stage": strategy.stage})
    return estimate(model, rank_sizes(model, workload, row["gpus"], strategy, buffers))


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['script']}-{r['strategy']}")
def test_a_launch_peaks_where_its_plan_said(row: Row) -> None:
    predicted = predict(row).peak_bytes
    first, *others = row["peak_bytes_by_rank"]
    assert predicted == pytest.approx(first, rel=0.0015)
    # Shares are cut through tensors, so the other ranks hold a little more or less.
    for peak_bytes in others:
        assert predicted == pytest.approx(peak_bytes, rel=0.025)
