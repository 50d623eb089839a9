"""How a config reaches a script: one that looks real for each convention, and hard cases."""

from pathlib import Path

import pytest
from paths import TEMPLATES
from probe.reading import HF_CALL, facts_of, read_beside
from probe.scripts import SCRIPTS

from zerowiz.core.preflight.facts import SourceFolder
from zerowiz.core.script.config_delivery import deliver, refuse, with_config_via
from zerowiz.core.script.facts import Convention, Obstacle, ScriptFacts, ValueSource
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.workload import Attention, Integration
from zerowiz.errors import PreflightError, UnreachableScriptError, UsageError
from zerowiz.probe.script.engine_config import read_imports
from zerowiz.probe.script.line_edits import with_line_edits
from zerowiz.probe.script.read_script import parse_script, read_script

LITERAL = Convention.CONFIG_LITERAL
HF, RAW, ACCELERATE = Integration.HF, Integration.DEEPSPEED, Integration.ACCELERATE


CONVENTIONS = {
    "accelerate_bare": (Convention.ACCELERATOR, ACCELERATE),
    "accelerate_plugin": (Convention.CONFIG_LITERAL, ACCELERATE),
    "accelerate_plugin_stage": (Convention.ACCELERATOR, ACCELERATE),
    "hf_arguments_elsewhere": (Convention.UNKNOWN, HF),
    "hf_device_map": (Convention.HF_PARSER, HF),
    "hf_dict": (Convention.CONFIG_DICT, HF),
    "hf_hidden": (Convention.UNKNOWN, HF),
    "hf_in_code": (Convention.HF_IN_CODE, HF),
    "hf_in_code_packed": (Convention.HF_IN_CODE, HF),
    "hf_in_code_trl": (Convention.HF_IN_CODE, HF),
    "hf_kwargs": (Convention.HF_IN_CODE, HF),
    "hf_literal": (Convention.HF_LITERAL, HF),
    "hf_own_flag": (Convention.OWN_FLAG, HF),
    "hf_parser": (Convention.HF_PARSER, HF),
    "hf_parser_checkpointing": (Convention.HF_PARSER, HF),
    "hf_parser_elsewhere": (Convention.HF_PARSER, HF),
    "hf_parser_of_project": (Convention.HF_PARSER, HF),
    "hf_parser_subclass": (Convention.HF_PARSER, HF),
    "hf_parser_trl": (Convention.HF_PARSER, HF),
    "hf_settings_by_option": (Convention.HF_IN_CODE, HF),
    "hf_two_arguments": (Convention.HF_IN_CODE, HF),
    "lightning": (Convention.LIGHTNING, Integration.LIGHTNING),
    "lora_accelerate": (Convention.ACCELERATOR, ACCELERATE),
    "lora_dataclasses": (Convention.HF_PARSER, HF),
    "lora_fire": (Convention.HF_IN_CODE, HF),
    "lora_optional": (Convention.HF_PARSER, HF),
    "lora_qlora_tutorial": (Convention.HF_IN_CODE, HF),
    "lora_raw": (Convention.ADD_CONFIG_ARGUMENTS, RAW),
    "lora_recipe_parser": (Convention.HF_IN_CODE, HF),
    "lora_tiny": (Convention.HF_PARSER, HF),
    "lora_trl_parser": (Convention.HF_PARSER, HF),
    "lora_trl_sft": (Convention.HF_IN_CODE, HF),
    "lora_yaml": (Convention.HF_IN_CODE, HF),
    "raw_add_config_arguments": (Convention.ADD_CONFIG_ARGUMENTS, RAW),
    "raw_arguments_and_own_flag": (Convention.OWN_FLAG, RAW),
    "raw_config_edited": (Convention.OWN_FLAG, RAW),
    "raw_deepspeed_config_flag": (Convention.OWN_FLAG, RAW),
    "raw_dict": (Convention.CONFIG_DICT, RAW),
    "raw_engine_elsewhere": (Convention.UNKNOWN, RAW),
    "raw_literal": (Convention.CONFIG_LITERAL, RAW),
    "raw_no_config": (Convention.UNKNOWN, RAW),
    "raw_own_flag": (Convention.OWN_FLAG, RAW),
    "raw_own_flag_opened": (Convention.OWN_FLAG, RAW),
    "raw_positional": (Convention.ADD_CONFIG_ARGUMENTS, RAW),
    "raw_two_batches": (Convention.ADD_CONFIG_ARGUMENTS, RAW),
    "raw_two_configs": (Convention.UNKNOWN, RAW),
    "trl_dpo_in_code": (Convention.HF_IN_CODE, HF),
    "trl_dpo_parser": (Convention.HF_PARSER, HF),
    "trl_grpo_parser": (Convention.HF_PARSER, HF),
    "trl_grpo_vllm": (Convention.HF_IN_CODE, HF),
    "trl_kto_optional_reference": (Convention.HF_PARSER, HF),
    "trl_own_loss": (Convention.HF_IN_CODE, HF),
    "trl_reward": (Convention.HF_IN_CODE, HF),
}


