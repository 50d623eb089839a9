"""Shapes that public scripts have, which are easily taken for another: what is read of each."""

import pytest
from probe.reading import read_beside, value_of

from zerowiz.core.script.config_delivery import deliver
from zerowiz.core.script.facts import Convention, Obstacle, ScriptFacts
from zerowiz.core.script.settings import ScriptRun, ScriptSettings, check_method
from zerowiz.core.workload import Method, Optimizer, Precision, Trainer, Uncounted
from zerowiz.errors import UsageError
from zerowiz.probe.script.read_script import parse_script


def facts_of(text: str) -> ScriptFacts:
    return parse_script(text, "train.py")


def settings_of(text: str, *words: str) -> ScriptSettings:
    return ScriptRun(facts_of(text), words).settings


RAW = """import argparse, deepspeed
from torch.utils.data import DataLoader
p = deepspeed.add_config_arguments(argparse.ArgumentParser())
p.add_argument("--lora", action="store_true")
args = p.parse_args()
loader = DataLoader(data, batch_size=1)
"""


def test_a_loader_that_deepspeed_makes_has_the_batch_of_the_config() -> None:
    engine = "engine, *_ = deepspeed.initialize(args=args, model=m, training_data=data)\n"
    found = facts_of(f"{RAW}{engine}").micro_batch
    assert (None, True) == (found.value, found.from_config)


ACCELERATE = """from accelerate import Accelerator
from accelerate.utils import DummyOptim
import argparse, bitsandbytes, torch
p = argparse.ArgumentParser()
p.add_argument("--adafactor", action="store_true")
args = p.parse_args()
accelerator = Accelerator()
"""
EITHER = """import trl
if args.lora:
    t = trl.DPOTrainer(m, args=a)
else:
    t = Trainer(m, args=a)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("accelerator.prepare(m)", 1),
        ("accelerator.prepare(m)\naccelerator.gradient_accumulation_steps = 2", None),
        ("PPOTrainer(gradient_accumulation_steps=4)", None),
    ],
)
def test_accelerates_default_counts_where_nothing_else_trains(
    text: str, expected: int | None
) -> None:
    assert expected == facts_of(ACCELERATE + text).accumulation_steps.value


TRAINER = """import argparse
from peft import LoraConfig, get_peft_model, prepare_model_for_int8_training
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers import AutoTokenizer, Trainer, TrainingArguments
p = argparse.ArgumentParser()
p.add_argument("--lora", action="store_true")
p.add_argument("--model_name_or_path", default="base")
p.add_argument("--sft_model_path", default="tuned")
p.add_argument("--reward_model_path", default="judge")
p.add_argument("--adapter", default="")
p.add_argument("--output_dir", default="out")
args = p.parse_args()
TrainingArguments("out")
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x=1)", (None, 0)),
        ('gradient_checkpointing_kwargs={"use_reentrant": False})', (None, 0)),
        ('gradient_checkpointing_kwargs={"every_n_layers": 4})', (None, 1)),
        ('activation_checkpointing_kwargs={"every_n_layers": n})', (None, 1)),
        ("x=1)\nm.activation_checkpointing_enable(every_n_layers=8)", (None, 1)),
        ("gradient_checkpointing=False, k={'every_n_layers': n})", (None, 0)),
    ],
)
def test_the_layers_that_are_checkpointed_are_read(
    text: str, expected: tuple[int | None, int]
) -> None:
    on = "" if "gradient_checkpointing=" in text else "gradient_checkpointing=True, "
    called = TRAINER.replace('TrainingArguments("out")', f"TrainingArguments('out', {on}{text}")
    found = settings_of(called)
    every, unseen = expected
    assert every == (found.every_n_layers and found.every_n_layers.value)
    assert [Uncounted.PLAIN_LAYERS] * unseen == [each.what for each in found.not_counted]


