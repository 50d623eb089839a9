"""What the page of JSON objects is made of, and the schemas beside it: the values that are encoded."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

import msgspec
from docs.blocks.markdown import table
from docs.json_tables import PLAN, ROW, Parts, definitions

from zerowiz.core.machine.types import Machine
from zerowiz.errors import ExitCode

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLAN_FILE_ALONE = ("PlanFile", "ConfigFile", "Command")

# A key whose name ends so is a number of these.
UNITS = {"bytes_per_s": "bytes/s", "bytes": "bytes", "seconds": "s"}


def structs(kind: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """The classes of a value's parts, by their names in the schema."""
    found: dict[str, type[msgspec.Struct]] = {kind.__name__: kind}
    for hint in get_type_hints(kind).values():
        for name in re.findall(r"zerowiz(?:\.\w+)+", str(hint)):
            module, _, last = name.rpartition(".")
            part = getattr(sys.modules[module], last)
            if issubclass(part, msgspec.Struct) and part.__name__ not in found:
                found |= structs(part)
    return found


def meanings(kind: type[msgspec.Struct]) -> Mapping[str, str]:
    """What the text below a field says of it."""
    [body] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            said = ast.literal_eval(below.value)
            found[ast.unparse(field.target)] = " ".join(said.split()).replace("`None`", "null")
    return {each.encode_name: found.get(each.name, "") for each in msgspec.structs.fields(kind)}


def _versioned(name: str, title: str, parts: dict[str, Any]) -> dict[str, Any]:
    """Of an object with a version and one member, whose part has its name as a class."""
    return {
        "$schema": DIALECT,
        "$id": f"urn:zerowiz:{name}:1",
        "title": title,
        "type": "object",
        "properties": {"schema_version": {"const": 1}, name: {"$ref": f"#/$defs/{name.title()}"}},
        "required": ["schema_version", name],
        "$defs": parts,
    }


def machine_schema() -> dict[str, Any]:
    """Of `machine --json`, with each field's meaning."""
    parts = msgspec.json.schema(Machine)["$defs"]
    for name, kind in structs(Machine).items():
        for key, said in meanings(kind).items():
            assert said, f"{name}.{key} says nowhere what it means"
            parts[name]["properties"][key]["description"] = said
    for part in parts.values():
        if "description" in part:
            part["description"] = " ".join(part["description"].split()).replace("`None`", "null")
    return _versioned("machine", "The object of `zerowiz machine --json`", parts)


def error_schema() -> dict[str, Any]:
    """Of the object that `--json` prints where a command fails."""
    failed = [code for code in ExitCode if code not in (ExitCode.OK, ExitCode.INTERRUPTED)]
    about = {
        "kind": {"enum": [code.name.lower() for code in failed], "description": "The exit code."},
        "message": {"type": "string", "description": "What is wrong, in one line."},
        "hints": {
            "type": "array",
            "items": {"type": "string"},
            "description": "What you can do, the best first.",
        },
        "exit_code": {"enum": [int(code) for code in failed], "description": "As a number."},
        "url": {"type": "string", "description": "The page of this exit code."},
    }
    error = {"type": "object", "properties": about, "required": [*about]}
    title = "The object that `--json` prints where a command fails"
    return _versioned("error", title, {"Error": error})


def object_schema(name: str, title: str, parts: Parts, *roots: str) -> dict[str, Any]:
    """Of an object that has the keys of these parts."""
    root: dict[str, Any] = (
        {"$ref": f"#/$defs/{roots[0]}"}
        if len(roots) == 1
        else {"allOf": [{"$ref": f"#/$defs/{each}"} for each in roots]}
    )
    return {
        "$schema": DIALECT,
        "$id": f"urn:zerowiz:{name}:1",
        "title": title,
        **root,
        "$defs": definitions(parts),
    }


def plan_schema() -> dict[str, Any]:
    """Of `plan --json`."""
    parts = {name: keys for name, keys in PLAN.items() if name not in PLAN_FILE_ALONE}
    return object_schema("plan", "The object of `zerowiz plan --json`", parts, "Plan")


def plan_file_schema() -> dict[str, Any]:
    """Of the file that stands beside a config."""
    title = "A plan file: `ds_config_zeroN.plan.json`"
    return object_schema("plan-file", title, PLAN, "Plan", "PlanFile")


def row_schema() -> dict[str, Any]:
    """Of a line that `measure --output` appends."""
    return object_schema("row", "A row of `zerowiz measure --output`", ROW, "Row")


def type_words(part: Mapping[str, Any]) -> str:
    """A type of the schema in a few words."""
    if "anyOf" in part:
        return " or ".join(type_words(each) for each in part["anyOf"])
    if "allOf" in part:
        return type_words(part["allOf"][0])
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in part:
        return ", ".join(f"`{each}`" for each in part["enum"])
    if part.get("type") == "array":
        items = part.get("items") or part["prefixItems"][0]
        count = f"{part['maxItems']} " if "maxItems" in part else ""
        several = "s" if "type" in items else ""
        return f"list of {count}{type_words(items)}{several}"
    values = part.get("additionalProperties")
    return (
        f"object of {type_words(values)}" if isinstance(values, dict) else part.get("type", "any")
    )


def sections(schema: Mapping[str, Any]) -> Iterator[str]:
    for name, part in schema["$defs"].items():
        about = f"\n{part['description']}\n" if "description" in part else ""
        if "enum" in part:
            yield f"### {name}\n{about}\nOne of {type_words(part)}.\n"
            continue
        rows = []
        for key, value in part["properties"].items():
            unit = next((UNITS[end] for end in UNITS if key.endswith(end)), "")
            rows.append((f"`{key}`", type_words(value), unit, value.get("description", "")))
        yield f"### {name}\n{about}\n{table(('key', 'type', 'unit', 'meaning'), rows)}"


SCHEMAS = {
    "machine": machine_schema,
    "error": error_schema,
    "plan": plan_schema,
    "plan-file": plan_file_schema,
    "row": row_schema,
}
# A plan file is a plan with more keys: the page tells these alone.
ON_THE_PAGE = {"plan-file": PLAN_FILE_ALONE}


def parts(name: str) -> str:
    """The tables of an object's keys."""
    schema = SCHEMAS[name]()
    told = ON_THE_PAGE.get(name, schema["$defs"])
    return "\n".join(sections({"$defs": {part: schema["$defs"][part] for part in told}}))
