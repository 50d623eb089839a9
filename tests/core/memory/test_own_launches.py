"""Hold the prediction to what `zerowiz launch` itself measured on real GPUs: no formula saw these."""

import json

import pytest
from measured.rows import Row, buffers_of, is_decay_apart, read_model
from paths import TESTS

from zerowiz.core.memory.allocations import Phase
from zerowiz.core.memory.estimate import estimate
from zerowiz.core.memory.rank_sizes import rank_sizes
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.structs import replace
from zerowiz.core.workload import StateDtype, Workload

# What was recorded is the steady state; of rows with `eval_batch` with the evaluation after it.
STEPS = {Phase.FORWARD, Phase.BACKWARD, Phase.STEP, Phase.EVALUATE}

PATH = TESTS / "measured" / "launches.jsonl"
ROWS: list[Row] = [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]


def predict(row: Row) -> list[int]:
    """The peaks that are said of the ranks of this launch, with the buffers that its written config had."""
    model = read_model(row["model"])
    workload = Workload(
        micro_batch=row["micro_batch"],
        sequence_tokens=row["sequence_tokens"],
        accumulation_steps=row["accumulation_steps"],
        gradient_checkpointing=row["gradient_checkpointing"],
        optimizer_state_dtype=StateDtype(row["optimizer_state_dtype"]),
        eval_batch=row.get("eval_batch", 0),
    )
    strategy = next(s for s in STRATEGIES if s.name == row["strategy"])
    buffers = buffers_of({**row, "stage": strategy.stage})
    apart = is_decay_apart({"kind": "launch", **row})
    ranks = row["gpus"]
    sizes = rank_sizes(model, workload, ranks, strategy, buffers, decay_apart=apart)
    cuts = sizes.cuts if strategy.cuts_shares else sizes.cuts * ranks
    phases = [estimate(model, replace(sizes, cut=cut)).phase_bytes() for cut in cuts]
    return [max(size for phase, size in each.items() if phase in STEPS) for each in phases]


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['script']}-{r['strategy']}")
def test_each_rank_of_a_launch_peaks_where_its_plan_said(row: Row) -> None:
    assert predict(row) == pytest.approx(row["peak_bytes_by_rank"], rel=0.003)


EVALUATED = [row for row in ROWS if "eval_batch" in row]


@pytest.mark.parametrize("row", EVALUATED, ids=lambda r: r["strategy"])
def test_an_evaluation_peaks_where_its_formula_says(row: Row) -> None:
    # Token ids and labels, which nothing counts.
    assert predict(row) == pytest.approx(row["peak_bytes_by_rank"], abs=300_000)
    without = predict({**row, "eval_batch": 0})
    assert max(without) < 0.95 * min(row["peak_bytes_by_rank"])


def test_a_launch_was_measured_with_its_evaluation_at_two_stages() -> None:
    assert ["zero1", "zero2"] == [row["strategy"] for row in EVALUATED]
