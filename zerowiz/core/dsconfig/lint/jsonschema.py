"""Write the schema of a config as JSON Schema, from which editors complete keys."""

import json
from collections.abc import Mapping

from zerowiz.core.dsconfig.schema import Kind, Schema, SchemaKey, Unknown

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

# pydantic's words for bounds, in those of JSON Schema validation, section 6.2.
_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}
_NUMBERS = frozenset({"integer", "number"})

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
    meant = _meant(schema, key)
    if _takes_auto(key):
        meant = {"anyOf": [meant, {"const": Kind.AUTO.value}]}
    deprecated = {"deprecated": True} if key.deprecated else {}
    return {**_about(key), **meant, **_default(key), **deprecated}


def _default(key: SchemaKey) -> dict[str, object]:
    """A null that is not meant to be written is none."""
    default = None if key.default is None else json.loads(key.default)
    return {} if default is None and "null" not in key.types else {"default": default}


def _meant(schema: Schema, key: SchemaKey) -> dict[str, object]:
    if key.unknown is not None:
        return {**_types(key), **_section(schema, key)}
    return {**_types(key), **_choices(key), **_bounds(key)}


def _section(schema: Schema, section: SchemaKey) -> dict[str, object]:
    properties: dict[str, object] = {}
    for key in schema.children(section.path):
        properties |= dict.fromkeys(key.names, _value(schema, key))
    closed = {"additionalProperties": False} if section.unknown is Unknown.REFUSED else {}
    return {"type": "object", **_types(section), "properties": properties, **closed}


def _types(key: SchemaKey) -> dict[str, object]:
    """One type as a word, several as a list; none where no type of JSON is meant."""
    if not key.types:
        return {}
    return {"type": key.types[0] if len(key.types) == 1 else list(key.types)}


def _choices(key: SchemaKey) -> dict[str, object]:
    if not key.choices:
        return {}
    choices = [json.loads(choice) for choice in key.choices]
    if key.any_case:
        choices += [other for choice in choices for other in _other_cases(choice)]
    if "array" in key.types:
        return {"items": {"enum": choices}}
    return {"enum": [*choices, *([None] if "null" in key.types else [])]}


def _other_cases(choice: str) -> tuple[str, ...]:
    """The common ones: JSON Schema has no word for any."""
    return tuple(sorted({choice.lower(), choice.upper(), choice.capitalize()} - {choice}))


def _bounds(key: SchemaKey) -> dict[str, object]:
    """Of numbers; a switch has bounds too, for DeepSpeed takes 0 and 1 for it."""
    return (
        {_BOUNDS[word]: bound for word, bound in key.bounds.items()}
        if _NUMBERS & set(key.types)
        else {}
    )


def _takes_auto(key: SchemaKey) -> bool:
    """Where a replaced or a dropped "auto" is meant; a key that takes every kind is left out."""
    looked_at = len(key.takes) < len(Kind)
    return key.path in _FILLED or (looked_at and Kind.AUTO in key.takes)


def _about(key: SchemaKey) -> Mapping[str, object]:
    moved = f"Use {key.new_path}." if key.new_path else None
    text = " ".join(filter(None, (key.about, moved)))
    return {"description": text} if text else {}
