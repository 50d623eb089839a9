"""What a script settles, by its defaults and by the words after it."""

import pytest
from paths import TEMPLATES
from probe.reading import HF_CALL, RAW_HEAD, RAW_TAIL, facts_of, value_of

from zerowiz.core.script.config_delivery import with_config_via
from zerowiz.core.script.facts import Convention
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.settings import LEARNING, OF_ADAM
from zerowiz.core.workload import Attention, Loss, Method, Optimizer, Precision, Trainer
from zerowiz.probe.script.read_script import parse_script, read_script


def values(name: str, *words: str) -> dict[str, object]:
    """What decides memory and time."""
    settings = ScriptRun(facts_of(name), words).settings
    others = {*LEARNING, *OF_ADAM, "max_steps"}
    return {n: each.value for n, each in settings.values.items() if n not in others}


ALL_DEFAULT: dict[str, object] = {
    "use_cpu": False,
    "trainer": Trainer.SFT,
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
                "trainer": Trainer.SFT,
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
                "trainer": Trainer.SFT,
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
                "trainer": Trainer.SFT,
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
                "trainer": Trainer.SFT,
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
        ("hf_hidden", {"trainer": Trainer.SFT, "micro_batch": 2}),
        ("hf_arguments_elsewhere", {"trainer": Trainer.SFT}),
        (
            "hf_two_arguments",
            {
                "use_cpu": False,
                "trainer": Trainer.SFT,
                "loss": Loss.PLAIN,
                "accumulation_steps": 1,
                "precision": Precision.BF16,
                "gradient_checkpointing": False,
                "optimizer": Optimizer.ADAMW,
            },
        ),
        (
            "hf_own_flag",
            {
                **ALL_DEFAULT,
                "gradient_checkpointing": True,
                "model": "google/flan-t5-xl",
            },
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
                "trainer": Trainer.SFT,
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
                "trainer": Trainer.SFT,
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
                "trainer": Trainer.SFT,
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
                "trainer": Trainer.SFT,
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
                "trainer": Trainer.SFT,
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
                "trainer": Trainer.SFT,
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
        (
            "raw_two_batches",
            ("--per_device_training_batch_size", "3"),
            "micro_batch",
            3,
        ),
        ("raw_two_batches", ("--per_device_generation_batch_size", "3"), "micro_batch", 2),
        (
            "hf_parser_checkpointing",
            ("--gradient_checkpointing", "True"),
            "gradient_checkpointing",
            True,
        ),
        ("hf_parser_checkpointing", (), "gradient_checkpointing", False),
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


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        ("args, model, optimizer, None, None, schedule", {"optimizer", "lr_scheduler"}),
        ("args, model, lr_scheduler=schedule", {"lr_scheduler"}),
        ("args, model, None, lr_scheduler=None", set()),
    ],
)
def test_what_replaces_a_section_of_the_config_is_seen(arguments: str, passed: set[str]) -> None:
    script = f"import deepspeed\ndeepspeed.initialize({arguments})\n"
    assert passed == parse_script(script, "train.py").passed


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
        (
            "class A:\n    def __init__(self, n=4):\n"
            "        TrainingArguments(per_device_train_batch_size=n)\n"
            "class B(A):\n    def __init__(self):\n        super().__init__(8)\nA()\nB()"
        ),
    ],
)
def test_what_cannot_be_told_is_unseen(text: str) -> None:
    assert ScriptRun(parse_script(HF_CALL + text, "train.py"), ()).settings.micro_batch is None


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
        (
            "class A:\n    def __init__(self, n=4):\n"
            "        TrainingArguments(per_device_train_batch_size=n)\nA()"
        ),
        (
            "class A:\n    def __init__(self, one, n):\n"
            "        TrainingArguments(per_device_train_batch_size=n)\nA(1, 4)"
        ),
    ],
)
def test_what_is_said_once_is_followed(text: str) -> None:
    head = "" if "*\n" in text else HF_CALL
    assert 4 == value_of(
        ScriptRun(parse_script(head + text, "train.py"), ()).settings, "micro_batch"
    )


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
    assert expected == value_of(
        ScriptRun(parse_script(head + loop + RAW_TAIL, "train.py"), words).settings, "micro_batch"
    )


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
        ScriptRun(facts, words).settings.micro_batch
        for words in ((), ("--per_device_train_batch_size", "2"))
    ]
    assert [each.value for each in said if each] == [3, 2]


