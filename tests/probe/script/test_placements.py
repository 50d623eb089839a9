"""With which `device_map` a script loads its model, and whether it asks for FSDP."""

import pytest
from probe.reading import HF_CALL, facts_of

from zerowiz.core.script.arguments import Scalar
from zerowiz.core.script.bindings import Resolver
from zerowiz.core.script.facts import Placement
from zerowiz.probe.script.read import parse_script

HEAD = """import os
from transformers import AutoModelForCausalLM, HfArgumentParser, TrainingArguments
parser = HfArgumentParser(TrainingArguments)
parser.add_argument("--model", default="gpt2")
parser.add_argument("--map")
parser.add_argument("--quantize", action="store_true")
args, = parser.parse_args_into_dataclasses()
"""
TRAINER = "\nTrainer(model, args)\n"


def placements(lines: str) -> tuple[Placement, ...]:
    return parse_script(f"{HEAD}{lines}{TRAINER}", "train.py").placements


@pytest.mark.parametrize(
    ("given", "value", "is_map"),
    [
        ("device_map='auto'", "auto", False),
        ("device_map={'': 0}", 0, True),
        ("device_map={'': 'cuda:0'}", "cuda:0", True),
        ("device_map={'': int(os.environ['LOCAL_RANK'])}", None, True),
        ("device_map={'lm_head': 0, 'model': 1}", None, True),
        ("device_map=get_device_map()", None, False),
        ("device_map=get_device_map() if args.quantize else None", None, False),
        ("**{'device_map': 'auto'}", "auto", False),
    ],
)
def test_a_device_map_is_read_as_it_is_given(given: str, value: Scalar, is_map: bool) -> None:
    (found,) = placements(f"model = AutoModelForCausalLM.from_pretrained(args.model, {given})")
    assert (value, is_map) == (found.place.value, found.is_map)
    assert found.line == HEAD.count("\n") + 1


@pytest.mark.parametrize(
    "call",
    [
        "model = AutoModelForCausalLM.from_pretrained(args.model)",
        "model = AutoModelForCausalLM.from_pretrained(args.model, device_map=None)",
        "embedder = AutoModelForCausalLM.from_pretrained(args.model, device_map='auto')",
        "AutoTokenizer.from_pretrained(args.model, device_map='auto')",
        "ref_model = AutoModelForCausalLM.from_pretrained(args.model, device_map='auto')",
        "pipeline('text-generation', device_map='auto')",
    ],
)
def test_only_the_map_of_the_trained_model_counts(call: str) -> None:
    assert () == placements(call)


@pytest.mark.parametrize(
    "lines",
    [
        "{load}\nTrainer(model=model)",
        "{load}\nother = get_peft_model(model, config)",
        "{load}\nmodel, optimizer = accelerator.prepare(model, optimizer)",
        "{load}\ndeepspeed.initialize(args, model)",
        "self.{load}\nTrainer(model=self.model)",
        "def load():\n    {returned}\nmodel = load()\nTrainer(model)",
    ],
)
def test_the_model_that_a_trainer_gets_is_the_trained_one(lines: str) -> None:
    loading = "AutoModelForCausalLM.from_pretrained('gpt2', device_map='auto')"
    text = lines.format(load=f"model = {loading}", returned=f"return {loading}")
    assert ["auto"] == [
        each.place.value for each in parse_script(HEAD + text, "train.py").placements
    ]


def test_a_map_stands_under_the_conditions_around_it() -> None:
    load = "model = AutoModelForCausalLM.from_pretrained(args.model, device_map='auto')"
    (found,) = placements(f"if args.quantize:\n    {load}")
    assert ["--quantize"] == [each.flag for each in found.conditions]
    (found,) = placements(f"def load():\n    {load}\nif args.quantize:\n    load()")
    assert ["--quantize"] == [each.flag for each in found.conditions]


LOAD = "model = AutoModelForCausalLM.from_pretrained(name, device_map='auto')\n"
ARGUMENTS = "a = TrainingArguments('out')\n"
IMPORTS = HF_CALL + "from transformers import AutoModelForCausalLM\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{HEAD}{LOAD}", True),
        (f"{HEAD}def load():\n    {LOAD.replace('name', 'args.model')}load()", True),
        (f"{HEAD}def load(name):\n    {LOAD}load('gpt2')", False),
        (f"{IMPORTS}{ARGUMENTS}{LOAD}", True),
        (f"{IMPORTS}{LOAD}{ARGUMENTS}", False),
        (f"{IMPORTS}if x:\n    {ARGUMENTS}{LOAD}", False),
        (f"{IMPORTS}from accelerate import Accelerator\nAccelerator()\n{LOAD}", True),
    ],
)
def test_the_library_knows_of_the_config_once_its_arguments_are_there(
    text: str, expected: bool
) -> None:
    (found,) = parse_script(text + TRAINER, "train.py").placements
    assert expected is found.engine_is_known


def test_a_word_gives_the_map_of_a_script() -> None:
    facts = facts_of("hf_device_map")
    (found,) = facts.placements
    assert found.engine_is_known
    for words, expected in (((), "auto"), (("--device_map", "cuda"), "cuda")):
        setting = Resolver(facts, words).setting(found.place)
        assert setting is not None
        assert expected == setting.value


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), None),
        (("--fsdp",), True),
        (("--fsdp", "full_shard"), "full_shard"),
        (("--fsdp", "full_shard auto_wrap", "--fsdp_config", "x.json"), "full_shard auto_wrap"),
        (("--fsdp_config", "x.json"), None),
    ],
)
def test_fsdp_is_read_of_parsed_arguments(words: tuple[str, ...], expected: Scalar) -> None:
    facts = facts_of("hf_device_map")
    setting = Resolver(facts, words).setting(facts.fsdp)
    assert expected == (setting.value if setting else None)


def test_fsdp_is_read_of_arguments_in_code() -> None:
    text = f"{HF_CALL}TrainingArguments('out', fsdp='full_shard')"
    assert "full_shard" == parse_script(text, "train.py").fsdp.value
