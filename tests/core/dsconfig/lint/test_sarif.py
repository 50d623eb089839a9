"""The log has what SARIF 2.1.0 requires, and a code host finds the place."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft4Validator
from lint.cases import BROKEN_CASES

from zerowiz.core.findings import Severity
from zerowiz.core.lint.config import ConfigFinding
from zerowiz.core.lint.linter import RULES, lint
from zerowiz.core.lint.report import FileReport, encode_sarif
from zerowiz.core.structs import replace
from zerowiz.probe.package_data import read_ds_schema

# README.md says where it comes from.
OFFICIAL = Draft4Validator(
    json.loads(Path(__file__).with_name("sarif-schema-2.1.0.json").read_text(encoding="utf-8"))
)
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def report(path: str = "ds_config.json", severity: Severity = Severity.ERROR) -> FileReport:
    found = ConfigFinding(
        rule=RULES[1],
        severity=severity,
        key="a",
        line=3,
        column=7,
        message="`a` stands twice",
        fix="delete one",
    )
    return FileReport(path=path, findings=(found,))


def run_of(*reports: FileReport) -> dict[str, object]:
    log = json.loads(json.dumps(encode_sarif(reports, RULES, "1.2.3")))
    assert "2.1.0" == log["version"]
    (run,) = log["runs"]
    assert isinstance(run, dict)
    return run


def result_of(given: FileReport) -> dict[str, object]:
    results = run_of(given)["results"]
    assert isinstance(results, list)
    (result,) = results
    assert isinstance(result, dict)
    return result


def test_every_rule_has_its_help_and_its_level() -> None:
    tool = run_of()["tool"]
    assert isinstance(tool, dict)
    assert "zerowiz" == tool["driver"]["name"]
    assert "1.2.3" == tool["driver"]["version"]
    rules = tool["driver"]["rules"]
    assert [rule.code for rule in RULES] == [rule["id"] for rule in rules]
    assert [rule.why for rule in RULES] == [rule["help"]["text"] for rule in rules]
    levels = [rule["defaultConfiguration"]["level"] for rule in rules]
    assert [LEVELS[rule.severity] for rule in RULES] == levels


def test_a_result_points_at_its_rule_and_its_place() -> None:
    result = result_of(report())
    assert RULES[1].code == result["ruleId"]
    assert 1 == result["ruleIndex"]
    assert {"text": "`a` stands twice; delete one"} == result["message"]
    place = {
        "physicalLocation": {
            "artifactLocation": {"uri": "ds_config.json"},
            "region": {"startLine": 3, "startColumn": 7},
        }
    }
    assert [place] == result["locations"]


@pytest.mark.parametrize("severity", Severity)
def test_a_severity_has_its_level(severity: Severity) -> None:
    assert LEVELS[severity] == result_of(report(severity=severity))["level"]


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("./a/b.json", "a/b.json"),
        ("a b#1.json", "a%20b%231.json"),
        ("/srv/ü.json", "file:///srv/%C3%BC.json"),
        ("tr\udcff.json", "tr%5Cudcff.json"),
    ],
)
def test_a_path_is_a_uri(path: str, uri: str) -> None:
    places = result_of(report(path))["locations"]
    assert isinstance(places, list)
    assert [uri] == [place["physicalLocation"]["artifactLocation"]["uri"] for place in places]


def test_no_finding_is_a_run_without_results() -> None:
    assert [] == run_of(FileReport(path="a.json", findings=()))["results"]


def faults(log: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in OFFICIAL.iter_errors(log)]


def test_the_official_schema_takes_what_is_found_in_every_broken_config() -> None:
    schema = read_ds_schema()
    found = [
        FileReport(path=path, findings=lint(case.text, schema, case.context))
        for case in BROKEN_CASES
        for path in (case.path.name, str(case.path))
    ]
    log = json.loads(json.dumps(encode_sarif(found, RULES, "1.2.3")))
    assert len(BROKEN_CASES) <= len(log["runs"][0]["results"])
    assert [] == faults(log)
    assert [] == faults(json.loads(json.dumps(encode_sarif([], RULES, "1.2.3"))))


def test_the_official_schema_sees_a_column_that_is_none() -> None:
    given = report()
    nowhere = replace(given.findings[0], column=0)
    log = encode_sarif([replace(given, findings=(nowhere,))], RULES, "1.2.3")
    assert 1 == len(faults(json.loads(json.dumps(log))))


def test_the_log_names_the_schema_that_it_is_held_against() -> None:
    assert OFFICIAL.schema["id"] == encode_sarif([], RULES, "1.2.3")["$schema"]
