"""What the page of GPUs, instances and models is made of: the tables that zerowiz plans with."""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

import msgspec
import pytest
from core.machine import test_spec as machine_names
from core.model import test_from_name as model_names
from docs.blocks import sources, table
from docs.json_tables import PLAN, Parts, definitions

from zerowiz.core.machine.names import GpuModel, Instance, match_models, parse_machine
from zerowiz.core.machine.types import Machine
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.from_name import KnownModel, find_known
from zerowiz.core.script.trainers import TRAINERS, TrainerClass
from zerowiz.core.strategies import FLOWCHART_STRATEGIES, STRATEGIES
from zerowiz.core.strategy_types import Offload, Part, Strategy
from zerowiz.errors import ExitCode, UsageError
from zerowiz.probe.files import read_gpu_table, read_instances, read_known_models


def spec_name(row: GpuModel) -> str:
    """The shortest name that means this GPU alone."""
    rows = read_gpu_table()
    alone = [name for name in (*row.aliases, row.name) if match_models(name, rows) == (row,)]
    return min(alone, key=len)


def of(row: GpuModel, group: str, text: str) -> str:
    """A number, and a question mark where its source is not known."""
    return f"{text} ?" if "[?]" in row.source[group] else text


def nvlink(row: GpuModel) -> str:
    if not row.nvlink_bytes_per_s:
        return "-"
    board = f", {row.nvlink_gpus} GPUs" if row.nvlink_gpus else ", by a bridge"
    return of(row, "nvlink", f"{row.nvlink_bytes_per_s / 1e9:g} GB/s{board}")


def gpu_cells(row: GpuModel) -> tuple[str, ...]:
    half = row.bf16_flop_per_s or row.fp16_flop_per_s
    return (
        f"`{spec_name(row)}`",
        row.name,
        of(row, "usable", f"{row.usable_bytes / 2**30:.2f} GiB"),
        of(row, "bandwidth", f"{row.memory_bytes_per_s / 1e9:g} GB/s"),
        nvlink(row),
        of(row, "pcie", f"{row.pcie_generation}.0"),
        of(row, "flops", f"{half / 1e12:g} TFLOP/s{'' if row.bf16_flop_per_s else ' (fp16)'}"),
        sources(row.source.values()),
    )


def network(row: Instance) -> str:
    found = row.network
    if found is None:
        return "not known"
    rate = "" if found.bytes_per_s is None else f" {found.bytes_per_s * 8 / 1e9:g} Gb/s"
    return f"{found.kind}{rate}"


def instance_cells(row: Instance) -> tuple[str, ...]:
    return (
        f"`{row.name}`",
        f"{row.gpus} x {row.gpu}",
        f"{row.host_bytes / 2**30:.0f} GiB",
        network(row),
        sources(row.source.values()),
    )


def model_cells(row: KnownModel) -> tuple[str, ...]:
    shape = row.build().architecture
    assert shape is not None
    unsure = " ?" if "[?]" in row.source["params"] else ""
    return (
        f"`{row.id}`",
        f"{row.params:,}{unsure}",
        f"{shape.layers} x {shape.hidden_size}",
        f"`{row.config['model_type']}`",
        sources(row.source.values()),
    )


def gpus() -> str:
    head = ("name", "as the driver has it", "memory", "bandwidth", "NVLink", "PCIe", "bf16")
    return table((*head, "sources"), map(gpu_cells, read_gpu_table()))


def instances() -> str:
    head = ("name", "GPUs", "host memory", "network", "sources")
    return table(head, map(instance_cells, read_instances()))


def models() -> str:
    head = ("name", "parameters", "layers x width", "family", "sources")
    return table(head, map(model_cells, read_known_models()))


# The strategies, the model families and the trainers, as pages list them.

STATES = {
    Part.OPTIMIZER: "optimizer states",
    Part.GRADIENTS: "gradients",
    Part.PARAMETERS: "parameters",
}
ON_HOST = {
    Offload.NONE: "",
    Offload.OPTIMIZER: "optimizer states",
    Offload.ALL: "optimizer states, parameters",
}


def strategy_row(strategy: Strategy) -> str:
    sharded = ", ".join(words for part, words in STATES.items() if part in strategy.sharded)
    asked = (
        ""
        if strategy in FLOWCHART_STRATEGIES
        else "; only where it is better, or `--offload` asks for it"
    )
    cells = (
        *(f"`{strategy.name}`", f"`{strategy.config_name}`", str(strategy.stage)),
        *(sharded or "nothing", f"{ON_HOST[strategy.offload]}{asked}"),
    )
    return f"| {' | '.join(cells)} |\n".replace("  ", " ")


def strategies() -> str:
    head = "| strategy | file | stage | what is sharded | what is on the host |\n|---|---|---|---|---|\n"
    return head + "".join(map(strategy_row, STRATEGIES))


def families() -> str:
    named = textwrap.fill(", ".join(f"`{name}`" for name in FAMILIES), width=120)
    return f"{named}\n"


def trainer_row(name: str, row: TrainerClass) -> str:
    has_reference = row.trainer.row.compares and row.refers
    cells = (f"`{name}`", row.trainer, "by its settings" if has_reference else "none")
    return f"| {' | '.join(cells)} | {row.uncounted or '-'} |\n"


def trainers() -> str:
    head = "| class | counted as | reference | not counted |\n|---|---|---|---|\n"
    return head + "".join(trainer_row(name, row) for name, row in TRAINERS.items())


# What the page of JSON objects is made of, and the schemas beside it: the values that are
# encoded.

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
}
# A plan file is a plan with more keys: the page tells these alone.
ON_THE_PAGE = {"plan-file": PLAN_FILE_ALONE}


def parts(name: str) -> str:
    """The tables of an object's keys."""
    schema = SCHEMAS[name]()
    told = ON_THE_PAGE.get(name, schema["$defs"])
    return "\n".join(sections({"$defs": {part: schema["$defs"][part] for part in told}}))


# What the page of names is made of: what the names of the tests become.


def refused(texts: Mapping[str, object]) -> dict[str, UsageError]:
    found = {}
    for text in texts:
        with pytest.raises(UsageError) as error:
            parse_machine(text, read_gpu_table(), read_instances())
        found[text] = error.value
    return found


def machines() -> str:
    rows = []
    for text in machine_names.WRITTEN:
        machine = parse_machine(text, read_gpu_table(), read_instances())
        nodes = "" if machine.nodes == 1 else f"{machine.nodes} nodes of "
        taken = any("is taken to be" in note for note in machine.notes)
        gpus = f"{nodes}{len(machine.gpus)} x {machine.gpus[0].name}"
        rows.append((f"`{text}`", gpus, "taken" if taken else ""))
    assert len(rows) >= 40
    return table(("written", "becomes", "note"), rows)


def close_machines() -> str:
    rows = [
        (f"`{text}`", ", ".join(re.findall("`[^`]+`", error.hints[0])))
        for text, error in refused(machine_names.UNKNOWN).items()
    ]
    return table(("written", "close names"), rows)


def models_names() -> str:
    rows = []
    for text in model_names.WRITTEN:
        row = find_known(text, read_known_models())
        assert row is not None
        rows.append((f"`{text}`", f"`{row.id}`", f"{row.params:,}"))
    assert len(rows) >= 30
    return table(("written", "model", "parameters"), rows)