@pytest.mark.parametrize(
    "size",
    ["engine.train_micro_batch_size_per_gpu()", "config['train_micro_batch_size_per_gpu']"],
)
def test_a_loader_that_asks_the_config_cannot_disagree_with_it(size: str) -> None:
    text = f"{RAW_HEAD}loader = DataLoader(data, batch_size={size}){RAW_TAIL}"
    assert parse_script(text, "train.py").micro_batch.from_config


BRANCHES = "if flag == 'test':\n    b = args.batch\nelse:\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("loader = DataLoader(data, batch_size=args.batch)", 4),
        ("val_loader = DataLoader(val, batch_size=64); loader = DataLoader(data, args.batch)", 4),
        ("a = DataLoader(one, batch_size=2); b = DataLoader(two, batch_size=4)", None),
        ("args.batch = 2\nloader = DataLoader(data, batch_size=args.batch)", None),
        ("self.batch = args.batch\nloader = DataLoader(data, batch_size=args.batch)", 4),
        ("loader = DataLoader(data, batch_size=int(args.batch))", 4),
        # Of KimMeen/Time-LLM.
        (f"{BRANCHES}    b = args.batch\nloader = DataLoader(data, batch_size=b)", 4),
        (f"{BRANCHES}    b = args.other\nloader = DataLoader(data, batch_size=b)", None),
    ],
)
def test_the_training_loader_gives_the_micro_batch(line: str, expected: int | None) -> None:
    assert expected == value_of(
        ScriptRun(parse_script(RAW_HEAD + line + RAW_TAIL, "train.py"), ()).settings, "micro_batch"
    )


ITS = "engine.train_micro_batch_size_per_gpu()"
DRAWN = "at = torch.randint(len(data), (args.batch_size,))"
DRAWN_BY_CONFIG = (
    "b = ITS; at = torch.randint(len(data), (b,))",
    "shape = (ITS, 1); at = torch.randint(len(data), shape)",
    "rows = data[at : at + ITS]",
    "self.batch = int(ITS); rows = data[at : at + self.batch]",
    "for at in range(0, len(data), ITS): pass",
    "loaders = {'train': make_loader(data, batch_size=ITS)}",
    "batches = data.split(ITS)",
)
ONLY_SHOWN = (
    "print(ITS)",
    "print(f'batch {ITS}')",
    "b = ITS; logger.info('batch %d', b)",
    "assert ITS == args.batch_size",
    "wandb.init(config={'batch': ITS})",
    "wandb.init(config=dict(batch_size=ITS))",
    "seen = 0; seen += ITS * 8; print(seen)",
    "steps = len(data) // (ITS * 8); schedule(steps)",
    "b = ITS",
    "steps = range(engine.gradient_accumulation_steps())",
)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("at = torch.randint(len(data), (args.batch_size,))", 12),
        *((line.replace("ITS", ITS), None) for line in DRAWN_BY_CONFIG),
        *((f"{DRAWN}; {line.replace('ITS', ITS)}", 12) for line in ONLY_SHOWN),
        ("loader = DataLoader(data, batch_sampler=sampler)", None),
    ],
)
def test_a_loop_that_draws_its_batches_has_the_batch_of_its_option(
    lines: str, expected: int | None
) -> None:
    option = "p.add_argument('--batch_size', type=int, default=12)\nargs = p.parse_args()\n"
    run = ScriptRun(parse_script(f"{RAW_HEAD}{option}{lines}{RAW_TAIL}", "train.py"), ())
    assert expected == value_of(run.settings, "micro_batch")


