"""The recipe `a setting`: a second copy of the weights, averaged over the steps."""

import json

import pytest
from recipes.copying import Copy, read_recipes

pytestmark = pytest.mark.slow

WORKLOAD = "zerowiz/core/workload.py"
OPTIONS = "zerowiz/app/options.py"
KINDS = "zerowiz/core/memory/allocations.py"
FORMULA = "zerowiz/core/memory/estimate.py"
STEPS = "tests/changed_settings.py"
JSON = "tests/core/test_plan_json.py"
FLAGS = "tests/cli/test_options.py"

FIELD = """\
    average_weights: Annotated[
        bool,
        SettingRow(
            flag="--average-weights/--no-average-weights",
            help="A second copy of the weights, averaged",
            panel=Panel.JOB,
        ),
    ] = False
    \"\"\"Whether the script keeps an average of what trains on each GPU.\"\"\"
"""
BARE = """\
            help="A second copy of the weights, averaged",
            panel=Panel.JOB,
"""
WHOLE = f"""\
{BARE}            shown="averaged",
            measurable=False,
"""
OPTION = """\
    average_weights: Annotated[bool | None, SETTINGS["average_weights"]] = None
"""
AVERAGE = """\
def _with_average(moments: Moments, r: RankSizes) -> Moments:
    \"\"\"torch/optim/swa_utils.py, AveragedModel: a deep copy of what a rank has of the model.\"\"\"
    if not r.workload.average_weights:
        return moments
    params = r.share if Part.PARAMETERS in r.strategy.sharded else r.trainable
    average = Allocation(AllocationKind.AVERAGED_WEIGHTS, r.weight_bytes * params, "w N")
    return {
        phase: competing
        if phase is Phase.MODEL
        else tuple((*moment, average) for moment in competing)
        for phase, competing in moments.items()
    }


"""
CALLED = """\
    steady = _with_average(steady, rank)
"""
CHANGED = """\
    "average_weights": (_PLAIN, replace(_PLAIN, average_weights=True)),
"""


def plan(copied: Copy, *words: str) -> dict[str, int]:
    """What DDP holds in backward, by what it is for."""
    done = copied.zerowiz("plan", "--machine", "4xH200", "--model", "1b", "--json", *words)
    assert 0 == done.returncode, done.stderr
    ddp = json.loads(done.stdout)["strategies"][0]
    lines = [line for line in ddp["gpu"]["lines"] if line["phase"] == "backward"]
    return {line["part"]: line["bytes"] for line in lines}


def test_a_setting_touches_its_row_its_option_its_line_and_its_formula(copied: Copy) -> None:
    recipe = read_recipes()["a setting"]

    copied.insert(WORKLOAD, FIELD, before="    zero_init: bool = True\n")
    copied.insert(OPTIONS, OPTION, before="    stage: Annotated[")
    assert "averaged weights" not in plan(copied, "--average-weights")
    without_rows = copied.unfinished(recipe)
    assert without_rows

    copied.insert(STEPS, CHANGED, before='}\n"""By the setting: a step')
    copied.insert(
        JSON,
        '            "average_weights": "bool",\n',
        before='            "accounting": "str",\n',
    )
    copied.insert(
        FLAGS,
        '    *("--average-weights", "--no-average-weights"),\n',
        before='    *("--ignore-oom", "--calibration", "--no-calibration"),\n',
    )
    assert set(recipe.tests) - without_rows == copied.unfinished(recipe)

    copied.edit(WORKLOAD, BARE, WHOLE)
    copied.insert(
        KINDS, '    AVERAGED_WEIGHTS = "averaged weights"\n', before="    DEQUANTIZED_LAYER ="
    )
    copied.insert(
        KINDS,
        "            AllocationKind.AVERAGED_WEIGHTS,\n",
        before="            AllocationKind.DEQUANTIZED_LAYER,",
    )
    copied.insert(FORMULA, AVERAGE, before="def estimate(\n")
    copied.insert(FORMULA, CALLED, before="    if accelerator is Accelerator.CUDA:\n")
    copied.insert(
        FORMULA,
        "from zerowiz.core.strategy import Part\n",
        before="from zerowiz.core.structs import",
    )
    held, averaged = plan(copied), plan(copied, "--average-weights")
    assert held | {"averaged weights": held["parameters"]} == averaged
    refused = copied.zerowiz(
        "measure", "--accelerator", "cpu", "--model", "10m", "--average-weights"
    )
    assert "`measure` cannot train with `--average-weights`" in refused.stderr
    assert set() == copied.failed(*recipe.tests, "tests/core/memory/test_settings.py")
    copied.check_files(recipe)
