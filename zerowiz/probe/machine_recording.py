"""Record every answer of a machine to a file, and read such a file back as a World."""

import ctypes
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from zerowiz.core.machine.job_gpus import VARIABLE, visible_gpus
from zerowiz.core.machine.types import Gpu
from zerowiz.core.structs import decode, encode
from zerowiz.errors import UsageError
from zerowiz.probe.host_files import (
    FileAnswers,
    Files,
    FilesLog,
    HostFiles,
    RecordedFiles,
    hash_addresses,
    hash_bytes,
    hash_uuids,
)

Calls = MutableMapping[str, Any]
"""NVML calls and their answers: the driver's part of a recording."""


CALL_TIMEOUT_S = 30.0
"""Without persistence mode a GPU takes seconds to wake, and all are woken by one call."""


def _nobody(_words: str) -> None:
    """Tell nobody."""


class World(Struct, frozen=True, kw_only=True):
    """The sources of every fact about a machine."""

    files: Files
    environ: Mapping[str, str]
    replay: Calls | None = None
    """Recorded NVML calls; `None` asks the driver of this host."""
    log: Calls | None = None
    """Where the driver's answers are logged; `None` logs nothing."""
    call_timeout_s: float = CALL_TIMEOUT_S
    """How long the driver may take to answer one call."""
    on_wait: Callable[[str], None] = _nobody
    """Told what is waited for, where the driver takes long."""


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

# Variables that list host names, that name a file of host names, and that are names themselves.
_HOST_LISTS = ("LSB_MCPU_HOSTS", "LSB_HOSTS")
_HOST_FILES = ("PBS_NODEFILE",)
_NAMES = (
    *("SLURM_JOB_ID", "SLURMD_NODENAME", "SLURM_CONF", "PBS_JOBID", "LSB_JOBID"),
    *("PBS_CONF_FILE", "PBS_DEFAULT", "PBS_SERVER", "LSF_ENVDIR", "LSF_SERVERDIR"),
    *("TORCHELASTIC_RUN_ID", "KUBERNETES_SERVICE_HOST"),
)

# Variables that a plan depends on; the others that were looked up name folders and hosts.
_KEPT = re.compile(
    r"CUDA_\w+|NCCL_\w+|DS_ACCELERATOR|PET_\w+|(LOCAL_)?WORLD_SIZE|OMPI_COMM_WORLD_\w*SIZE|PMI_SIZE"
    r"|SLURM_(JOB_NUM_NODES|NNODES|GPUS\w*|JOB_GPUS|STEP_GPUS|TASKS_PER_NODE|MEM_\w+"
    r"|CPUS_ON_NODE|JOB_CPUS_PER_NODE)|PBS_(NODEFILE|NGPUS|NUM_NODES)"
    r"|LSB_(MCPU_HOSTS|HOSTS|DJOB_NUMPROC)|" + "|".join(_NAMES)
)

# An entry of CUDA_VISIBLE_DEVICES that looks like a UUID to a person, but not to CUDA.
_NO_UUID = re.compile(r"(?:GPU|MIG)-.*", re.IGNORECASE | re.DOTALL)

Rename = Callable[[str], str]


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


def scrub_environ(environ: Mapping[str, str], uuids: tuple[str, ...]) -> dict[str, str]:
    """The variables that a plan depends on, without names.

    Args:
        environ: The variables that were looked up.
        uuids: Of all GPUs and slices, to complete a prefix before it is hashed.
    """
    hosts = _number(
        word for key in _HOST_LISTS for word in environ.get(key, "").split() if not word.isdecimal()
    )
    kept = {name: hash_addresses(text) for name, text in environ.items() if _KEPT.fullmatch(name)}
    for name, value in kept.items():
        if name in _HOST_LISTS:
            kept[name] = " ".join(hosts.get(word, word) for word in value.split())
        elif name in _NAMES:
            kept[name] = value and "1"
        elif name in _HOST_FILES:
            kept[name] = f"/{name}"
        elif name == VARIABLE:
            kept[name] = ",".join(_complete(entry, uuids) for entry in value.split(","))
    return kept


def _number(words: Iterator[str]) -> dict[str, str]:
    return {word: f"host-{number}" for number, word in enumerate(dict.fromkeys(words))}