@pytest.mark.parametrize(
    ("given", "expected"),
    [('{"every_n_layers": 8}', 8), ('{"every_n_layers": 1}', 1), ("{}", None), ("not json", None)],
)
@pytest.mark.parametrize("flag", ["activation", "gradient"])
def test_words_can_name_the_layers_that_are_checkpointed(
    flag: str, given: str, expected: int | None
) -> None:
    text = """from transformers import HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(args=args).train()
"""
    words = ("--gradient_checkpointing", "True", f"--{flag}_checkpointing_kwargs", given)
    found = settings_of(text, *words)
    assert expected == (found.every_n_layers and found.every_n_layers.value)
    assert not found.not_counted


PEFT = """import argparse
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
p = argparse.ArgumentParser()
p.add_argument("--lora", action="store_true")
p.add_argument("--save", default=None)
args = p.parse_args()
TrainingArguments("out")
"""


MODEL_ARGUMENTS = """from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser, get_peft_config
from training.models import make_model
config, model_config = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()
model = make_model(model_config)
SFTTrainer(model=model, args=config, peft_config=get_peft_config(model_config)).train()
"""


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("c = LoraConfig()", (), ()),
        (
            "save = None\nif big:\n    save = ['wte']\nc = LoraConfig(modules_to_save=save)",
            (),
            ("LoraConfig(modules_to_save=save)",),
        ),
        ("c = LoraConfig(modules_to_save=['a'] if big else None)", (), ("LoraConfig(modul",)),
        ("c = LoraConfig(modules_to_save=args.save)", (), ()),
        ("c = LoraConfig(modules_to_save=args.save)", ("--save", "wte"), ("LoraConfig(modul",)),
    ],
)
def test_what_trains_beside_adapters_is_named(
    text: str, words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    found = settings_of(f"{PEFT}{text}\nget_peft_model(m, c)\n", *words).uncounted
    assert len(expected) == len(found)
    assert all(str(b.code).startswith(e) for b, e in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[p.requires_grad_() for n, p in m.named_parameters() if n in keys]", 1),
        ("for p in m.norm.parameters():\n    p.requires_grad = True", 1),
        ("for p in m.parameters():\n    p.requires_grad = False", 0),
        ("def hook(m, i, output):\n    output.requires_grad_(True)", 0),
    ],
)
def test_parameters_that_train_beside_the_adapters_are_named(text: str, expected: int) -> None:
    added = "get_peft_model(m, LoraConfig())\n"
    assert expected == len(settings_of(f"{PEFT}{added}{text}\n").uncounted)
    assert not settings_of(f"{PEFT}{text}\n{added}").uncounted


def test_a_config_of_peft_from_another_module_may_add_adapters() -> None:
    text = PEFT.replace("from peft import LoraConfig, get_peft_model\n", "from utils import make\n")
    settings = settings_of(f"{text}m, c = make()\nTrainer(model=m, peft_config=c)\n")
    assert settings.method is None
    assert "method" in settings.unseen


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from ours import SFTConfig\nHfArgumentParser(SFTConfig)", Convention.HF_PARSER),
        (
            "from ours import RankTrainingArgs\nHfArgumentParser(RankTrainingArgs)",
            Convention.HF_PARSER,
        ),
        (
            (
                "from trl.experimental.ppo import PPOConfig, PPOTrainer\nHfArgumentParser(PPOConfig)\n"
                "PPOTrainer(args=a)"
            ),
            Convention.HF_PARSER,
        ),
        # Before TRL 0.12 it was no TrainingArguments, and its Trainer took it as the first argument.
        (
            "from trl import PPOConfig, PPOTrainer\nHfArgumentParser(PPOConfig)\nPPOTrainer(a)",
            Convention.UNKNOWN,
        ),
        ("from ours import DataTrainingArguments as D\nHfArgumentParser(D)", Convention.UNKNOWN),
        ("from ours import ArgumentParserPlus, A\nArgumentParserPlus(A)", Convention.UNKNOWN),
    ],
)
def test_arguments_of_another_module_are_known_by_their_name(
    text: str, expected: Convention
) -> None:
    head = "from transformers import HfArgumentParser\n"
    facts = facts_of(f"{head}{text}.parse_args_into_dataclasses()\n")
    assert expected is facts.convention
    hidden = Obstacle.HIDDEN_HF if expected is Convention.UNKNOWN else None
    assert hidden is facts.obstacle


