"""The recipe `a strategy`: a stage 1 whose optimizer is on the host."""

import json

import pytest
from recipes.copying import Copy, read_recipes

pytestmark = pytest.mark.slow

TABLE = "zerowiz/core/strategies.py"
FORMULAS = "zerowiz/core/memory/zero012.py"
TEMPLATE = "templates/ds_config_zero1_offload.json"
GOLDEN = "tests/core/dsconfig/test_write.py::test_a_config_is_the_golden_one"
PAGE = "docs/reference/configs.md"
# What asks of all strategies at once.
EVERY_STRATEGY = (
    *("tests/test_architecture.py", "tests/core/test_plan_json.py", "tests/core/measure"),
    *("tests/core/decision/test_flowchart.py", "tests/core/speed"),
)

MOMENTS = """\
def zero1_offload_moments(r: RankSizes) -> Moments:
    \"\"\"The moments of stage 1 with the optimizer on the host: all gradients stay until the step.\"\"\"
    offloaded = zero2_offload_moments(r)
    full = _gradients(r)
    backward = tuple((*moment, full) for moment in offloaded[Phase.BACKWARD])
    return {**offloaded, Phase.BACKWARD: backward}


"""
ROW = """\
ZERO1_OFFLOAD = StrategyRow(
    name="zero1-offload",
    stage=1,
    config_name="ds_config_zero1_offload.json",
    sharded=frozenset({Part.OPTIMIZER}),
    offload=Offload.OPTIMIZER,
    zero_keys=_REDUCING_KEYS,
    buffer_sizes=REDUCING_OFFLOAD_BUFFERS,
    ring=RingPasses(per_step=3, per_micro_step=0),
    measured=False,
    moments=zero1_offload_moments,
    host_allocations=zero2_host_allocations,
)
"""
PLAN = (
    *("plan", "--accelerator", "cpu", "--gpus-per-node", "2", "--model", "templates/model"),
    *("--micro-batch", "1", "--stage", "1", "--offload", "optimizer", "--json"),
)


def add_row(copied: Copy, row: str = ROW) -> None:
    copied.insert(FORMULAS, MOMENTS, before="def zero2_moments(")
    copied.edit(TABLE, "    zero1_moments,\n", "    zero1_moments,\n    zero1_offload_moments,\n")
    copied.insert(TABLE, f"{row}\n", before="# In this order the flowchart comes to them.")
    copied.edit(TABLE, "ZERO3_OFFLOAD_OPTIMIZER)", "ZERO3_OFFLOAD_OPTIMIZER, ZERO1_OFFLOAD)")


def test_a_strategy_touches_its_row_and_its_formulas(copied: Copy) -> None:
    recipe = read_recipes()["a strategy"]

    add_row(copied)
    planned = copied.zerowiz(*PLAN)
    assert 0 == planned.returncode, planned.stderr
    plan = json.loads(planned.stdout)
    (own,) = (each for each in plan["strategies"] if each["name"] == "zero1-offload")
    assert "zero1-offload" == plan["chosen"]
    assert own["gpu"]["interval"]["low_bytes"] < own["gpu"]["peak_bytes"]
    assert own["host"]["peak_bytes"] > 0
    assert own["wire_bytes_per_step"] > 0
    assert ["reduce_bucket_size"] == [cost["key"] for cost in own["buffers"]]
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.make_golden(GOLDEN)
    copied.make_blocks(PAGE)
    config = json.loads((copied.root / TEMPLATE).read_text(encoding="utf-8"))
    assert {"stage", "offload_optimizer"} < set(config["zero_optimization"])
    assert set() == copied.failed(*recipe.tests, *EVERY_STRATEGY)
    made = {path for path in copied.rewritten if not path.startswith("tests/")}
    assert {TEMPLATE, PAGE} == made
    copied.check_files(recipe)


@pytest.mark.parametrize("piece", ["ring", "measured", "moments", "host_allocations", "zero_keys"])
def test_a_row_without_a_piece_is_refused_as_the_table_is_read(copied: Copy, piece: str) -> None:
    (line,) = (line for line in ROW.splitlines(keepends=True) if line.startswith(f"    {piece}="))
    add_row(copied, ROW.replace(line, ""))
    done = copied.python("-c", "import zerowiz.core.strategies")
    assert 1 == done.returncode
    assert f"'{piece}'" in done.stderr.splitlines()[-1]
