"""The recipe `a lint rule`."""

import json

import pytest
from recipes.copying import Copy, read_recipes

pytestmark = pytest.mark.slow

MODULE = "zerowiz/core/lint/offload.py"
TABLE = "tests/lint/rows.py"
PAGE = "docs/reference/errors.md"
BLOCKS = f"tests/docs/test_blocks.py::test_a_page_has_what_its_blocks_make[{PAGE}]"

RULE = """\
PRINTS_EACH_STEP = Rule(
    code="ZW808",
    name="prints-each-step",
    severity=Severity.INFO,
    why="a line a step hides what else is written, and each one waits for the GPU",
)


def _prints(config: Config) -> Iterator[ConfigFinding]:
    if config.number("steps_per_print") == 1:
        yield config.last["steps_per_print"].found(
            PRINTS_EACH_STEP, "DeepSpeed prints a line for each step", fix="write 100"
        )


"""
FIRST = "    if config.stage:\n        yield from _reduce_bucket(config)\n"
FOUND = """\
    has(
        "prints-each-step",
        top('"steps_per_print": 1'),
        "steps_per_print",
        2,
        INFO,
        truth=Truth.WORKS,
    ),
"""
SILENT = """\
    ("prints-each-step", top('"steps_per_print": 2'), DEEPSPEED),
"""


def codes(copied: Copy) -> list[str]:
    (copied.root.parent / "ds.json").write_text(
        '{"train_batch_size": 8, "steps_per_print": 1}', encoding="utf-8"
    )
    done = copied.zerowiz("check", "--json", "../ds.json")
    assert 0 == done.returncode, done.stderr
    (file,) = json.loads(done.stdout)["files"]
    return [finding["code"] for finding in file["findings"]]


def test_a_lint_rule_touches_its_module_and_the_table_of_cases(copied: Copy) -> None:
    recipe = read_recipes()["a lint rule"]

    copied.insert(MODULE, RULE, before="def _reduce_bucket(")
    copied.insert(MODULE, "    yield from _prints(config)\n", before=FIRST)
    assert "ZW808" in codes(copied)
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.edit(TABLE, "\nFOUND = (\n", "\nFOUND = (\n" + FOUND)
    copied.edit(TABLE, "\nSILENT = (\n", "\nSILENT = (\n" + SILENT)
    copied.make_blocks(PAGE)
    assert set() == copied.failed(BLOCKS, "tests/lint", "tests/core/dsconfig/lint/test_rules.py")
    copied.check_files(recipe)