@pytest.mark.parametrize(
    ("option", "size", "expected"),
    [
        ("--train_batch_size", "args.batch", None),
        ("--micro_batch", "args.batch", None),
        ("--global_train_batch_size", "args.batch", 4),
        ("--train_gen_batch", "args.batch", 4),
        ("--per_device_train_batch_size", "args.per_device_train_batch_size", 2),
        # What the loader yields is only generated from.
        ("--rollout_batch_size", "args.rollout_batch_size", None),
        ("--gen_batch", "args.gen_batch", None),
    ],
)
def test_of_two_batches_the_one_that_is_trained_is_meant_or_none(
    option: str, size: str, expected: int | None
) -> None:
    lines = f"p.add_argument('{option}', type=int, default=2)\nargs = p.parse_args()\n"
    text = f"{RAW_HEAD}{lines}loader = DataLoader(data, batch_size={size}){RAW_TAIL}"
    assert expected == value_of(
        ScriptRun(parse_script(text, "train.py"), ()).settings, "micro_batch"
    )


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("model.gradient_checkpointing_enable()", True),
        ("if args.ckpt:\n    model.gradient_checkpointing_enable()", False),
        ("if not args.ckpt:\n    model.gradient_checkpointing_enable()", True),
        ("if args.ckpt:\n    unet.enable_gradient_checkpointing()", False),
        ("if args.ckpt:\n    pass\nelse:\n    model.gradient_checkpointing_enable()", True),
        (
            (
                "if args.ckpt and hasattr(model, 'gradient_checkpointing_enable'):\n"
                "    model.gradient_checkpointing_enable()"
            ),
            False,
        ),
        ("if args.ckpt or big:\n    model.gradient_checkpointing_enable()", None),
        (
            "def on():\n    model.gradient_checkpointing_enable()\nif args.ckpt:\n    on()",
            False,
        ),
        (
            (
                "if args.ckpt:\n    model.gradient_checkpointing_enable()\n"
                "else:\n    model.gradient_checkpointing_disable()"
            ),
            False,
        ),
        (
            (
                "model.gradient_checkpointing_enable()\n"
                "if big:\n    model.gradient_checkpointing_disable()"
            ),
            None,
        ),
        ("if args.ckpt:\n    if big:\n        model.gradient_checkpointing_enable()", None),
        ("def on():\n    model.gradient_checkpointing_enable()\nif big:\n    on()", None),
        ("model = build()", None),
        ("import transformers\nmodel = transformers.LlamaForCausalLM.from_pretrained('x')", False),
        ("model = prepare_model_for_kbit_training(model)", None),
    ],
)
def test_checkpointing_is_seen_with_its_condition(lines: str, expected: bool | None) -> None:
    facts = parse_script(f"{RAW_HEAD}{lines}{RAW_TAIL}", "train.py")
    assert expected == value_of(ScriptRun(facts, ()).settings, "gradient_checkpointing")


def test_the_trainer_and_the_model_can_both_ask_for_checkpointing() -> None:
    text = HF_CALL + "args = TrainingArguments('out')\nmodel.gradient_checkpointing_enable()"
    said = ScriptRun(parse_script(text, "train.py"), ()).settings.gradient_checkpointing
    assert said is not None
    assert said.source == "`model.gradient_checkpointing_enable()` in train.py line 3"


NEGATED = """import argparse
from transformers import Trainer, TrainingArguments
p = argparse.ArgumentParser()
p.add_argument("--no_half", action="store_true")
p.add_argument("--dtype", default="fp32")
args = p.parse_args()
Trainer(args=TrainingArguments("out", FIELDS)).train()
"""