def _complete(entry: str, uuids: tuple[str, ...]) -> str:
    """A prefix as the whole UUID, hashed; `unknown` for one that no GPU has."""
    if not entry.startswith(("GPU-", "MIG-")):
        return _NO_UUID.sub("unknown", entry)
    known = [Gpu(index=index, name="", uuid=identity) for index, identity in enumerate(uuids)]
    matching = [gpu.uuid for gpu in visible_gpus(entry, known)]
    return hash_uuids(matching[0] or "") if matching else f"{entry[:4]}unknown"


def scrub_files(files: FileAnswers, environ: Mapping[str, str]) -> FileAnswers:
    """What was read of the host, without names in the contents and the paths.

    Args:
        files: Every answer of the host.
        environ: The variables that were looked up; some name files of host names.
    """
    rename = _rename_levels(files.text.get(_CGROUPS) or "")
    lists = {environ[name].lstrip("/"): name for name in _HOST_FILES if name in environ}

    def clean(path: str) -> str:
        return hash_addresses(rename(path))

    def keep(answers: Mapping[str, Any]) -> dict[str, Any]:
        return {clean(path): item for path, item in answers.items() if _PATHS.fullmatch(path)}

    texts = {path: _scrub_text(path, text, rename) for path, text in keep(files.text).items()}
    for path, name in lists.items():
        texts[name] = _scrub_hosts(files.text.get(path))
    return FileAnswers(
        text=texts,
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


def _scrub_hosts(text: str | None) -> str | None:
    if text is None:
        return None
    numbers = _number(iter(text.split()))
    return "".join(f"{numbers[word]}\n" for word in text.split())


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


# Record NVML at its C function table, and replay the recording there.
#
# pynvml looks up every C function by name on one object, and passes ctypes values by reference. A
# `CallLog` in place of that object logs each call with its outputs. A `Replay` fills the same
# ctypes values from such a log. So the same code reads a recording and a driver, with pynvml's
# struct versions, two-phase lists and error classes.
#
# A log maps a call, such as `nvmlDeviceGetNvLinkState(gpu0, 3)`, to `{"ok": VALUE}` or to
# `{"err": CODE}`. Handles have names, a struct is an object without the fields that are zero, and
# several outputs are a list.


_SUCCESS, _INSUFFICIENT_SIZE, _FUNCTION_NOT_FOUND = 0, 7, 13

_FIELDS = "nvmlDeviceGetFieldValues"
_ERROR_STRING = "nvmlErrorString"

# nvml.h, `nvmlValueType_t`: which member of the union `nvmlValue_t` holds the number.
UNION_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class BrokenAnswerError(UsageError):
    """A recorded answer that no driver gives, because it does not fit the call."""


class _Handles:
    """The names of the opaque pointers to GPUs and slices, in both directions."""

    def __init__(self) -> None:
        self.name_of: dict[int, str] = {}
        self.address_of: dict[str, int] = {}

    def learn(self, name: str, address: int) -> None:
        self.name_of[address] = name
        self.address_of[name] = address

    def address(self, name: object) -> int:
        if not isinstance(name, str):
            raise TypeError(name)
        if name not in self.address_of:
            self.learn(name, len(self.address_of) + 1)  # no handle is NULL
        return self.address_of[name]


def _address(pointer: Any) -> int | None:
    return ctypes.cast(pointer, ctypes.c_void_p).value


def _is_output(arg: object) -> bool:
    """Whether NVML writes there: a reference, a text buffer, an array."""
    return hasattr(arg, "_obj") or isinstance(arg, ctypes.Array)


def _inputs(args: Sequence[Any], handles: _Handles) -> list[str]:
    """The inputs of a call, which distinguish it from other calls of the same function.

    The length of a buffer is not one of them.
    """
    words: list[str] = []
    after_buffer = False
    for arg in args:
        if isinstance(arg, ctypes._Pointer):  # noqa: SLF001 - the base class of every pointer
            words.append(handles.name_of.get(_address(arg) or 0, "gpu?"))
        elif arg is not None and not _is_output(arg) and not after_buffer:
            words.append(str(getattr(arg, "value", arg)))
        after_buffer = isinstance(arg, ctypes.Array)
    return words


def _name_call(symbol: str, words: Sequence[str]) -> str:
    return f"{symbol}({', '.join(words)})"


def _name_handle(words: Sequence[str]) -> str:
    """The name of the handle that a call with these inputs returns: `gpu3`, `gpu3.mig1`."""
    return f"gpu{words[0]}" if len(words) == 1 else f"{words[0]}.mig{words[1]}"


def outputs(args: Sequence[Any]) -> list[Any]:
    """The ctypes values that a call writes its outputs to."""
    return [getattr(arg, "_obj", arg) for arg in args if _is_output(arg)]


def _is_list(args: Sequence[Any]) -> bool:
    """Whether a call has two phases: the first asks for a count, the second for so many structs."""
    if len(args) < 2:  # noqa: PLR2004 - a count and a buffer
        return False
    count, last = args[-2:]
    buffer = isinstance(last, ctypes.Array) and not hasattr(last, "value")
    return hasattr(count, "_obj") and (last is None or buffer)


# ctypes values to plain ones.


def _plain(value: Any) -> Any:
    if isinstance(value, ctypes.Structure):
        # pynvml's own attribute look-up decodes texts, and raises where bytes are no text.
        raw = {
            name: _plain(ctypes.Structure.__getattribute__(value, name))
            for name, *_ in value._fields_
        }
        return {name: part for name, part in raw.items() if part}
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, ctypes.Array) and not hasattr(value, "value"):
        return [_plain(item) for item in value]
    return _plain(value.value) if hasattr(value, "value") else value


