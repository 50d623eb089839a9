"""Describe what `check` and `doctor` share: rules, their severity, and findings."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

from zerowiz.core.structs import decode
from zerowiz.core.workload import Precision
from zerowiz.errors import page_of


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    """DeepSpeed or the integration raises, or trains something else than was asked."""
    WARNING = "warning"
    """Ignored, deprecated or surprising."""
    INFO = "info"
    """Advice."""


class Rule(Struct, frozen=True, kw_only=True):
    """One kind of finding.

    A code never changes its meaning, and is never given to another rule.
    """

    code: str
    """Stable: `ZW101`."""
    name: str
    """The same in words: `unknown-key`."""
    severity: Severity
    """Mostly; a finding can be milder or worse."""
    why: str
    """What happens if nobody fixes it."""
    when: str = ""
    """In which cases it is found; the guide of `doctor` lists it."""

    @property
    def url(self) -> str:
        """Its place on the page of errors."""
        return page_of(self.code)


class Finding(Struct, frozen=True, kw_only=True):
    """What a check found; each command adds fields of its own."""

    rule: Rule
    severity: Severity
    message: str
    """What was seen, in one line."""


AnyFinding = TypeVar("AnyFinding", bound=Finding)


def errors_of(findings: Iterable[AnyFinding]) -> tuple[AnyFinding, ...]:
    """The findings that are errors."""
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)


def rules_of(modules: Iterable[object]) -> tuple[Rule, ...]:
    """Every rule that is a name of one of these modules, by its code."""
    names = (value for module in modules for value in vars(module).values())
    rules = {value for value in names if isinstance(value, Rule)}
    return tuple(sorted(rules, key=lambda rule: rule.code))


# Describe what stands in a job's way: what was seen, why it matters, and what fixes it.


class PreflightFinding(Finding, frozen=True, kw_only=True):
    """One obstacle."""

    fixes: tuple[str, ...] = ()
    """Commands and lines that fix it; one of them is enough."""


def found(
    rule: Rule, message: str, *fixes: str, severity: Severity | None = None
) -> PreflightFinding:
    """A finding of this rule, with the severity of the rule unless another one is given."""
    return PreflightFinding(
        rule=rule, severity=severity or rule.severity, message=message, fixes=fixes
    )


def size(size_bytes: int) -> str:
    """A size in a sentence: `3.1 GiB`, `64 MiB`."""
    whole = size_bytes >= 2**30
    return f"{size_bytes / 2**30:.1f} GiB" if whole else f"{size_bytes / 2**20:.0f} MiB"


# Name the releases of libraries with which a job trains wrongly, or loses its weights.

# Of an incomplete version such as 0.18 it is not known which release it is.
_RELEASE = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", re.ASCII)


class Harm(StrEnum):
    """What a release does to a job."""

    WRONG_GRADIENTS = "wrong-gradients"
    REPEATED_MODULES = "wrong-gradients-of-repeated-modules"
    EMPTY_ADAPTER = "empty-adapter"


HARMS: Mapping[Harm, str] = {
    Harm.WRONG_GRADIENTS: "ZeRO-2 computes wrong gradients",
    Harm.REPEATED_MODULES: (
        "ZeRO-2 with bf16 computes wrong gradients if a module runs more than once in a step"
    ),
    Harm.EMPTY_ADAPTER: "at ZeRO-3 the Trainer saves an empty adapter",
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
        return f"{HARMS[self.harm]} ({', '.join(self.sources)})"


class _Table(Struct, frozen=True, kw_only=True):
    releases: tuple[BadRelease, ...]


def decode_bad_releases(value: object) -> tuple[BadRelease, ...]:
    """The rows of `data/bad_releases.json`.

    Raises:
        UsageError: A row lacks a key, or a key has another type; the message names it.
    """
    return decode(_Table, value, "table of releases").releases


def _parse(version: str | None) -> tuple[int, ...]:
    """The three numbers of a release; none where there are not three."""
    match = _RELEASE.match(version or "")
    return () if match is None else tuple(int(part) for part in match.groups())