TAKEN = """from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer
from tools.options import FitArguments as Fit, ModelOptions
options, args = HfArgumentParser((ModelOptions, Fit)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(options.base)
Trainer(model=model, args=args).train()
"""
OPTIONS = """from dataclasses import dataclass, field
from typing import Optional
import transformers
@dataclass
class ModelOptions:
    base: Optional[str] = field(default="gpt2")
@dataclass
class FitArguments(transformers.TrainingArguments):
    per_device_train_batch_size: int = 3
"""


def test_arguments_of_a_module_beside_the_script_have_its_options_and_defaults() -> None:
    facts = read_beside(TAKEN, {"tools.options": OPTIONS})
    assert (Convention.HF_PARSER, True) == (facts.convention, facts.parser.complete)
    settings = ScriptRun(facts, ()).settings
    assert settings.micro_batch is not None
    source = "the default of `--per_device_train_batch_size` in tools/options.py line 9"
    assert (3, source) == (settings.micro_batch.value, settings.micro_batch.source)
    assert settings.model is not None
    source = "the default of `--base` in tools/options.py line 6"
    assert ("gpt2", source) == (settings.model.value, settings.model.source)
    assert "put `--base x` after train.py" == settings.model.change_to("x")
    assert ScriptRun(parse_script(TAKEN, "train.py"), ()).settings.model is None


def test_a_class_that_a_package_only_passes_on_is_that_of_its_library() -> None:
    script = """from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser
args, model = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()
SFTTrainer(model=model.model_name_or_path, args=args)
"""
    modules = {"trl": "from .trainer import SFTConfig, SFTTrainer\n"}
    settings = ScriptRun(read_beside(script, modules), ()).settings
    assert settings.micro_batch is not None
    assert "the default of SFTConfig" == settings.micro_batch.source


def test_the_arguments_of_the_data_are_not_those_of_the_training() -> None:
    text = "from transformers import HfArgumentParser, TrainingArguments\n"
    text += "from ours import DataTrainingArguments\n"
    text += "p = HfArgumentParser((DataTrainingArguments, TrainingArguments))\n"
    said = settings_of(text + "p.parse_args_into_dataclasses()\n").micro_batch
    assert said is not None
    assert said.source == "the default of TrainingArguments"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class Mine(Trainer):\n    pass\nMine(args=make())", Obstacle.HIDDEN_HF),
        ("class Trainer(Trainer):\n    pass\nTrainer(args=make())", Obstacle.HIDDEN_HF),
        (
            "class M(Trainer): ...\nclass O(M): ...\nclass M(O): ...\nM(args=make())",
            Obstacle.NO_ENGINE,
        ),
        ("class Trainer:\n    pass\nMine(args=make())", Obstacle.NO_ENGINE),
    ],
)
def test_a_trainer_of_the_script_takes_arguments_too(text: str, expected: Obstacle) -> None:
    assert expected is facts_of(f"from transformers import Trainer\n{text}\n").obstacle


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("p.add_argument('--deepspeed', action='store_true')", ("--deepspeed",)),
        ("p.add_argument('--deepspeed', default='ds.json')", ()),
        ("", ()),
    ],
)
def test_a_switch_beside_the_option_of_the_config_is_given_too(
    option: str, expected: tuple[str, ...]
) -> None:
    text = "import argparse, deepspeed\np = argparse.ArgumentParser()\n"
    text += f"p.add_argument('--deepspeed_config')\n{option}\nargs = p.parse_args()\n"
    facts = facts_of(f"{text}deepspeed.initialize(args=args, model=m)\n")
    assert (*expected, "--deepspeed_config", "c") == deliver(facts, (), "c").script_args


def test_a_model_that_another_module_builds_may_have_adapters() -> None:
    head = "from transformers import Trainer, TrainingArguments\nTrainingArguments('out')\n"
    check_method(facts_of(f"{head}from ours import build\nmodel = build(args)\n"), Method.LORA)
    inline = "from ours import build\nTrainer(model=build(args))\n"
    check_method(facts_of(f"{head}{inline}"), Method.LORA)
    check_method(facts_of("from llamafactory import run_exp\nrun_exp()\n"), Method.LORA)
    with pytest.raises(UsageError, match="does not import peft"):
        check_method(facts_of(f"{head}model = Net()\n"), Method.LORA)


