"""Show what stands in a job's way."""

from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from zerowiz.core.launch.doctor.finding import PreflightFinding
from zerowiz.core.rule import Severity
from zerowiz.ui.table import say

# Singular and plural.
_WORDS = {
    Severity.ERROR: ("error", "errors"),
    Severity.WARNING: ("warning", "warnings"),
    Severity.INFO: ("remark", "remarks"),
}
_HANG = "    "


def findings(found: Sequence[PreflightFinding], stream: TextIO) -> None:
    """Each finding with its reason and its fixes; what several have in common is said once."""
    said: set[str] = set()
    for finding in found:
        rule = finding.rule
        say(
            stream,
            f"{finding.severity} {rule.code} {rule.name}: {finding.message}",
            hang=len(_HANG),
        )
        if rule.code not in said:
            say(stream, f"{_HANG}why: {rule.why}", hang=len(_HANG))
        for place, fix in enumerate(finding.fixes):
            say(stream, f"{_HANG}{'or' if place else 'mend'}: {fix}", hang=len(_HANG))
        said.add(rule.code)


def summary(found: Sequence[PreflightFinding], stream: TextIO) -> None:
    """How many there are, and what that means for a launch."""
    counts = Counter(finding.severity for finding in found)
    if not counts:
        say(stream, "nothing stands in the way")
        return
    told = ", ".join(f"{counts[s]} {_WORDS[s][counts[s] > 1]}" for s in Severity if counts[s])
    ends = "" if counts[Severity.ERROR] else ": nothing that surely ends the job"
    say(stream, f"{told}{ends}")


def in_short(finding: PreflightFinding) -> str:
    """One finding as a sentence, for a command that does something else."""
    return f"{finding.message} ({finding.rule.code} {finding.rule.name}): {finding.rule.why}"
