"""Run every preflight check, in the order in which a job would meet what they find."""

from collections.abc import Callable, Iterator, Sequence

from zerowiz.core.command_words import spell
from zerowiz.core.findings import Finding, rules_of
from zerowiz.core.preflight import builds, environment, hardware, script, stages
from zerowiz.core.preflight.facts import PreflightInput

# A check reports nothing where a fact is not known.
_CHECKS: tuple[Callable[[PreflightInput], Iterator[Finding]], ...] = (
    script.check_script,
    environment.check_checkpoint,
    environment.check_environment,
    hardware.check_gpus,
    builds.check_builds,
    hardware.check_host,
)

RULES = rules_of((script, stages, environment, hardware, builds))


def examine(inputs: PreflightInput) -> tuple[Finding, ...]:
    """Everything that stands in the job's way, or is worth knowing before it starts."""
    return tuple(finding for check in _CHECKS for finding in check(inputs))


# The JSON of `doctor --json`: other programs read it, so it changes only on purpose.

SCHEMA_VERSION = 1


def encode_findings(findings: Sequence[Finding], version: str) -> dict[str, object]:
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
                "mends": [spell(fixe) for fixe in finding.fixes],
                "url": finding.rule.url,
            }
            for finding in findings
        ],
    }
