"""The recordings of tests/machines, as values that a test may edit before they are played."""

import ctypes
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pynvml
import pytest
from msgspec import Struct, field

from zerowiz.app.machines.machine import complete
from zerowiz.app.machines.see import save_machine
from zerowiz.app.options import Options
from zerowiz.core.machine.types import Gpu, Machine
from zerowiz.core.machine.warnings import find_warnings
from zerowiz.core.structs import decode
from zerowiz.probe.files import Files, Space, World
from zerowiz.probe.machine.nvml_calls import UNION_MEMBERS
from zerowiz.probe.machine.read_machine import read_machine

MACHINES = Path(__file__).parent / "machines"

Recording = dict[str, Any]
# What the fixture `driver` gives: it puts a function table under the real pynvml.
Install = Callable[[object], None]


def put_under_pynvml(library: object, patch: pytest.MonkeyPatch) -> None:
    """Let the real pynvml call this function table, as the driver's library."""
    patch.setattr(pynvml, "nvmlLib", library)
    patch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})


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

Calls = MutableMapping[str, Any]
"""NVML calls and their answers: the driver's part of a recording."""

_SUCCESS, _INSUFFICIENT_SIZE, _FUNCTION_NOT_FOUND = 0, 7, 13

_FIELDS = "nvmlDeviceGetFieldValues"
_ERROR_STRING = "nvmlErrorString"


def address_of(pointer: Any) -> int:
    """Where a pointer leads; 0 where that is nowhere."""
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def is_output(arg: object) -> bool:
    """Whether NVML writes there: a reference, a text buffer, an array."""
    return hasattr(arg, "_obj") or isinstance(arg, ctypes.Array)


def outputs(args: Sequence[Any]) -> list[Any]:
    """The ctypes values that a call writes its outputs to."""
    return [getattr(arg, "_obj", arg) for arg in args if is_output(arg)]


def inputs(args: Sequence[Any], names: Mapping[int, str]) -> list[str]:
    """The inputs of a call, which distinguish it from other calls of the same function.

    The length of a buffer is not one of them.

    Args:
        args: Of the call.
        names: Of the handles, by their addresses.
    """
    words: list[str] = []
    after_buffer = False
    for arg in args:
        if isinstance(arg, ctypes._Pointer):
            words.append(names.get(address_of(arg), "gpu?"))
        elif arg is not None and not is_output(arg) and not after_buffer:
            words.append(str(getattr(arg, "value", arg)))
        after_buffer = isinstance(arg, ctypes.Array)
    return words


def name_call(symbol: str, words: Sequence[str]) -> str:
    """A call with its inputs.

    Example:
        >>> name_call("nvmlDeviceGetNvLinkState", ["gpu0", "3"])
        'nvmlDeviceGetNvLinkState(gpu0, 3)'
    """
    return f"{symbol}({', '.join(words)})"


def name_handle(words: Sequence[str]) -> str:
    """The name of the handle that a call with these inputs returns: `gpu3`, `gpu3.mig1`."""
    return f"gpu{words[0]}" if len(words) == 1 else f"{words[0]}.mig{words[1]}"


class BrokenAnswerError(Exception):
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


def _is_list(args: Sequence[Any]) -> bool:
    """Whether a call has two phases: the first asks for a count, the second for so many structs."""
    if len(args) < 2:
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
        words = inputs(args, self._handles.name_of)
        if symbol == _FIELDS:
            self._write_fields(words[0], outputs(args)[0], code)
        elif code:
            self._calls[name_call(symbol, words)] = {"err": code}
        else:
            self._calls[name_call(symbol, words)] = {"ok": self._result(args, words)}

    def _write_fields(self, handle: str, values: Any, code: int) -> None:
        for item in values:
            answer = {"err": code or item.nvmlReturn}
            if not answer["err"]:
                answer = {"ok": getattr(item.value, UNION_MEMBERS[item.valueType])}
            words = (handle, str(item.fieldId), str(item.scopeId))
            self._calls[name_call(_FIELDS, words)] = answer

    def _result(self, args: Sequence[Any], words: Sequence[str]) -> Any:
        targets = outputs(args)
        if _is_list(args):
            count, items = targets[0].value, targets[1:]
            return _plain(items[0])[:count] if items else []
        if targets and isinstance(targets[0], ctypes._Pointer):
            name = name_handle(words)
            self._handles.learn(name, address_of(targets[0]))
            return name
        results = [_plain(target) for target in targets]
        return results[0] if len(results) == 1 else results or None