def test_every_script_beside_this_test_has_its_convention() -> None:
    assert sorted(CONVENTIONS) == sorted(path.stem for path in SCRIPTS.glob("*.py"))


@pytest.mark.parametrize("name", sorted(CONVENTIONS))
def test_a_script_shows_its_convention(name: str) -> None:
    facts = facts_of(name)
    assert CONVENTIONS[name] == (facts.convention, facts.integration)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf_own_flag", "--ds"),
        ("raw_own_flag", "--ds_config_path"),
        ("raw_own_flag_opened", "--ds_file"),
        ("raw_deepspeed_config_flag", "--deepspeed_config"),
        ("raw_arguments_and_own_flag", "--cfg"),
    ],
)
def test_the_own_flag_is_followed_to_its_option(name: str, expected: str) -> None:
    assert expected == facts_of(name).own_flag


@pytest.mark.parametrize(
    ("name", "literal", "line"),
    [
        ("hf_literal", "ds_config_zero2.json", 11),
        ("raw_literal", "./ds_config_zero3_offload.json", 5),
        ("accelerate_plugin", "ds_config.json", 3),
    ],
)
def test_a_literal_config_is_named_with_its_line(name: str, literal: str, line: int) -> None:
    facts = facts_of(name)
    assert (literal, line) == (facts.literal_config, facts.config_line)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf_dict", Obstacle.BUILT_HF),
        ("hf_hidden", Obstacle.HIDDEN_HF),
        ("hf_arguments_elsewhere", Obstacle.HIDDEN_HF),
        ("raw_dict", Obstacle.BUILT),
        ("raw_engine_elsewhere", Obstacle.ENGINE_UNSEEN),
        ("raw_no_config", Obstacle.NO_CONFIG),
        ("raw_two_configs", Obstacle.TWO_CONFIGS),
    ],
)
def test_a_script_that_no_config_can_reach_is_refused(name: str, expected: Obstacle) -> None:
    facts = facts_of(name)
    assert expected == facts.obstacle
    with pytest.raises(PreflightError):
        deliver(facts, (), "ds_config_zero2.json")


def test_the_parser_of_json_files_hands_the_config_over_by_environment() -> None:
    delivery = deliver(facts_of("hf_parser"), ("run.json",), "ds_config_zero2.json")
    assert delivery.script_args == ("run.json",)
    assert delivery.env["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == "ds_config_zero2.json"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("args.ds", Convention.OWN_FLAG),
        ("Path(args.ds).resolve()", Convention.OWN_FLAG),
        ("json.load(open(args.ds))", Convention.OWN_FLAG),
        ("json.load(open(args.ds, 'r'))", Convention.OWN_FLAG),
        ("json.load(io.open(args.ds, 'r'))", Convention.OWN_FLAG),
        ("json.load(Path(args.ds).open('r'))", Convention.OWN_FLAG),
        ("json.load(Path(args.ds).expanduser().open('rb'))", Convention.OWN_FLAG),
        ("json.load(Path.open(args.ds, 'r'))", Convention.OWN_FLAG),
        ("json.load(store.open('r'))", Convention.CONFIG_DICT),
        ("json.loads(Path('ds.json').read_text('utf-8'))", Convention.CONFIG_LITERAL),
        ("json.loads(Path('ds.json').read_text())", Convention.CONFIG_LITERAL),
        ("json.loads('{}')", Convention.CONFIG_DICT),
        ("build(args.ds)", Convention.CONFIG_DICT),
    ],
)
def test_a_config_is_traced_through_what_opens_it(config: str, expected: Convention) -> None:
    text = (
        "import argparse, deepspeed, io\nfrom pathlib import Path\nfrom disks import store\n"
        "p = argparse.ArgumentParser()\np.add_argument('--ds')\n"
        f"args = p.parse_args()\ndeepspeed.initialize(model=model, config={config})\n"
    )
    assert expected is parse_script(text, "train.py").convention


