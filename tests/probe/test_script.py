"""Hold the reading of scripts to real-looking ones, one per convention, and to hard cases."""

import sys
from dataclasses import fields
from pathlib import Path

import pytest

from zerowiz.core.script import (
    Binding,
    Convention,
    Obstacle,
    ScriptFacts,
    ScriptSettings,
    Setting,
    deliver,
    settle,
)
from zerowiz.core.workload import Attention, Integration, Loss, Method, Optimizer, Precision
from zerowiz.errors import PreflightError, ZerowizError
from zerowiz.probe.script import parse_script, read_script

SCRIPTS = Path(__file__).parent / "scripts"
HF, RAW, ACCELERATE = Integration.HF, Integration.DEEPSPEED, Integration.ACCELERATE


def facts_of(name: str) -> ScriptFacts:
    return parse_script((SCRIPTS / f"{name}.py").read_text(encoding="utf-8"), "train.py")


CONVENTIONS = {
    "accelerate_bare": (Convention.ACCELERATOR, ACCELERATE),
    "accelerate_plugin": (Convention.CONFIG_LITERAL, ACCELERATE),
    "accelerate_plugin_stage": (Convention.ACCELERATOR, ACCELERATE),
    "hf_arguments_elsewhere": (Convention.UNKNOWN, HF),
    "hf_dict": (Convention.CONFIG_DICT, HF),
    "hf_hidden": (Convention.UNKNOWN, HF),
    "hf_in_code": (Convention.HF_IN_CODE, HF),
    "hf_in_code_packed": (Convention.HF_IN_CODE, HF),
    "hf_in_code_trl": (Convention.HF_IN_CODE, HF),
    "hf_kwargs": (Convention.HF_IN_CODE, HF),
    "hf_literal": (Convention.HF_LITERAL, HF),
    "hf_own_flag": (Convention.OWN_FLAG, HF),
    "hf_parser": (Convention.HF_PARSER, HF),
    "hf_parser_elsewhere": (Convention.HF_PARSER, HF),
    "hf_parser_subclass": (Convention.HF_PARSER, HF),
    "hf_parser_trl": (Convention.HF_PARSER, HF),
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
    "raw_deepspeed_config_flag": (Convention.OWN_FLAG, RAW),
    "raw_dict": (Convention.CONFIG_DICT, RAW),
    "raw_literal": (Convention.CONFIG_LITERAL, RAW),
    "raw_no_config": (Convention.UNKNOWN, RAW),
    "raw_own_flag": (Convention.OWN_FLAG, RAW),
    "raw_own_flag_opened": (Convention.OWN_FLAG, RAW),
    "raw_positional": (Convention.ADD_CONFIG_ARGUMENTS, RAW),
    "raw_two_configs": (Convention.UNKNOWN, RAW),
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


def values(name: str, *words: str) -> dict[str, object]:
    settings = settle(facts_of(name), words)
    said = {each.name: getattr(settings, each.name) for each in fields(settings)}
    return {name: each.value for name, each in said.items() if isinstance(each, Setting)}


ALL_DEFAULT: dict[str, object] = {
    "use_cpu": False,
    "loss": Loss.PLAIN,
    "micro_batch": 8,
    "accumulation_steps": 1,
    "precision": Precision.FP32,
    "gradient_checkpointing": False,
    "optimizer": Optimizer.ADAMW,
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "hf_parser",
            {
                **ALL_DEFAULT,
                "sequence_tokens": 1024,
                "attention": Attention.SDPA,
                "model": "gpt2-medium",
            },
        ),
        (
            "hf_parser_subclass",
            {
                **ALL_DEFAULT,
                "micro_batch": 2,
                "precision": Precision.BF16,
                "sequence_tokens": 512,
                "model": "facebook/opt-125m",
            },
        ),
        (
            "hf_parser_trl",
            {
                "use_cpu": False,
                "loss": Loss.PLAIN,
                "packing": False,
                "micro_batch": 8,
                "accumulation_steps": 1,
                "gradient_checkpointing": True,
                "sequence_tokens": 1024,
                "optimizer": Optimizer.ADAMW,
            },
        ),
        ("hf_parser_elsewhere", {}),
        (
            "hf_in_code",
            {
                "use_cpu": False,
                "loss": Loss.PLAIN,
                "micro_batch": 4,
                "accumulation_steps": 4,
                "precision": Precision.FP16,
                "gradient_checkpointing": False,
                "sequence_tokens": 1024,
                "optimizer": Optimizer.ADAMW_8BIT,
                "attention": Attention.FLASH,
                "model": "Qwen/Qwen2.5-0.5B",
            },
        ),
        (
            "hf_in_code_trl",
            {
                "use_cpu": False,
                "loss": Loss.PLAIN,
                "packing": False,
                "micro_batch": 2,
                "accumulation_steps": 1,
                "gradient_checkpointing": True,
                "sequence_tokens": 1024,
                "optimizer": Optimizer.ADAMW,
                "model": "Qwen/Qwen2.5-0.5B",
            },
        ),
        (
            "hf_in_code_packed",
            {
                "use_cpu": False,
                "loss": Loss.LIGER,
                "packing": True,
                "micro_batch": 4,
                "accumulation_steps": 1,
                "gradient_checkpointing": True,
                "sequence_tokens": 1024,
                "optimizer": Optimizer.ADAMW,
                "model": "Qwen/Qwen2.5-0.5B",
            },
        ),
        (
            "hf_kwargs",
            {
                **ALL_DEFAULT,
                "micro_batch": 16,
                "precision": Precision.BF16,
                "gradient_checkpointing": True,
            },
        ),
        ("hf_hidden", {"micro_batch": 2}),
        ("hf_arguments_elsewhere", {}),
        (
            "hf_two_arguments",
            {
                "use_cpu": False,
                "loss": Loss.PLAIN,
                "accumulation_steps": 1,
                "precision": Precision.BF16,
                "gradient_checkpointing": False,
                "optimizer": Optimizer.ADAMW,
            },
        ),
        (
            "hf_own_flag",
            {**ALL_DEFAULT, "gradient_checkpointing": True, "model": "google/flan-t5-xl"},
        ),
        (
            "raw_add_config_arguments",
            {"gradient_checkpointing": False, "sequence_tokens": 2048, "model": "gpt2-medium"},
        ),
        (
            "raw_positional",
            {
                "micro_batch": 4,
                "gradient_checkpointing": True,
                "optimizer": Optimizer.ADAMW,
                "model": "huggyllama/llama-7b",
            },
        ),
        ("raw_own_flag", {"gradient_checkpointing": True}),
        ("raw_own_flag_opened", {}),
        ("raw_literal", {"micro_batch": 2, "sequence_tokens": 1024}),
        (
            "accelerate_bare",
            {
                "micro_batch": 8,
                "accumulation_steps": 1,
                "precision": Precision.BF16,
                "gradient_checkpointing": False,
                "optimizer": Optimizer.ADAMW,
                "model": "gpt2",
            },
        ),
        ("accelerate_plugin_stage", {}),
        (
            "lora_accelerate",
            {
                "micro_batch": 8,
                "accumulation_steps": 1,
                "precision": Precision.BF16,
                "gradient_checkpointing": False,
                "sequence_tokens": 128,
                "optimizer": Optimizer.ADAMW,
                "model": "google/flan-t5-base",
                "method": Method.LORA,
                "lora_rank": 16,
            },
        ),
        (
            "lora_dataclasses",
            {
                **ALL_DEFAULT,
                "sequence_tokens": 512,
                "model": "lmsys/vicuna-7b-v1.5",
                "method": Method.LORA,
                "lora_rank": 8,
                "lora_target_modules": "q_proj,v_proj",
            },
        ),
        (
            "lora_fire",
            {
                "use_cpu": False,
                "loss": Loss.PLAIN,
                "micro_batch": 4,
                "precision": Precision.FP16,
                "gradient_checkpointing": True,
                "sequence_tokens": 256,
                "optimizer": Optimizer.ADAMW,
                "model": "huggyllama/llama-7b",
                "method": Method.LORA,
                "lora_rank": 8,
                "lora_target_modules": "q_proj,v_proj",
            },
        ),
        (
            "lora_optional",
            {
                **ALL_DEFAULT,
                "sequence_tokens": 1024,
                "model": "Qwen/Qwen2.5-0.5B",
                "method": Method.FULL,
                "lora_rank": 16,
                "lora_target_modules": "q_proj,v_proj",
            },
        ),
        (
            "lora_qlora_tutorial",
            {
                "use_cpu": False,
                "loss": Loss.PLAIN,
                "micro_batch": 1,
                "accumulation_steps": 4,
                "precision": Precision.FP16,
                "gradient_checkpointing": True,
                "optimizer": Optimizer.ADAMW_8BIT,
                "model": "EleutherAI/gpt-neox-20b",
                "method": Method.QLORA,
                "lora_rank": 8,
                "lora_target_modules": "query_key_value",
            },
        ),
        (
            "lora_raw",
            {
                "micro_batch": 4,
                "gradient_checkpointing": False,
                "sequence_tokens": 1024,
                "optimizer": Optimizer.ADAMW,
                "model": "facebook/opt-1.3b",
                "method": Method.LORA,
                "lora_rank": 64,
                "lora_target_modules": "q_proj,k_proj,v_proj,o_proj",
            },
        ),
        (
            "lora_recipe_parser",
            {
                "use_cpu": False,
                "loss": Loss.PLAIN,
                "micro_batch": 2,
                "accumulation_steps": 4,
                "precision": Precision.BF16,
                "gradient_checkpointing": False,
                "sequence_tokens": 4096,
                "optimizer": Optimizer.ADAMW_8BIT,
                "model": "NousResearch/Llama-2-7b-hf",
                "method": Method.LORA,
                "lora_rank": 32,
                "lora_target_modules": "q_proj,k_proj,v_proj",
            },
        ),
        (
            "lora_tiny",
            {
                **ALL_DEFAULT,
                "use_cpu": True,
                "micro_batch": 2,
                "precision": Precision.BF16,
                "model": "model",
                "method": Method.LORA,
                "lora_rank": 4,
                "lora_target_modules": "q_proj,v_proj",
            },
        ),
        (
            "lora_trl_parser",
            {
                "use_cpu": False,
                "loss": Loss.PLAIN,
                "packing": False,
                "micro_batch": 8,
                "accumulation_steps": 1,
                "gradient_checkpointing": True,
                "sequence_tokens": 1024,
                "optimizer": Optimizer.ADAMW,
                "method": Method.FULL,
                "lora_rank": 16,
            },
        ),
        (
            "lora_trl_sft",
            {
                "use_cpu": False,
                "loss": Loss.PLAIN,
                "packing": True,
                "micro_batch": 2,
                "accumulation_steps": 8,
                "precision": Precision.BF16,
                "gradient_checkpointing": True,
                "sequence_tokens": 2048,
                "optimizer": Optimizer.ADAMW,
                "model": "Qwen/Qwen2.5-7B",
                "method": Method.LORA,
                "lora_rank": 32,
                "lora_target_modules": "all-linear",
            },
        ),
        (
            "lora_yaml",
            {
                "use_cpu": False,
                "loss": Loss.PLAIN,
                "accumulation_steps": 1,
                "precision": Precision.BF16,
                "gradient_checkpointing": False,
                "method": Method.LORA,
            },
        ),
    ],
)
def test_a_script_settles_what_it_shows_and_nothing_more(
    name: str, expected: dict[str, object]
) -> None:
    assert expected == values(name)


