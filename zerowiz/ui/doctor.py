"""Show the findings of the preflight checks."""

from collections.abc import Sequence
from typing import TextIO

from zerowiz.core.findings import PreflightFinding, Severity, errors_of
from zerowiz.translation import N_, _
from zerowiz.ui.check import COLOURS, explained_by
from zerowiz.ui.text import say, severities

_HANG = "    "
# `check` names them in English everywhere: editors read its lines.
_SEVERITIES = {
    Severity.ERROR: N_("error"),
    Severity.WARNING: N_("warning"),
    Severity.INFO: N_("info"),
}


def findings(problems: Sequence[PreflightFinding], stream: TextIO) -> None:
    """Each finding with its reason and its fixes; the reason that several share is printed once."""
    explained: set[str] = set()
    for finding in problems:
        rule, severity = finding.rule, _(_SEVERITIES[finding.severity])
        say(
            stream,
            f"{severity} {rule.code} {rule.name}: {finding.message}",
            hang=len(_HANG),
            marks={rf"^{severity} {rule.code}\b": COLOURS[finding.severity]},
        )
        if rule.code not in explained:
            say(stream, _HANG + _("why: {why}", why=rule.why), hang=len(_HANG))
        for index, fix in enumerate(finding.fixes):
            say(stream, f"{_HANG}{_('or') if index else _('fix')}: {fix}", hang=len(_HANG))
        explained.add(rule.code)


def summary(problems: Sequence[PreflightFinding], stream: TextIO) -> None:
    """How many there are, what that means for a launch, and what tells more."""
    if not problems:
        say(stream, _("no problems found"))
        return
    counts = severities((finding.severity for finding in problems), (_("remark"), _("remarks")))
    say(
        stream,
        counts
        if errors_of(problems)
        else _("{counts}: nothing that is certain to make the job fail", counts=counts),
    )
    say(stream, explained_by("doctor", problems))


def in_short(finding: PreflightFinding) -> str:
    """One finding as a sentence, for a command that does something else."""
    return f"{finding.message} ({finding.rule.code} {finding.rule.name}): {finding.rule.why}"