def test_a_plugin_that_the_script_builds_itself_is_an_obstacle() -> None:
    text = "from accelerate import Accelerator\nAccelerator(deepspeed_plugin=make_plugin())"
    assert Obstacle.BUILT_ACCELERATE is parse_script(text, "train.py").obstacle


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=4)", 4),
        ("gradient_accumulation_plugin=GradientAccumulationPlugin(4)", 4),
        ("deepspeed_plugin=DeepSpeedPlugin(zero_stage=2), gradient_accumulation_steps=4", 4),
        ("deepspeed_plugin=DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=8)", 8),
        ("DeepSpeedPlugin(gradient_accumulation_steps=8), gradient_accumulation_steps=4", None),
        ("gradient_accumulation_plugin=make_plugin()", None),
        ("**settings", None),
        ("", 1),
    ],
)
def test_accumulation_is_read_where_accelerate_takes_it(how: str, expected: int | None) -> None:
    names = "Accelerator, DeepSpeedPlugin, GradientAccumulationPlugin"
    text = f"from accelerate import {names}\nAccelerator({how}).prepare(model)\n"
    assert expected == parse_script(text, "train.py").accumulation_steps.value


@pytest.mark.parametrize(
    ("text", "convention"),
    [
        # `initialize` wins over the Trainer, and arguments in code over a bare Accelerator.
        ("import deepspeed\nTrainingArguments('out')\ndeepspeed.initialize(config='a')", LITERAL),
        (
            "from accelerate import Accelerator\nAccelerator()\nTrainingArguments('out')",
            Convention.HF_IN_CODE,
        ),
    ],
)
def test_of_two_libraries_the_one_that_trains_counts(text: str, convention: Convention) -> None:
    facts = parse_script(HF_CALL + text, "train.py")
    assert convention is facts.convention
    assert ("a" if convention is LITERAL else None) == facts.literal_config


def test_a_parser_of_a_file_that_the_words_name_has_its_options() -> None:
    text = (
        "import os, sys\n"
        "from transformers import HfArgumentParser, TrainingArguments\n"
        "parser = HfArgumentParser(TrainingArguments)\n"
        "(args,) = parser.parse_yaml_file(os.path.abspath(sys.argv[1]))\n"
    )
    facts = parse_script(text, "train.py")
    assert Convention.HF_PARSER is facts.convention
    assert facts.parser.takes_file(("a.yaml",))
    assert "--per_device_train_batch_size" == facts.micro_batch.flag


def test_a_parser_that_reads_no_command_line_takes_the_environment() -> None:
    text = (
        "from transformers import HfArgumentParser, TrainingArguments\n"
        "(args,) = HfArgumentParser(TrainingArguments).parse_json_file('run.json')\n"
    )
    facts = parse_script(text, "train.py")
    assert Convention.HF_IN_CODE is facts.convention
    assert ValueSource() == facts.micro_batch


def test_the_shipped_raw_script_leaves_its_micro_batch_to_the_config() -> None:
    facts = read_script(TEMPLATES / "train_deepspeed.py")

    assert Convention.ADD_CONFIG_ARGUMENTS == facts.convention
    assert facts.micro_batch.from_config
    assert facts.passes_optimizer


# What a script cannot do without, and what stands in its libraries' way.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import datasets\n", [("datasets", 1)]),
        ("import os\nfrom datasets.load import x\n", [("datasets", 2)]),
        ("import torch, datasets\nimport datasets\n", [("torch", 1), ("datasets", 1)]),
        ("import torch\nimport odd\nimport json\n", [("torch", 1), ("odd", 2)]),
        ("try:\n    import datasets\nexcept ImportError:\n    pass\n", []),
        ("def f():\n    import datasets\n", []),
        ("if x:\n    import datasets\n", []),
        ("from . import datasets\n", []),
        ("import sys\nsys.path.insert(0, 'lib')\nimport datasets\n", []),
        ("import beside\nimport folder.x\n", []),
        ("import (\n", []),
        ("\0", []),
        ("", []),
        # Python warns of such a text.
        ('import datasets\nPATTERN = "\\d"\n', [("datasets", 1)]),
        # A link that leads to itself is no package, and a script that is not there shows nothing.
        ("import loop\n", [("loop", 1)]),
        (None, []),
    ],
)
def test_what_is_imported_at_the_top_is_needed(
    tmp_path: Path, text: str | None, expected: list[tuple[str, int]]
) -> None:
    (tmp_path / "beside.py").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    script = tmp_path / "train.py"
    if text is not None:
        script.write_text(text)
    seen = read_imports(script, script.parent)
    assert expected == [(each.name, each.line) for each in seen]


