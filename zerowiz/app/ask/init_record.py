"""Turn answered options into a record, and a record back into options."""

import json
from dataclasses import fields

from zerowiz.cli.options import MANNERS, Options, with_values
from zerowiz.errors import ZerowizError
from zerowiz.probe.launch.init_record import SCHEMA_VERSION, Record


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
    silent -= MANNERS
    try:
        return with_values(options, {n: v for n, v in record.options.items() if n in silent})
    except ZerowizError as error:
        raise ZerowizError(
            f"the record of `zerowiz init` cannot be used: {error.message}",
            "run `zerowiz init` again",
        ) from None
