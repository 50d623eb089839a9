"""The schemas of JSON objects are those of the values that are encoded."""

import json
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli.harness import Run
from docs.blocks.objects import SCHEMAS, plan_file_schema, plan_schema, row_schema
from docs.json_tables import PLAN
from paths import TESTS

Golden = Callable[[str, str], None]


def unknown_keys(value: object, part: Mapping[str, Any], defs: Mapping[str, Any]) -> list[str]:
    """The keys of a value that its schema does not name."""
    if value is not None and "anyOf" in part:
        return unknown_keys(value, part["anyOf"][0], defs)
    if "$ref" in part:
        return unknown_keys(value, defs[part["$ref"].rpartition("/")[2]], defs)
    if isinstance(value, list):
        items = part.get("items") or {}  # false: a pair, whose two items are numbers
        return [key for each in value for key in unknown_keys(each, items, defs)]
    known = part.get("properties")
    if not isinstance(value, dict) or known is None:
        return []
    inside = (unknown_keys(each, known[key], defs) for key, each in value.items() if key in known)
    return [*(key for key in value if key not in known), *chain.from_iterable(inside)]


def holds(schema: Mapping[str, Any], value: object) -> None:
    """The value is as the schema says, and the schema names each of its keys."""
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(value, schema)
    roots = schema.get("allOf", [schema])
    unknown = [set(unknown_keys(value, root, schema["$defs"])) for root in roots]
    assert set() == set.intersection(*unknown)


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_object_has_its_schema_beside_the_page(name: str, golden: Golden) -> None:
    text = json.dumps(SCHEMAS[name](), indent=1)
    golden(f"../../docs/reference/{name}.schema.json", f"{text}\n")


def test_what_is_printed_keeps_its_schema(here: Run) -> None:
    printed = {
        "machine": [
            ("machine", "--machine", "4xA100-40GB", "--json"),
            ("machine", "--accelerator", "cpu", "--gpus-per-node", "2", "--json"),
        ],
        "error": [
            ("plan", "--machine", "4xA100-40GB", "--model", "7b", "--micro-batch", "0", "--json"),
            ("plan", "--machine", "nothing", "--model", "7b", "--json"),
            ("report", "--json"),
        ],
    }
    for name, commands in printed.items():
        for words in commands:
            holds(SCHEMAS[name](), json.loads(here(*words).stdout))


@pytest.mark.parametrize(
    "words",
    [
        ("--machine", "8xH100-80GB", "--model", "1b", "--objective", "fastest", "--limits"),
        ("--machine", "2xRTX4090", "--model", "7b", "--method", "lora", "--tokens", "1B"),
        ("--machine", "4xA100-40GB", "--model", "7b", "--accounting", "textbook"),
        ("--machine", "2xRTX4090", "--model", "70b"),
    ],
    ids=["fastest", "lora", "textbook", "nothing fits"],
)
def test_a_plan_keeps_its_schema(here: Run, words: tuple[str, ...]) -> None:
    holds(plan_schema(), json.loads(here("plan", *words, "--json").stdout))


def test_a_plan_file_keeps_its_schema(here: Run, folder: Path) -> None:
    job = ("--machine", "4xA100-40GB", "--model", "7b", "--gradient-checkpointing")
    assert 0 == here("init", "--yes", "--no-script", *job).code
    [file] = folder.glob("*.plan.json")
    plan, schema = json.loads(file.read_text(encoding="utf-8")), plan_file_schema()
    holds(schema, plan)
    keys = {*PLAN["Plan"], *PLAN["PlanFile"]}
    assert keys == {*plan}


@pytest.mark.parametrize("name", ["times/2026-11-h200", "regret/2026-11-h100"])
def test_measured_rows_keep_their_schema(name: str) -> None:
    lines = (TESTS / "measured" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    for line in lines:
        holds(row_schema(), json.loads(line))