@pytest.mark.parametrize(
    ("package", "script", "project", "source"),
    [
        ("own", "own/train/run.py", "setup.py", SourceFolder(path=".", project=".")),
        ("src/own", "scripts/run.py", "pyproject.toml", SourceFolder(path="src", project=".")),
        ("src/own", "src/own/run.py", "setup.py", SourceFolder(path="src", project=".")),
        ("own", "scripts/run.py", "README.md", SourceFolder(path=".")),
        ("other", "scripts/run.py", "setup.py", None),
    ],
    ids=["its own package", "under src", "in it, under src", "no project", "not here"],
)
def test_a_package_of_the_scripts_repository_is_found_beside_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    script: str,
    project: str,
    source: SourceFolder | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in (f"{package}/__init__.py", script, project):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).touch()
    Path(script).write_text("import own\n")
    seen = read_imports(Path(script), Path(script).parent)
    assert [("own", source)] == [(each.name, each.source) for each in seen]


# What a script puts into the config that it gets is not followed.

HEAD = """import argparse, json, deepspeed, torch
p = argparse.ArgumentParser()
p.add_argument("--ds")
p.add_argument("--batch", type=int, default=4)
args = p.parse_args()
cfg = json.load(open(args.ds))
"""
TAIL = "\ndeepspeed.initialize(model=model, config=cfg, training_data=data)\n"


@pytest.mark.parametrize(
    ("lines", "seen"),
    [
        ("", True),
        ("cfg['steps_per_print'] = 10", True),
        ("cfg['train_micro_batch_size_per_gpu'] = args.batch", False),
        ("cfg['train_batch_size'] = 8", False),
    ],
)
def test_a_batch_that_the_script_puts_into_its_config_is_not_known(
    lines: str, *, seen: bool
) -> None:
    facts = parse_script(HEAD + lines + TAIL, "train.py")
    assert (seen, seen) == (facts.micro_batch.from_config, facts.accumulation_steps.from_config)


# Scripts whose engine, or whose parser, is in a module beside them.

PARSED = """import argparse, deepspeed
from training.engine import make_engine
p = deepspeed.add_config_arguments(argparse.ArgumentParser())
args = p.parse_args()
"""
ENGINE = """import deepspeed
def make_engine(model, args):
    return deepspeed.initialize(args=args, model=model, optimizer=build(model))
"""


def read_engine_elsewhere(
    script: str, module: str | None, name: str = "training.engine"
) -> ScriptFacts:
    return read_beside(script, {} if module is None else {name: module})


def test_an_engine_in_a_module_that_gets_the_arguments_takes_their_config() -> None:
    facts = read_engine_elsewhere(PARSED + "make_engine(model, args)\n", ENGINE)
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
    assert Convention.ADD_CONFIG_ARGUMENTS is read_engine_elsewhere(script, engine).convention


@pytest.mark.parametrize(
    ("call", "module"),
    [
        # Nothing beside the script, or nothing that can be read.
        ("make_engine(model, args)", None),
        ("make_engine(model, args)", "this is not Python"),
        ("make_engine(model, args)", "def make_engine(model, args): pass"),
        # Nothing that the script uses.
        ("train(args)", ENGINE),
    ],
)
def test_without_such_an_engine_nothing_is_claimed(call: str, module: str | None) -> None:
    facts = read_engine_elsewhere(f"{PARSED}{call}\n", module)
    assert (Convention.UNKNOWN, Obstacle.ENGINE_UNSEEN) == (facts.convention, facts.obstacle)
    assert Integration.DEEPSPEED is facts.integration
    with pytest.raises(PreflightError, match="line 3 adds options") as refused:
        deliver(facts, (), "ds_config_zero2.json")
    assert any("$config_via" in hint for hint in refused.value.hints)


HYDRA = """import deepspeed, hydra

@hydra.main(version_base=None, config_path="conf")
def main(cfg):
    deepspeed.initialize(model=model, config=cfg.deepspeed)

main()
"""
HYDRA_HF = """import hydra
from transformers import Trainer, TrainingArguments

@hydra.main(version_base=None, config_path="conf")
def main(cfg):
    Trainer(model, TrainingArguments("out", deepspeed=cfg.deepspeed)).train()

main()
"""


@pytest.mark.parametrize(("text", "line"), [(HYDRA, 5), (HYDRA_HF, 6)])
def test_a_script_of_hydra_is_told_the_key_that_hydra_takes(text: str, line: int) -> None:
    facts = parse_script(text, "train.py")
    assert (Obstacle.HYDRA, line) == (facts.obstacle, facts.config_line)
    with pytest.raises(PreflightError) as refused:
        deliver(facts, (), "ds.json")
    hints = " ".join(refused.value.hints)
    assert "`$config_via key:NAME`" in hints
    assert "parser" not in hints
    assert "flag:" not in hints