@pytest.mark.parametrize(
    ("fields", "words", "expected"),
    [
        ("fp16=not args.no_half", (), Precision.FP16),
        ("fp16=not args.no_half", ("--no_half",), Precision.FP32),
        ("fp16=not args.no_half, bf16=args.no_half", ("--no_half",), Precision.BF16),
        ("bf16=args.dtype == 'bf16'", (), Precision.FP32),
        ("bf16=args.dtype == 'bf16'", ("--dtype", "bf16"), Precision.BF16),
        ("bf16=args.dtype != 'fp32'", ("--dtype", "bf16"), Precision.BF16),
        ("bf16=not True", (), Precision.FP32),
        ("fp16=not big", (), None),
    ],
)
def test_an_argument_that_is_a_condition_is_followed(
    fields: str, words: tuple[str, ...], expected: Precision | None
) -> None:
    said = ScriptRun(
        parse_script(NEGATED.replace("FIELDS", fields), "train.py"), words
    ).settings.precision
    assert expected == (said.value if said else None)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("fp16=not args.no_half", None),
        ("fp16=not args.no_half, bf16=args.dtype == 'bf16'", ("--dtype", "bf16", "--no_half")),
    ],
)
def test_a_condition_is_given_another_value_by_its_option(
    fields: str, expected: tuple[str, ...] | None
) -> None:
    settings = ScriptRun(parse_script(NEGATED.replace("FIELDS", fields), "train.py"), ()).settings
    assert expected == settings.words_for("precision", Precision.BF16)
    assert ("--no_half",) == settings.words_for("precision", Precision.FP32)
    assert settings.precision is not None
    assert "edit train.py line" in settings.precision.change_to(Precision.BF16)


HF_PARSED = """from transformers import HfArgumentParser, TrainingArguments
parser = HfArgumentParser(TrainingArguments)
parser.add_argument("--own", action="store_true")
args = parser.parse_args_into_dataclasses()[0]
own = parser.parse_args()
"""


@pytest.mark.parametrize(
    ("lines", "default", "switched"),
    [
        ("", False, True),
        ("if args.gradient_checkpointing:\n    m.gradient_checkpointing_enable()", False, True),
        (
            (
                "if args.gradient_checkpointing and getattr(m, 'supports_gradient_checkpointing', 0):\n"
                "    m.gradient_checkpointing_enable()\nelse:\n    m.config.use_cache = True"
            ),
            False,
            True,
        ),
        (
            "if big:\n    m = prepare_model_for_kbit_training(m, args.gradient_checkpointing)",
            False,
            True,
        ),
        (
            "if big:\n    if args.gradient_checkpointing:\n        m.gradient_checkpointing_enable()",
            False,
            True,
        ),
        ("if big:\n    m.gradient_checkpointing_enable()", None, True),
        ("if big:\n    m = prepare_model_for_kbit_training(m)", None, True),
        ("if own.own:\n    m.gradient_checkpointing_enable()", False, True),
        ("if not own.own:\n    m.gradient_checkpointing_enable()", True, True),
        ("m.gradient_checkpointing_enable()", True, True),
        ("if big:\n    args.gradient_checkpointing = False", None, None),
    ],
)
def test_checkpointing_of_parsed_arguments_holds_whatever_the_script_does_with_it(
    lines: str, default: bool | None, switched: bool | None
) -> None:
    facts = parse_script(f"{HF_PARSED}{lines}\n", "train.py")
    for words, expected in (
        ((), default),
        (("--gradient_checkpointing",), switched),
        (("--gradient_checkpointing", "True"), switched),
        (("--gradient_checkpointing", "False"), default),
    ):
        assert expected == value_of(ScriptRun(facts, words).settings, "gradient_checkpointing")


def test_an_option_beside_the_arguments_turns_checkpointing_on_too() -> None:
    lines = "if own.own:\n    m.gradient_checkpointing_enable()\n"
    said = ScriptRun(
        parse_script(HF_PARSED + lines, "train.py"), ("--own",)
    ).settings.gradient_checkpointing
    assert said is not None
    assert (True, "`--own` after the script") == (said.value, said.source)