@pytest.mark.parametrize(
    ("name", "words", "field", "expected"),
    [
        ("hf_parser", ("--block-size", "256"), "sequence_tokens", 256),
        ("hf_parser", ("--model_name", "gpt2"), "model", "gpt2"),
        ("hf_parser_subclass", ("--no_bf16",), "precision", Precision.FP32),
        ("hf_parser_trl", ("--bf16", "true"), "precision", Precision.BF16),
        ("hf_parser_trl", ("--max_seq_length", "4096"), "sequence_tokens", 4096),
        ("hf_own_flag", ("-b2",), "micro_batch", 2),
        ("hf_own_flag", ("--bf16",), "precision", Precision.BF16),
        # argparse's type=bool: the word False is true.
        ("hf_own_flag", ("--gradient_checkpointing", "False"), "gradient_checkpointing", True),
        ("raw_add_config_arguments", ("--gradient_checkp",), "gradient_checkpointing", True),
        ("raw_add_config_arguments", ("--seq_len=512",), "sequence_tokens", 512),
        ("raw_positional", ("--batch", "2"), "micro_batch", 4),  # allow_abbrev=False
        ("raw_own_flag", ("--no-gradient-checkpointing",), "gradient_checkpointing", False),
        ("accelerate_bare", ("--gradient_acc", "4"), "accumulation_steps", 4),
        ("lora_dataclasses", ("--q_lora", "true"), "method", Method.QLORA),
        (
            "lora_dataclasses",
            ("--lora_target_modules", "k_proj", "o_proj", "--lora_r", "2"),
            "lora_target_modules",
            "k_proj,o_proj",
        ),
        ("lora_fire", ("--lora_r=64",), "lora_rank", 64),
        ("lora_fire", ("--micro-batch-size", "1"), "micro_batch", 1),
        (
            "lora_fire",
            ("--lora_target_modules", "['q_proj', 'k_proj']"),
            "lora_target_modules",
            "q_proj,k_proj",
        ),
        ("lora_optional", ("--use_lora",), "method", Method.LORA),
        ("lora_optional", ("--use_lora", "false"), "method", Method.FULL),
        ("lora_raw", ("--full",), "method", Method.FULL),
        ("lora_recipe_parser", ("--adapter", "qlora"), "method", Method.QLORA),
        ("lora_recipe_parser", ("--adapter", "none"), "method", Method.FULL),
        ("lora_trl_parser", ("--use_peft",), "method", Method.LORA),
        ("lora_trl_parser", ("--use_peft", "--load_in_4bit"), "method", Method.QLORA),
        ("lora_trl_parser", ("--use_peft", "--lora_r", "64"), "lora_rank", 64),
        (
            "lora_trl_parser",
            ("--lora_target_modules", "all-linear"),
            "lora_target_modules",
            "all-linear",
        ),
    ],
)
def test_a_word_after_the_script_changes_what_it_settles(
    name: str, words: tuple[str, ...], field: str, expected: object
) -> None:
    assert expected == values(name, *words)[field]