@pytest.mark.parametrize(
    ("way", "words", "expected"),
    [
        ("key:deepspeed", ("model=m",), ("model=m", "deepspeed=ds.json")),
        ("key:+train.ds", (), ("+train.ds=ds.json",)),
        ("key:ds", ("ds=./ds.json",), ("ds=./ds.json",)),
        ("key:ds", ("+ds=ds.json",), ("+ds=ds.json",)),
        ("key:ds", ("ds=mine.json",), None),
    ],
)
def test_a_key_of_hydra_names_the_config_once(
    way: str, words: tuple[str, ...], expected: tuple[str, ...] | None
) -> None:
    facts = with_config_via(parse_script(HYDRA, "train.py"), way)
    # Hydra's parser ends a run with `--local_rank`.
    assert facts.parser.refuses_local_rank(words)
    if expected is not None:
        assert expected == deliver(facts, words, "ds.json").script_args
        return
    with pytest.raises(UsageError, match=r"two configs: `ds=mine\.json`, and `ds\.json`"):
        deliver(facts, words, "ds.json")


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (ENGINE.replace("model=model", "config=build(args)"), Obstacle.BUILT),
        (ENGINE.replace("args=args", "args=Namespace(a=1)"), Obstacle.NO_CONFIG),
        # An import runs it.
        (ENGINE + "deepspeed.initialize(config={})\n", Obstacle.BUILT),
    ],
)
def test_an_engine_in_a_module_that_gets_another_config_is_named_there(
    engine: str, expected: Obstacle
) -> None:
    facts = read_engine_elsewhere(PARSED + "make_engine(model, args)\n", engine)
    assert expected is facts.obstacle
    with pytest.raises(PreflightError) as refused:
        deliver(facts, (), "ds_config_zero2.json")
    line = engine.count("\n", 0, engine.rindex("deepspeed.initialize")) + 1
    assert refused.value.message.startswith("zerowiz cannot pass a config to training/engine.py: ")
    assert f"in line {line if expected is Obstacle.NO_CONFIG else 3}" in refused.value.message


def test_an_option_of_its_own_reaches_an_engine_in_a_module_too() -> None:
    script = """import argparse
from training import engine
p = argparse.ArgumentParser()
p.add_argument("--deepspeed_config")
args = p.parse_args()
engine.make_engine(model, args)
"""
    facts = read_engine_elsewhere(script, ENGINE)
    assert (Convention.OWN_FLAG, "--deepspeed_config") == (facts.convention, facts.own_flag)
    assert Obstacle.NO_ENGINE is read_engine_elsewhere(script, None).obstacle
    without = read_engine_elsewhere(script.replace("_config", "_file"), ENGINE)
    assert Obstacle.NO_CONFIG is without.obstacle


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
    facts = read_engine_elsewhere(script, module, "training.options")
    assert Convention.ADD_CONFIG_ARGUMENTS is facts.convention
    assert (
        Obstacle.NO_CONFIG
        is read_engine_elsewhere(
            script, module.replace("add_config", "x"), "training.options"
        ).obstacle
    )
    assert Obstacle.NO_CONFIG is read_engine_elsewhere(script, None).obstacle


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
    assert expected is read_engine_elsewhere(text, None).convention


def test_another_library_in_the_script_is_taken_before_its_unused_options() -> None:
    text = PARSED + "from accelerate import Accelerator\nAccelerator()\n"
    assert Convention.ACCELERATOR is read_engine_elsewhere(text, None).convention


LIGHTNING = """import lightning as L
from lightning.pytorch.strategies import DeepSpeedStrategy
from pytorch_lightning import Trainer
import argparse
p = argparse.ArgumentParser()
p.add_argument("--strategy", default="ddp")
p.add_argument("--ds")
args = p.parse_args()
"""


@pytest.mark.parametrize(
    ("trainer", "expected", "obstacle"),
    [
        ("L.Trainer(strategy='deepspeed_stage_3')", Convention.LIGHTNING, None),
        ("Trainer(devices=2, strategy='deepspeed')", Convention.LIGHTNING, None),
        ("L.Trainer(strategy=DeepSpeedStrategy(stage=3))", Convention.LIGHTNING, None),
        ("how = DeepSpeedStrategy()\nL.Trainer(strategy=how)", Convention.LIGHTNING, None),
        ("L.Trainer(strategy=args.strategy)", Convention.LIGHTNING, None),
        ("L.Trainer(**settings)", Convention.LIGHTNING, None),
        (
            "L.Trainer(strategy=DeepSpeedStrategy(config='ds_config_zero2.json'))",
            Convention.CONFIG_LITERAL,
            None,
        ),
        ("L.Trainer(strategy=DeepSpeedStrategy(config=args.ds))", Convention.OWN_FLAG, None),
        (
            "L.Trainer(strategy=DeepSpeedStrategy(config={'zero_optimization': {}}))",
            Convention.CONFIG_DICT,
            Obstacle.BUILT_LIGHTNING,
        ),
        (
            # Of aqlaboratory/openfold.
            (
                "if args.ds:\n    how = DeepSpeedStrategy(config=args.ds)\nelse:\n    how = make()\n"
                "given = {}\ngiven.update({'strategy': how})\nL.Trainer(**given)"
            ),
            Convention.OWN_FLAG,
            None,
        ),
        ("Trainer.from_argparse_args(args)", Convention.LIGHTNING, None),
        ("L.Trainer(strategy='ddp')", Convention.UNKNOWN, Obstacle.NO_STRATEGY),
        ("L.Trainer()", Convention.UNKNOWN, Obstacle.NO_STRATEGY),
        ("instantiate(cfg.trainer).fit(m)", Convention.UNKNOWN, Obstacle.HIDDEN_LIGHTNING),
    ],
)
def test_a_trainer_of_lightning_takes_its_config_by_its_strategy(
    trainer: str, expected: Convention, obstacle: Obstacle | None
) -> None:
    facts = read_engine_elsewhere(f"{LIGHTNING}{trainer}\n", None)
    assert (expected, obstacle) == (facts.convention, facts.obstacle)
    assert Integration.LIGHTNING is facts.integration
    assert facts.passes_optimizer


