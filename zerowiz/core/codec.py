"""Turn values into plain JSON and back, by the types of their fields."""

import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import TypeVar, Union, cast, get_args, get_origin, get_type_hints

from zerowiz.core.machine.types import Machine, MachineSource
from zerowiz.errors import UsageError

_Value = TypeVar("_Value")
_Decoder = Callable[[object], object]

# A field's key in the JSON, where Python keeps the word for itself.
_KEYS = {"link_class": "class"}


def encode(value: object) -> object:
    """A value as JSON has it: an object for a dataclass, a list for a tuple, a name for a member.

    A bare `str`, `int`, `bool` or `None` is itself.
    """
    if is_dataclass(value):
        return {_key(f): encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    return value


def decode(kind: type[_Value], value: object, path: str) -> _Value:
    """The value of this type that the JSON describes; keys it does not know are left alone.

    What is absent or null is the field's default.

    Args:
        kind: A dataclass.
        value: What `encode` gave, or a person wrote.
        path: What errors call the value.

    Raises:
        UsageError: A key is missing or holds something else; the message names it by its path.
    """
    try:
        return cast("_Value", _decoder(cast("Hashable", kind))(value))
    except _RefusedError as refused:
        raise UsageError(refused.sentence(path)) from None


def encode_machine(machine: Machine) -> dict[str, object]:
    """The machine as JSON values: the `machine` object of `plan --json`."""
    return cast("dict[str, object]", encode(machine))


def decode_machine(value: object, path: str = "machine") -> Machine:
    """The machine that these JSON values describe.

    Only `gpus` and in it `index` and `name` are needed; what is absent is unknown.

    Raises:
        UsageError: As `decode`.
    """
    if isinstance(value, Mapping) and value.get("source") is None:
        value = {**value, "source": MachineSource.FILE.value}
    return decode(Machine, value, path)


def _key(field: Field[object]) -> str:
    return _KEYS.get(field.name, field.name)


class _RefusedError(Exception):
    """What a value should have been; its path grows on the way out."""

    def __init__(self, reason: str, *, why: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.why = why
        self.path = ""

    def inside(self, step: str) -> "_RefusedError":
        self.path = step + self.path
        return self

    def sentence(self, root: str) -> str:
        return f"`{root}{self.path}`{':' if self.why else ''} {self.reason}"


def _not(value: object, wanted: str) -> _RefusedError:
    return _RefusedError(f"is {value!r:.40}, not {wanted}")


@cache
def _decoder(hint: object) -> _Decoder:
    """How a value of this type is read; built once for each type."""
    if isinstance(hint, type) and is_dataclass(hint):
        return _object_decoder(hint)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _member_decoder(hint)
    if get_origin(hint) in (Union, types.UnionType):
        [inner] = [argument for argument in get_args(hint) if argument is not type(None)]
        return _or_none(_decoder(inner))
    if get_origin(hint) is tuple:
        return _tuple_decoder(get_args(hint))
    if get_origin(hint) in (Mapping, dict):
        return _mapping_decoder(get_args(hint)[1])
    return _PLAIN[hint]


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise _not(value, "a text")


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise _not(value, "a whole number from 0")


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise _not(value, "true or false")


_PLAIN: Mapping[object, _Decoder] = {str: _text, int: _count, bool: _truth}


def _or_none(decoder: _Decoder) -> _Decoder:
    return lambda value: None if value is None else decoder(value)


def _member_decoder(kind: type[StrEnum]) -> _Decoder:
    members = {member.value: member for member in kind}

    def read(value: object) -> StrEnum:
        if isinstance(value, str) and value in members:
            return members[value]
        raise _not(value, f"one of {', '.join(members)}")

    return read


def _tuple_decoder(arguments: tuple[object, ...]) -> _Decoder:
    """`tuple[X, ...]` takes any number, `tuple[X, Y]` so many."""
    item = _decoder(arguments[0])
    length = None if Ellipsis in arguments else len(arguments)

    def read(value: object) -> tuple[object, ...]:
        if not isinstance(value, list):
            raise _not(value, "a list")
        if length is not None and len(value) != length:
            raise _not(value, f"a list of {length}")
        return tuple(_inside(item, each, f"[{place}]") for place, each in enumerate(value))

    return read


def _mapping_decoder(of: object) -> _Decoder:
    item = _decoder(of)

    def read(value: object) -> dict[str, object]:
        if not isinstance(value, Mapping):
            raise _not(value, "an object")
        return {key: _inside(item, each, f".{key}") for key, each in value.items()}

    return read


def _inside(decoder: _Decoder, value: object, step: str) -> object:
    try:
        return decoder(value)
    except _RefusedError as refused:
        raise refused.inside(step) from None


def _object_decoder(kind: type) -> _Decoder:
    hints = get_type_hints(kind)
    without = [f for f in fields(kind) if f.default is f.default_factory is MISSING]
    unknown = {f.name: None for f in without if type(None) in get_args(hints[f.name])}
    needed = [_key(f) for f in without if f.name not in unknown]
    decoders = {_key(f): (f.name, _decoder(hints[f.name])) for f in fields(kind)}

    def read(value: object) -> object:
        if not isinstance(value, Mapping):
            raise _not(value, "an object")
        given = {key: value[key] for key in decoders if value.get(key) is not None}
        missing = [key for key in needed if key not in given]
        if missing:
            raise _RefusedError("is missing").inside(f".{missing[0]}")
        arguments = {
            decoders[key][0]: _inside(decoders[key][1], each, f".{key}")
            for key, each in given.items()
        }
        try:
            return kind(**(unknown | arguments))
        except UsageError as refused:
            raise _RefusedError(refused.message, why=True) from None

    return read