def _fill(target: Any, value: Any) -> None:
    if isinstance(target, ctypes.Structure):
        for name, part in value.items():
            _fill_field(target, name, part)
    elif isinstance(target, ctypes.Array) and not hasattr(target, "value"):
        for item, part in zip(target, value, strict=False):
            _fill(item, part)
    else:
        target.value = _unplain(value)
        _check_kept(target.value, _unplain(value))


def _fill_field(target: ctypes.Structure, name: str, value: Any) -> None:
    if isinstance(value, list):
        ctypes.Structure.__getattribute__(target, name)[:] = value
    else:
        setattr(target, name, _unplain(value))
        _check_kept(ctypes.Structure.__getattribute__(target, name), _unplain(value))


def _fill_union(item: Any, number: Any) -> int:
    """Write a field value to the widest member of the union that holds it."""
    if not math.isfinite(number):
        raise ValueError(number)
    signed = "sllVal" if number < 0 else "ullVal"
    member = "dVal" if isinstance(number, float) else signed
    item.valueType = UNION_MEMBERS.index(member)
    setattr(item.value, member, number)
    _check_kept(getattr(item.value, member), number)
    return _SUCCESS


def _check_kept(kept: object, value: object) -> None:
    """Raise where ctypes silently truncated a value."""
    if kept != value:
        raise ValueError(value)


def _code(answer: Any) -> int:
    """The code of `err`: not success, and within the range of a C function's return value."""
    if not isinstance(answer, int) or not 0 < answer < 2**31:
        raise ValueError(answer)
    return answer


def _unplain(value: Any) -> Any:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


class CallWatch:
    """A function table that calls the real one, and says before each call which one it is.

    Args:
        library: The driver's library, or another table.
        announce: Told the name of a call as a log has it, and an empty name after the call.
    """

    def __init__(self, library: object, announce: Callable[[str], None]) -> None:
        self._library = library
        self._announce = announce
        self._handles = _Handles()

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        """The C function of this name, as ctypes finds it."""
        function = getattr(self._library, symbol)
        if symbol == _ERROR_STRING:
            return function  # type: ignore[no-any-return]

        def watched(*args: Any) -> int:
            words = _inputs(args, self._handles)
            self._announce(_name_call(symbol, words))
            code = int(function(*args))
            targets = outputs(args)
            if not code and targets and isinstance(targets[0], ctypes._Pointer):  # noqa: SLF001
                self._handles.learn(_name_handle(words), _address(targets[0]) or 0)
            self._announce("")
            return code

        return watched


