"""The recipe `an instance`: Azure's NC32ads A10 v4, two A10s."""

import json

import pytest
from recipes.copying import Copy, read_recipes

pytestmark = pytest.mark.slow

TABLE = "zerowiz/data/instances.json"
INSTANCES = "tests/core/machine/test_spec.py"
SOURCE = {
    "memory": "https://aspire.dev/reference/api/csharp/aspire.hosting.azure.kubernetes/standardncadsa10v4"
}
ROW = {
    "name": "NC32ads_A10_v4",
    "aliases": ["Standard_NC32ads_A10_v4"],
    "gpus": 2,
    "gpu": "A10",
    "host_bytes": 400 * 2**30,
    "network": None,
}
NEXT = '  {"name": "NC24ads_A100_v4"'


def row(source: dict[str, str]) -> str:
    """The row as it is typed, before the next one."""
    return f"  {json.dumps({**ROW, 'source': source})},\n"


def test_an_instance_touches_the_table_alone(copied: Copy) -> None:
    recipe = read_recipes()["an instance"]
    asked = ("plan", "--machine", "3xnc32ads_a10_v4", "--model", "100m", "--json")
    refused = copied.zerowiz(*asked)
    assert "`nc32ads_a10_v4` is not a GPU or an instance that zerowiz knows" in refused.stderr

    copied.insert(TABLE, row({}), before=NEXT)
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.edit(TABLE, row({}), row(SOURCE))
    planned = copied.zerowiz(*asked)
    assert 0 == planned.returncode, planned.stderr
    machine = json.loads(planned.stdout)["machine"]
    assert (3, ["NVIDIA A10"] * 2) == (machine["nodes"], [gpu["name"] for gpu in machine["gpus"]])
    assert 400 * 2**30 == machine["host"]["total_bytes"]
    assert set() == copied.failed(INSTANCES)
    copied.check_files(recipe)
