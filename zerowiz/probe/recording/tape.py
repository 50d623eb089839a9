"""Record NVML at its C function table, and replay the recording there.

pynvml looks up every C function by name on one object, and passes ctypes values by reference. A
`CallLog` in place of that object logs each call with its outputs. A `Replay` fills the same ctypes
values from such a log. So the same code reads a recording and a driver, with pynvml's struct
versions, two-phase lists and error classes.

A log maps a call, such as `nvmlDeviceGetNvLinkState(gpu0, 3)`, to `{"ok": VALUE}` or to
`{"err": CODE}`. Handles have names, a struct is an object without the fields that are zero, and
several outputs are a list.
"""

import ctypes
import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

from zerowiz.errors import UsageError
from zerowiz.words import _

Calls = MutableMapping[str, Any]
"""NVML calls and their answers: the driver's part of a recording."""

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
        return {name: each for name, each in raw.items() if each}
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, ctypes.Array) and not hasattr(value, "value"):
        return [_plain(each) for each in value]
    return _plain(value.value) if hasattr(value, "value") else value


def _fill(target: Any, value: Any) -> None:
    if isinstance(target, ctypes.Structure):
        for name, each in value.items():
            _fill_field(target, name, each)
    elif isinstance(target, ctypes.Array) and not hasattr(target, "value"):
        for item, each in zip(target, value, strict=False):
            _fill(item, each)
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

        def replayed(*args: Any) -> int:
            return self._answer(symbol, args)

        return replayed

    def _answer(self, symbol: str, args: Sequence[Any]) -> int:
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
            why = _(
                "the recorded answer of `{call}` is broken: {answer!r:.60}",
                call=call,
                answer=answer,
            )
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
            for target, each in zip(targets, values, strict=True):
                _fill(target, each)
        return _SUCCESS