@pytest.mark.parametrize(
    ("trainer", "said", "unfollowed"),
    [
        ("L.Trainer(strategy=args.strategy)", "ddp", None),
        ("Trainer.from_argparse_args(args)", "ddp", None),
        ("L.Trainer(strategy=DeepSpeedStrategy(stage=3))", None, None),
        ("L.Trainer(**settings)", None, "L.Trainer(...)"),
        # Of acharkq/MolCA.
        (
            "how = 'auto'\nif x:\n    how = DeepSpeedStrategy()\nL.Trainer(strategy=how)",
            None,
            "L.Trainer(strategy=how)",
        ),
    ],
)
def test_a_strategy_that_not_every_run_takes_is_known_or_named(
    trainer: str, said: str | None, unfollowed: str | None
) -> None:
    facts = read_engine_elsewhere(f"{LIGHTNING}{trainer}\n", None)
    assert (Convention.LIGHTNING, said) == (facts.convention, facts.strategy.value)
    assert unfollowed == next((end.code for end in facts.unfollowed), None)


def test_what_tyro_makes_options_of_is_not_taken_for_what_is_trained() -> None:
    # Of ZHZisZZ/modpo.
    facts = parse_script(
        """import tyro
from transformers import Trainer, TrainingArguments
class Args:
    training_args: TrainingArguments = field(
        default_factory=lambda: TrainingArguments("out", per_device_train_batch_size=4)
    )
args = tyro.cli(Args)
Trainer(model, args.training_args).train()
""",
        "train.py",
    )
    assert Obstacle.HIDDEN_HF is facts.obstacle
    assert not facts.micro_batch.seen
    assert facts.parser.refuses_local_rank(("--training_args.per_device_train_batch_size", "8"))


def test_a_trainer_of_the_script_with_a_loop_of_accelerate_is_no_trainer_of_transformers() -> None:
    # Of tatsu-lab/alpaca_farm.
    modules = {"patched": "import accelerate\nclass MyAccelerator(accelerate.Accelerator): ...\n"}
    facts = read_beside(
        """import patched
from transformers import HfArgumentParser, TrainingArguments
class PPOTrainer:
    def __init__(self, args, accelerator):
        self.model = accelerator.prepare(make(args))
args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
PPOTrainer(args, patched.MyAccelerator())
""",
        modules,
    )
    assert Obstacle.HIDDEN_HF is facts.obstacle
    assert not facts.micro_batch.seen


def test_a_model_that_one_module_names_is_not_that_of_another_module() -> None:
    # Of acharkq/MolCA.
    names = "def one(path):\n    return OPTForCausalLM.from_pretrained(path)\n"
    modules = {"one": names, "two": "m = T5ForConditionalGeneration.from_pretrained('t5')\n"}
    facts = read_beside("from one import one\nfrom two import m\none(ask()).train()\n", modules)
    assert not facts.model.seen


