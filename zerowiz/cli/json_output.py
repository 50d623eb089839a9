"""The one JSON object that `--json` promises on stdout, also where a command fails."""

import json
import sys
from types import SimpleNamespace

from zerowiz.errors import ExitCode, ZerowizError, page_of

SCHEMA_VERSION = 1
"""Of the object of an error."""
_STDOUT = SimpleNamespace(asked=False, written=False)


def expect_json(*, asked: bool) -> None:
    """A command begins: whether its stdout is to be one JSON object."""
    _STDOUT.asked, _STDOUT.written = asked, False


def write_text(text: str) -> None:
    """The object, as text."""
    _STDOUT.written = True
    sys.stdout.write(text + "\n")


def write_json(content: object) -> None:
    """One value of JSON."""
    write_text(json.dumps(content, indent=2))


def write_error(error: ZerowizError) -> None:
    """Where JSON was asked for and nothing else was written: what went wrong.

    A plan that says that nothing fits is an answer: it has been written, and stays the only object.
    """
    if not _STDOUT.asked or _STDOUT.written:
        return
    from zerowiz.core.flags import spell  # noqa: PLC0415 - most runs end without an error

    said = {
        "kind": ExitCode(error.exit_code).name.lower(),
        "message": spell(error.message),
        "hints": [spell(hint) for hint in error.hints],
        "exit_code": int(error.exit_code),
        "url": page_of(f"exit-{int(error.exit_code)}"),
    }
    write_json({"schema_version": SCHEMA_VERSION, "error": said})
