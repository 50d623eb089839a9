"""The JSON Schema takes what DeepSpeed is meant to read, and refuses what it refuses."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zerowiz.core.dsschema import Key, Schema, Unknown
from zerowiz.core.lint.jsonschema import encode_json_schema
from zerowiz.probe.ds_schema import read_ds_schema, read_ds_schemas

ROOT = Path(__file__).parents[3]
SCHEMA = encode_json_schema(read_ds_schema())

TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


def is_a(value: object, name: str) -> bool:
    """JSON Schema validation, section 6.1.1: an integer is a number without a fraction."""
    if name in TYPES:
        return isinstance(value, TYPES[name])
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and (name == "number" or float(value).is_integer())  # type: ignore[arg-type]


def bounds_hold(value: Any, rule: dict[str, Any]) -> bool:
    if isinstance(value, str | bool | list | dict | None):
        return True
    return bool(
        value >= rule.get("minimum", value)
        and value <= rule.get("maximum", value)
        and value > rule.get("exclusiveMinimum", value - 1)
        and value < rule.get("exclusiveMaximum", value + 1)
    )


def members_valid(value: Any, rule: dict[str, Any]) -> bool:
    if isinstance(value, list):
        return all(valid(item, rule.get("items", {})) for item in value)
    if not isinstance(value, dict):
        return True
    known = rule.get("properties", {})
    if rule.get("additionalProperties") is False and value.keys() - known.keys():
        return False
    return all(valid(value[name], known[name]) for name in value.keys() & known.keys())


def valid(value: Any, rule: dict[str, Any]) -> bool:
    """As far as the keywords go that are written here."""
    types = rule.get("type", [])
    return (
        "not" not in rule
        and ("anyOf" not in rule or any(valid(value, each) for each in rule["anyOf"]))
        and (not types or any(is_a(value, t) for t in ([types] if types == str(types) else types)))
        and ("enum" not in rule or value in rule["enum"])
        and ("const" not in rule or value == rule["const"])
        and bounds_hold(value, rule)
        and members_valid(value, rule)
    )


def placed(schema: Schema) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Every key with its place in the JSON Schema."""

    def walk(section: str, rule: dict[str, Any]) -> Iterator[tuple[Key, dict[str, Any]]]:
        for key in schema.children(section):
            for name in key.names:
                yield key, rule["properties"][name]
            inner = rule["properties"][key.name]
            inner = inner["anyOf"][0] if "anyOf" in inner else inner
            yield from walk(key.path, inner) if key.unknown is not None else ()

    yield from walk("", encode_json_schema(schema))


@pytest.mark.parametrize("path", sorted((ROOT / "templates").glob("*.json")), ids=lambda p: p.name)
def test_a_shipped_config_is_valid(path: Path) -> None:
    assert valid(json.loads(path.read_text(encoding="utf-8")), SCHEMA)


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
