"""The table of recipes in docs/contributing.md: a test does each row, and its words are so."""

import re
from pathlib import Path

import pytest
from paths import ROOT
from recipes.copying import Recipe, read_recipes

RECIPES = read_recipes()
# The most files of the product and its pages that a newcomer may have to touch.
MOST = {
    "a GPU": 1,
    "a model family": 1,
    "a strategy": 4,
    "a setting": 4,
}
# The same, with the files of the tests.
MOST_IN_ALL = {"a GPU": 1, "a lint rule": 2, "a preflight check": 2}
each_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


def test_a_test_does_each_recipe_of_the_table() -> None:
    texts = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    done = [name for text in texts for name in re.findall(r'read_recipes\(\)\["(.+?)"\]', text)]
    assert sorted(RECIPES) == sorted(done)


def test_no_recipe_touches_more_files_than_it_may() -> None:
    assert {} == {name: most for name, most in MOST.items() if RECIPES[name].counts[0] > most}
    in_all = {name: sum(RECIPES[name].counts) for name in MOST_IN_ALL}
    assert {} == {name: in_all[name] for name, most in MOST_IN_ALL.items() if in_all[name] > most}


@each_recipe
def test_a_recipe_names_paths_and_tests_that_exist(recipe: Recipe) -> None:
    assert [] == [path for path in recipe.paths if not (ROOT / path).exists()]
    files = {test: ROOT / test.partition("::")[0] for test in recipe.tests}
    missing = [
        test
        for test, file in files.items()
        if f"def {test.partition('::')[2]}(" not in file.read_text(encoding="utf-8")
    ]
    assert [] == missing
