"""Describe what stands in a job's way: what was seen, why it matters, and what fixes it."""

from zerowiz.core.rule import Finding, Rule, Severity


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
