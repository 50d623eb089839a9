"""Take apart what people write for a machine: `8xH100`, `h100:8`, `4 x 8 x H200`, `2xp5.48xlarge`.

A phrase has a name, and up to two counts before or after it: of GPUs, and of nodes. Where the
name begins or ends is not seen from the text alone (`4090x4`, `4x4090`), so every way to read it
is tried, and the first one whose name is known is meant.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from zerowiz.core.values import replace

# `\N{MULTIPLICATION SIGN}` as well, which texts are pasted with.
_TIMES, _GAP = "[x*\N{MULTIPLICATION SIGN}]", r"[\s_-]"
_BEFORE = re.compile(
    rf"(?P<count>\d{{1,6}})(?:{_GAP}*{_TIMES}{_GAP}*|{_GAP}+|(?=[a-z]))(?P<rest>.+)", re.IGNORECASE
)
_AFTER = re.compile(rf"(?P<rest>.+?){_GAP}*{_TIMES}{_GAP}*(?P<count>\d{{1,6}})", re.IGNORECASE)
_COLON = re.compile(r"(?P<rest>.+?)\s*:\s*(?P<count>\d{1,6})")
# Rule: the outer count first. `8xH100 x 4` are four of `8xH100`, and `2xH100:8` two of `H100:8`.
_COUNTS = (_AFTER, _BEFORE, _COLON)
# An `x` that stands before a number may belong to the name: `RTX 4080`.
_SURE_COUNTS = (_BEFORE, _COLON)


class Phrase(Struct, frozen=True, kw_only=True):
    """One way to read a text."""

    name: str
    count: int | None = None
    """Of what has the name."""
    nodes: int | None = None
    """How many such; only where both counts were written."""

    def of(self, name: str) -> str:
        """The same words about something else."""
        counts = (count for count in (self.nodes, self.count) if count is not None)
        return "".join(f"{count}x" for count in counts) + name


def read_phrase(text: str, is_known: Callable[[str], bool]) -> Phrase | None:
    """The first way to read a text in which its name is known; None where there is none.

    Args:
        text: As a person wrote it.
        is_known: Whether a name means something.
    """
    return next((way for way in _ways(text.strip(), _COUNTS) if is_known(way.name)), None)


def likely_phrase(text: str) -> Phrase:
    """The way to read a text whose name nobody knows: with all counts that it surely has."""
    ways = _ways(text.strip(), _SURE_COUNTS)
    return max(ways, key=lambda way: (way.count is not None, way.nodes is not None))


def _ways(text: str, counts: Sequence[re.Pattern[str]], most: int = 2) -> Iterator[Phrase]:
    yield Phrase(name=text)
    for pattern in counts if most else ():
        found = pattern.fullmatch(text)
        if found is None:
            continue
        count = int(found["count"])
        for way in _ways(found["rest"], counts, most - 1):
            if way.count is None:
                yield replace(way, count=count)
            else:
                yield replace(way, nodes=count)
