"""Define what the value classes share."""

from typing import TYPE_CHECKING, Annotated

import msgspec

if TYPE_CHECKING:
    # mypy takes a Struct for a dataclass, and checks the keywords of this one alone.
    from dataclasses import replace
else:
    from msgspec.structs import replace

Count = Annotated[int, msgspec.Meta(ge=0)]
"""A whole number from 0; a negative one is refused where a value is read from JSON."""

__all__ = ["Count", "replace"]
