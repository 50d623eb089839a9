"""Trace the micro-steps of measured runs, and predict the runs by what is committed of that.

Run with `python tests/measured/traces.py`: it traces those of RUNS that the installed transformers
runs as the measured one did, and writes their lines of traces.json anew.
"""

import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from zerowiz.core.memory.rank_sizes import rank_sizes

if __name__ == "__main__":
    # Its siblings are `measured.…`, as they are to the tests.
    sys.path[0] = str(Path(__file__).parents[1])

from measured.rows import (
    Row,
    buffers_of,
    estimate_ranks,
    family_of,
    is_decay_apart,
    read_every_row,
    read_model,
    strategy_of,
    workload_of,
)

from zerowiz.core.memory.activations import activations
from zerowiz.core.memory.estimate import Estimate
from zerowiz.core.memory.micro_step import Traced
from zerowiz.core.model.from_name import guess_model
from zerowiz.core.model.hf_config import read_architecture
from zerowiz.core.model.types import Model
from zerowiz.core.structs import decode, encode

TRACES = Path(__file__).with_name("traces.json")
_TESTS = Path(__file__).parents[1]

# Every run of a family without formulas (tests/strangers), and one to three of each with formulas, by
# the transformers that traces them; 5.17 ran them all. Since then OPT can be traced (its layerdrop
# looked into its data), Gemma 2 has no sdpa, and T5's position bias is laid out so that a fused
# kernel takes it.
RUNS: Mapping[str, tuple[str, ...]] = {
    "5.23.0": (
        *("i1-063", "i1-064", "i1-065", "i1-066", "i1-067", "i1-068", "i1-069", "i1-070"),
        *("f1-014", "b4-017", "b4-022", "f1-010", "f2-015", "f2-016", "f2-006", "i1-053"),
        *("i1-032", "f2-010", "f2-019", "b4-026", "f2-000", "f2-001", "f3-019", "f2-007"),
        *("f2-008", "f2-011", "f2-012", "f2-013", "f2-014", "f2-017", "f2-018", "f2-020"),
        *("i1-058", "i1-059", "b4-027", "d4-000"),
    ),
    "5.17.0": ("b4-019", "f1-024", "f2-003", "h1-047", "i1-041"),
}


class Committed(Struct, frozen=True, kw_only=True):
    """What is committed of one trace."""

    transformers: str
    """The version whose model was traced."""
    torch: str
    traced: Traced


@cache
def read_traces() -> Mapping[str, Committed]:
    """The traced micro-steps, by the id of the run that took them."""
    values = json.loads(TRACES.read_text(encoding="utf-8"))
    return {run: decode(Committed, value, run) for run, value in values.items()}


def folder_of(model: str) -> Path:
    """Where the config.json of a measured model lies."""
    folder = _TESTS / "models" / model
    return folder if folder.is_dir() else _TESTS / "strangers" / model


def read_config_of(row: Row) -> Mapping[str, Any]:
    """The config.json of the run's model, of a known family or not."""
    path = folder_of(row["model"]) / "config.json"
    config: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return config


def trace_of(row: Row) -> Traced | None:
    """The committed trace of the run's micro-step, None where there is none."""
    committed = read_traces().get(row["id"])
    return None if committed is None else committed.traced


def stand_in(row: Row) -> Traced | None:
    """The trace that says what no formulas do; None for a run of a family that has them."""
    return trace_of(row) if family_of(row) is None else None


def traced_model(row: Row, traced: Traced) -> Model:
    """The run's model as its trace counts it."""
    name = row["model"]
    known = family_of(row) is not None
    return traced.model(name, read_architecture(name, read_config_of(row)) if known else None)


def model_of(row: Row) -> Model:
    """The run's model as zerowiz counts it unasked: by formulas, else by its trace."""
    traced = stand_in(row)
    return traced_model(row, traced) if traced else read_model(row["model"])


def predict_traced(row: Row) -> Estimate | None:
    """What zerowiz says about the run with `--trace`, None where no trace is committed."""
    return next(iter(predict_traced_ranks(row)), None)


def predict_traced_ranks(row: Row) -> list[Estimate]:
    """The same of each rank; none where no trace is committed."""
    traced = trace_of(row)
    return [] if traced is None else _estimate(row, traced_model(row, traced), traced)


def predict_guessed(row: Row) -> Estimate:
    """What zerowiz says about a run of an unknown family where torch is not installed."""
    return _estimate(row, guess_model(row["model"], read_config_of(row)), None)[0]


def _estimate(row: Row, model: Model, traced: Traced | None) -> list[Estimate]:
    sizes = rank_sizes(
        model,
        workload_of(row),
        row["gpus"],
        strategy_of(row),
        buffers_of(row),
        traced,
        is_decay_apart(row),
    )
    return estimate_ranks(model, sizes, row["gpus"])


def kept_two_ways(row: Row) -> tuple[int, int] | None:
    """What forward keeps for backward, by formulas and by the committed trace, where there are both."""
    committed = read_traces().get(row["id"])
    if committed is None or family_of(row) is None:
        return None
    workload = workload_of(row)
    both = (
        activations(read_model(row["model"]).architecture, workload),
        committed.traced.activations(workload),
    )
    said, seen = (each.saved_bytes + each.head_bytes for each in both)
    return said, seen


def take_trace(row: Row) -> Traced:
    """A new trace of the run's micro-step."""
    from zerowiz.probe.model.trace import trace_model

    return trace_model(read_config_of(row), workload_of(row))


def encode_traces(traces: Mapping[str, Committed]) -> str:
    """One run a line, so that a diff shows the traces that moved."""
    lines = (f"{json.dumps(run)}: {json.dumps(encode(traces[run]))}" for run in sorted(traces))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    """Trace what the installed transformers is asked for, and keep the rest."""
    import torch
    import transformers

    version = transformers.__version__
    rows = {row["id"]: row for row in read_every_row() if row["id"] in RUNS.get(version, ())}
    if not rows:
        sys.stderr.write(f"error: nothing is traced by transformers {version}\n")
        return 2
    now = {
        run: Committed(transformers=version, torch=str(torch.__version__), traced=take_trace(row))
        for run, row in rows.items()
    }
    kept = read_traces() if TRACES.exists() else {}
    TRACES.write_text(encode_traces({**kept, **now}), encoding="utf-8")
    sys.stdout.write(f"wrote {len(now)} traces to {TRACES.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
