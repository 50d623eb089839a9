"""Scripts whose engine, or whose parser, is in a module beside them."""

from pathlib import Path

import pytest

from zerowiz.core.script.delivery import deliver
from zerowiz.core.script.facts import Convention, Obstacle, ScriptFacts
from zerowiz.core.workload import Integration
from zerowiz.errors import PreflightError
from zerowiz.probe.script.read import parse_script, read_script

PARSED = """import argparse, deepspeed
from training.engine import make_engine
p = deepspeed.add_config_arguments(argparse.ArgumentParser())
args = p.parse_args()
"""
ENGINE = """import deepspeed
def make_engine(model, args):
    return deepspeed.initialize(args=args, model=model, optimizer=build(model))
"""


def read(script: str, module: str | None, name: str = "training.engine") -> ScriptFacts:
    return parse_script(script, "train.py", lambda asked: module if asked == name else None)


def test_an_engine_in_a_module_that_gets_the_arguments_takes_their_config() -> None:
    facts = read(PARSED + "make_engine(model, args)\n", ENGINE)
    assert (Convention.ADD_CONFIG_ARGUMENTS, None) == (facts.convention, facts.obstacle)
    assert facts.passes_optimizer
    assert "--deepspeed_config" in deliver(facts, (), "ds_config_zero2.json").script_args


def test_an_engine_of_a_class_takes_the_arguments_that_its_object_was_given() -> None:
    engine = """import deepspeed
class Engine:
    def __init__(self, args):
        self.args = args
        self.engine = deepspeed.initialize(args=self.args, model=build())
"""
    script = PARSED.replace("make_engine", "Engine") + "Engine(args=args)\n"
    assert Convention.ADD_CONFIG_ARGUMENTS is read(script, engine).convention


@pytest.mark.parametrize(
    ("call", "module"),
    [
        # Nothing beside the script, or nothing that can be read.
        ("make_engine(model, args)", None),
        ("make_engine(model, args)", "this is not Python"),
        ("make_engine(model, args)", "def make_engine(model, args): pass"),
        # The arguments do not get there.
        ("make_engine(model)", ENGINE),
        ("train(args)", ENGINE),
        # The config is another.
        ("make_engine(model, args)", ENGINE.replace("model=model", "config=build(args)")),
        ("make_engine(model, args)", ENGINE.replace("args=args", "args=Namespace(a=1)")),
        ("make_engine(model, args)", ENGINE + "deepspeed.initialize(config={})\n"),
    ],
)
def test_without_such_an_engine_nothing_is_claimed(call: str, module: str | None) -> None:
    facts = read(f"{PARSED}{call}\n", module)
    assert (Convention.UNKNOWN, Obstacle.ENGINE_UNSEEN) == (facts.convention, facts.obstacle)
    assert Integration.DEEPSPEED is facts.integration
    with pytest.raises(PreflightError, match="line 3 adds options") as refused:
        deliver(facts, (), "ds_config_zero2.json")
    assert any("$config_via" in hint for hint in refused.value.hints)


def test_an_option_of_its_own_reaches_an_engine_in_a_module_too() -> None:
    script = """import argparse
from training import engine
p = argparse.ArgumentParser()
p.add_argument("--deepspeed_config")
args = p.parse_args()
engine.make_engine(model, args)
"""
    facts = read(script, ENGINE)
    assert (Convention.OWN_FLAG, "--deepspeed_config") == (facts.convention, facts.own_flag)
    assert Obstacle.NO_ENGINE is read(script, None).obstacle
    assert Obstacle.NO_ENGINE is read(script.replace("_config", "_file"), ENGINE).obstacle


def test_a_parser_in_a_module_can_have_the_options_of_deepspeed() -> None:
    script = """import deepspeed
from training.options import get_args
args = get_args()
deepspeed.initialize(args=args, model=model)
"""
    module = """import argparse, deepspeed
def get_args():
    return deepspeed.add_config_arguments(argparse.ArgumentParser()).parse_args()
"""
    facts = read(script, module, "training.options")
    assert Convention.ADD_CONFIG_ARGUMENTS is facts.convention
    assert (
        Obstacle.NO_CONFIG
        is read(script, module.replace("add_config", "x"), "training.options").obstacle
    )
    assert Obstacle.NO_CONFIG is read(script, None).obstacle


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("args", Convention.ADD_CONFIG_ARGUMENTS),
        ("p.parse_args()", Convention.ADD_CONFIG_ARGUMENTS),
        ("EasyDict(vars(p.parse_args()))", Convention.ADD_CONFIG_ARGUMENTS),
        ("EasyDict(vars(args))", Convention.ADD_CONFIG_ARGUMENTS),
        ("SimpleNamespace(local_rank=0)", Convention.UNKNOWN),
    ],
)
def test_the_arguments_of_an_engine_are_those_that_were_parsed(
    args: str, expected: Convention
) -> None:
    text = f"{PARSED}deepspeed.initialize(args={args}, model=model)\n"
    assert expected is read(text, None).convention


def test_another_library_in_the_script_is_taken_before_its_unused_options() -> None:
    text = PARSED + "from accelerate import Accelerator\nAccelerator()\n"
    assert Convention.ACCELERATOR is read(text, None).convention


@pytest.mark.parametrize("place", ["training/engine.py", "training/engine/__init__.py"])
def test_a_module_is_read_from_beside_the_script(tmp_path: Path, place: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(PARSED + "make_engine(model, args)\n", encoding="utf-8")
    assert Obstacle.ENGINE_UNSEEN is read_script(script).obstacle
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text(ENGINE, encoding="utf-8")
    assert Convention.ADD_CONFIG_ARGUMENTS is read_script(script).convention
