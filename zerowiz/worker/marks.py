"""The files by which the ranks of a batch agree, each written whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any

Values = dict[str, Any]


def write_mark(path: Path, values: Values) -> None:
    """Write a JSON object; who reads meanwhile sees the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(values), encoding="utf-8")
    temporary.replace(path)


def read_mark(path: Path) -> Values | None:
    """The object, or None where nobody wrote it yet."""
    try:
        values: Values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return values


def case_folder(folder: Path, place: int) -> Path:
    """Where the ranks of a case leave their marks."""
    return folder / f"case-{place}"


def case_mark(folder: Path) -> Path:
    """The case itself, for a rank that cannot inherit it."""
    return folder / "case.json"


def start_mark(folder: Path) -> Path:
    """Rank 0 says that a case begins, and on which port its ranks meet."""
    return folder / "start.json"


def report_mark(folder: Path, rank: int) -> Path:
    """What the rank measured so far, written by the case itself after each phase."""
    return folder / f"rank-{rank}.json"


def end_mark(folder: Path, rank: int) -> Path:
    """How the case ended on a rank, written by the process that forked it."""
    return folder / f"end-{rank}.json"


def stop_mark(folder: Path) -> Path:
    """Rank 0 says that no further case begins."""
    return folder / "stop.json"


def log_file(folder: Path, rank: int) -> Path:
    """What the case wrote to stdout and stderr on a rank."""
    return folder / f"rank-{rank}.log"
