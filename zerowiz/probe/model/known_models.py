"""Read the table of models that ships with the package."""

import json
from functools import cache
from pathlib import Path

from zerowiz.core.model.known import KnownModel, decode_known_models

# Not by importlib.resources, which takes longer to load than a table.
_TABLE = Path(__file__).parents[2] / "data" / "models.json"


@cache
def read_known_models() -> tuple[KnownModel, ...]:
    """Every row of `zerowiz/data/models.json`."""
    return decode_known_models(json.loads(_TABLE.read_bytes()))
