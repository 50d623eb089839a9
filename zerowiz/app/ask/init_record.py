"""Turn answered options into a record, and a record back into options."""

import json
from collections.abc import Collection, Sequence

from zerowiz.app.machines.machine import means_cpu
from zerowiz.app.options import Options, rows, said, with_recorded
from zerowiz.errors import ZerowizError
from zerowiz.probe.launch.init_record import SCHEMA_VERSION, Record


def encode_record(script: str, script_args: Sequence[str], options: Options) -> str:
    """The record as text; only what differs from the defaults."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "script": script,
        "script_args": list(script_args),
        "options": {row.key: value for row, value in said(options)},
    }
    return json.dumps(content, indent=2, default=str) + "\n"


def recall(options: Options, record: Record, without: Collection[str] = ()) -> Options:
    """The recorded answers where the person says nothing now.

    A machine that was planned for is left out: a job starts where it is, and a dry run shows that
    job.

    Args:
        options: What the person says.
        record: What was recorded.
        without: Settings, by name, of which something is said elsewhere now.

    Raises:
        ZerowizError: The record holds a value that its option does not take.
    """
    left_out = {rows()[name].key for name in without if name in rows()}
    machine = record.options.get(rows()["machine"].key)
    if not (isinstance(machine, str) and means_cpu(machine)):
        left_out.add(rows()["machine"].key)
    kept = {key: value for key, value in record.options.items() if key not in left_out}
    try:
        return with_recorded(options, kept)
    except ZerowizError as error:
        raise ZerowizError(
            f"cannot use the settings that `zerowiz init` saved: {error.message}",
            "run `zerowiz init` again",
        ) from None
