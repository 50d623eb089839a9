"""Read the table of known bad releases that ships with the package."""

import json
from functools import cache
from pathlib import Path

from zerowiz.core.dsconfig.bad_releases import BadRelease, decode_bad_releases

# Not by importlib.resources, which takes longer to load than a table.
_TABLE = Path(__file__).parents[2] / "data" / "bad_releases.json"


@cache
def read_bad_releases() -> tuple[BadRelease, ...]:
    """Every row of `zerowiz/data/bad_releases.json`."""
    return decode_bad_releases(json.loads(_TABLE.read_bytes()))
