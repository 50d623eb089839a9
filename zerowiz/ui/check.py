"""Show what was found in configs."""

from collections.abc import Sequence
from typing import TextIO

from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.lint.report import FileReport
from zerowiz.core.rule import Severity, errors_of
from zerowiz.ui.show import note
from zerowiz.ui.text.colours import Colour, paint
from zerowiz.ui.text.fold import fold
from zerowiz.ui.text.units import severities

COLOURS = {
    Severity.ERROR: Colour.BAD,
    Severity.WARNING: Colour.DOUBT,
    Severity.INFO: Colour.LABEL,
}

_HANG = "    "


def reports(found: Sequence[FileReport], version: str, stream: TextIO) -> None:
    """Each finding with its reason and its fix, then how many there are.

    Args:
        found: What was found.
        version: Of DeepSpeed, against which it was found.
        stream: Where to.
    """
    for report in found:
        _report(report.path, report.findings, stream)
    stream.write(f"{_count(found, version)}\n")


def errors(found: Sequence[FileReport], stream: TextIO) -> None:
    """The errors alone, with nothing around them."""
    for report in found:
        _report(report.path, errors_of(report.findings), stream)


def not_fixed(path: str, stream: TextIO) -> None:
    """Why a file with findings stays as it is."""
    note(f"`--fix` changes JSON only: fix {path} by hand, at the lines below", stream)


def fixed(path: str, count: int, stream: TextIO) -> None:
    """How many findings of a file were fixed."""
    said = "1 finding" if count == 1 else f"{count} findings"
    note(f"fixed {said} in {path}", stream)


def in_short(path: str, finding: ConfigFinding) -> str:
    """One finding in half a sentence, for a command that does something else."""
    rule = finding.rule
    return _printable(f"{path} line {finding.line}: {finding.message} ({rule.code} {rule.name})")


def _report(path: str, findings: Sequence[ConfigFinding], stream: TextIO) -> None:
    """The findings of a file; the reason that several share is printed with the first."""
    said: set[str] = set()
    for finding in findings:
        _finding(path, finding, stream, explained=finding.rule.code in said)
        said.add(finding.rule.code)


def _finding(path: str, finding: ConfigFinding, stream: TextIO, *, explained: bool) -> None:
    rule, severity = finding.rule, finding.severity
    said = f"{path}:{finding.line}:{finding.column} {severity} {rule.code} {rule.name}: "
    line = _folded(f"{said}{finding.message}", stream)
    line = paint(line, {rf"(?<= ){severity} {rule.code}\b": COLOURS[severity]}, stream)
    why = [] if explained else [f"why: {rule.why}"]
    below = [*why, *([f"fix: {finding.fix}"] if finding.fix else [])]
    stream.write("\n".join([line, *(_folded(_HANG + each, stream) for each in below)]) + "\n")


def _folded(line: str, stream: TextIO) -> str:
    """As the terminal shows it best; what would steer it is shown as `?`."""
    return fold(_printable(line), stream, hang=len(_HANG))


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in line)


def _count(found: Sequence[FileReport], version: str) -> str:
    all_severities = (finding.severity for report in found for finding in report.findings)
    counts = severities(all_severities, ("piece of advice", "pieces of advice"))
    if not counts:
        return "no findings"
    files = sum(bool(report.findings) for report in found)
    where = f" in {files} of {len(found)} files" if len(found) > 1 else ""
    return f"{counts}{where}, for DeepSpeed {version}"