def test_a_name_that_shadows_its_own_base_is_still_read() -> None:
    text = (
        "from transformers import HfArgumentParser, TrainingArguments\n"
        "class TrainingArguments(TrainingArguments):\n    per_device_train_batch_size: int = 3\n"
        "HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
    )
    said = ScriptRun(parse_script(text, "train.py"), ()).settings.micro_batch
    assert said is not None
    assert (
        said.value,
        said.source,
    ) == (3, "the default of `--per_device_train_batch_size` in train.py line 3")


def test_the_shipped_trainer_script_settles_its_batch() -> None:
    facts = read_script(TEMPLATES / "train_hf.py")

    settings = ScriptRun(facts, ("--bf16", "--per_device_train_batch_size", "2")).settings

    assert Convention.HF_PARSER == facts.convention
    assert 2 == value_of(settings, "micro_batch")
    assert Precision.BF16 == value_of(settings, "precision")


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
    engine = "engine = deepspeed.initialize(model=model, optimizer=optimizer, config='ds.json')\n"
    assert expected == parse_script(text + engine, "train.py").unfused_adam_line
    # An engine that gets none takes the one of its config.
    without = engine.replace(" optimizer=optimizer,", "")
    assert parse_script(text + without, "train.py").unfused_adam_line is None
    loop = "from accelerate import Accelerator\nAccelerator().prepare(model, optimizer)\n"
    assert expected == parse_script(text + loop, "train.py").unfused_adam_line


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
    assert expected == ScriptRun(facts_of(name), words).settings.unseen


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


@pytest.mark.parametrize("batch", ["9" * 4000, f"{'9' * 4000} * {'9' * 4000}", f"-{'9' * 30}"])
def test_a_number_that_no_setting_has_is_not_followed(batch: str) -> None:
    text = f"{RAW_HEAD}B = {batch}\nloader = DataLoader(data, batch_size=B)\n{RAW_TAIL}"
    assert ScriptRun(parse_script(text, "t.py"), ()).settings.micro_batch is None


ACCELERATED = """import argparse
from accelerate import Accelerator
p = argparse.ArgumentParser()
p.add_argument("--fp16", action="store_true")
p.add_argument("--bf16", action="store_true")
p.add_argument("--dtype", default="fp32")
args = p.parse_args()
acc = Accelerator(mixed_precision=EXPRESSION)
acc.prepare(model)
"""
EITHER = "'bf16' if args.bf16 else 'fp16' if args.fp16 else 'no'"


@pytest.mark.parametrize(
    ("expression", "words", "expected"),
    [
        ("'fp16' if args.fp16 else 'no'", (), Precision.FP32),
        ("'fp16' if args.fp16 else 'no'", ("--fp16",), Precision.FP16),
        ("'bf16' if args.bf16 else 'fp16'", (), Precision.FP16),
        ("'bf16' if args.bf16 else 'fp16'", ("--bf16",), Precision.BF16),
        ("'no' if not args.bf16 else 'bf16'", ("--bf16",), Precision.BF16),
        ("'bf16' if args.dtype == 'bf16' else 'no'", ("--dtype", "bf16"), Precision.BF16),
        (EITHER, (), Precision.FP32),
        (EITHER, ("--fp16",), Precision.FP16),
        (EITHER, ("--bf16",), Precision.BF16),
        ("'bf16' if able() else 'no'", (), None),
        ("'bf16' if able() else 'fp16' if args.fp16 else 'no'", ("--fp16",), None),
        ("word if args.bf16 else 'no'", (), None),
        ("'fp16' if args.fp16 else 'bf16' if args.bf16 else 'no'", ("--fp16", "--bf16"), None),
        ("'fp16' if args.fp16 else None", ("--fp16",), Precision.FP16),
    ],
)
def test_the_precision_of_an_accelerator_may_be_chosen_by_a_condition(
    expression: str, words: tuple[str, ...], expected: Precision | None
) -> None:
    text = ACCELERATED.replace("EXPRESSION", expression)
    settings = ScriptRun(parse_script(text, "train.py"), words).settings
    assert expected == value_of(settings, "precision")
    assert ("precision" in settings.unseen) is (expected is None)
    assert settings.precision is None or not parse_script(text, "train.py").mixed_precision.code


