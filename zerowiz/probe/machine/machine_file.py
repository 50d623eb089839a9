"""Read a machine, measured results or prices from a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from zerowiz.core.machine.job_gpus import select_gpus
from zerowiz.core.machine.names import decode_machine
from zerowiz.core.machine.types import Machine, MachineSource
from zerowiz.core.structs import parse_json, replace
from zerowiz.errors import UsageError
from zerowiz.probe.files import cache_folder, read_kept, read_named_text

if TYPE_CHECKING:
    from zerowiz.core.job_end import MachineResults


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
        text = read_named_text(path)
    except FileNotFoundError:
        raise UsageError(f"machine file `{path}` does not exist", _HOW) from None
    except UnicodeDecodeError:
        raise UsageError(f"machine file `{path}` is not text", _HOW) from None
    except OSError as error:
        raise UsageError(f"machine file `{path}` cannot be read: {error.strerror}", _HOW) from None
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
        content = parse_json(text)
    except ValueError as error:
        raise UsageError(f"machine file `{name}` is not JSON: {error}", _HOW) from None
    if not isinstance(content, dict):
        raise UsageError(f"machine file `{name}` has no JSON object", _HOW)
    version = content.get("schema_version")
    if version != DESCRIPTION:
        version_text = (
            "no `schema_version`" if version is None else f"`schema_version` {version!r:.40}"
        )
        raise UsageError(
            f"machine file `{name}` has {version_text}; this version of zerowiz reads"
            f" {DESCRIPTION}",
            _HOW,
        )
    if "machine" not in content:
        raise UsageError(f"machine file `{name}` has no `machine`", _HOW)
    machine = decode_machine(content["machine"], f"{name}: machine")
    machine = select_gpus(machine, {}, gpus)
    return replace(machine, source=MachineSource.FILE)


# Read what `measure` kept of this machine.


def results_path(key: str, environ: Mapping[str, str]) -> Path:
    """The path of the results of the machine with this key."""
    return _folder(environ) / f"{key}.json"


def has_results(environ: Mapping[str, str]) -> bool:
    """Whether anything was measured here."""
    return _folder(environ).is_dir()


def _folder(environ: Mapping[str, str]) -> Path:
    return cache_folder(environ) / "zerowiz" / "measured"


def read_results(path: Path) -> "MachineResults":
    """The results in a file; none where the file is missing or cannot be read."""
    from zerowiz.core.job_end import MachineResults  # noqa: PLC0415 - seldom needed

    return read_kept(MachineResults, path) or MachineResults()
