"""Read a machine that was saved before, or on another host."""

import json
from dataclasses import replace
from pathlib import Path

from zerowiz.core.codec import decode_machine, read_object
from zerowiz.core.machine import Machine, MachineSource
from zerowiz.errors import UsageError

SCHEMA_VERSION = 1

_HOW = "`zerowiz machine --save FILE` writes one on the host it runs on"


def read_machine_file(path: Path) -> Machine:
    """The machine in a file of `machine --save`, or in the output of `plan --json`.

    Raises:
        UsageError: The file cannot be read, or holds no machine that this version knows.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"machine file `{path}` does not exist", _HOW) from None
    except UnicodeDecodeError:
        raise UsageError(f"machine file `{path}` is not text", _HOW) from None
    except OSError as error:
        raise UsageError(f"machine file `{path}` cannot be read: {error.strerror}") from None
    return parse_machine_file(text, str(path))


def parse_machine_file(text: str, name: str) -> Machine:
    """The machine in the text of a machine file; the name is for the errors."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UsageError(f"machine file `{name}` is not JSON: {error}", _HOW) from None
    fields = read_object(content, name)
    version = fields.values.get("schema_version")
    if version != SCHEMA_VERSION:
        said = "no `schema_version`" if version is None else f"`schema_version` {version!r:.40}"
        raise UsageError(
            f"machine file `{name}` has {said}; this zerowiz reads {SCHEMA_VERSION}", _HOW
        )
    if "machine" not in fields.values:
        raise UsageError(f"machine file `{name}` has no `machine`", _HOW)
    machine = decode_machine(fields.values["machine"], f"{name}: machine")
    return replace(machine, source=MachineSource.FILE)