def test_a_precision_that_is_none_is_left_to_the_config() -> None:
    text = ACCELERATED.replace("EXPRESSION", "'fp16' if args.fp16 else None")
    settings = ScriptRun(parse_script(text, "train.py"), ()).settings
    assert settings.precision is None
    assert "precision" not in settings.unseen


def test_a_condition_is_given_the_precision_that_it_chooses() -> None:
    text = ACCELERATED.replace("EXPRESSION", "'bf16' if args.bf16 else 'fp16'")
    settings = ScriptRun(parse_script(text, "train.py"), ()).settings
    assert ("--bf16",) == settings.words_for("precision", Precision.BF16)
    assert () == settings.words_for("precision", Precision.FP16)
    only = ACCELERATED.replace("EXPRESSION", "'fp16' if args.fp16 else 'no'")
    settings = ScriptRun(parse_script(only, "train.py"), ()).settings
    assert settings.words_for("precision", Precision.BF16) is None
    assert settings.precision is not None
    assert "edit train.py line 4" == settings.precision.change_to(Precision.BF16)


FLOAT_LOOP = """import deepspeed, numpy as np, torch
from torch.utils.data import DataLoader, TensorDataset
p = deepspeed.add_config_arguments(parser)
args = p.parse_args()
DATA
engine, *_ = deepspeed.initialize(args=args, model=model)
for x, y in loader:
    engine.backward(loss(engine(x), y))
    engine.step()
"""


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # Floats, also beside integers that are labels.
        ("data = TensorDataset(torch.randn(64, 16), torch.randint(0, 9, (64,)))", True),
        ("x = np.random.normal(size=(64, 16))", True),
        ("x = torch.from_numpy(table.astype(np.float32))", True),
        ("x = torch.tensor(rows, dtype=torch.float32)", True),
        ("from torchvision.transforms import ToTensor\ndata = CIFAR10(transform=ToTensor())", True),
        ("x = batch.float()", True),
        # Nothing shows what they are.
        ("from data import loader", False),
        ("rate = float(0.1)", False),
        # Integers, or a model that has a table of them.
        ("data = TensorDataset(torch.randint(0, 9, (64, 16)))", None),
        ("ids = torch.tensor(rows, dtype=torch.long)", None),
        ("model = build(torch.nn.Embedding(9, 4)), torch.randn(4)", None),
        ("model = AutoModelForCausalLM.from_pretrained('x')", None),
        ("x = encode(tokenizer, texts)", None),
        # Something casts.
        ("x = torch.randn(64, 16).half()", None),
        ("x = torch.randn(64, 16, dtype=torch.bfloat16)", None),
        ("x = torch.randn(64, 16).to(model.dtype)", None),
        ("if args.fp16:\n    x = torch.randn(64, 16)", None),
    ],
)
def test_a_loop_whose_batches_are_floats_is_planned_in_fp32(
    data: str, expected: bool | None
) -> None:
    facts = parse_script(FLOAT_LOOP.replace("DATA", data), "train.py")
    assert expected == (facts.float_batches.value if facts.float_batches.seen else None)
    settings = ScriptRun(facts, ()).settings
    assert value_of(settings, "precision") == (None if expected is None else Precision.FP32)
    assert settings.is_open("precision", Precision.BF16) is (expected is not None)


def test_a_loop_elsewhere_is_not_judged() -> None:
    text = FLOAT_LOOP.replace("DATA", "from data import loader").partition("for x")[0]
    assert not parse_script(f"{text}train(engine)\n", "train.py").float_batches.seen


