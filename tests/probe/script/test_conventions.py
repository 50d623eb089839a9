"""How a config reaches a script: one that looks real for each convention, and hard cases."""

import pytest
from paths import TEMPLATES
from probe.reading import HF_CALL, SCRIPTS, facts_of

from zerowiz.core.script.delivery import deliver
from zerowiz.core.script.facts import Convention, Obstacle, ValueSource
from zerowiz.core.workload import Integration
from zerowiz.errors import PreflightError
from zerowiz.probe.script.read import parse_script, read_script

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
    "lightning": (Convention.UNKNOWN, None),
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
        ("lightning", Obstacle.NO_ENGINE),
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
        ("json.loads(Path('ds.json').read_text())", Convention.CONFIG_LITERAL),
        ("json.loads('{}')", Convention.CONFIG_DICT),
        ("build(args.ds)", Convention.CONFIG_DICT),
    ],
)
def test_a_config_is_traced_through_what_opens_it(config: str, expected: Convention) -> None:
    text = (
        "import argparse, deepspeed\np = argparse.ArgumentParser()\np.add_argument('--ds')\n"
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


def test_initialize_wins_over_the_trainer() -> None:
    text = HF_CALL + "import deepspeed\nTrainingArguments('out')\ndeepspeed.initialize(config='a')"
    facts = parse_script(text, "train.py")
    assert (facts.convention, facts.literal_config) == (Convention.CONFIG_LITERAL, "a")


def test_arguments_in_code_win_over_a_bare_accelerator() -> None:
    text = HF_CALL + "from accelerate import Accelerator\nAccelerator()\nTrainingArguments('out')"
    assert Convention.HF_IN_CODE is parse_script(text, "train.py").convention


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
