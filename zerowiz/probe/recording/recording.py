"""Record every answer that a machine gave, and give the same answers again."""

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

SCHEMA_VERSION = 2

# The objects that are written one key a line, and those inside them.
_EXPANDED: Mapping[str, Any] = {
    "nvml": {},
    "files": {part.name: {} for part in structs.fields(FileAnswers)},
    "environ": {},
}


class EnvironLog(Mapping[str, str]):
    """An environment that remembers each variable that was looked up and is set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.seen: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """The variable, which is remembered."""
        value = self._environ[name]
        self.seen[name] = value
        return value

    def __iter__(self) -> Iterator[str]:
        """The names of all variables."""
        return iter(self._environ)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._environ)


class Recorder:
    """This host as a world whose answers are kept.

    Args:
        environ: The environment.
        folder: Whose file system is looked at.
        root: As of `HostFiles`.
    """

    def __init__(self, environ: Mapping[str, str], folder: Path, root: Path = Path("/")) -> None:
        self._files = FilesLog(files=HostFiles(folder=folder, root=root))
        self._environ = EnvironLog(environ)
        self._calls: Calls = {}
        self.world = World(files=self._files, environ=self._environ, log=self._calls)

    def write(self, version: str) -> str:
        """The recording as the text of a file; what tells whose machine it is is taken out."""
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
    """JSON with one answer a line, so that two recordings can be compared."""
    return _expand(content, _EXPANDED) + "\n"


def _expand(value: Any, inside: Mapping[str, Any] | None, indent: str = "") -> str:  # noqa: ANN401
    """An object with one key a line, and the objects below it that are named in `inside`."""
    if inside is None or not value:
        return json.dumps(value)
    deeper = indent + " "
    lines = (
        f"{deeper}{json.dumps(key)}: {_expand(each, inside.get(key), deeper)}"
        for key, each in value.items()
    )
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def decode_recording(content: Mapping[str, Any], name: str) -> World:
    """The world that a recording holds; the name is for the errors.

    Raises:
        UsageError: A part is missing or is something else.
    """
    for key in ("nvml", "environ", "files"):
        if not isinstance(content.get(key), dict):
            raise UsageError(f"`{name}: {key}` is no object of answers")
    if not content["nvml"]:
        raise UsageError(f"`{name}: nvml` holds no call")
    for variable, value in content["environ"].items():
        if not isinstance(value, str):
            raise UsageError(f"`{name}: environ.{variable}` is {value!r:.40}, not a text")
    return World(
        files=RecordedFiles(answers=decode(FileAnswers, content["files"], f"{name}: files")),
        environ=content["environ"],
        replay=content["nvml"],
    )
