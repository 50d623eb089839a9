"""Define what the value classes share."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import msgspec

if TYPE_CHECKING:
    # mypy checks the keywords of this one alone; it takes a Struct for a dataclass.
    from dataclasses import replace
else:

    def replace(value: object, /, **changes: object) -> object:
        """A copy of a value with some of its fields changed."""
        module = msgspec.structs if isinstance(value, msgspec.Struct) else dataclasses
        return module.replace(value, **changes)


Count = Annotated[int, msgspec.Meta(ge=0)]
"""A whole number from 0; a negative one is refused where a value is read from JSON."""

__all__ = ["Count", "replace"]
