"""Show what was found: mistakes in configs, and obstacles of a job."""

from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from zerowiz.core.findings import Finding, Severity, errors_of
from zerowiz.core.lint.report import FileReport
from zerowiz.ui.text import Colour, note, plain, say

_COLOURS = {
    Severity.ERROR: Colour.BAD,
    Severity.WARNING: Colour.DOUBT,
    Severity.INFO: Colour.LABEL,
}
_HANG = "    "


def findings(found: Sequence[Finding], stream: TextIO, path: str | None = None) -> None:
    """Each finding with its reason and its fixes; the reason that several share is printed once.

    Args:
        found: What to show.
        stream: Where to.
        path: Of the file where they stand; None for those of a job.
    """
    explained: set[str] = set()
    for finding in found:
        rule, severity = finding.rule, finding.severity
        place = "" if path is None else f"{path}:{finding.line}:{finding.column} "
        code = f"{severity} {rule.code}"
        marks = {rf"(?:^|(?<= )){code}\b": _COLOURS[severity]}
        line = f"{place}{code} {rule.name}: {finding.message}"
        say(stream, line, hang=len(_HANG), marks=marks)
        below = [] if finding.why in {"", *explained} else [f"why: {finding.why}"]
        below += [f"{'or' if index else 'fix'}: {fix}" for index, fix in enumerate(finding.fixes)]
        say(stream, *(_HANG + text for text in below), hang=len(_HANG))
        explained.add(finding.why)


def reports(files: Sequence[FileReport], version: str, stream: TextIO) -> None:
    """Each finding with its reason and its fix, then how many there are, and what tells more.

    Args:
        files: What was found.
        version: Of DeepSpeed, against which it was found.
        stream: Where to.
    """
    for report in files:
        findings(report.findings, stream, report.path)
    found = [finding for report in files for finding in report.findings]
    counts = _count(found, ("piece of advice", "pieces of advice"))
    if not found:
        say(stream, "no findings")
        return
    broken = sum(bool(report.findings) for report in files)
    where = f" in {broken} of {len(files)} files" if len(files) > 1 else ""
    say(stream, f"{counts}{where}, for DeepSpeed {version}", _explained_by("check", found))


def summary(problems: Sequence[Finding], stream: TextIO) -> None:
    """How many obstacles of a job there are, what that means for a launch, and what tells more."""
    if not problems:
        say(stream, "no problems found")
        return
    counts = _count(problems, ("remark", "remarks"))
    if not errors_of(problems):
        counts += ": nothing that is certain to make the job fail"
    say(stream, counts, _explained_by("doctor", problems))


def _count(found: Sequence[Finding], advice: tuple[str, str]) -> str:
    """How many of each severity there are: `2 errors, 1 warning`; empty if there is none.

    Args:
        found: All of them.
        advice: One finding of the mildest severity in words, and several.
    """
    one_and_more = {
        Severity.ERROR: ("error", "errors"),
        Severity.WARNING: ("warning", "warnings"),
        Severity.INFO: advice,
    }
    counts = Counter(finding.severity for finding in found)
    return ", ".join(
        f"{counts[severity]} {single if counts[severity] == 1 else more}"
        for severity, (single, more) in one_and_more.items()
        if counts[severity]
    )


def _explained_by(command: str, found: Sequence[Finding]) -> str:
    """The command that tells more of the first error, or else of the first finding."""
    code = (errors_of(found) or found)[0].rule.code
    return f"for an example and the way out: `zerowiz {command} --explain {code}`"


def errors(files: Sequence[FileReport], stream: TextIO) -> None:
    """The errors alone, with nothing around them."""
    for report in files:
        findings(errors_of(report.findings), stream, report.path)


def commands(lines: Sequence[str], stream: TextIO) -> None:
    """Lines for a program, each whole."""
    stream.writelines(f"{plain(line)}\n" for line in lines)


def fixed(path: str, found: Sequence[Finding], stream: TextIO) -> None:
    """What was fixed in a file, a line for each finding."""
    count = "1 finding" if len(found) == 1 else f"{len(found)} findings"
    note(f"fixed {count} in {path}", stream)
    lines = (f"line {finding.line}: `{finding.key}`: {finding.fix}" for finding in found)
    say(stream, *(_HANG + line for line in lines), hang=len(_HANG))