CALLS = """import argparse
from transformers import TrainingArguments
p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=3)
args = p.parse_args()
def train(size, keep=True, *, steps=1):
    TrainingArguments("out", per_device_train_batch_size=size, gradient_accumulation_steps=steps)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train(args.batch)", (3, 1)),
        ("train(size=args.batch, steps=4)", (3, 4)),
        ("train(2 * 8)", (16, 1)),
        ("train(8, **others)", (8, None)),
        ("def main(n):\n    train(n)\nmain(args.batch)", (3, 1)),
        ("train(1)\ntrain(2)", (None, None)),
        ("train(*sizes)", (None, None)),
        ("run(train)", (None, None)),
        ("other.train(1)", (None, None)),
    ],
)
def test_a_parameter_is_what_the_only_call_passes(
    text: str, expected: tuple[int | None, int | None]
) -> None:
    said = settings_of(CALLS + text)
    found = [each.value if each else None for each in (said.micro_batch, said.accumulation_steps)]
    assert [*expected] == found


def test_what_is_passed_is_named_where_it_is() -> None:
    found = facts_of(f"{CALLS}\n\ntrain(2 * 8)\n").micro_batch
    assert ("train(2 * 8)", 10, None) == (found.code, found.line, found.keyword)
    unseen = facts_of(f"{CALLS}train(find())\n").micro_batch
    assert ("train(find())", 8) == (unseen.code, unseen.line)


# As the examples of accelerate take their batch.
CAPPED = """from accelerate import Accelerator, DistributedType
from torch.utils.data import DataLoader
MOST = 16
def loaders(accelerator, batch_size: int = 4):
    return DataLoader(data, shuffle=True, batch_size=batch_size)
def train(config, args):
    accelerator = Accelerator()
    batch_size = int(config["batch_size"])
    steps = 1
    if batch_size > MOST and accelerator.distributed_type != DistributedType.XLA:
        steps = batch_size // MOST
        batch_size = MOST
    accelerator.prepare(loaders(accelerator, batch_size))
def main():
    config = {"lr": 2e-5, "batch_size": 8}
    train(config, parse())