@pytest.mark.parametrize("name", ["raw_add_config_arguments", "raw_own_flag_opened"])
def test_a_batch_that_the_config_gives_cannot_disagree_with_it(name: str) -> None:
    facts = facts_of(name)
    assert (facts.micro_batch.from_config, facts.accumulation_steps.from_config) == (True, True)


def test_an_optimizer_handed_to_initialize_is_seen_by_place() -> None:
    assert facts_of("raw_positional").passes_optimizer
    assert not facts_of("raw_add_config_arguments").passes_optimizer


def test_the_parser_of_json_files_hands_the_config_over_by_environment() -> None:
    delivery = deliver(facts_of("hf_parser"), ("run.json",), "ds_config_zero2.json")
    assert delivery.script_args == ("run.json",)
    assert delivery.env["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == "ds_config_zero2.json"


HF_CALL = "from transformers import TrainingArguments\n"
RAW_HEAD = """import argparse, deepspeed
from torch.utils.data import DataLoader
p = deepspeed.add_config_arguments(argparse.ArgumentParser())
p.add_argument("--batch", type=int, default=4)
p.add_argument("--ckpt", action="store_true")
args = p.parse_args()
"""
RAW_TAIL = "\ndeepspeed.initialize(args=args, model=model)\n"


@pytest.mark.parametrize(
    "text",
    [
        "BATCH = 4\nBATCH = 8\nTrainingArguments(per_device_train_batch_size=BATCH)",
        "TrainingArguments(per_device_train_batch_size=4 if big else 8)",
        "def main(batch=4):\n    TrainingArguments(per_device_train_batch_size=batch)",
        (
            "k = {'per_device_train_batch_size': 4}\nk['per_device_train_batch_size'] = 2\n"
            "TrainingArguments(**k, deepspeed='ds.json')"
        ),
        "a = TrainingArguments(per_device_train_batch_size=4)\na.per_device_train_batch_size = 2",
        "TrainingArguments('out', 4, deepspeed='ds.json')",
        "for n in (1, 2):\n    TrainingArguments(per_device_train_batch_size=n)",
        "n = 4\nn += 4\nTrainingArguments(per_device_train_batch_size=n)",
        "first, *n = sizes\nTrainingArguments(per_device_train_batch_size=n)",
        "TrainingArguments(per_device_train_batch_size='a' * 2)",
        "n = n * 2\nTrainingArguments(per_device_train_batch_size=n)",
    ],
)
def test_what_cannot_be_told_is_unseen(text: str) -> None:
    assert settle(parse_script(HF_CALL + text, "train.py"), ()).micro_batch is None


@pytest.mark.parametrize(
    "text",
    [
        "n: int = 4\nTrainingArguments(per_device_train_batch_size=n)",
        "one, n = 1, 4\nTrainingArguments(per_device_train_batch_size=n)",
        "if (n := 4) > 2:\n    TrainingArguments(per_device_train_batch_size=n)",
        "n = 2\nm = n\nTrainingArguments(per_device_train_batch_size=m * 2)",
        "k = dict(per_device_train_batch_size=4)\nTrainingArguments(**k)",
        "import transformers as t\nt.TrainingArguments(per_device_train_batch_size=4)",
        "from transformers import *\nTrainingArguments(per_device_train_batch_size=4)",
        "async def main():\n    TrainingArguments(per_device_train_batch_size=4)",
    ],
)
def test_what_is_said_once_is_followed(text: str) -> None:
    head = "" if "*\n" in text else HF_CALL
    said = settle(parse_script(head + text, "train.py"), ()).micro_batch
    assert said is not None
    assert said.value == 4


@pytest.mark.parametrize(
    ("declared", "words", "expected"),
    [
        ("'--n', type=int, nargs='?', const=2, default=4", ("--n",), 2),
        ("'--n', type=int, nargs='?', const=2, default=4", ("--n", "8"), 8),
        ("'--n', type=int, nargs='+', default=4", ("--n", "8"), None),
        ("'--n', action='count', default=4", ("--n",), None),
        ("'--n', type=power_of_two, default=4", ("--n", "8"), None),
        ("'--batch-per-gpu', '-n', dest='n', type=int, default='4'", (), 4),
        ("'n', type=int", (), None),
    ],
)
def test_an_option_takes_its_words_as_argparse_does(
    declared: str, words: tuple[str, ...], expected: int | None
) -> None:
    head = (
        f"import argparse, deepspeed\np = argparse.ArgumentParser()\np.add_argument({declared})\n"
    )
    loop = "args = p.parse_args()\nloader = DataLoader(data, batch_size=args.n)"
    said = settle(parse_script(head + loop + RAW_TAIL, "train.py"), words).micro_batch
    assert expected == (said.value if said else None)


@pytest.mark.parametrize("annotation", ["int", "'int'", "int | None", "Optional[int]"])
def test_a_field_reads_its_word_by_its_annotation(annotation: str) -> None:
    text = (
        "from transformers import HfArgumentParser, TrainingArguments\n"
        "class Mine(TrainingArguments):\n"
        f"    per_device_train_batch_size: {annotation} = field(metadata={{}}, default=3)\n"
        "HfArgumentParser((Mine,)).parse_args_into_dataclasses()\n"
    )
    facts = parse_script(text, "train.py")
    said = [
        settle(facts, words).micro_batch for words in ((), ("--per_device_train_batch_size", "2"))
    ]
    assert [each.value for each in said if each] == [3, 2]


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


@pytest.mark.parametrize(
    "size",
    ["engine.train_micro_batch_size_per_gpu()", "config['train_micro_batch_size_per_gpu']"],
)
def test_a_loader_that_asks_the_config_cannot_disagree_with_it(size: str) -> None:
    text = f"{RAW_HEAD}loader = DataLoader(data, batch_size={size}){RAW_TAIL}"
    assert parse_script(text, "train.py").micro_batch.from_config


def test_a_plugin_that_the_script_builds_itself_is_an_obstacle() -> None:
    text = "from accelerate import Accelerator\nAccelerator(deepspeed_plugin=make_plugin())"
    assert Obstacle.BUILT_ACCELERATE is parse_script(text, "train.py").obstacle


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("loader = DataLoader(data, batch_size=args.batch)", 4),
        ("val_loader = DataLoader(val, batch_size=64); loader = DataLoader(data, args.batch)", 4),
        ("a = DataLoader(one, batch_size=2); b = DataLoader(two, batch_size=4)", None),
        ("args.batch = 2\nloader = DataLoader(data, batch_size=args.batch)", None),
        ("self.batch = args.batch\nloader = DataLoader(data, batch_size=args.batch)", 4),
        ("loader = DataLoader(data, batch_size=int(args.batch))", 4),
    ],
)
def test_the_training_loader_gives_the_micro_batch(line: str, expected: int | None) -> None:
    said = settle(parse_script(RAW_HEAD + line + RAW_TAIL, "train.py"), ()).micro_batch
    assert expected == (said.value if said else None)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("model.gradient_checkpointing_enable()", True),
        ("if args.ckpt:\n    model.gradient_checkpointing_enable()", False),
        ("if not args.ckpt:\n    model.gradient_checkpointing_enable()", None),
        ("if args.ckpt:\n    pass\nelse:\n    model.gradient_checkpointing_enable()", None),
        ("if args.ckpt:\n    if big:\n        model.gradient_checkpointing_enable()", None),
        ("def on():\n    model.gradient_checkpointing_enable()\nif big:\n    on()", None),
        ("model = build()", None),
        ("import transformers\nmodel = transformers.LlamaForCausalLM.from_pretrained('x')", False),
        ("model = prepare_model_for_kbit_training(model)", None),
    ],
)
def test_checkpointing_is_seen_with_its_condition(lines: str, expected: bool | None) -> None:
    facts = parse_script(f"{RAW_HEAD}{lines}{RAW_TAIL}", "train.py")
    said = settle(facts, ()).gradient_checkpointing
    assert expected == (said.value if said else None)


