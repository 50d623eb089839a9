"""The recipe `a script convention`: a config that OmegaConf reads from an option's file."""

import pytest
from recipes.copying import Copy, read_recipes

pytestmark = pytest.mark.slow

READER = "zerowiz/probe/script/reader.py"
SCRIPT = "tests/probe/scripts/raw_omegaconf.py"
CONVENTIONS = "tests/probe/script/test_conventions.py"

TEXT = """\
import argparse

import deepspeed
from omegaconf import OmegaConf

parser = argparse.ArgumentParser()
parser.add_argument("--ds_config", default="conf/ds.yaml")
args = parser.parse_args()
config = OmegaConf.to_container(OmegaConf.load(args.ds_config), resolve=True)
engine, _, _, _ = deepspeed.initialize(model=build_model(), config=config)
"""
ROW = """\
    "raw_omegaconf": (Convention.OWN_FLAG, RAW),
"""


def launch(copied: Copy) -> str:
    """What a launch of the script would start, or why it would not."""
    done = copied.zerowiz(
        *("launch", "--dry-run", "--accelerator", "cpu", "--gpus-per-node", "2"),
        *("--model", "templates/model", "--micro-batch", "1", "--force", SCRIPT),
    )
    return done.stdout + done.stderr


def test_a_script_convention_touches_its_script_its_row_and_the_reader(copied: Copy) -> None:
    recipe = read_recipes()["a script convention"]

    copied.write(SCRIPT, TEXT)
    without_row = copied.unfinished(recipe)
    assert without_row
    copied.insert(CONVENTIONS, ROW, before='    "raw_own_flag": (')
    assert set(recipe.tests) - without_row == copied.unfinished(recipe)
    assert f"{SCRIPT} --ds_config ds_config_zero0.json" not in launch(copied)

    copied.insert(READER, '        "to_container",\n', before="    }\n)\n_PATH_METHODS")
    assert f"{SCRIPT} --ds_config ds_config_zero0.json" in launch(copied)
    assert set() == copied.failed("tests/probe/script")
    copied.check_files(recipe)