main()
"""


@pytest.mark.parametrize(
    ("old", "new", "expected", "code"),
    [
        ("", "", 8, '"batch_size": 8'),
        (" 8}", " 16}", 16, '"batch_size": 16'),
        (" 8}", " 64}", None, "loaders(batch_size)"),
        ("config, parse", '{"batch_size": 2}, parse', 2, '"batch_size": 2'),
        ("(config[", "(args[", None, "loaders(batch_size)"),
        (" 8}", " find()}", None, "loaders(batch_size)"),
        # A condition that zerowiz does not know decides nothing where the batch is small anyway.
        ("accelerator.distributed_type != DistributedType.XLA", "on_tpu()", 8, '"batch_size": 8'),
        (" > MOST and", " > MOST and args.cap and", 8, '"batch_size": 8'),
        ("    steps = 1\n", "    steps = 1\n    config['lr'] = 1\n", 8, '"batch_size": 8'),
        (
            "    steps = 1\n",
            "    steps = 1\n    config['batch_size'] = 1\n",
            None,
            "loaders(batch_size)",
        ),
        (
            "    steps = 1\n",
            "    steps = 1\n    config.update(more)\n",
            None,
            "loaders(batch_size)",
        ),
        ("    steps = 1\n", "    steps = 1\n    batch_size = 2\n", None, "loaders(batch_size)"),
        ("        batch_size = MOST", "        batch_size = 3", None, "loaders(batch_size)"),
        ("(accelerator, batch_size)", "(accelerator)", 4, "batch_size=4"),
        ("def loaders", "@lowered(64)\ndef loaders", 8, '"batch_size": 8'),
    ],
)
def test_a_batch_that_is_capped_is_followed_to_where_it_is_said(
    old: str, new: str, expected: int | None, code: str
) -> None:
    found = facts_of(CAPPED.replace(old, new)).micro_batch
    assert expected == found.value
    assert found.code is not None
    assert found.code.startswith(code)


def test_a_default_of_a_decorated_function_is_not_what_it_gets() -> None:
    text = CAPPED.replace("(accelerator, batch_size)", "(accelerator)")
    found = facts_of(text.replace("def loaders", "@lowered(64)\ndef loaders")).micro_batch
    assert (None, "DataLoader(batch_size=batch_size)") == (found.value, found.code)


def test_a_parser_of_another_module_gets_joined_words() -> None:
    text = "from alignment import H4ArgumentParser, SFTConfig\n"
    text += "H4ArgumentParser((SFTConfig,)).parse()\n"
    facts = facts_of(text)
    assert ("a.yaml", "--deepspeed=c") == deliver(facts, ("a.yaml",), "c").script_args
    assert ("--deepspeed=c",) == deliver(facts, ("--deepspeed=c",), "c").script_args
    assert ("--per_device_train_batch_size=4",) == ScriptRun(facts, ()).settings.words_for(
        "micro_batch", 4
    )
    assert facts.parser.refuses_local_rank(("a.yaml", "--bf16=true"))
    assert not facts.parser.refuses_local_rank(("--bf16=true",))


def test_a_loader_that_samples_pictures_is_not_the_one_of_the_training() -> None:
    text = "import argparse\nfrom accelerate import Accelerator\np = argparse.ArgumentParser()\n"
    text += "p.add_argument('--sample_batch_size', type=int, default=4)\n"
    text += "p.add_argument('--train_batch_size', type=int, default=2)\nargs = p.parse_args()\n"
    text += "prior = DataLoader(pictures, batch_size=args.sample_batch_size)\n"
    text += (
        "loader = DataLoader(data, batch_size=args.train_batch_size)\nAccelerator().prepare(m)\n"
    )
    assert 2 == value_of(settings_of(text), "micro_batch")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("model_args.max_length = training_args.max_length", 64),
        ("training_args.max_length = 512", None),
        ("training_args.max_length = model_args.other", None),
    ],
)
def test_an_argument_that_is_handed_on_under_its_name_stays_what_it_is(
    line: str, expected: int | None
) -> None:
    text = f"""from transformers import HfArgumentParser