def test_the_trainer_and_the_model_can_both_ask_for_checkpointing() -> None:
    text = HF_CALL + "args = TrainingArguments('out')\nmodel.gradient_checkpointing_enable()"
    said = settle(parse_script(text, "train.py"), ()).gradient_checkpointing
    assert said is not None
    assert said.said_by == "`model.gradient_checkpointing_enable()` in train.py line 3"


def test_initialize_wins_over_the_trainer() -> None:
    text = HF_CALL + "import deepspeed\nTrainingArguments('out')\ndeepspeed.initialize(config='a')"
    facts = parse_script(text, "train.py")
    assert (facts.convention, facts.literal_config) == (Convention.CONFIG_LITERAL, "a")


def test_arguments_in_code_win_over_a_bare_accelerator() -> None:
    text = HF_CALL + "from accelerate import Accelerator\nAccelerator()\nTrainingArguments('out')"
    assert Convention.HF_IN_CODE is parse_script(text, "train.py").convention


def test_a_parser_that_reads_no_command_line_takes_the_environment() -> None:
    text = (
        "from transformers import HfArgumentParser, TrainingArguments\n"
        "(args,) = HfArgumentParser(TrainingArguments).parse_json_file('run.json')\n"
    )
    facts = parse_script(text, "train.py")
    assert Convention.HF_IN_CODE is facts.convention
    assert Binding() == facts.micro_batch