# Of baaivision/EVA, lucidrains/DALLE-pytorch and OpenLMLab/LOMO.
@pytest.mark.parametrize(
    ("lines", "expected", "obstacle"),
    [
        (
            (
                "p = deepspeed.add_config_arguments(p)\nargs = p.parse_args()\n"
                "args.deepspeed_config = write(args)\nstart = deepspeed.initialize\n"
                "start(args=args, model=m, model_parameters=m.parameters())"
            ),
            Convention.CONFIG_DICT,
            Obstacle.BUILT,
        ),
        (
            "Backend().library.initialize(model=m, model_parameters=w, config={'a': 1})",
            Convention.CONFIG_DICT,
            Obstacle.BUILT,
        ),
        (
            (
                "class MyTrainer:\n    def __init__(self, args):\n"
                "        self.engine = deepspeed.initialize(model=m, config=args.deepspeed)\n"
                "args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
                "MyTrainer(args)"
            ),
            Convention.OWN_FLAG,
            None,
        ),
        (
            # Of thu-ml/RoboticsDiffusionTransformer.
            (
                "from accelerate import Accelerator\np.add_argument('--ds')\nargs = p.parse_args()\n"
                "plugin = DeepSpeedPlugin(hf_ds_config=args.ds) if args.ds else None\n"
                "Accelerator(deepspeed_plugin=plugin)"
            ),
            Convention.OWN_FLAG,
            None,
        ),
    ],
)
def test_an_engine_is_known_by_what_it_gets(
    lines: str, expected: Convention, obstacle: Obstacle | None
) -> None:
    head = (
        "import argparse, deepspeed\nfrom transformers import HfArgumentParser, TrainingArguments\n"
        "p = argparse.ArgumentParser()\n"
    )
    facts = parse_script(f"{head}{lines}\n", "train.py")
    assert (expected, obstacle) == (facts.convention, facts.obstacle)


@pytest.mark.parametrize(("name", "expected"), [("DDP", Obstacle.NO_STRATEGY), ("DeepSpeed", None)])
def test_a_strategy_that_is_not_followed_is_deepspeeds_where_the_script_names_it(
    name: str, expected: Obstacle | None
) -> None:
    text = f"from lightning import Trainer\nkinds = ['{name}']\nTrainer(strategy=make(kinds))\n"
    assert expected is parse_script(text, "train.py").obstacle


def test_a_trainer_that_hydra_makes_with_a_strategy_is_named_with_the_line_that_fits() -> None:
    # Of kuleshov-group/mdlm: a word for `cfg.trainer.strategy` would have no effect.
    made = "instantiate(cfg.trainer, strategy=instantiate(cfg.strategy))"
    text = (
        "import lightning as L\nfrom hydra.utils import instantiate\n"
        f"def look(cfg):\n    {made}.validate(m)\ndef train(cfg):\n    {made}.fit(m)\n"
    )
    facts = parse_script(text, "train.py")
    assert (Obstacle.NO_STRATEGY, 6) == (facts.obstacle, facts.config_line)
    with pytest.raises(UnreachableScriptError) as refused:
        refuse(facts, "ds.json")
    edited = with_line_edits(text.encode(), refused.value.edits).decode()
    assert edited.splitlines()[5].lstrip() == (
        'instantiate(cfg.trainer, strategy="deepspeed").fit(m)'
    )
    assert Convention.LIGHTNING is parse_script(edited, "train.py").convention


