"""Findings in a config, and their reports: JSON, SARIF, and the JSON Schema of configs."""

import json
from collections.abc import Sequence
from enum import StrEnum
from urllib.parse import quote

from msgspec import Struct

from zerowiz.core.dsconfig.schema import Kind, Schema, SchemaKey, Unknown
from zerowiz.core.findings import Finding, Rule, Severity
from zerowiz.errors import ZerowizError

SCHEMA_VERSION = 1


class OutputFormat(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"
    """Workflow commands, which GitHub shows beside the lines."""


class FileReport(Struct, frozen=True, kw_only=True):
    """What was found in one file, and what was done to it."""

    path: str
    """As it was given on the command line."""
    findings: tuple[Finding, ...]
    fixed: tuple[Finding, ...] = ()
    """What was fixed in the file, at the places where it stood."""
    diff: str = ""
    """What the fixes change, where they are safe."""
    not_fixable: bool = False
    """Whether fixes were wanted, and the file is of a kind that is not changed."""

    def fails(self, *, strict: bool) -> bool:
        """Whether any finding is an error, or, if it is strict, a warning."""
        fatal = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
        return any(finding.severity in fatal for finding in self.findings)


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
            {
                "path": report.path,
                "findings": [
                    {
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
                    for finding in report.findings
                ],
            }
            for report in reports
        ],
        "unreadable": [
            {"message": error.message, "hints": list(error.hints)} for error in unreadable
        ],
    }


# Write findings as workflow commands of GitHub.

# docs.github.com, Workflow commands for GitHub Actions; @actions/core, command.ts, escapes these.
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
_ESCAPED = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_ESCAPED_PROPERTY = _ESCAPED | str.maketrans({":": "%3A", ",": "%2C"})


def encode_github(
    reports: Sequence[FileReport], unreadable: Sequence[ZerowizError] = ()
) -> tuple[str, ...]:
    """One line for each finding, and for each path without a config.

    Args:
        reports: What was found.
        unreadable: Why a path has no config.
    """
    lines = []
    for path, finding in ((report.path, found) for report in reports for found in report.findings):
        place = f"file={path.translate(_ESCAPED_PROPERTY)},line={finding.line},col={finding.column}"
        fix = f"; {finding.fix}" if finding.fix else ""
        title = f"zerowiz {finding.rule.code} {finding.rule.name}"
        text = f"{path}:{finding.line}:{finding.column} {finding.rule.code} {finding.message}{fix}"
        command = _COMMANDS[finding.severity]
        lines.append(f"::{command} {place},title={title}::{text.translate(_ESCAPED)}")
    return (*lines, *(f"::error::{error.message.translate(_ESCAPED)}" for error in unreadable))


# Write findings as SARIF, which code hosts show as annotations.

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
    described = [
        {
            "id": rule.code,
            "name": rule.name,
            "shortDescription": {"text": rule.name.replace("-", " ")},
            "fullDescription": {"text": rule.why},
            "help": {"text": rule.why},
            "helpUri": rule.url,
            "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        }
        for rule in rules
    ]
    driver = {"name": "zerowiz", "version": version, "rules": described}
    place = {rule.code: index for index, rule in enumerate(rules)}
    results = [
        _result(report.path, finding, place[finding.rule.code])
        for report in reports
        for finding in report.findings
    ]
    # Section 3.20: whether all was checked, and what was not.
    notifications = [{"level": "error", "message": {"text": error.message}} for error in unreadable]
    invocation = {
        "executionSuccessful": not unreadable,
        "toolExecutionNotifications": notifications,
    }
    # Section 3.14.17: a column counts characters, not UTF-16 code units.
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": results,
        "invocations": [invocation],
    }
    return {"$schema": _SCHEMA, "version": VERSION, "runs": [run]}


def _result(path: str, finding: Finding, rule_index: int) -> dict[str, object]:
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


# Write the schema of a config as JSON Schema, from which editors complete keys.

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

# pydantic's words for bounds, in those of JSON Schema validation, section 6.2.
_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}

# DeepSpeed refuses "auto" here, but the Trainer and Accelerate fill it in before:
# transformers 5.23, integrations/deepspeed.py, HfTrainerDeepSpeedConfig.trainer_config_process.
_FILLED = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
    }
)


def encode_json_schema(schema: Schema) -> dict[str, object]:
    """What is meant to stand in a config, for one version of DeepSpeed.

    It is stricter than DeepSpeed, which also reads `"8"` where a number is meant, and milder than
    `check`: it compares no key with another.
    """
    return {
        "$schema": _DIALECT,
        "$id": f"urn:zerowiz:ds_config:{schema.version}",
        "title": f"Config of DeepSpeed {schema.version}",
        **_section(schema, schema.keys[""]),
    }


def _value(schema: Schema, key: SchemaKey) -> dict[str, object]:
    if key.removed:
        return {"not": {}, "deprecated": True, **_about(key)}
    inner = {**_choices(key), **_bounds(key)} if key.unknown is None else _section(schema, key)
    meant: dict[str, object] = {**_types(key), **inner}
    # A replaced or a dropped "auto"; a key that takes every kind of value is not meant to have it.
    looked_at = len(key.takes) < len(Kind)
    if key.path in _FILLED or (looked_at and Kind.AUTO in key.takes):
        meant = {"anyOf": [meant, {"const": Kind.AUTO.value}]}
    # A null that is not meant to be written is no default.
    value = None if key.default is None else json.loads(key.default)
    default = {} if value is None and "null" not in key.types else {"default": value}
    deprecated = {"deprecated": True} if key.deprecated else {}
    return {**_about(key), **meant, **default, **deprecated}


def _section(schema: Schema, section: SchemaKey) -> dict[str, object]:
    properties: dict[str, object] = {}
    for key in schema.children(section.path):
        properties |= dict.fromkeys(key.names, _value(schema, key))
    closed = {"additionalProperties": False} if section.unknown is Unknown.REFUSED else {}
    return {"type": "object", **_types(section), "properties": properties, **closed}


def _types(key: SchemaKey) -> dict[str, object]:
    """One type as a word, several as a list; none where no type of JSON is meant.

    People write null for what is not set, and false where DeepSpeed's own default is null.
    """
    # runtime/engine.py compares the clipping with 0, and fails on a null.
    unset = {"null": key.path != "gradient_clipping", "boolean": "null" in key.types}
    others = [word for word, is_taken in unset.items() if is_taken and Kind(word) in key.takes]
    types = list(dict.fromkeys((*key.types, *(others if key.types else ()))))
    return {"type": types[0] if len(types) == 1 else types} if types else {}


def _choices(key: SchemaKey) -> dict[str, object]:
    choices = [json.loads(choice) for choice in key.choices]
    if key.any_case:
        # The common ones: JSON Schema has no word for any.
        cases = (sorted({c.lower(), c.upper(), c.capitalize()} - {c}) for c in choices)
        choices += [other for others in cases for other in others]
    if not choices:
        return {}
    if "array" in key.types:
        return {"items": {"enum": choices}}
    return {"enum": [*choices, *([None] if Kind.NULL in key.takes else [])]}


def _bounds(key: SchemaKey) -> dict[str, object]:
    """Of numbers; a switch has bounds too, for DeepSpeed takes 0 and 1 for it."""
    is_number = not {"integer", "number"}.isdisjoint(key.types)
    return {_BOUNDS[word]: bound for word, bound in key.bounds.items() if is_number}


def _about(key: SchemaKey) -> dict[str, object]:
    moved = f"Use {key.new_path}." if key.new_path else None
    text = " ".join(filter(None, (key.about, moved)))
    return {"description": text} if text else {}
