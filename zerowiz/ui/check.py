"""Show what was found in configs."""

from collections.abc import Sequence
from typing import TextIO

from zerowiz.core.findings import Finding, Severity, errors_of
from zerowiz.core.lint.report import ConfigFinding, FileReport
from zerowiz.translation import _
from zerowiz.ui.text import Colour, fold, note, paint, plain, severities

COLOURS = {
    Severity.ERROR: Colour.BAD,
    Severity.WARNING: Colour.DOUBT,
    Severity.INFO: Colour.LABEL,
}

_HANG = "    "


def reports(files: Sequence[FileReport], version: str, stream: TextIO) -> None:
    """Each finding with its reason and its fix, then how many there are, and what tells more.

    Args:
        files: What was found.
        version: Of DeepSpeed, against which it was found.
        stream: Where to.
    """
    for report in files:
        _report(report.path, report.findings, stream)
    stream.write(f"{_count(files, version)}\n")
    findings = [finding for report in files for finding in report.findings]
    if findings:
        stream.write(f"{_folded(explained_by('check', findings), stream)}\n")


def explained_by(command: str, findings: Sequence[Finding]) -> str:
    """The command that tells more of the first error, or else of the first finding."""
    code = (errors_of(findings) or findings)[0].rule.code
    return _(
        "for an example and the way out: `zerowiz {command} --explain {code}`",
        command=command,
        code=code,
    )


def errors(files: Sequence[FileReport], stream: TextIO) -> None:
    """The errors alone, with nothing around them."""
    for report in files:
        _report(report.path, errors_of(report.findings), stream)


def not_fixed(path: str, stream: TextIO) -> None:
    """Why a file with findings stays as it is."""
    note(_("`--fix` changes JSON only: fix {path} by hand, at the lines below", path=path), stream)


def fixed(path: str, findings: Sequence[ConfigFinding], stream: TextIO) -> None:
    """What was fixed in a file, a line for each finding."""
    count = (
        _("1 finding") if len(findings) == 1 else _("{findings} findings", findings=len(findings))
    )
    note(_("fixed {said} in {path}", said=count, path=path), stream)
    for finding in findings:
        line = _HANG + _(
            "line {line}: `{key}`: {fix}", line=finding.line, key=finding.key, fix=finding.fix
        )
        stream.write(f"{_folded(line, stream)}\n")


def in_short(path: str, finding: ConfigFinding) -> str:
    """One finding in half a sentence, for a command that does something else."""
    rule = finding.rule
    return plain(
        _(
            "{path} line {line}: {message} ({code} {rule})",
            path=path,
            line=finding.line,
            message=finding.message,
            code=rule.code,
            rule=rule.name,
        )
    )


def _report(path: str, findings: Sequence[ConfigFinding], stream: TextIO) -> None:
    """The findings of a file; the reason that several share is printed with the first."""
    reasons: set[str] = set()
    for finding in findings:
        rule, severity = finding.rule, finding.severity
        place = f"{path}:{finding.line}:{finding.column} {severity} {rule.code} {rule.name}: "
        line = _folded(f"{place}{finding.message}", stream)
        line = paint(line, {rf"(?<= ){severity} {rule.code}\b": COLOURS[severity]}, stream)
        is_new = finding.why and finding.why not in reasons
        reasons.add(finding.why)
        why = [_("why: {why}", why=finding.why)] if is_new else []
        below = [*why, *([_("fix: {fix}", fix=finding.fix)] if finding.fix else [])]
        stream.write("\n".join([line, *(_folded(_HANG + text, stream) for text in below)]) + "\n")


def _folded(line: str, stream: TextIO) -> str:
    """As the terminal shows it best; what would steer it is shown as `?`."""
    return fold(plain(line), stream, hang=len(_HANG))


def _count(checked: Sequence[FileReport], version: str) -> str:
    all_severities = (finding.severity for report in checked for finding in report.findings)
    counts = severities(all_severities, (_("piece of advice"), _("pieces of advice")))
    if not counts:
        return _("no findings")
    files = sum(bool(report.findings) for report in checked)
    where = (
        _(" in {files} of {found} files", files=files, found=len(checked))
        if len(checked) > 1
        else ""
    )
    return _(
        "{counts}{where}, for DeepSpeed {version}", counts=counts, where=where, version=version
    )
