"""Read the tables of GPUs and of instances that ship with the package."""

import json
from functools import cache
from pathlib import Path

from zerowiz.core.machine.names.gpus import GpuModel, decode_gpu_table
from zerowiz.core.machine.names.instances import Instance, decode_instances

# Not by importlib.resources, which takes longer to load than a table.
_DATA = Path(__file__).parents[2] / "data"


@cache
def read_gpu_table() -> tuple[GpuModel, ...]:
    """Every row of `zerowiz/data/gpus.json`."""
    return decode_gpu_table(json.loads((_DATA / "gpus.json").read_bytes()))


@cache
def read_instances() -> tuple[Instance, ...]:
    """Every row of `zerowiz/data/instances.json`."""
    return decode_instances(json.loads((_DATA / "instances.json").read_bytes()))
