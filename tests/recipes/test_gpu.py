"""The recipe `a GPU`: the L20, an Ada card of 48 GB."""

import json

import pytest
from recipes.copying import Copy, read_recipes

pytestmark = pytest.mark.slow

TABLE = "zerowiz/data/gpus.json"
MODELS = "tests/core/machine/test_spec.py"
VERL = "https://github.com/volcengine/verl/blob/02cf355f17969b4a8e76ff981dda8b5a8ae440b9/verl/utils/flops_counter.py"

ROW = {
    "name": "NVIDIA L20",
    "aliases": ["L20-48GB"],
    "total_bytes": 48305799168,
    "usable_bytes": 47576711168,
    "compute_capability": [8, 9],
    "nvlink_links": 0,
    "nvlink_bytes_per_s": 0,
    "nvlink_gpus": 0,
    "pcie_generation": 4,
    "bf16_flop_per_s": 119500000000000,
    "fp16_flop_per_s": 119500000000000,
    "fp32_flop_per_s": 59800000000000,
    "memory_bytes_per_s": 864000000000,
    "pcie_spelling": None,
}
SOURCE = {
    "total": "[?] 46068 MiB, as L40S",
    "usable": "[?] 45372.6875 MiB, as L40S",
    "capability": "https://www.topcpu.net/en/gpu-c/a40-pcie-vs-l20",
    "nvlink": "none between 8 x L20 in `nvidia-smi topo -m`: https://github.com/NVIDIA/nccl/issues/1817",
    "pcie": "https://technical.city/pl/video/L20",
    "flops": VERL,
    "fp32": "[?] 59.8 TFLOPS",
    "bandwidth": "https://technical.city/pl/video/L20",
}
NEXT = """  {
   "name": "NVIDIA L40S",
"""


def row(source: dict[str, str]) -> str:
    """The row as it is typed, before the next one."""
    typed = json.dumps({**ROW, "source": source}, indent=1)
    return "".join(f"  {line}\n" for line in f"{typed},".splitlines())


def test_a_gpu_touches_the_table_alone(copied: Copy) -> None:
    recipe = read_recipes()["a GPU"]
    asked = ("plan", "--machine", "4xL20", "--model", "1b", "--json")
    refused = copied.zerowiz(*asked)
    assert "`L20` is not a GPU or an instance that zerowiz knows" in refused.stderr

    copied.insert(TABLE, row({}), before=NEXT)
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.edit(TABLE, row({}), row(SOURCE))
    planned = copied.zerowiz(*asked)
    assert 0 == planned.returncode, planned.stderr
    machine = json.loads(planned.stdout)["machine"]
    assert [("NVIDIA L20", [8, 9])] * 4 == [
        (gpu["name"], gpu["compute_capability"]) for gpu in machine["gpus"]
    ]
    assert set() == copied.failed(MODELS)
    copied.check_files(recipe)
