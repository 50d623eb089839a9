"""The recipe `a preflight check`."""

import json

import pytest
from recipes.copying import Copy, read_recipes

pytestmark = pytest.mark.slow

MODULE = "zerowiz/core/preflight/hardware.py"
TABLE = "tests/core/launch/doctor/cases.py"
PAGE = "docs/reference/errors.md"
BLOCKS = f"tests/docs/test_blocks.py::test_a_page_has_what_its_blocks_make[{PAGE}]"

CHECK = """\
DISTRIBUTED_DEBUG = Rule(
    code="PF606",
    name="distributed-debug",
    severity=Severity.WARNING,
    why="the ranks compare every collective before it starts, which takes a round of its own",
    when="`TORCH_DISTRIBUTED_DEBUG=DETAIL`",
)


def _distributed_debug(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    if inputs.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL":
        yield found(
            DISTRIBUTED_DEBUG,
            "`TORCH_DISTRIBUTED_DEBUG=DETAIL` checks every collective",
            "unset TORCH_DISTRIBUTED_DEBUG",
        )


"""
CASE = """\
    case(
        "distributed-debug",
        given(TORCH_DISTRIBUTED_DEBUG="DETAIL"),
        given(TORCH_DISTRIBUTED_DEBUG="INFO"),
    ),
"""


def codes(copied: Copy) -> list[str]:
    here = ("--accelerator", "cpu", "--gpus-per-node", "1")
    done = copied.zerowiz("doctor", "--json", *here, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert done.returncode in {0, 5}, done.stderr
    return [finding["code"] for finding in json.loads(done.stdout)["findings"]]


def test_a_preflight_check_touches_its_module_and_the_table_of_cases(copied: Copy) -> None:
    recipe = read_recipes()["a preflight check"]

    copied.insert(MODULE, CHECK, before="def check(inputs: PreflightInput)")
    copied.edit(MODULE, "_switches, _allocator)", "_switches, _allocator, _distributed_debug)")
    assert "PF606" in codes(copied)
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.edit(TABLE, "\nCASES = (\n", "\nCASES = (\n" + CASE)
    copied.make_blocks(PAGE)
    assert set() == copied.failed(BLOCKS, "tests/core/launch/doctor")
    copied.check_files(recipe)
