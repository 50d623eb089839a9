"""Read a machine from a file, which was saved on this host or on another."""

import json
from collections.abc import Mapping
from pathlib import Path

from zerowiz.core.machine.job_gpus import select_gpus
from zerowiz.core.machine.types import Machine, MachineSource
from zerowiz.core.machine_json import decode_machine
from zerowiz.core.values import replace
from zerowiz.errors import UsageError
from zerowiz.probe.machine.read import read_machine
from zerowiz.probe.recording.recording import SCHEMA_VERSION as RECORDING
from zerowiz.probe.recording.recording import decode_recording
from zerowiz.probe.recording.tape import BrokenAnswerError

DESCRIPTION = 1
"""The `schema_version` of a file that describes a machine: `plan --json`, or a person's own."""

_HOW = "to write one, run on that host: `zerowiz machine --save node.json`"


def read_machine_file(path: Path, *, gpus: str | None = None) -> Machine:
    """The machine in a file of `machine --save`, or in the output of `plan --json`.

    Args:
        path: The file.
        gpus: The value of `--gpus`; `None` for all that a job saw there.

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
    return parse_machine_file(text, str(path), gpus=gpus)


def parse_machine_file(text: str, name: str, *, gpus: str | None = None) -> Machine:
    """The machine in the text of a machine file.

    Args:
        text: The content of the file.
        name: What errors call the file.
        gpus: As in `read_machine_file`.

    Raises:
        UsageError: It holds no machine that this version knows.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"machine file `{name}` is not JSON: {error}", _HOW) from None
    if not isinstance(content, dict):
        raise UsageError(f"machine file `{name}` has no JSON object", _HOW)
    version = content.get("schema_version")
    if version == RECORDING:
        machine = _replayed(content, name, gpus)
    elif version == DESCRIPTION:
        machine = select_gpus(_described(content, name), {}, gpus)
    else:
        said = "no `schema_version`" if version is None else f"`schema_version` {version!r:.40}"
        known = f"{DESCRIPTION} (described) and {RECORDING} (recorded)"
        raise UsageError(
            f"machine file `{name}` has {said}; this version of zerowiz reads {known}", _HOW
        )
    return replace(machine, source=MachineSource.FILE)


def _replayed(content: Mapping[str, object], name: str, gpus: str | None) -> Machine:
    try:
        return read_machine(decode_recording(content, name), gpus=gpus)
    except BrokenAnswerError as error:
        raise UsageError(f"machine file `{name}`: {error.message}", _HOW) from None


def _described(content: Mapping[str, object], name: str) -> Machine:
    if "machine" not in content:
        raise UsageError(f"machine file `{name}` has no `machine`", _HOW)
    return decode_machine(content["machine"], f"{name}: machine")
