"""The recipe `a remedy`: a base of 4 bits below adapters that do not fit."""

import json

from recipes.copying import Copy, read_recipes

MODULE = "zerowiz/core/decision/remedies.py"
CASES = "tests/core/decision/test_remedies.py"

REMEDY = """\
def _four_bits(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    if job.workload.method is Method.LORA:
        quantized = replace(job.workload, method=Method.QLORA)
        yield {"method": Method.QLORA.value}, replace(job, workload=quantized), constraints


"""
CASE = """\
    "lora": refused(
        parse_spec("T4", TABLE),
        Workload(precision=Precision.FP16, method=Method.LORA, gradient_checkpointing=True),
    ),
"""
PLAN = (
    *("plan", "--machine", "T4", "--model", "7b", "--method", "lora", "--precision", "fp16"),
    *("--seq-len", "512", "--gradient-checkpointing", "--json"),
)


def changes(copied: Copy) -> list[dict[str, object]]:
    """What would help a job that does not fit."""
    done = copied.zerowiz(*PLAN)
    assert 4 == done.returncode, done.stderr
    return [remedy["change"] for remedy in json.loads(done.stdout)["remedies"]]


def test_a_remedy_touches_its_module_and_its_case(copied: Copy) -> None:
    recipe = read_recipes()["a remedy"]

    assert {"--method": "qlora"} not in changes(copied)
    copied.insert(MODULE, REMEDY, before="# Sizes that people train")
    copied.edit(MODULE, "    _adapters,\n", "    _adapters,\n    _four_bits,\n")
    assert {"--method": "qlora"} in changes(copied)
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.insert(CASES, CASE, before='    "told": refused(')
    copied.edit(CASES, "import Accounting, Precision,", "import Accounting, Method, Precision,")
    assert set() == copied.failed(CASES)
    copied.check_files(recipe)
