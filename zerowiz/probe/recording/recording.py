"""Record every answer of a machine to a file, and read such a file back as a World."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from zerowiz.core.codec import decode, encode
from zerowiz.errors import UsageError
from zerowiz.probe.recording.files import FileAnswers, FilesLog, HostFiles, RecordedFiles
from zerowiz.probe.recording.scrub import scrub_calls, scrub_environ, scrub_files
from zerowiz.probe.recording.tape import Calls
from zerowiz.probe.recording.world import World
from zerowiz.words import _

SCHEMA_VERSION = 2

# The objects that are written with one key to a line, and the objects in them.
_EXPANDED: Mapping[str, Any] = {
    "nvml": {},
    "files": {part.name: {} for part in structs.fields(FileAnswers)},
    "environ": {},
}


class EnvironLog(Mapping[str, str]):
    """An environment that logs each variable that was looked up and is set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.seen: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """The variable's value, which is logged."""
        value = self._environ[name]
        self.seen[name] = value
        return value

    def __iter__(self) -> Iterator[str]:
        """The names of all variables."""
        return iter(self._environ)

    def __len__(self) -> int:
        """The count of all variables."""
        return len(self._environ)


class Recorder:
    """This host as a World that logs its answers.

    Args:
        environ: The environment.
        folder: The job's folder, whose file system is read.
        root: As of `HostFiles`.
    """

    def __init__(self, environ: Mapping[str, str], folder: Path, root: Path = Path("/")) -> None:
        self._files = FilesLog(files=HostFiles(folder=folder, root=root))
        self._environ = EnvironLog(environ)
        self._calls: Calls = {}
        self.world = World(files=self._files, environ=self._environ, log=self._calls)

    def write(self, version: str) -> str:
        """The text of the recording's file, without identifiers of the machine and its users.

        Args:
            version: The release of zerowiz.
        """
        uuids = tuple(
            answer["ok"]
            for call, answer in self._calls.items()
            if call.startswith("nvmlDeviceGetUUID(") and "ok" in answer
        )
        return render_recording(
            {
                "schema_version": SCHEMA_VERSION,
                "kind": "recorded",
                "made_by": f"zerowiz {version}",
                "nvml": scrub_calls(self._calls),
                "files": encode(scrub_files(self._files.answers, self._environ.seen)),
                "environ": scrub_environ(self._environ.seen, uuids),
            }
        )


def render_recording(content: Mapping[str, Any]) -> str:
    """JSON with one answer to a line, so that two recordings can be compared."""
    return _expand(content, _EXPANDED) + "\n"


def _expand(value: Any, inside: Mapping[str, Any] | None, indent: str = "") -> str:  # noqa: ANN401
    """An object with one key to a line, and so the objects in it that `inside` names."""
    if inside is None or not value:
        return json.dumps(value)
    deeper = indent + " "
    lines = (
        f"{deeper}{json.dumps(key)}: {_expand(each, inside.get(key), deeper)}"
        for key, each in value.items()
    )
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


_AGAIN = _("record it again on that machine: `zerowiz machine --save FILE`")


def decode_recording(content: Mapping[str, Any], name: str) -> World:
    """The World that a recording holds.

    Args:
        content: The JSON object of the file.
        name: What errors call the file.

    Raises:
        UsageError: A part is missing or has another type.
    """
    for key in ("nvml", "environ", "files"):
        if not isinstance(content.get(key), dict):
            raise UsageError(
                _("`{name}: {key}` is not an object with answers", name=name, key=key), _AGAIN
            )
    if not content["nvml"]:
        raise UsageError(_("`{name}: nvml` holds no call", name=name), _AGAIN)
    for variable, value in content["environ"].items():
        if not isinstance(value, str):
            raise UsageError(
                _(
                    "`{name}: environ.{variable}` is {value!r:.40}, not a text",
                    name=name,
                    variable=variable,
                    value=value,
                ),
                _AGAIN,
            )
    return World(
        files=RecordedFiles(answers=decode(FileAnswers, content["files"], f"{name}: files")),
        environ=content["environ"],
        replay=content["nvml"],
    )
