"""Show the findings of the preflight checks."""

from collections.abc import Sequence
from typing import TextIO

from zerowiz.core.launch.doctor.finding import PreflightFinding
from zerowiz.core.rule import errors_of
from zerowiz.ui.check import COLOURS
from zerowiz.ui.text.table import say
from zerowiz.ui.text.units import severities

_HANG = "    "


def findings(found: Sequence[PreflightFinding], stream: TextIO) -> None:
    """Each finding with its reason and its fixes; the reason that several share is printed once."""
    said: set[str] = set()
    for finding in found:
        rule = finding.rule
        say(
            stream,
            f"{finding.severity} {rule.code} {rule.name}: {finding.message}",
            hang=len(_HANG),
            marks={rf"^{finding.severity} {rule.code}\b": COLOURS[finding.severity]},
        )
        if rule.code not in said:
            say(stream, f"{_HANG}why: {rule.why}", hang=len(_HANG))
        for index, fix in enumerate(finding.fixes):
            say(stream, f"{_HANG}{'or' if index else 'fix'}: {fix}", hang=len(_HANG))
        said.add(rule.code)


def summary(found: Sequence[PreflightFinding], stream: TextIO) -> None:
    """How many there are, and what that means for a launch."""
    if not found:
        say(stream, "no problems found")
        return
    counts = severities((finding.severity for finding in found), ("remark", "remarks"))
    say(
        stream,
        counts if errors_of(found) else f"{counts}: nothing that is certain to make the job fail",
    )


def in_short(finding: PreflightFinding) -> str:
    """One finding as a sentence, for a command that does something else."""
    return f"{finding.message} ({finding.rule.code} {finding.rule.name}): {finding.rule.why}"