def test_a_name_that_shadows_its_own_base_is_still_read() -> None:
    text = (
        "from transformers import HfArgumentParser, TrainingArguments\n"
        "class TrainingArguments(TrainingArguments):\n    per_device_train_batch_size: int = 3\n"
        "HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
    )
    said = settle(parse_script(text, "train.py"), ()).micro_batch
    assert said is not None
    assert (
        said.value,
        said.said_by,
    ) == (3, "the default of `--per_device_train_batch_size` in train.py line 3")


def test_reading_a_script_runs_nothing_and_warns_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text('import sys\nsys.modules["ran"] = None\nPATTERN = "\\d"\n')
    assert Convention.UNKNOWN is read_script(path).convention
    assert "ran" not in sys.modules


def test_an_encoding_cookie_a_shebang_and_a_bom_are_python(tmp_path: Path) -> None:
    for name, data in (
        ("cookie.py", b"#!/usr/bin/env python\n# -*- coding: latin-1 -*-\nname = '\xe9'\n"),
        ("bom.py", b"\xef\xbb\xbfx = 1\n"),
    ):
        (tmp_path / name).write_bytes(data)
        assert str(tmp_path / name) == read_script(tmp_path / name).path


def test_the_args_file_beside_the_script_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text((SCRIPTS / "hf_parser.py").read_text())
    (tmp_path / "train.args").write_text("--per_device_train_batch_size 2\n--bf16\n")
    said = settle(read_script(tmp_path / "train.py"), ()).micro_batch
    assert said is not None
    assert said.value == 2


