"""The JSON of `check --json`: other programs read it, so it changes only on purpose."""

from collections.abc import Sequence

from msgspec import Struct

from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.rule import errors_of
from zerowiz.errors import ZerowizError

SCHEMA_VERSION = 1


class FileReport(Struct, frozen=True, kw_only=True):
    """What was found in one file."""

    path: str
    """As it was given on the command line."""
    findings: tuple[ConfigFinding, ...]

    @property
    def failed(self) -> bool:
        """Whether any finding is an error."""
        return bool(errors_of(self.findings))


def encode_reports(
    reports: Sequence[FileReport], unreadable: Sequence[ZerowizError] = ()
) -> dict[str, object]:
    """One JSON object, the files in the order of the command line.

    Args:
        reports: What was found.
        unreadable: Why a path has no config.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "files": [
            {"path": report.path, "findings": [_finding(each) for each in report.findings]}
            for report in reports
        ],
        "unreadable": [
            {"message": error.message, "hints": list(error.hints)} for error in unreadable
        ],
    }


def _finding(finding: ConfigFinding) -> dict[str, object]:
    return {
        "code": finding.rule.code,
        "name": finding.rule.name,
        "severity": finding.severity.value,
        "key": finding.key,
        "line": finding.line,
        "column": finding.column,
        "message": finding.message,
        "why": finding.why,
        "fix": finding.fix,
        "url": finding.rule.url,
    }