class CallWatch:
    """A function table that calls the real one, and says before each call which one it is.

    Args:
        library: The driver's library, or another table.
        announce: Gets the name of a call, and an empty name after the call.
    """

    def __init__(self, library: object, announce: Callable[[str], None]) -> None:
        self._library = library
        self._announce = announce
        self._names: dict[int, str] = {}

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        """The C function of this name, as ctypes finds it."""
        function = getattr(self._library, symbol)
        if symbol == "nvmlErrorString":
            return function  # type: ignore[no-any-return]

        def watched(*args: Any) -> int:
            words = inputs(args, self._names)
            self._announce(name_call(symbol, words))
            code = int(function(*args))
            targets = outputs(args)
            if not code and targets and isinstance(targets[0], ctypes._Pointer):
                self._names[address_of(targets[0])] = name_handle(words)
            self._announce("")
            return code

        return watched


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
        words = inputs(args, self._handles.name_of)
        if symbol != _FIELDS:
            return self._give(name_call(symbol, words), partial(self._fill_outputs, args))
        for item in outputs(args)[0]:
            call = name_call(_FIELDS, (words[0], str(item.fieldId), str(item.scopeId)))
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
        elif targets and isinstance(targets[0], ctypes._Pointer):
            ctypes.c_void_p.from_buffer(targets[0]).value = self._handles.address(value)
        else:
            values = value if len(targets) > 1 else [value] * len(targets)
            for target, part in zip(targets, values, strict=True):
                _fill(target, part)
        return _SUCCESS


# What the probes read beside the driver, and a whole machine.


@contextmanager
def reading_here(table: object) -> Iterator[None]:
    """Let this function table be the driver, and read it in this process instead of a child."""
    with pytest.MonkeyPatch.context() as patch:
        put_under_pynvml(table, patch)
        in_child = "zerowiz.probe.machine.read_machine.read_in_child"
        patch.setattr(in_child, lambda world, read: read(world, lambda _call: None))
        yield


class FileAnswers(Struct, frozen=True, kw_only=True):
    """Every answer that a probe got from Files, by path: the host's part of a recording."""

    text: dict[str, str | None] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    real: dict[str, str | None] = field(default_factory=dict)
    space: dict[str, Space | None] = field(default_factory=dict)
    opens: dict[str, bool] = field(default_factory=dict)


class FilesLog(Files, frozen=True, kw_only=True):
    """Files that log each answer."""

    files: Files
    answers: FileAnswers = field(default_factory=FileAnswers)

    def text(self, path: str) -> str | None:
        """As `Files.text`."""
        return self.answers.text.setdefault(path, self.files.text(path))

    def names(self, folder: str) -> tuple[str, ...]:
        """As `Files.names`."""
        return self.answers.names.setdefault(folder, self.files.names(folder))

    def real(self, path: str) -> str | None:
        """As `Files.real`."""
        return self.answers.real.setdefault(path, self.files.real(path))

    def space(self, path: str) -> Space | None:
        """As `Files.space`."""
        return self.answers.space.setdefault(path, self.files.space(path))

    def opens(self, path: str) -> bool:
        """As `Files.opens`."""
        return self.answers.opens.setdefault(path, self.files.opens(path))

    def python_call_seconds(self) -> float | None:
        """As `Files.python_call_seconds`: what differs each time is no part of a recording."""
        return None


