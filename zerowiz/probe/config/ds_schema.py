"""Read the schema of DeepSpeed's configs that ships with the package."""

import json
from functools import cache
from importlib.resources import files

from zerowiz.core.dsconfig.schema import Schema, choose_schema, decode_schemas


def read_ds_schema(version: str | None = None) -> Schema:
    """The schema of a DeepSpeed version, or of the nearest known one.

    Args:
        version: As in `deepspeed.__version__`; None takes the newest.
    """
    return choose_schema(read_ds_schemas(), version)


@cache
def read_ds_schemas() -> tuple[Schema, ...]:
    """Every version of `zerowiz/data/ds_schema.json`, the newest first."""
    text = files("zerowiz").joinpath("data", "ds_schema.json").read_text(encoding="utf-8")
    return decode_schemas(json.loads(text))