@pytest.mark.parametrize("place", ["training/engine.py", "training/engine/__init__.py"])
def test_a_module_is_read_from_beside_the_script(tmp_path: Path, place: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(PARSED + "make_engine(model, args)\n", encoding="utf-8")
    assert Obstacle.ENGINE_UNSEEN is read_script(script).obstacle
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text(ENGINE, encoding="utf-8")
    assert Convention.ADD_CONFIG_ARGUMENTS is read_script(script).convention


# Scripts that only call a function of their package: the module of that function is read.

SCRIPT = """from tools.patches import patch_attention
patch_attention()
from tools.fit import fit
if __name__ == "__main__":
    fit(attention="flash_attention_2")
"""
MODULE = """from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
def fit(attention=None):
    args = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]
    model = AutoModelForCausalLM.from_pretrained("gpt2", attn_implementation=attention)
    Trainer(model=model, args=args).train()
if __name__ == "__main__":
    fit()
"""


def read_started(script: str, **modules: str) -> ScriptFacts:
    return read_beside(script, {name.replace("_", ".", 1): text for name, text in modules.items()})


def test_the_module_of_the_called_function_is_read() -> None:
    facts = read_started(SCRIPT, tools_fit=MODULE, tools_patches="def patch_attention(): pass")
    assert (Convention.HF_PARSER, "tools/fit.py") == (facts.convention, facts.starts)
    settings = ScriptRun(facts, ("--bf16",)).settings
    assert settings.attention is not None
    assert Attention.FLASH is settings.attention.value
    assert settings.model is not None
    assert "`AutoModelForCausalLM.from_pretrained('gpt2')` in tools/fit.py line 4" == (
        settings.model.source
    )


@pytest.mark.parametrize(
    ("script", "module"),
    [
        (SCRIPT, "def fit(): pass"),
        (SCRIPT, "this is not Python"),
        (SCRIPT, MODULE.replace("def fit", "def run")),
        ("from tools.fit import fit\n", MODULE),
        # Both have a function of this name, and which one is meant is not looked up.
        (SCRIPT + "class fit: pass\n", MODULE),
    ],
)
def test_what_starts_no_training_shows_no_engine(script: str, module: str) -> None:
    facts = read_started(script, tools_fit=module)
    assert (Obstacle.NO_ENGINE, None) == (facts.obstacle, facts.starts)


def test_what_a_script_and_its_module_have_counts_as_of_one_file() -> None:
    script = "from accelerate import Accelerator\nAccelerator()\n" + SCRIPT
    facts = read_started(script, tools_fit=MODULE)
    assert (Convention.HF_PARSER, "tools/fit.py") == (facts.convention, facts.starts)
    facts = read_started(script.replace("    fit(", "    x("), tools_fit=MODULE)
    assert (Convention.ACCELERATOR, None) == (facts.convention, facts.starts)


def test_a_script_in_a_package_imports_from_that_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tools" / "start"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "tools" / "fit.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    facts = read_script(Path("tools/start/train.py"))
    assert ("tools/fit.py", "tools/start/train.py") == (facts.starts, facts.path)
    monkeypatch.chdir(folder)
    assert str(tmp_path / "tools" / "fit.py") == read_script(Path("train.py")).starts


PARSED_LOOP = """from accelerate import Accelerator
from transformers import HfArgumentParser, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
accelerator = Accelerator(mixed_precision="bf16")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
"""


def test_a_loop_that_only_reads_training_arguments_is_one_of_accelerate() -> None:
    assert Convention.ACCELERATOR is parse_script(PARSED_LOOP, "train.py").convention
    trained = f"{PARSED_LOOP}from transformers import Trainer\nTrainer(model=model, args=args)\n"
    assert Convention.HF_PARSER is parse_script(trained, "train.py").convention


# An engine that never runs is none.

BUILDS = "e = deepspeed.initialize(args=args, model=model)"
BEFORE_ENGINE = """import argparse, os, sys
import deepspeed
p = argparse.ArgumentParser()
deepspeed.add_config_arguments(p)
args = p.parse_args()
"""
NEVER = (
    "if 0:\n    ENGINE",
    "if not True:\n    ENGINE",
    "if 1:\n    pass\nelse:\n    ENGINE",
    "while False:\n    ENGINE",
    "DEBUG = False\nif DEBUG:\n    ENGINE",
    "DEBUG = False\nif DEBUG and args.local_rank == 0:\n    ENGINE",
    "USE = 0\ndef main():\n    if USE:\n        ENGINE\nmain()",
    "PLAIN = True\nif not PLAIN:\n    ENGINE",
    "PLAIN = True\nif PLAIN:\n    pass\nelse:\n    ENGINE",
    "def main():\n    use = False\n    if use:\n        ENGINE\nmain()",
    "sys.exit(0)\nENGINE",
    "for i in range(3):\n    continue\n    ENGINE",
    "def main():\n    if args.cpu:\n        return 1\n    else:\n        return 2\n    ENGINE\nmain()",
    "os._exit(0)\nENGINE",
    "raise SystemExit('old')\nENGINE",
    "def main():\n    return\n    ENGINE\nmain()",
    "def main():\n    if args.x:\n        raise ValueError\n        ENGINE\nmain()",
)
RUNS = (
    "USE = True\nif USE:\n    ENGINE",
    "USE = False\nUSE = args.x\nif USE:\n    ENGINE",
    "USE = False\nif USE or args.x:\n    ENGINE",
    "USE = False\ndef set_up():\n    global USE\n    USE = True\nset_up()\nif USE:\n    ENGINE",
    "use = False\nexec(open('configurator.py').read())\nif use:\n    ENGINE",
    "USE = False\nfrom settings import *\nif USE:\n    ENGINE",
    "USE = False\nfrom settings import USE\nif USE:\n    ENGINE",
    "def main(use=False):\n    if use:\n        ENGINE\nmain(True)",
    "use = False\nfor i in range(2):\n    if use:\n        ENGINE\n    use = True",
    "if args.x:\n    sys.exit(1)\nENGINE",
    "try:\n    sys.exit(1)\nexcept SystemExit:\n    ENGINE",
    "def early():\n    return 1\nENGINE",
    "def main():\n    try:\n        return 1\n    finally:\n        ENGINE\nmain()",
)


@pytest.mark.parametrize("body", [*NEVER, *RUNS])
def test_an_engine_that_never_runs_is_none(body: str) -> None:
    text = BEFORE_ENGINE + body.replace("ENGINE", BUILDS) + "\n"
    convention = parse_script(text, "train.py").convention
    assert (body in NEVER) is (convention is Convention.UNKNOWN), convention
