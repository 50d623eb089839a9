"""Read the GPU table that ships with the package."""

import json
from functools import cache
from pathlib import Path

from zerowiz.core.machine.spec import GpuModel, decode_gpu_table


@cache
def read_gpu_table() -> tuple[GpuModel, ...]:
    """Every row of `zerowiz/data/gpus.json`."""
    # Not by importlib.resources, which takes longer to load than the table.
    path = Path(__file__).parents[2] / "data" / "gpus.json"
    return decode_gpu_table(json.loads(path.read_bytes()))
