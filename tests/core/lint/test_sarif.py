"""The log has what SARIF 2.1.0 requires, and a code host finds the place."""

import json

import pytest

from zerowiz.core.lint.finding import Finding, Severity
from zerowiz.core.lint.report import FileReport
from zerowiz.core.lint.rules import RULES
from zerowiz.core.lint.sarif import encode_sarif

LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def report(path: str = "ds_config.json", severity: Severity = Severity.ERROR) -> FileReport:
    found = Finding(
        rule=RULES[1],
        severity=severity,
        key="a",
        line=3,
        column=7,
        message="`a` stands twice",
        mend="delete one",
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