def test_an_accelerator_that_sets_its_precision_keeps_it() -> None:
    text = """from accelerate import Accelerator
import torch
acc = Accelerator(HOW)
model, loader = acc.prepare(model, DataLoader(torch.randn(64, 16)))
for x in loader:
    acc.backward(model(x))
"""
    bf16 = "mixed_precision='bf16'"
    for how, expected in (("", Precision.FP32), (bf16, Precision.BF16)):
        facts = parse_script(text.replace("HOW", how), "train.py")
        assert facts.float_batches.value
        assert expected == value_of(ScriptRun(facts, ()).settings, "precision")


@pytest.mark.parametrize(
    ("arguments", "precision", "steps", "micro_batch"),
    [
        ("precision='bf16-mixed', accumulate_grad_batches=4", Precision.BF16, 4, 2),
        ("precision='16-true'", Precision.FP16, 1, 2),
        ("precision=16", Precision.FP16, 1, 2),
        ("precision=32", Precision.FP32, 1, 2),
        ("", Precision.FP32, 1, 2),
        ("precision='64-true'", None, 1, 2),
        ("**hidden", None, None, 2),
    ],
)
def test_a_trainer_of_lightning_has_its_own_words(
    arguments: str, precision: Precision | None, steps: int | None, micro_batch: int
) -> None:
    text = f"""import lightning as L
loader = DataLoader(rows, batch_size=2)
trainer = L.Trainer(strategy="deepspeed", {arguments})
"""
    settings = ScriptRun(parse_script(text, "train.py"), ()).settings
    values = [
        value_of(settings, name) for name in ("precision", "accumulation_steps", "micro_batch")
    ]
    assert [precision, steps, micro_batch] == values
    # No config changes what its Trainer says.
    assert not settings.is_open("precision", Precision.FP16)
    if not arguments:
        assert settings.precision is not None
        said = settings.precision.change_to(Precision.BF16)
        assert 'set `precision="bf16-mixed"` in train.py line 3' == said


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", {"micro_batch": 3, "accumulation_steps": 4, "precision": Precision.FP16}),
        ("del config['fp16']\n", {"accumulation_steps": None, "precision": None}),
        ("config['fp16']['enabled'] = False\n", {"micro_batch": None, "precision": None}),
        ("config['fp16'] = other\n", {"micro_batch": None, "precision": None}),
    ],
)
def test_a_config_that_is_built_of_names_is_read(lines: str, expected: dict[str, object]) -> None:
    text = f"""import argparse, deepspeed
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()
BATCH = 3
config = {{
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": args.steps,
    "fp16": {{"enabled": True}},
}}
{lines}engine, *_ = deepspeed.initialize(model=net, config=config)
engine.backward(engine(tokens))
"""
    facts = parse_script(text, "train.py")
    by_dict = ScriptRun(with_config_via(facts, "none"), ())
    assert expected == {name: value_of(by_dict.settings, name) for name in expected}
    # Another config that the script takes decides in place of the dict.
    replaced = ScriptRun(with_config_via(facts, "file:ds.json"), ()).settings
    assert {"micro_batch", "accumulation_steps", "precision"}.isdisjoint(replaced.values)


@pytest.mark.parametrize(
    ("integration", "expected"),
    [
        ("from accelerate import Accelerator\nAccelerator().backward(net(x))", 6),
        ("from accelerate import Accelerator\nAccelerator().prepare(net)", None),
        (RAW_TAIL, None),
    ],
)
def test_a_loop_without_a_loader_has_the_batch_that_its_library_calls_so(
    integration: str, expected: int | None
) -> None:
    option = 'parser.add_argument("--train_batch_size", type=int, default=6)\n'
    text = f"{RAW_HEAD}{option}args = parser.parse_args()\n{integration}\n"
    settings = ScriptRun(parse_script(text, "train.py"), ()).settings
    assert expected == value_of(settings, "micro_batch")
