"""The JSON of `doctor --json`: other programs read it, so it changes only on purpose."""

from collections.abc import Sequence

from zerowiz.core.flags import spell
from zerowiz.core.launch.doctor.finding import PreflightFinding

SCHEMA_VERSION = 1


def encode_findings(findings: Sequence[PreflightFinding], version: str) -> dict[str, object]:
    """One JSON object, the findings in the order in which a job would meet them."""
    return {
        "schema_version": SCHEMA_VERSION,
        "zerowiz_version": version,
        "findings": [
            {
                "code": finding.rule.code,
                "name": finding.rule.name,
                "severity": finding.severity.value,
                "what": spell(finding.message),
                "why": finding.rule.why,
                "mends": [spell(each) for each in finding.fixes],
                "url": finding.rule.url,
            }
            for finding in findings
        ],
    }
