"""The JSON Schema takes what DeepSpeed is meant to read, and refuses what it refuses."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator, Draft202012Validator
from lint.cases import BROKEN_CASES, GOOD_CASES, Case
from paths import TEMPLATES

from zerowiz.core.dsconfig.hjson import parse, plain
from zerowiz.core.dsconfig.schema import Schema, SchemaKey, Unknown
from zerowiz.core.findings import Finding, Severity
from zerowiz.core.lint.linter import RULES, lint
from zerowiz.core.lint.report import FileReport, encode_json_schema, encode_sarif
from zerowiz.core.structs import replace
from zerowiz.probe.files import read_ds_schema, read_ds_schemas

SCHEMA = encode_json_schema(read_ds_schema())


def valid(value: object, rule: dict[str, Any]) -> bool:
    return bool(Draft202012Validator(rule).is_valid(value))


def placed(schema: Schema) -> Iterator[tuple[SchemaKey, dict[str, Any]]]:
    """Every key with its place in the JSON Schema."""

    def walk(section: str, rule: dict[str, Any]) -> Iterator[tuple[SchemaKey, dict[str, Any]]]:
        for key in schema.children(section):
            for name in key.names:
                yield key, rule["properties"][name]
            inner = rule["properties"][key.name]
            inner = inner["anyOf"][0] if "anyOf" in inner else inner
            yield from walk(key.path, inner) if key.unknown is not None else ()

    yield from walk("", encode_json_schema(schema))


@pytest.mark.parametrize("schema", read_ds_schemas(), ids=lambda s: s.version)
def test_it_is_a_json_schema(schema: Schema) -> None:
    Draft202012Validator.check_schema(encode_json_schema(schema))


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.json")), ids=lambda p: p.name)
def test_a_shipped_config_is_valid(path: Path) -> None:
    assert valid(json.loads(path.read_text(encoding="utf-8")), SCHEMA)


@pytest.mark.parametrize("case", GOOD_CASES, ids=str)
def test_a_good_config_is_valid(case: Case) -> None:
    assert valid(plain(parse(case.text)), SCHEMA)


# What one value alone shows; typos at the top are no error of a schema, for DeepSpeed takes them.
SEEN = {"removed-key", "wrong-type"}


@pytest.mark.parametrize("case", [c for c in BROKEN_CASES if c.rule in SEEN], ids=str)
def test_a_broken_config_is_not(case: Case) -> None:
    assert not valid(plain(parse(case.text)), SCHEMA)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, True),
        ([], False),
        ({"train_batch_size": 8}, True),
        ({"train_batch_size": "auto"}, True),
        ({"train_batch_size": 0}, False),
        ({"train_batch_size": "8"}, False),
        ({"some_key_of_mine": 1}, True),
        ({"zero_optimization": {"stage": 3}}, True),
        ({"zero_optimization": {"stage": 4}}, False),
        ({"zero_optimization": {"stagee": 3}}, False),
        ({"zero_optimization": {"reduce_bucket_size": 5e8}}, True),
        ({"zero_optimization": {"reduce_bucket_size": "5e8"}}, False),
        ({"zero_optimization": {"reduce_bucket_size": "auto"}}, True),
        ({"zero_optimization": {"stage3_max_live_parameters": 1}}, True),
        ({"zero_optimization": {"max_live_parameters": 1}}, True),
        ({"zero_optimization": {"offload_param": None}}, True),
        ({"zero_optimization": {"offload_param": {"device": "gpu"}}}, False),
        ({"bf16": {"enabled": True, "loss_scale": 0}}, False),
        ({"optimizer": {"type": "AdamW", "params": {"lr": "auto", "anything": []}}}, True),
        ({"communication_data_type": "FP32"}, True),
        ({"communication_data_type": None}, True),
        ({"communication_data_type": "int4"}, False),
        ({"amp": {"enabled": True}}, False),
    ],
)
def test_the_schema_judges(config: object, expected: bool) -> None:
    assert expected == valid(config, SCHEMA)


def test_every_key_of_every_version_is_there_by_all_its_names() -> None:
    for schema in read_ds_schemas():
        assert {path for path in schema.keys if path} == {key.path for key, _ in placed(schema)}


def test_a_deprecated_key_says_so_and_what_comes_instead() -> None:
    told = {key.path: rule for key, rule in placed(read_ds_schema()) if key.deprecated}
    assert {
        "zero_optimization.cpu_offload",
        "zero_optimization.cpu_offload_param",
        "zero_optimization.cpu_offload_use_pin_memory",
        "zero_optimization.stage3_gather_fp16_weights_on_model_save",
    } == told.keys()
    assert all(rule["deprecated"] for rule in told.values())
    assert "Use zero_optimization.offload_optimizer." in str(
        told["zero_optimization.cpu_offload"]["description"]
    )


def test_a_section_is_closed_where_deepspeed_refuses_unknown_keys_and_only_there() -> None:
    for key, rule in placed(read_ds_schema()):
        section = rule["anyOf"][0] if "anyOf" in rule else rule
        if key.unknown is not None:
            closed = section.get("additionalProperties") is False
            assert (key.unknown is Unknown.REFUSED) == closed, key.path


def test_a_default_is_a_valid_value() -> None:
    for key, rule in placed(read_ds_schema()):
        assert valid(rule.get("default"), rule) or "default" not in rule, key.path


def test_the_schema_names_its_dialect_and_its_version() -> None:
    assert "https://json-schema.org/draft/2020-12/schema" == SCHEMA["$schema"]
    assert f"urn:zerowiz:ds_config:{read_ds_schema().version}" == SCHEMA["$id"]


# The log has what SARIF 2.1.0 requires, and a code host finds the place.

# README.md says where it comes from.
OFFICIAL = Draft4Validator(
    json.loads(Path(__file__).with_name("sarif-schema-2.1.0.json").read_text(encoding="utf-8"))
)
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def report(path: str = "ds_config.json", severity: Severity = Severity.ERROR) -> FileReport:
    found = Finding(
        rule=RULES[1],
        severity=severity,
        key="a",
        line=3,
        column=7,
        message="`a` stands twice",
        fixes=("delete one",),
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
