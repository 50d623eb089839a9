"""The measured rows of the harness, kept from session to session."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zerowiz.core.measured_row import measured_step

Row = Mapping[str, Any]

ROWS = Path(__file__).parents[1] / "measured" / "regret"


def read_regret_rows(folder: Path = ROWS) -> list[Row]:
    """Every row, in the order in which the files are named."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def by_setting(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each setting by `job/setting`; a second run of one has `@2` after it."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row["id"]).partition("@")[0], []).append(row)
    return found


def seconds_of(row: Row) -> float | None:
    """Of a steady step; None where the run ran out of memory, or failed."""
    steady = measured_step(row) if row["ok"] else None
    return None if steady is None else steady.seconds


def says_something(row: Row) -> bool:
    """Running out of memory is an answer, failing is none."""
    return seconds_of(row) is not None or row["oom_phase"] is not None
