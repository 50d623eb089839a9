"""What value classes share: `replace`, checks, a short repr, and their JSON."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, TypeVar, cast

import msgspec

from zerowiz.errors import UsageError

if TYPE_CHECKING:
    # mypy takes a Struct for a dataclass, and checks the keywords of this one alone.
    from dataclasses import replace
else:
    from msgspec.structs import replace

Count = Annotated[int, msgspec.Meta(ge=0)]
"""A whole number from 0; a negative one is refused where a value is read from JSON."""
MOST_COUNT = 2**63 - 1
"""torch counts in 64 bits, and with more no formula of floats can calculate."""

AnyClass = TypeVar("AnyClass", bound=type)

__all__ = ["MOST_COUNT", "Count", "replace", "shows"]


def shows(*paths: str) -> Callable[[AnyClass], AnyClass]:
    """A class whose values show these attributes: what is inside has more lines than anybody reads.

    Args:
        paths: As one writes them after a value: `strategy.name`. Of a tuple the length is shown.

    Example:
        >>> @shows("name", "gpus")
        ... class Node(msgspec.Struct):
        ...     name: str
        ...     gpus: tuple[int, ...]
        >>> Node("node1", (0, 1))
        <Node: name=node1, len(gpus)=2>
    """

    def decorate(cls: AnyClass) -> AnyClass:
        def figures(value: object) -> Iterator[tuple[str, object]]:
            for path in paths:
                figure = _at(value, path)
                yield (f"len({path})", len(figure)) if isinstance(figure, tuple) else (path, figure)

        def line(value: object) -> str:
            listed = (
                f"{path}={figure:.4g}" if isinstance(figure, float) else f"{path}={figure}"
                for path, figure in figures(value)
            )
            return f"<{type(value).__name__}: {', '.join(listed)}>"

        cls.__repr__ = line  # type: ignore[method-assign, assignment]
        # Rich asks a Struct for this, which has every field otherwise.
        cls.__rich_repr__ = figures  # type: ignore[attr-defined]
        return cls

    return decorate


def _at(value: object, path: str) -> object:
    """What is at a path; None where something on the way is None, or not there."""
    # A path is names, and the numbers of a tuple: `gpus[0].name`.
    for name in re.findall(r"\w+", path):
        if isinstance(value, tuple):
            value = value[int(name)] if int(name) < len(value) else None
        elif value is not None:
            value = getattr(value, name)
    return value


# Turn values into plain JSON and back, and say what is wrong with JSON that is no such value.

_Value = TypeVar("_Value")

# Python's JSON reader gives half of a surrogate pair as it stands; msgspec cannot encode one.
_NOT_TAKEN = (msgspec.ValidationError, UnicodeEncodeError)


def parse_json(text: str | bytes) -> object:
    """The value that a JSON text is.

    Args:
        text: JSON; bytes are UTF-8.

    Raises:
        ValueError: It is none, or holds what Python does not read; the reason is to be shown.

    Example:
        >>> parse_json("[1, 2")
        Traceback (most recent call last):
        ValueError: Expecting ',' delimiter at line 1 column 6
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at line {error.lineno} column {error.colno}"
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is not UTF-8"
    except RecursionError:
        reason = "too many levels"
    except ValueError:
        # Python converts no more digits than sys.get_int_max_str_digits().
        reason = "a number has too many digits"
    raise ValueError(reason)


def encode(value: object) -> object:
    """A value as `json` writes it: a dictionary for a Struct, a name for a member of an enum.

    A tuple is itself, and so is a bare `str`, `int`, `bool` or `None`.
    """
    return cast("object", msgspec.to_builtins(value, enc_hook=_as_json))


def _as_json(value: object) -> object:
    """What msgspec does not know: a Mapping that is no dict."""
    return dict(cast("Mapping[str, object]", value))


def decode(kind: type[_Value], value: object, path: str) -> _Value:
    """The value of this type that the JSON describes; keys it does not know are left alone.

    What is absent or null is the field's default.

    Args:
        kind: A Struct.
        value: What `encode` gave, or a person wrote.
        path: What errors call the value.

    Raises:
        UsageError: A key is missing or holds something else; the message names it by its path.
    """
    try:
        return msgspec.convert(value, kind)
    except (*_NOT_TAKEN, UsageError):
        content = _without_nulls(value)
    try:
        return msgspec.convert(content, kind)
    except UsageError as refused:
        raise UsageError(f"`{path}`: {refused.message}") from None
    except _NOT_TAKEN as error:
        reason, _, place = str(error).partition(" - at `$")
        where = path + place.rstrip("`")
        if missing := re.fullmatch(r"Object missing required field `(.+)`", reason):
            raise UsageError(f"`{where}.{missing[1]}` is missing") from None
        raise UsageError(f"`{where}`: {reason[0].lower()}{reason[1:]}") from None


def _without_nulls(value: object) -> object:
    """The value without the keys that hold null."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value
