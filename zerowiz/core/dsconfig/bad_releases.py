"""Name the releases of libraries with which a job trains wrongly, or loses its weights."""

import re
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.codec import decode
from zerowiz.core.rule import Severity
from zerowiz.core.workload.choices import Precision
from zerowiz.words import N_, _

# Of an incomplete version such as 0.18 it is not known which release it is.
_RELEASE = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", re.ASCII)


class Harm(StrEnum):
    """What a release does to a job."""

    WRONG_GRADIENTS = "wrong-gradients"
    REPEATED_MODULES = "wrong-gradients-of-repeated-modules"
    EMPTY_ADAPTER = "empty-adapter"


HARMS: Mapping[Harm, str] = {
    Harm.WRONG_GRADIENTS: N_("ZeRO-2 computes wrong gradients"),
    Harm.REPEATED_MODULES: N_(
        "ZeRO-2 with bf16 computes wrong gradients if a module runs more than once in a step"
    ),
    Harm.EMPTY_ADAPTER: N_("at ZeRO-3 the Trainer saves an empty adapter"),
}
"""The same for people."""


class BadRelease(Struct, frozen=True, kw_only=True):
    """One row of `data/bad_releases.json`."""

    library: str
    since: str
    until: str
    """The first release without the fault."""
    stages: tuple[int, ...]
    harm: Harm
    severity: Severity
    """An error where a job of this kind surely meets it."""
    upgrade: str
    """The release to install."""
    sources: tuple[str, ...]
    precision: Precision | None = None
    """The only precision that it happens with; None for any."""
    adapters: bool = False
    """Whether it happens only where the Trainer saves adapters, and nothing gathers weights."""

    def affects(self, library: str, version: str | None) -> bool:
        """Whether it happens with this release of a library."""
        release = _parse(version)
        return library == self.library and _parse(self.since) <= release < _parse(self.until)

    @property
    def words(self) -> str:
        """What happens, and who says so."""
        return _("{harm} ({sources})", harm=_(HARMS[self.harm]), sources=", ".join(self.sources))


class _Table(Struct, frozen=True, kw_only=True):
    releases: tuple[BadRelease, ...]


def decode_bad_releases(value: object) -> tuple[BadRelease, ...]:
    """The rows of `data/bad_releases.json`.

    Raises:
        UsageError: A row lacks a key, or a key has another type; the message names it.
    """
    return decode(_Table, value, _("table of releases")).releases


def _parse(version: str | None) -> tuple[int, ...]:
    """The three numbers of a release; none where there are not three."""
    match = _RELEASE.match(version or "")
    return () if match is None else tuple(int(part) for part in match.groups())
