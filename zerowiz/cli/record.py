"""Turn answered options into a record, and a record back into options."""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path

from zerowiz.cli.options import MANNERS, Options
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
from zerowiz.probe.record import SCHEMA_VERSION, Record

# What is read back as something else than a text, a number or a switch.
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
    "config": Path,
    "output_dir": Path,
}


def encode_record(script: str, options: Options) -> str:
    """The record as text; only what differs from the defaults."""
    said = {
        field.name: getattr(options, field.name)
        for field in fields(Options)
        if field.name not in MANNERS and getattr(options, field.name) != field.default
    }
    content = {"schema_version": SCHEMA_VERSION, "script": script, "options": said}
    return json.dumps(content, indent=2, default=str) + "\n"


def recall(options: Options, record: Record) -> Options:
    """The recorded answers where the person says nothing now.

    Raises:
        ZerowizError: The record holds something that is no option.
    """
    silent = {f.name for f in fields(Options) if getattr(options, f.name) == f.default}
    try:
        answers = {
            name: _READERS[name](str(value)) if name in _READERS else value
            for name, value in record.options.items()
            if name in silent
        }
    except ValueError as error:
        raise ZerowizError(
            f"the record of `zerowiz init` cannot be used: {error}", "run `zerowiz init` again"
        ) from None
    return replace(options, **answers)  # type: ignore[arg-type]
