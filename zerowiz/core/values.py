"""Define what the value classes share."""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec

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
                found = _at(value, path)
                yield (f"len({path})", len(found)) if isinstance(found, tuple) else (path, found)

        def line(value: object) -> str:
            listed = (
                f"{path}={found:.4g}" if isinstance(found, float) else f"{path}={found}"
                for path, found in figures(value)
            )
            return f"<{type(value).__name__}: {', '.join(listed)}>"

        cls.__repr__ = line  # type: ignore[method-assign, assignment]
        # Rich asks a Struct for this, which has every field otherwise.
        cls.__rich_repr__ = figures  # type: ignore[attr-defined]
        return cls

    return decorate


# A path is names, and the numbers of a tuple: `gpus[0].name`.
_NAME = re.compile(r"\w+")


def _at(value: object, path: str) -> object:
    """What is at a path; None where something on the way is None, or not there."""
    for name in _NAME.findall(path):
        if isinstance(value, tuple):
            value = value[int(name)] if int(name) < len(value) else None
        elif value is not None:
            value = getattr(value, name)
    return value
