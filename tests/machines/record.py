"""Record a machine: what its driver and its files answer, without names.

Run with `python tests/machines/record.py > tests/machines/NAME.json`. The same machine is read of the
file by `recorded.play`.
"""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pynvml
from msgspec import structs

# Its neighbours are those of the tests.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from recorded import CallLog, Calls, FileAnswers, FilesLog, reading_here

from zerowiz import __version__
from zerowiz.core.machine.types import Machine
from zerowiz.core.structs import encode
from zerowiz.probe.files import Files, World, hash_uuids
from zerowiz.probe.machine.read_machine import read_machine

# Remove from a recording what identifies its machine and users: UUIDs, names of hosts and jobs.

_CGROUPS = "proc/self/cgroup"
_CGROUP_MOUNT = "sys/fs/cgroup/"
# Levels of a cgroup's path that identify nothing: the parent, and the mounts of version 1.
_PUBLIC_LEVELS = ("..", "memory", "cpu")

# Of files with other content too, only the lines that are read.
_LINES: Mapping[str, re.Pattern[str]] = {
    "proc/self/status": re.compile(r"^Cpus_allowed_list:.*\n?", re.MULTILINE),
    "proc/self/limits": re.compile(r"^Max locked memory.*\n?", re.MULTILINE),
    "proc/meminfo": re.compile(r"^(?:MemTotal|MemFree|MemAvailable):.*\n?", re.MULTILINE),
}

# Paths that a plan depends on; the others (folders of PATH) are not recorded.
_PATHS = re.compile(r"proc/meminfo|proc/(?:self|\d+)/\w+|sys/.+|dev/shm|dev/infiniband/\w+|\{\w+\}")

Rename = Callable[[str], str]

# systemd.net-naming-scheme(7) and rdma-core's rdma_rename(8): adapters that are named after their
# MAC address or GUID, `enx...`, `ibx...`, `rocex...`.
_ADDRESS_NAME = re.compile(r"\b([a-z]+)x([0-9a-f]{12,40})\b")


def hash_addresses(text: str) -> str:
    """The text with the address in a network adapter's name replaced by its hash."""
    return _ADDRESS_NAME.sub(lambda m: f"{m[1]}x{hash_bytes(m[2].encode()).hex()[:12]}", text)


def hash_bytes(content: bytes) -> bytes:
    """The first 16 bytes of the SHA-256, as many as a UUID has."""
    return hashlib.sha256(content).digest()[:16]


def scrub_calls(calls: Mapping[str, Any]) -> dict[str, Any]:
    """NVML's answers with hashed UUIDs, also that of the NVLink domain."""
    return {call: _scrub_answer(answer) for call, answer in calls.items()}


def _scrub_answer(answer: Any) -> Any:
    match answer:
        case str():
            return hash_uuids(answer)
        case {"clusterUuid": cluster, **rest} if any(cluster):
            return {**rest, "clusterUuid": list(hash_bytes(bytes(cluster)))}
        case dict():
            return {key: _scrub_answer(item) for key, item in answer.items()}
        case list():
            return [_scrub_answer(item) for item in answer]
        case _:
            return answer


def scrub_files(files: FileAnswers) -> FileAnswers:
    """What was read of the host, without names in the contents and the paths."""
    rename = _rename_levels(files.text.get(_CGROUPS) or "")

    def clean(path: str) -> str:
        return hash_addresses(rename(path))

    def keep(answers: Mapping[str, Any]) -> dict[str, Any]:
        return {clean(path): item for path, item in answers.items() if _PATHS.fullmatch(path)}

    return FileAnswers(
        text={path: _scrub_text(path, text, rename) for path, text in keep(files.text).items()},
        names={path: tuple(map(clean, names)) for path, names in keep(files.names).items()},
        real={path: target and clean(target) for path, target in keep(files.real).items()},
        space=keep(files.space),
        opens=keep(files.opens),
    )


def _scrub_text(path: str, text: str | None, rename: Rename) -> str | None:
    if text is None:
        return None
    if path in _LINES:
        return "".join(_LINES[path].findall(text))
    if path == _CGROUPS:
        return "".join(_scrub_cgroup(line, rename) for line in text.splitlines())
    return hash_addresses(text)


def _scrub_cgroup(line: str, rename: Rename) -> str:
    *head, path = _split_cgroup(line)
    inside = rename(_CGROUP_MOUNT + path.lstrip("/")).removeprefix(_CGROUP_MOUNT)
    return ":".join([*head, f"/{inside}\n"])


def _split_cgroup(line: str) -> list[str]:
    """`ID:CONTROLLERS:PATH`, where the path may hold colons (`pod12.slice:cri-containerd:34`)."""
    return line.split(":", 2)


def _rename_levels(cgroups: str) -> Rename:
    """A function that numbers the levels of this process's cgroup, which name users and pods."""
    paths = [_split_cgroup(line)[-1] for line in cgroups.splitlines()]
    levels = dict.fromkeys(part for path in paths for part in path.split("/") if part)
    numbers = {part: f"level-{n}" for n, part in enumerate(levels) if part not in _PUBLIC_LEVELS}

    def rename(path: str) -> str:
        if not path.startswith(_CGROUP_MOUNT):
            return path
        inside = path.removeprefix(_CGROUP_MOUNT).split("/")
        return _CGROUP_MOUNT + "/".join(numbers.get(part, part) for part in inside)

    return rename


SCHEMA_VERSION = 2

# The objects that are written with one key to a line, and the objects in them.
_EXPANDED: Mapping[str, Any] = {
    "nvml": {},
    "files": {part.name: {} for part in structs.fields(FileAnswers)},
    "environ": {},
}


def record(root: Path = Path("/")) -> tuple[Machine, dict[str, Any]]:
    """The machine of this host and the driver in place, and the recording of both.

    No variable is read: a recording is of a machine outside of every job, with all of its GPUs.

    Args:
        root: As of `Files`.

    Raises:
        PreflightError: There is no GPU.
    """
    files = FilesLog(files=Files(root=root))
    calls: Calls = {}
    with reading_here(CallLog(pynvml.nvmlLib, calls)):
        machine = read_machine(World(files=files, environ={}))
    return machine, {
        "schema_version": SCHEMA_VERSION,
        "kind": "recorded",
        "made_by": f"zerowiz {__version__}",
        "nvml": scrub_calls(calls),
        "files": encode(scrub_files(files.answers)),
        "environ": {},
    }


def render_recording(content: Mapping[str, Any]) -> str:
    """JSON with one answer to a line, so that two recordings can be compared."""
    return _expand(content, _EXPANDED) + "\n"


def _expand(value: Any, inside: Mapping[str, Any] | None, indent: str = "") -> str:
    """An object with one key to a line, and so the objects in it that `inside` names."""
    if inside is None or not value:
        return json.dumps(value)
    deeper = indent + " "
    lines = (
        f"{deeper}{json.dumps(key)}: {_expand(item, inside.get(key), deeper)}"
        for key, item in value.items()
    )
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


if __name__ == "__main__":
    pynvml.nvmlInit()
    sys.stdout.write(render_recording(record()[1]))
