"""Describe what a check looks for: its code, how much it matters, and why."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    """DeepSpeed or the integration raises, or trains something else than was asked."""
    WARNING = "warning"
    """Ignored, deprecated or surprising."""
    INFO = "info"
    """Advice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One kind of finding."""

    code: str
    """Stable: `ZW101`."""
    name: str
    """The same in words: `unknown-key`."""
    severity: Severity
    """Mostly; a finding can be milder or worse."""
    why: str
    """What happens if nobody mends it."""


def rule(code: str, name: str, severity: Severity, why: str) -> Rule:
    """A row of a list of rules: `check`'s and `doctor`'s."""
    return Rule(code=code, name=name, severity=severity, why=why)
