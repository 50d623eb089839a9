"""Write a plan as the JSON that `--json` promises."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import msgspec

from zerowiz.app.decide import NoStrategyError, Plan
from zerowiz.app.plan_files import encode_plan, find_machine_change
from zerowiz.core.decision.search import Limit
from zerowiz.core.launch.provenance import encode_machine_change
from zerowiz.errors import ExitCode, ZerowizError, page_of

if TYPE_CHECKING:
    from zerowiz.app.answers_file import SettingOrigin
    from zerowiz.core.catalog import PlannedRun


# The one JSON object that `--json` promises on stdout, also where a command fails.

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
    from zerowiz.core.command_words import spell  # noqa: PLC0415 - most runs end without an error

    content = {
        "kind": ExitCode(error.exit_code).name.lower(),
        "message": spell(error.message),
        "hints": [spell(hint) for hint in error.hints],
        "exit_code": int(error.exit_code),
        "url": page_of(f"exit-{int(error.exit_code)}"),
    }
    write_json({"schema_version": SCHEMA_VERSION, "error": content})


def write_plan(
    plan: Plan,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    run: "PlannedRun | None" = None,
    limits: Sequence[Limit] | None = None,
    origins: "Sequence[SettingOrigin] | None" = None,
) -> None:
    """The contract's object of what was decided, with what has changed since an earlier plan."""
    content = encode_plan(plan, command, env, run, limits)
    change = find_machine_change(plan)
    if change is not None:
        content["machine_change"] = encode_machine_change(change)
    if origins is not None:
        content["origins"] = {origin.name: _origin(origin) for origin in origins}
    # As `write_json`, eight times faster: only without an indent does json use its C encoder.
    text = json.dumps(content)
    try:
        write_text(msgspec.json.format(text, indent=2))
    except msgspec.DecodeError:  # it names a path that is no UTF-8, which json alone writes
        write_json(json.loads(text))


def _origin(setting: "SettingOrigin") -> dict[str, object]:
    value = setting.value
    return {"value": str(value) if isinstance(value, Path) else value, "origin": setting.origin}


@contextmanager
def showing_refused_plan(*, as_json: bool) -> Iterator[None]:
    """Where nothing fits, `--json` still gets the plan that says so."""
    try:
        yield
    except NoStrategyError as error:
        if as_json:
            write_plan(error.plan)
        raise