class RecordedFiles(Files, frozen=True, kw_only=True):
    """The files of a recorded host; a path that was not asked for at that time is missing."""

    answers: FileAnswers

    def text(self, path: str) -> str | None:
        """As `Files.text`."""
        return self.answers.text.get(path)

    def names(self, folder: str) -> tuple[str, ...]:
        """As `Files.names`."""
        return self.answers.names.get(folder, ())

    def real(self, path: str) -> str | None:
        """As `Files.real`."""
        return self.answers.real.get(path)

    def space(self, path: str) -> Space | None:
        """As `Files.space`."""
        return self.answers.space.get(path)

    def opens(self, path: str) -> bool:
        """As `Files.opens`."""
        return self.answers.opens.get(path, False)

    def python_call_seconds(self) -> float | None:
        """As `Files.python_call_seconds`."""
        return None


def names() -> list[str]:
    """Every recording, and every synthetic one."""
    paths = [*MACHINES.glob("*.json"), *MACHINES.glob("synthetic/*.json")]
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(paths)}
    recorded = [path for path, text in texts.items() if "nvml" in json.loads(text)]
    return [path.relative_to(MACHINES).with_suffix("").as_posix() for path in recorded]


def recording(name: str) -> Recording:
    """A whole recording, such as `h200-x4` or `synthetic/gb10`."""
    content: Recording = json.loads((MACHINES / f"{name}.json").read_text(encoding="utf-8"))
    return content


def library(name: str) -> Replay:
    """What stands in for the driver's library, to be put under pynvml."""
    return Replay(recording(name)["nvml"])


def without(content: Recording, *symbols: str) -> Recording:
    """The recording of a driver that lacks these C functions."""
    calls = {call: content["nvml"][call] for call in _others(content["nvml"], symbols)}
    return {**content, "nvml": calls}


def _others(calls: Iterable[str], symbols: tuple[str, ...]) -> list[str]:
    return [call for call in calls if call.partition("(")[0] not in symbols]


def play(
    content: Recording,
    *,
    environ: dict[str, str] | None = None,
    gpus: str | None = None,
    through: Callable[[object], object] = lambda table: table,
) -> Machine:
    """The machine of a recording.

    Args:
        content: The recording.
        environ: Of the process; a recording has none.
        gpus: As `--gpus` names them.
        through: What the driver's function table becomes, such as one with a fault.
    """
    world = World(
        files=RecordedFiles(answers=decode(FileAnswers, content["files"], "files")),
        environ=environ or {},
    )
    with reading_here(through(Replay(content["nvml"]))):
        return read_machine(world, gpus=gpus)


def facts_of(machine: Machine) -> dict[str, object]:
    """What a test may say of a machine; of a GPU's fields, the values of all GPUs."""
    link = machine.interconnect
    return {
        **{name: [getattr(gpu, name) for gpu in machine.gpus] for name in Gpu.__struct_fields__},
        "label": [gpu.label for gpu in machine.gpus],
        "expected_nvlinks": [gpu.expected_nvlinks for gpu in machine.gpus],
        "left_out": [gpu.index for gpu in machine.left_out],
        "least_free_bytes": machine.free_bytes,
        "world_size": machine.world_size,
        "driver_version": machine.driver_version,
        "cuda_version": machine.cuda_version,
        "lives_on_host": machine.lives_on_host,
        "same_clique": machine.clique,
        "link_class": link.link_class,
        "bytes_per_s": link.bytes_per_s,
        "weakest_pair": link.weakest_pair,
        "words": {link.word for link in machine.links},
        "p2p": [link.p2p for link in machine.links],
        "notes": machine.notes,
        "warnings": find_warnings(machine),
    }


def described(name: str, folder: Path) -> str:
    """The path of a file with this machine, as `machine --save` writes it."""
    path = folder / f"{name}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_machine(complete(play(recording(name)), Options()), path, force=False)
    return str(path)
