"""What `init` answered, so that a bare `launch` repeats it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from zerowiz.cli.options import Options
from zerowiz.core.decide import OffloadChoice
from zerowiz.core.machine import Accelerator
from zerowiz.core.workload import (
    Accounting,
    Attention,
    Integration,
    Method,
    Optimizer,
    Precision,
    StateDtype,
)
from zerowiz.errors import ZerowizError

SCHEMA_VERSION = 1

# How a run is shown or where it writes is no answer.
_NOT_RECORDED = frozenset(
    {"yes", "as_json", "dry_run", "force", "quiet", "output_dir", "machine", "config"}
)
_READERS: Mapping[str, Callable[[str], object]] = {
    "method": Method,
    "accelerator": Accelerator,
    "precision": Precision,
    "optimizer": Optimizer,
    "optimizer_state_dtype": StateDtype,
    "attention": Attention,
    "offload": OffloadChoice,
    "accounting": Accounting,
    "integration": Integration,
    "hostfile": Path,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """The script and the options that `init` ended with."""

    script: str
    options: Mapping[str, object]


def record_path(folder: Path) -> Path:
    """Where `init` leaves its record."""
    return folder / ".zerowiz" / "init.json"


def encode_record(script: str, options: Options) -> str:
    """The record as text; only what differs from the defaults."""
    said = {
        field.name: getattr(options, field.name)
        for field in fields(Options)
        if field.name not in _NOT_RECORDED and getattr(options, field.name) != field.default
    }
    content = {"schema_version": SCHEMA_VERSION, "script": script, "options": said}
    return json.dumps(content, indent=2, default=str) + "\n"


def read_record(folder: Path) -> Record | None:
    """The record of an earlier `init` here, or None.

    Raises:
        ZerowizError: There is one, and this version cannot read it.
    """
    path = record_path(folder)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema_version"] != SCHEMA_VERSION:
            raise ValueError("schema_version")
        options = {
            name: _READERS[name](value) if name in _READERS else value
            for name, value in content["options"].items()
        }
        return Record(script=str(content["script"]), options=options)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ZerowizError(
            f"`{path}` is no record of this version's `zerowiz init`",
            "run `zerowiz init` again, or name the script: `zerowiz launch train.py`",
        ) from None


def recall(options: Options, record: Record) -> Options:
    """The recorded answers where the person says nothing now."""
    silent = {f.name for f in fields(Options) if getattr(options, f.name) == f.default}
    return replace(options, **{k: v for k, v in record.options.items() if k in silent})  # type: ignore[arg-type]