from trl import ModelConfig, SFTConfig, SFTTrainer
parser = HfArgumentParser((ModelConfig, SFTConfig))
model_args, training_args = parser.parse_args_into_dataclasses()
{line}
SFTTrainer(model=model_args.model_name_or_path, args=training_args)
"""
    assert expected == value_of(settings_of(text, "--max_length", "64"), "sequence_tokens")


# Of each shape: the script before it and after it, a setting, and what that is with this text and these words.
SHAPES: dict[str, tuple[str, str, str, list[tuple[str, tuple[str, ...], object]]]] = {
    "an optimizer that may not be the one is unseen": (
        ACCELERATE,
        "\naccelerator.prepare(m)\n",
        "optimizer",
        [
            ("o = torch.optim.AdamW(ps)", (), Optimizer.ADAMW),
            ("o = DummyOptim(ps)", (), None),
            ("if args.adafactor:\n    o = torch.optim.SGD(ps)", (), None),
            ("o = DummyOptim(ps)\nif args.adafactor:\n    o = torch.optim.SGD(ps)", (), None),
            (
                "if args.a:\n    o = torch.optim.SGD(a)\nelse:\n    o = torch.optim.SGD(b)",
                (),
                Optimizer.SGD,
            ),
            (
                "o = bitsandbytes.optim.AdamW(ps, optim_bits=8) if x else torch.optim.AdamW(ps)",
                (),
                None,
            ),
        ],
    ),
    "what peft called it before turns checkpointing on": (
        TRAINER,
        "",
        "gradient_checkpointing",
        [
            ("m = load(load_in_8bit=True)\nm = prepare_model_for_int8_training(m)\n", (), True),
        ],
    ),
    "an attribute of the model turns checkpointing on": (
        ACCELERATE,
        "\naccelerator.prepare(m)\n",
        "gradient_checkpointing",
        [
            ("model.gradient_checkpointing = args.adafactor", ("--adafactor",), True),
            ("model.gradient_checkpointing = args.adafactor", (), False),
            ("config.gradient_checkpointing = True", (), None),
            (
                "c = AutoConfig.from_pretrained(x)\nc.gradient_checkpointing = args.adafactor",
                ("--adafactor",),
                True,
            ),
            ("model.vision_model.gradient_checkpointing = True", (), None),
            ("wrapper.model.gradient_checkpointing = True", (), True),
        ],
    ),
    "a switch is on where an option has a value": (
        TRAINER.removesuffix('TrainingArguments("out")\n'),
        "",
        "precision",
        [
            (f"TrainingArguments('out', {precision})", words, expected)
            for precision in (
                "fp16=True if args.adapter == 'half' else False",
                "fp16=True if args.adapter == 'half' else None, bf16=False",
                "fp16=args.adapter == 'half'",
            )
            for words, expected in (
                (("--adapter", "half"), Precision.FP16),
                ((), Precision.FP32),
            )
        ],
    ),
    "the trainer is one that this run builds": (
        TRAINER,
        "",
        "trainer",
        [
            (EITHER, ("--lora",), Trainer.DPO),
            (EITHER, (), Trainer.SFT),
            (EITHER.replace("args.lora", "ask()"), (), None),
        ],
    ),
    "the model is the one that is trained": (
        TRAINER,
        "",
        "model",
        [
            ("m = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)", (), "base"),
            ("m = AutoModelForCausalLM.from_pretrained(args.sft_model_path)", (), "tuned"),
            (
                (
                    "r = AutoModelForSequenceClassification.from_pretrained(args.reward_model_path)\n"
                    "m = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)"
                ),
                (),
                "base",
            ),
            ("path = find(args)\nm = AutoModelForCausalLM.from_pretrained(path)", (), None),
            ("def load(path):\n    return AutoModelForCausalLM.from_pretrained(path)", (), "base"),
            ("m = build(args)", (), "base"),
            (
                (
                    "m = OurModel.from_pretrained(args.sft_model_path)\n"
                    "m = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)"
                ),
                (),
                None,
            ),
            (
                (
                    "m = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)\n"
                    "m = AutoModelForCausalLM.from_pretrained(args.output_dir)"
                ),
                (),
                "base",
            ),
            (
                "import diffusers\nm = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)",
                (),
                None,
            ),
            ("m = AutoModelForCausalLM.from_pretrained(args.adapter)", (), None),
            (
                # Of howard-hou/VisualRWKV.
                (
                    "vision_tower = CLIPVisionModel.from_pretrained('clip')\n"
                    "m = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)"
                ),
                (),
                "base",
            ),
        ],
    ),
    "two models that get adapters under one condition": (
        TRAINER,
        "",
        "method",
        [
            (
                "if args.lora:\n    c = LoraConfig()\n    a = get_peft_model(a, c)\nif args.lora:\n    b = get_peft_model(b, c)\n",
                (),
                Method.FULL,
            ),
            (
                "if args.lora:\n    c = LoraConfig()\n    a = get_peft_model(a, c)\nif args.lora:\n    b = get_peft_model(b, c)\n",
                ("--lora",),
                Method.LORA,
            ),
        ],
    ),
    "the length is that of what is trained": (
        TRAINER,
        "",
        "sequence_tokens",
        [
            ("t = AutoTokenizer.from_pretrained('m', model_max_length=64)", (), 64),
            (
                "LENGTH = 64\nt = AutoTokenizer.from_pretrained('m', model_max_length=2 * LENGTH)",
                (),
                128,
            ),
            (
                "MAX_LEN = 64\nids = t(x, truncation=True, max_length=MAX_LEN + 1)['ids'][:-1]",
                (),
                64,
            ),
            ("import diffusers\nids = t(x, truncation=True, max_length=77)", (), None),
        ],
    ),
    "a method of something else is no call of a function": (
        PEFT,
        "",
        "method",
        [
            ("def train():\n    m = get_peft_model(m, LoraConfig())", (), Method.LORA),
            (
                (
                    "def train():\n    m = get_peft_model(m, LoraConfig())\n"
                    "if args.resume:\n    trainer.train(resume=True)\nelse:\n    trainer.train()\ntrain()"
                ),
                (),
                Method.LORA,
            ),
            (
                (
                    "class Run:\n    def add(self):\n        get_peft_model(m, LoraConfig())\n"
                    "if args.lora:\n    run.add()"
                ),
                (),
                Method.FULL,
            ),
        ],
    ),
    "weights of another module may have four bits": (
        PEFT,
        "\nget_peft_model(model, LoraConfig())\n",
        "method",
        [
            ("m = AutoModelForCausalLM.from_pretrained('m')", (), Method.LORA),
            ("m = torch.nn.Linear(2, 2)", (), Method.LORA),
            ("def build():\n    return 1\nmodel = build()", (), Method.LORA),
            ("from .models import get_model\nmodel = get_model(args)", (), None),
            ("from utils import create\nmodel, tokenizer = create(args)", (), None),
            ("from utils import wrap\nmodel = wrap(model)", (), Method.LORA),
        ],
    ),
    "the parsers option says what another module loads": (
        MODEL_ARGUMENTS,
        "",
        "method",
        [
            ("", (), Method.FULL),
            ("", ("--use_peft",), Method.LORA),
            ("", ("--use_peft", "--load_in_4bit"), Method.QLORA),
        ],
    ),
}


@pytest.mark.parametrize(
    ("script", "words", "setting", "expected"),
    [
        pytest.param(f"{head}{text}{tail}", words, setting, expected, id=f"{claim} {number}")
        for claim, (head, tail, setting, rows) in SHAPES.items()
        for number, (text, words, expected) in enumerate(rows)
    ],
)
def test_a_shape_is_taken_for_what_it_is(
    script: str, words: tuple[str, ...], setting: str, expected: object
) -> None:
    assert expected == value_of(settings_of(script, *words), setting)


# Of 2U1/Qwen2-VL-Finetune, OpenLMLab/LOMO, huggingface/parler-tts, princeton-nlp/SimPO and
# OpenGVLab/InternVL: an option that has the name of a length.
LENGTH = """from dataclasses import dataclass
from transformers import HfArgumentParser, Trainer, TrainingArguments
@dataclass
class Own(TrainingArguments):
    max_length: int = 20