def test_a_missing_script_is_an_error_that_names_the_near_ones(tmp_path: Path) -> None:
    (tmp_path / "train_hf.py").touch()
    (tmp_path / "setup.py").touch()
    with pytest.raises(PreflightError) as caught:
        read_script(tmp_path / "train_fh.py")
    assert f"there is no script `{tmp_path / 'train_fh.py'}`" == caught.value.message
    assert (f"did you mean `{tmp_path / 'train_hf.py'}`?",) == caught.value.hints


def test_a_folder_is_an_error_that_names_its_scripts(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(PreflightError) as caught:
        read_script(tmp_path)
    assert f"`{tmp_path}` is a folder, not a script" == caught.value.message
    assert (f"it holds `{tmp_path / 'train.py'}`",) == caught.value.hints


def test_a_path_through_a_file_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    path = tmp_path / "train.py" / "train.py"
    with pytest.raises(PreflightError) as caught:
        read_script(path)
    assert f"`{path}` cannot be read: Not a directory" == caught.value.message


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"x = 1\ndef f(:\n", "line 2 is not Python"),
        (b"x = 1\ny = 2\nz = 3\nname = '\xe9'\n", "line 4 is not utf-8 text"),
        (b"# coding: klingon\n", "line 1 is not Python"),
        (b"#!/bin/bash\npython train.py \\\n  --x\n", "is not Python"),
        (b"x = 1\0", "is not Python"),
    ],
)
def test_what_is_not_python_is_one_line_and_a_hint(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(data)
    with pytest.raises(ZerowizError) as caught:
        read_script(path)
    assert said in caught.value.message
    assert "\n" not in caught.value.message


TEMPLATES = Path(__file__).parents[2] / "templates"


def test_the_shipped_raw_script_leaves_its_micro_batch_to_the_config() -> None:
    facts = read_script(TEMPLATES / "train_deepspeed.py")

    assert Convention.ADD_CONFIG_ARGUMENTS == facts.convention
    assert facts.micro_batch.from_config
    assert facts.passes_optimizer


def test_the_shipped_trainer_script_settles_its_batch() -> None:
    facts = read_script(TEMPLATES / "train_hf.py")

    settings = settle(facts, ("--bf16", "--per_device_train_batch_size", "2"))

    assert Convention.HF_PARSER == facts.convention
    assert settings.micro_batch is not None
    assert 2 == settings.micro_batch.value
    assert settings.precision is not None
    assert Precision.BF16 == settings.precision.value


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        ("torch.optim.AdamW(model.parameters(), lr=1e-3)", 3),
        ("torch.optim.AdamW(model.parameters(), fused=False)", 3),
        ("torch.optim.AdamW(model.parameters(), fused=True)", None),
        ("torch.optim.SGD(model.parameters())", None),
        ("deepspeed.ops.adam.FusedAdam(model.parameters())", None),
    ],
)
def test_an_adam_that_holds_more_than_is_counted_is_seen(built: str, expected: int | None) -> None:
    text = f"import deepspeed, torch\nmodel = make()\noptimizer = {built}\n"
    text += "engine = deepspeed.initialize(model=model, optimizer=optimizer, config='ds.json')\n"
    assert expected == parse_script(text, "train.py").unfused_adam_line


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        ("lora_trl_sft", (), set()),
        ("lora_optional", (), set()),
        ("lora_raw", (), set()),
        ("hf_parser", (), set()),
        # peft's table names them, by the model's type.
        ("lora_accelerate", (), {"lora_target_modules"}),
        ("lora_trl_parser", (), {"precision"}),
        ("lora_trl_parser", ("--use_peft", "--bf16"), {"lora_target_modules"}),
        ("lora_qlora_tutorial", (), {"sequence_tokens"}),
        ("lora_fire", (), {"accumulation_steps"}),
        (
            "lora_yaml",
            (),
            {"lora_rank", "lora_target_modules", "micro_batch", "optimizer", "sequence_tokens"},
        ),
        ("raw_add_config_arguments", (), set()),
        ("raw_positional", (), {"sequence_tokens"}),
    ],
)
def test_what_a_script_decides_and_does_not_show_is_named(
    name: str, words: tuple[str, ...], expected: set[str]
) -> None:
    assert expected == settle(facts_of(name), words).unseen


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "lora_yaml",
            [
                ("AutoModelForCausalLM.from_pretrained(cfg['model'])", 12),
                ("LoraConfig(**...)", 13),
                ("TrainingArguments(optim=cfg['optim'])", 14),
            ],
        ),
        (
            "lora_fire",
            [("transformers.TrainingArguments(gradient_accumulation_steps=...)", 55)],
        ),
        ("hf_hidden", [("TrainingArguments(**...)", 6)]),
        ("lora_raw", []),
        ("lora_dataclasses", []),
        ("hf_in_code", []),
    ],
)
def test_the_places_where_reading_ended_are_named(
    name: str, expected: list[tuple[str, int]]
) -> None:
    assert expected == [(each.code, each.line) for each in facts_of(name).unfollowed]


