"""Read the GPU table that ships with the package."""

import json
from functools import cache
from importlib.resources import files

from zerowiz.core.spec import GpuModel, decode_gpu_table


@cache
def read_gpu_table() -> tuple[GpuModel, ...]:
    """Every row of `zerowiz/data/gpus.json`."""
    text = files("zerowiz").joinpath("data", "gpus.json").read_text(encoding="utf-8")
    return decode_gpu_table(json.loads(text))