(args,) = HfArgumentParser(Own).parse_args_into_dataclasses()
"""
PREFERRED = """from trl import DPOConfig, DPOTrainer
from transformers import HfArgumentParser
class Mine(DPOTrainer):
    def concatenated_forward(self, model, batch):
        return model(**batch)
(args,) = HfArgumentParser(DPOConfig).parse_args_into_dataclasses()
"""


@pytest.mark.parametrize(
    ("start", "use", "expected"),
    [
        (LENGTH, "", None),
        (LENGTH, "print('max_length')", None),
        (LENGTH, "args.max_length = 7", None),
        (LENGTH, "gen_kwargs = {'max_length': args.max_length}", None),
        (LENGTH, "model.generate(x, max_length=args.max_length)", None),
        (LENGTH, "trainer.generation_config.max_length", None),
        (LENGTH, "tokenizer.model_max_length = args.max_length", 20),
        (LENGTH, "rows = Rows(args.max_length)", 20),
        (LENGTH, "rows = Rows(getattr(args, 'max_length'))", 20),
        (LENGTH, "def main(max_length):\n    Rows(max_length)\nmain(**vars(args))", 20),
        (PREFERRED, "Mine(model, args=args)", None),
        (PREFERRED, "Mine(model, args=args, collator=Rows(args.max_length))", 1024),
        (PREFERRED, "DPOTrainer(model, args=args)", 1024),
    ],
)
def test_a_length_is_that_of_what_trains_where_something_reads_it(
    start: str, use: str, expected: int | None
) -> None:
    settings = settings_of(f"{start}{use}\nTrainer(model, args=args)\n")
    assert expected == value_of(settings, "sequence_tokens")
    assert "sequence_tokens" in {*settings.values, *settings.unseen}


def test_the_length_of_a_forecast_counts_no_tokens() -> None:
    parsed = "import argparse, deepspeed\np = argparse.ArgumentParser()\n{}args = p.parse_args()\n"
    options = "p.add_argument('--seq_len', type=int, default=96)\n"
    used = "deepspeed.initialize(args=args)\nRows(args.seq_len)\n"
    assert 96 == value_of(settings_of(parsed.format(options) + used), "sequence_tokens")
    options += "p.add_argument('--pred_len', type=int, default=96)\n"
    assert value_of(settings_of(parsed.format(options) + used), "sequence_tokens") is None


# Of vwxyzjn/summarize_from_feedback_details and mihirp1998/AlignProp: who trains.
BESIDE_ACCELERATE = """from accelerate import Accelerator
import deepspeed
from trl import BaseTrainer
accelerator = Accelerator()
"""


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("judge, *_ = deepspeed.initialize(model=judge, config=make())\n", Convention.CONFIG_DICT),
        (
            (
                "policy, optimizer = accelerator.prepare(policy, optimizer)\n"
                "judge, *_ = deepspeed.initialize(model=judge, config=make())\n"
            ),
            Convention.ACCELERATOR,
        ),
        (
            (
                "class Mine(BaseTrainer):\n    pass\nMine(config).train()\n"
                "accelerator.prepare(policy, optimizer)\n"
            ),
            Convention.ACCELERATOR,
        ),
    ],
)
def test_what_prepares_the_optimizer_trains(rest: str, expected: Convention) -> None:
    assert expected is facts_of(BESIDE_ACCELERATE + rest).convention


# Of TinyLLaVA/TinyLLaVA_Factory and stanfordnlp/pyreft.
@pytest.mark.parametrize(
    ("option", "rest", "is_seen"),
    [
        ("--tune_type_llm", "", True),
        ("--lora_r", "", False),
        ("--qlora", "", False),
        ("--explorations", "", True),
        ("--rank", "model = get_reft_model(model, config)\n", False),
    ],
)
def test_adapters_of_what_is_not_read_are_not_taken_for_full_training(
    option: str, rest: str, *, is_seen: bool
) -> None:
    text = (
        "import argparse\nfrom transformers import Trainer, TrainingArguments\n"
        f"p = argparse.ArgumentParser()\np.add_argument('{option}')\np.parse_args()\n{rest}"
        "Trainer(model, args=TrainingArguments('out')).train()\n"
    )
    assert is_seen is ("method" not in settings_of(text).unseen)


@pytest.mark.parametrize(("model", "expected"), [("critic", 1), ("actor", 0)])
def test_the_model_of_a_second_engine_is_said_not_to_be_counted(model: str, expected: int) -> None:
    engines = [f"deepspeed.initialize(args=args, model={name})" for name in ("actor", model)]
    lines = "\n".join(f"engine, *_ = {engine}" for engine in engines)
    found = settings_of(f"import deepspeed\n{lines}\nengine.step()\n")
    assert [Uncounted.COPY] * expected == [each.what for each in found.not_counted]


# Of sihyun-yu/REPA, SalesforceAIResearch/DiffusionDPO and huggingface/distil-whisper.
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("ema = deepcopy(policy).to(device)", 1),
        ("teacher = WhisperForConditionalGeneration.from_pretrained(name)", 1),
        ("if args.adafactor:\n    ref_model = AutoModel.from_pretrained(name)", 0),
        ("saved = deepcopy(settings)", 0),
        ("ref_tokenizer = AutoTokenizer.from_pretrained(name)", 0),
    ],
)
def test_another_model_of_a_loop_is_said_not_to_be_counted(lines: str, expected: int) -> None:
    prepared = "policy, optimizer = accelerator.prepare(policy, optimizer)\n"
    found = settings_of(f"{ACCELERATE}{lines}\n{prepared}")
    assert [Uncounted.COPY] * expected == [each.what for each in found.not_counted]