def test_peft_chooses_the_layers_where_nobody_names_them() -> None:
    assert settle(facts_of("lora_accelerate"), ()).targets_by_architecture
    assert not settle(facts_of("lora_tiny"), ()).targets_by_architecture


def test_what_trains_beside_the_adapters_is_named_where_they_train() -> None:
    facts = facts_of("lora_optional")
    (said,) = settle(facts, ("--use_lora",)).uncounted
    assert ("LoraConfig(modules_to_save=['lm_head'])", 27) == (said.code, said.line)
    assert () == settle(facts, ()).uncounted


LORA_HEAD = """import argparse
from peft import LoraConfig, PeftModel, PrefixTuningConfig, get_peft_model
from transformers import BitsAndBytesConfig, Trainer, TrainingArguments
p = argparse.ArgumentParser()
p.add_argument("--lora", action="store_true")
p.add_argument("--rank", type=int, default=0)
p.add_argument("--kind", default="lora")
p.add_argument("--merge", action="store_true")
args = p.parse_args()
TrainingArguments("out")
"""


def lora_settings(text: str, *words: str) -> ScriptSettings:
    return settle(parse_script(LORA_HEAD + text, "train.py"), words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("get_peft_model(m, LoraConfig())", Method.LORA),
        ("c = LoraConfig()\nget_peft_model(m, peft_config=c)", Method.LORA),
        ("c = LoraConfig()\nm.add_adapter(c)", Method.LORA),
        ("c = LoraConfig()\nMyTrainer(peft_config=c)", Method.LORA),
        ("c = None\nMyTrainer(peft_config=c)", None),
        ("MyTrainer(peft_config=None)", None),
        ("train(m, lora=LoraConfig())", Method.LORA),
        ("def make():\n    return LoraConfig()\nget_peft_model(m, make())", Method.LORA),
        (
            (
                "def make():\n    if x: return None\n    return LoraConfig()\n"
                "MyTrainer(peft_config=make())"
            ),
            None,
        ),
        ("def add(m, c):\n    return get_peft_model(m, c)\nadd(m, LoraConfig())", Method.LORA),
        ("def add(m):\n    get_peft_model(m, LoraConfig())\nif args.lora: add(m)", Method.FULL),
        ("if args.lora:\n    get_peft_model(m, LoraConfig())", Method.FULL),
        ("if not args.lora:\n    get_peft_model(m, LoraConfig())", Method.LORA),
        ("if args.lora:\n    pass\nelse:\n    get_peft_model(m, LoraConfig())", Method.LORA),
        (
            (
                "if args.lora:\n    get_peft_model(m, LoraConfig(r=4))\n"
                "else:\n    get_peft_model(m, LoraConfig(r=8))"
            ),
            Method.LORA,
        ),
        ("if args.rank > 0:\n    get_peft_model(m, LoraConfig())", Method.FULL),
        ("if args.kind == 'lora':\n    get_peft_model(m, LoraConfig())", Method.LORA),
        ("if args.kind != 'full':\n    get_peft_model(m, LoraConfig())", Method.LORA),
        ("if args.kind in ('dora', 'vera'):\n    get_peft_model(m, LoraConfig())", Method.FULL),
        ("USE = True\nif USE:\n    get_peft_model(m, LoraConfig())", Method.LORA),
        ("USE = False\nif USE:\n    get_peft_model(m, LoraConfig())", Method.FULL),
        ("if args.lora and args.merge:\n    get_peft_model(m, LoraConfig())", None),
        ("if big():\n    get_peft_model(m, LoraConfig())", None),
        ("x = not x\nif x:\n    get_peft_model(m, LoraConfig())", None),
        ("if not args.kind == 'full':\n    get_peft_model(m, LoraConfig())", Method.LORA),
        ("c = LoraConfig() if args.lora else None\nMyTrainer(peft_config=c)", Method.FULL),
        (
            "c = None\nif args.lora:\n    c = LoraConfig()\nMyTrainer(peft_config=c)",
            Method.FULL,
        ),
        ("get_peft_model(m, PrefixTuningConfig())", None),
        ("get_peft_model(m, elsewhere.config)", None),
        ("PeftModel.from_pretrained(m, 'adapter', is_trainable=True)", None),
        ("get_peft_model(load(load_in_4bit=True), LoraConfig())", Method.QLORA),
        (
            "b = BitsAndBytesConfig(load_in_4bit=args.lora)\nget_peft_model(m, LoraConfig())",
            Method.LORA,
        ),
        (
            "k = dict(load_in_4bit=True)\nload(**k)\nget_peft_model(m, LoraConfig())",
            Method.QLORA,
        ),
        ("load(load_in_8bit=True)\nget_peft_model(m, LoraConfig())", Method.LORA),
        # In 4 bits or in 8: whoever loads the model says it.
        ("get_peft_model(prepare_model_for_kbit_training(m), LoraConfig())", None),
        ("load(quantization_config=theirs())\nget_peft_model(m, LoraConfig())", None),
    ],
)
def test_adapters_are_seen_with_their_condition(text: str, expected: Method | None) -> None:
    said = lora_settings(text).method
    assert expected == (said.value if said else None)


