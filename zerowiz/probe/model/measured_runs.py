"""Read which settings measured runs had, from the table that ships with the package."""

import json
from functools import cache
from pathlib import Path

from zerowiz.core.decision.measured_together import Pair, decode_measured_runs

# Not by importlib.resources, which takes longer to load than the table.
_TABLE = Path(__file__).parents[2] / "data" / "measured_runs.json"


@cache
def read_measured_pairs() -> frozenset[Pair]:
    """Every pair of settings that some run of `zerowiz/data/measured_runs.json` had."""
    return decode_measured_runs(json.loads(_TABLE.read_bytes())).pairs()
