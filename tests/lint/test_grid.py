"""Every key with values of the wrong kind: the check finds what a reader of the config raises at."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from lint.cases import ask_readers
from lint.grid import CELLS, KEPT, OTHER_TRAINING, Cell

from zerowiz.core.findings import Severity
from zerowiz.core.lint.config import Context
from zerowiz.core.lint.linter import lint
from zerowiz.probe.files import read_ds_schema

SCHEMA = read_ds_schema("0.19.8")
Kept = Mapping[str, Mapping[str, list[str]]]
"""The kinds of values with which a reader raises, by reader and key."""

# Of what a reader raises at, at least so much is found.
LEAST_FOUND = 0.995


def kept() -> Kept:
    table: Kept = json.loads(KEPT.read_text(encoding="utf-8"))
    return table


def raises(cell: Cell, table: Kept) -> bool:
    return cell.kind in table[cell.reader.value].get(cell.key, ())


def is_error(cell: Cell) -> bool:
    found = lint(cell.text, SCHEMA, Context(integration=cell.reader))
    return any(finding.severity is Severity.ERROR for finding in found)


def named(cells: Iterable[Cell]) -> list[tuple[str, str, str]]:
    return [(cell.reader.value, cell.key, cell.kind) for cell in cells]


def test_what_a_reader_raises_at_is_an_error() -> None:
    table = kept()
    raised = [cell for cell in CELLS if raises(cell, table)]
    missed = [cell for cell in raised if not is_error(cell)]
    assert len(missed) <= len(raised) * (1 - LEAST_FOUND), named(missed)


def test_what_trains_is_no_error() -> None:
    table = kept()
    trained = [cell for cell in CELLS if not raises(cell, table)]
    refused = [cell for cell in trained if is_error(cell)]
    assert [] == named(cell for cell in refused if (cell.key, cell.kind) not in OTHER_TRAINING)


# What the readers really do, in a quarter of an hour:
# `pytest --truth --thorough --update-golden tests/lint` rewrites the table.

PATIENCE_SECONDS = 5400


def questions() -> list[dict[str, Any]]:
    """One for each key and reader, so that one process reads all of its values."""
    asked = []
    for (reader, key), group in groupby(CELLS, key=lambda cell: (cell.reader, cell.key)):
        cells = list(group)
        section = key.partition(".")[0]
        asked.append(
            {
                "id": f"{reader.value} {key}",
                "asked": cells[0].asked,
                "world_size": 1,
                "own": False,
                "compute_capability": None,
                "arguments": {"per_device_train_batch_size": 2}
                | ({section: True} if section in {"fp16", "bf16"} else {}),
                "configs": {cell.kind: cell.text for cell in cells},
            }
        )
    return asked


@pytest.mark.deepspeed
@pytest.mark.truth
@pytest.mark.thorough
def test_the_readers_raise_as_the_table_says(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    answers = ask_readers(questions(), tmp_path, PATIENCE_SECONDS)
    table: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for (reader, key), group in groupby(CELLS, key=lambda cell: (cell.reader, cell.key)):
        raised = answers[f"{reader.value} {key}"]["raised"]
        kinds = [cell.kind for cell in group if raised[cell.kind] is not None]
        if kinds:
            table[reader.value][key] = kinds
    if request.config.getoption("--update-golden"):
        write(table)
    assert kept() == table


def write(table: Kept) -> None:
    """A line for each key."""
    parts = []
    for reader, keys in table.items():
        lines = ",\n".join(
            f"  {json.dumps(key)}: {json.dumps(kinds)}" for key, kinds in keys.items()
        )
        parts.append(f" {json.dumps(reader)}: {{\n{lines}\n }}")
    KEPT.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