@pytest.mark.parametrize(
    ("config", "rank", "targets"),
    [
        ("LoraConfig()", 8, None),
        ("LoraConfig(r=4, target_modules=None)", 4, None),
        ("LoraConfig(r=args.rank or 8)", None, None),
        ("LoraConfig(r=C['r'], target_modules=C['on'])", 2, "q,v"),
        ("LoraConfig(**C2)", 2, "q"),
        ("LoraConfig(**theirs)", None, None),
        ("LoraConfig(target_modules='all-linear')", 8, "all-linear"),
        ("LoraConfig(target_modules='.*attn.*')", 8, None),
        ("LoraConfig(target_modules=('q_proj', 'v_proj'))", 8, "q_proj,v_proj"),
        ("LoraConfig(target_modules=find_all_linear_names(m))", 8, None),
        ("LoraConfig(target_modules=GROWING)", 8, None),
        ("LoraConfig(r=Config.rank, target_modules=config.on)", 3, "k"),
    ],
)
def test_rank_and_layers_are_read_where_they_are_written(
    config: str, rank: int | None, targets: str | None
) -> None:
    text = (
        "C = {'r': 2, 'on': ['q', 'v']}\nC2 = dict(r=2, target_modules=['q'])\n"
        "GROWING = ['q']\nGROWING.append('v')\n"
        "class Config:\n    rank = 3\n    on: list = ['k']\nconfig = Config()\n"
    )
    said = lora_settings(f"{text}get_peft_model(m, {config})")
    assert rank == (said.lora_rank.value if said.lora_rank else None)
    assert targets == (said.lora_target_modules.value if said.lora_target_modules else None)


@pytest.mark.parametrize(
    ("text", "words", "change"),
    [
        ("get_peft_model(m, LoraConfig())", (), "edit train.py line 11"),
        (
            "if args.lora:\n    get_peft_model(m, LoraConfig())",
            (),
            "put `--lora` after train.py",
        ),
        (
            "if args.lora:\n    get_peft_model(m, LoraConfig())",
            ("--lora",),
            "drop `--lora` after train.py",
        ),
        (
            "if args.kind == 'lora':\n    get_peft_model(m, LoraConfig())",
            (),
            "choose another `--kind` after train.py",
        ),
    ],
)
def test_the_method_says_how_to_change_it(text: str, words: tuple[str, ...], change: str) -> None:
    said = lora_settings(text, *words).method
    assert said is not None
    assert change == said.change_to(Method.FULL)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("load(load_in_4bit=True)\nm = prepare_model_for_kbit_training(m)", True),
        ("load(load_in_8bit=True)\nm = prepare_model_for_kbit_training(m)", True),
        (
            (
                "load(load_in_4bit=True)\n"
                "m = prepare_model_for_kbit_training(m, use_gradient_checkpointing=False)"
            ),
            False,
        ),
        ("load(load_in_4bit=args.lora)\nm = prepare_model_for_kbit_training(m)", None),
    ],
)
def test_preparing_a_quantized_base_turns_checkpointing_on(
    lines: str, expected: bool | None
) -> None:
    said = lora_settings(lines).gradient_checkpointing
    assert expected == (said.value if said else None)


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        ("torch.optim.AdamW(ps)", Optimizer.ADAMW),
        ("bitsandbytes.optim.AdamW8bit(ps)", Optimizer.ADAMW_8BIT),
        ("deepspeed.ops.adam.DeepSpeedCPUAdam(ps)", Optimizer.ADAMW),
        ("torch.optim.SGD(ps)", Optimizer.SGD),
        ("Muon(ps)", None),
        ("torch.optim.SGD(ps) if x else torch.optim.AdamW(ps)", None),
    ],
)
def test_the_optimizer_of_a_loop_is_read_by_its_class(
    built: str, expected: Optimizer | None
) -> None:
    text = f"import bitsandbytes, deepspeed, torch\noptimizer = {built}\n"
    text += "engine = deepspeed.initialize(model=m, optimizer=optimizer, config='ds.json')\n"
    said = settle(parse_script(text, "train.py"), ())
    assert expected == (said.optimizer.value if said.optimizer else None)
    assert ("optimizer" in said.unseen) is (expected is None)
