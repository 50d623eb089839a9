"""Write findings as SARIF, which code hosts show as annotations."""

from collections.abc import Sequence
from urllib.parse import quote

from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.lint.report import FileReport
from zerowiz.core.rule import Rule, Severity
from zerowiz.errors import ZerowizError

# OASIS, Static Analysis Results Interchange Format 2.1.0.
VERSION = "2.1.0"
_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)

# Section 3.27.10, the property `level` of a result.
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def encode_sarif(
    reports: Sequence[FileReport],
    rules: Sequence[Rule],
    version: str,
    unreadable: Sequence[ZerowizError] = (),
) -> dict[str, object]:
    """One log with one run.

    Args:
        reports: What was found.
        rules: All rules, found or not.
        version: Of zerowiz.
        unreadable: Why a path has no config.
    """
    driver = {"name": "zerowiz", "version": version, "rules": [_rule(rule) for rule in rules]}
    place = {rule.code: index for index, rule in enumerate(rules)}
    results = [
        _result(report.path, finding, place[finding.rule.code])
        for report in reports
        for finding in report.findings
    ]
    # Section 3.14.17: a column counts characters, not UTF-16 code units.
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": results,
        "invocations": [_invocation(unreadable)],
    }
    return {"$schema": _SCHEMA, "version": VERSION, "runs": [run]}


def _invocation(unreadable: Sequence[ZerowizError]) -> dict[str, object]:
    """Section 3.20: whether all was checked, and what was not."""
    said = [{"level": "error", "message": {"text": error.message}} for error in unreadable]
    return {"executionSuccessful": not unreadable, "toolExecutionNotifications": said}


def _rule(rule: Rule) -> dict[str, object]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.name.replace("-", " ")},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule.why},
        "helpUri": rule.url,
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(path: str, finding: ConfigFinding, rule_index: int) -> dict[str, object]:
    fix = f"; {finding.fix}" if finding.fix else ""
    region = {"startLine": finding.line, "startColumn": finding.column}
    return {
        "ruleId": finding.rule.code,
        "ruleIndex": rule_index,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}{fix}"},
        "locations": [
            {"physicalLocation": {"artifactLocation": {"uri": _uri(path)}, "region": region}}
        ],
    }


def _uri(path: str) -> str:
    """Section 3.4.3: a relative reference, or `file:` with an absolute path."""
    reference = quote(path, errors="backslashreplace")
    return f"file://{reference}" if path.startswith("/") else reference.removeprefix("./")
