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
MOST_COUNT = 2**63 - 1
"""torch counts in 64 bits, and with more no formula of floats can calculate."""

__all__ = ["MOST_COUNT", "Count", "replace"]
