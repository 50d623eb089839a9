"""Describe what `check` and `doctor` share: rules, their severity, and findings."""

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

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
