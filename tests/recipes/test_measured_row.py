"""The recipe `a measured row`: one of the runs once more, which held a little more."""

import json

import pytest
from recipes.copying import Copy, read_recipes

# It computes all figures anew, three times.
pytestmark = [pytest.mark.slow, pytest.mark.thorough]

ROWS = "tests/measured/2026-11-h100.jsonl"
PAGE = "docs/accuracy.md"
RENDERED = (
    "tests/accuracy/test_accuracy.py::test_the_page_is_what_the_committed_figures_say",
    "tests/accuracy/test_accuracy.py::test_the_table_of_the_readme_is_what_the_committed_figures_say",
)


def test_a_measured_row_touches_its_file_alone(copied: Copy) -> None:
    recipe = read_recipes()["a measured row"]
    last = (copied.root / ROWS).read_text(encoding="utf-8").splitlines(keepends=True)[-1]
    row = json.loads(last)
    again = {**row, "id": "again", "peak_bytes": row["peak_bytes"] + 2**20}

    copied.edit(ROWS, last, f"{last}{json.dumps(again)}\n")
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.rewrite("tests/accuracy/report.py", "--write")
    page = (copied.root / PAGE).read_text(encoding="utf-8")
    assert f"| again | engine | {row['model']} | zero3 |" in page
    assert set() == copied.failed(*recipe.tests, *RENDERED)
    assert {PAGE, "tests/accuracy/figures.json"} <= copied.rewritten
    copied.check_files(recipe)
