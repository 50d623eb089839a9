"""Turn answered options into a record, and a record back into options."""

import json

from zerowiz.app.options import Options, said, with_recorded
from zerowiz.errors import ZerowizError
from zerowiz.probe.launch.init_record import SCHEMA_VERSION, Record


def encode_record(script: str, options: Options) -> str:
    """The record as text; only what differs from the defaults."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "script": script,
        "options": {row.key: value for row, value in said(options)},
    }
    return json.dumps(content, indent=2, default=str) + "\n"


def recall(options: Options, record: Record) -> Options:
    """The recorded answers where the person says nothing now.

    Raises:
        ZerowizError: The record holds a value that its option does not take.
    """
    try:
        return with_recorded(options, record.options)
    except ZerowizError as error:
        raise ZerowizError(
            f"the record of `zerowiz init` cannot be used: {error.message}",
            "run `zerowiz init` again",
        ) from None