class CallLog:
    """A function table that calls the real one, and logs every call.

    Args:
        library: The driver's library, or another table.
        calls: The log that is written to.
    """

    def __init__(self, library: object, calls: Calls) -> None:
        self._library = library
        self._calls = calls
        self._handles = _Handles()

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        """The C function of this name, as ctypes finds it."""
        function = getattr(self._library, symbol)
        if symbol == _ERROR_STRING:
            return function  # type: ignore[no-any-return]

        def logged(*args: Any) -> int:
            code = int(function(*args))
            if code != _INSUFFICIENT_SIZE:
                self._write(symbol, args, code)
            return code

        return logged

    def _write(self, symbol: str, args: Sequence[Any], code: int) -> None:
        words = _inputs(args, self._handles)
        if symbol == _FIELDS:
            self._write_fields(words[0], outputs(args)[0], code)
        elif code:
            self._calls[_name_call(symbol, words)] = {"err": code}
        else:
            self._calls[_name_call(symbol, words)] = {"ok": self._result(args, words)}

    def _write_fields(self, handle: str, values: Any, code: int) -> None:
        for item in values:
            answer = {"err": code or item.nvmlReturn}
            if not answer["err"]:
                answer = {"ok": getattr(item.value, UNION_MEMBERS[item.valueType])}
            words = (handle, str(item.fieldId), str(item.scopeId))
            self._calls[_name_call(_FIELDS, words)] = answer

    def _result(self, args: Sequence[Any], words: Sequence[str]) -> Any:
        targets = outputs(args)
        if _is_list(args):
            count, items = targets[0].value, targets[1:]
            return _plain(items[0])[:count] if items else []
        if targets and isinstance(targets[0], ctypes._Pointer):  # noqa: SLF001
            name = _name_handle(words)
            self._handles.learn(name, _address(targets[0]) or 0)
            return name
        results = [_plain(target) for target in targets]
        return results[0] if len(results) == 1 else results or None


class Replay:
    """A function table that answers from a log; a call without an entry is "function not found".

    Args:
        calls: A log that a `CallLog` or a person wrote.
    """

    def __init__(self, calls: Mapping[str, Any]) -> None:
        self._calls = calls
        self._handles = _Handles()

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        """The C function of this name, as ctypes finds it."""
        if symbol.startswith("__"):
            raise AttributeError(symbol)
        if symbol == _ERROR_STRING:
            return lambda code: f"NVML error {code}".encode()

        return partial(self._answer, symbol)

    def _answer(self, symbol: str, *args: Any) -> int:
        if symbol == "nvmlShutdown":
            return _SUCCESS
        words = _inputs(args, self._handles)
        if symbol != _FIELDS:
            return self._give(_name_call(symbol, words), partial(self._fill_outputs, args))
        for item in outputs(args)[0]:
            call = _name_call(_FIELDS, (words[0], str(item.fieldId), str(item.scopeId)))
            item.nvmlReturn = self._give(call, partial(_fill_union, item))
        return _SUCCESS

    def _give(self, call: str, fill: Callable[[Any], int]) -> int:
        """The return code of a recorded call, whose outputs are filled."""
        answer = self._calls.get(call, {"err": _FUNCTION_NOT_FOUND})
        try:
            return _code(answer["err"]) if "err" in answer else fill(answer["ok"])
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            why = f"the recorded answer of `{call}` is broken: {answer!r:.60}"
            raise BrokenAnswerError(why) from None

    def _fill_outputs(self, args: Sequence[Any], value: Any) -> int:
        targets = outputs(args)
        if args and _is_list(args):
            targets[0].value = len(value)
            if args[-1] is None:
                return _INSUFFICIENT_SIZE if value else _SUCCESS
            _fill(targets[1], value)
        elif targets and isinstance(targets[0], ctypes._Pointer):  # noqa: SLF001
            ctypes.c_void_p.from_buffer(targets[0]).value = self._handles.address(value)
        else:
            values = value if len(targets) > 1 else [value] * len(targets)
            for target, part in zip(targets, values, strict=True):
                _fill(target, part)
        return _SUCCESS


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


_AGAIN = "record it again on that machine: `zerowiz machine --save FILE`"


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
            raise UsageError(f"`{name}: {key}` is not an object with answers", _AGAIN)
    if not content["nvml"]:
        raise UsageError(f"`{name}: nvml` holds no call", _AGAIN)
    for variable, value in content["environ"].items():
        if not isinstance(value, str):
            raise UsageError(
                f"`{name}: environ.{variable}` is {value!r:.40}, not a text",
                _AGAIN,
            )
    return World(
        files=RecordedFiles(answers=decode(FileAnswers, content["files"], f"{name}: files")),
        environ=content["environ"],
        replay=content["nvml"],
    )


# The sources that the probes read: this host, or the recording of one.
