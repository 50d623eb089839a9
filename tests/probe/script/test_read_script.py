"""A script is read as a file, and what cannot be read is one line."""

import sys
from pathlib import Path

import pytest
from paths import TEMPLATES
from probe.reading import HF_CALL, facts_of, value_of

from zerowiz.core.script.arguments import Scalar
from zerowiz.core.script.facts import Convention, Placement, Resolver, State
from zerowiz.core.script.settings import ScriptRun, ScriptSettings
from zerowiz.errors import PreflightError, ZerowizError
from zerowiz.probe.script.read_script import parse_script, read_script


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


@pytest.mark.parametrize("encoding", ["hex", "rot13", "undefined", "punycode", "utf-16"])
def test_an_encoding_that_python_refuses_is_an_error_of_one_line(
    tmp_path: Path, encoding: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"# -*- coding: {encoding} -*-\nimport torch\n")
    with pytest.raises(ZerowizError, match="is not Python: ") as caught:
        read_script(path)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "message", "hints"),
    [
        (
            "train_fh.py",
            "there is no script `{0}/train_fh.py`",
            ("did you mean `{0}/train_hf.py`?",),
        ),
        ("folder", "`{0}/folder` is a folder, not a script", ("did you mean `{0}/folder/a.py`?",)),
        ("setup.py/train.py", "`{0}/setup.py/train.py` cannot be read: Not a directory", ()),
    ],
)
def test_what_is_no_script_is_an_error_that_names_the_near_ones(
    tmp_path: Path, name: str, message: str, hints: tuple[str, ...]
) -> None:
    (tmp_path / "folder").mkdir()
    for path in ("train_hf.py", "setup.py", "folder/a.py"):
        (tmp_path / path).touch()
    with pytest.raises(PreflightError) as caught:
        read_script(tmp_path / name)
    assert message.format(tmp_path) == caught.value.message
    assert [hint.format(tmp_path) for hint in hints] == [*caught.value.hints][: len(hints)]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"x = 1\ndef f(:\n", "line 2 is not Python"),
        (b"x = 1\ny = 2\nz = 3\nname = '\xe9'\n", "can't decode byte 0xe9"),
        (b"# coding: klingon\n", "unknown encoding"),
        (b"#!/bin/bash\npython train.py \\\n  --x\n", "is a shell script, not a Python script"),
        (b"#!/usr/bin/env zsh\n", "is a shell script, not a Python script"),
        (b"#!/bin/sh\naxolotl train a.yml\n", "is a shell script, not a Python script"),
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


# Whether a Trainer's script evaluates, and with which batch.

HEAD = "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
PARSED = f"""{HEAD}
def main():
    args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    trainer = Trainer(model=model, args=args, train_dataset=data)
    trainer.train()
"""
ASKED = f"{PARSED}    if args.do_eval:\n        print(trainer.evaluate())\n\nmain()\n"
METRICS = PARSED.replace("train_dataset=data", "train_dataset=data, compute_metrics=accuracy")


def in_code(arguments: str, more: str = "") -> str:
    build = "t = Trainer(model=model, args=args, train_dataset=data)\nt.train()\n"
    return f"{HEAD}args = TrainingArguments(output_dir='out'{arguments})\n{build}{more}"


def of(text: str, *words: str) -> ScriptSettings:
    return ScriptRun(parse_script(text, "train.py"), words).settings


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        (in_code(""), (), None),
        (in_code(", per_device_eval_batch_size=2"), (), None),
        (in_code("", "t.evaluate()\n"), (), 8),
        (in_code("", "metric.evaluate()\n"), (), None),
        (in_code(", per_device_eval_batch_size=2", "t.evaluate()\n"), (), 2),
        (in_code(", eval_strategy='steps'"), (), 8),
        (in_code(", evaluation_strategy='epoch', per_device_eval_batch_size=4"), (), 4),
        (in_code(", eval_strategy='no'"), (), None),
        (in_code(", do_eval=True"), (), 8),
        (in_code(", per_device_eval_batch_size=size()", "t.evaluate()\n"), (), None),
        (f"{PARSED}\nmain()\n", (), None),
        (f"{PARSED}\nmain()\n", ("--eval_strategy", "epoch"), 8),
        (f"{PARSED}\nmain()\n", ("--evaluation_strategy", "steps"), 8),
        (f"{PARSED}\nmain()\n", ("--eval_strategy", "no", "--do_eval"), 8),
        (ASKED, (), None),
        (ASKED, ("--do_eval", "--per_device_eval_batch_size", "3"), 3),
        (f"{PARSED}    trainer.evaluate()\n\nmain()\n", (), 8),
    ],
)
def test_a_script_evaluates_or_not(text: str, words: tuple[str, ...], expected: int | None) -> None:
    assert expected == value_of(of(text, *words), "eval_batch")


def test_the_trainers_template_evaluates_if_asked_and_the_plain_loop_does_not() -> None:
    asked = ScriptRun(read_script(TEMPLATES / "train_hf.py"), ("--do_eval",)).settings.eval_batch
    assert asked is not None
    assert (8, State.OPEN) == (asked.value, asked.state)
    for name in ("train_hf.py", "train_deepspeed.py"):
        assert ScriptRun(read_script(TEMPLATES / name), ()).settings.eval_batch is None


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        (in_code(""), (), None),
        (in_code("", "t.evaluate()\n"), (), "`t.evaluate()` in train.py line 5"),
        (in_code(", eval_strategy='steps'"), (), "`TrainingArguments(eval_strategy='steps')`"),
        (ASKED, (), None),
        (ASKED, ("--do_eval",), "`--do_eval` after the script"),
    ],
)
def test_what_makes_a_script_evaluate_is_named(
    text: str, words: tuple[str, ...], expected: str | None
) -> None:
    by = of(text, *words).evaluated_by
    assert by == expected or (by is not None and by.startswith(f"{expected} in "))


def test_another_batch_is_given_by_the_option_of_the_trainer() -> None:
    settings = of(ASKED, "--do_eval")
    words = ("--per_device_eval_batch_size", "2")
    assert words == settings.words_for("eval_batch", 2)
    assert settings.words_for("eval_batch", 0) is None
    assert of(in_code("", "t.evaluate()\n")).words_for("eval_batch", 2) is None


def test_metrics_of_all_logits_are_named_where_it_evaluates() -> None:
    found = of(f"{METRICS}\nmain()\n", "--eval_strategy", "epoch").metrics
    assert "train.py line 5: `Trainer(compute_metrics=accuracy)`" == found
    assert of(f"{METRICS}\nmain()\n").metrics is None
    assert of(f"{PARSED}\nmain()\n", "--eval_strategy", "epoch").metrics is None


# With which `device_map` a script loads its model, and whether it asks for FSDP.

PLACEMENTS_HEAD = """import os
from transformers import AutoModelForCausalLM, HfArgumentParser, TrainingArguments
parser = HfArgumentParser(TrainingArguments)
parser.add_argument("--model", default="gpt2")
parser.add_argument("--map")
parser.add_argument("--quantize", action="store_true")
args, = parser.parse_args_into_dataclasses()
"""
TRAINER = "\nTrainer(model, args)\n"


def placements(lines: str) -> tuple[Placement, ...]:
    return parse_script(f"{PLACEMENTS_HEAD}{lines}{TRAINER}", "train.py").placements


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
    assert found.line == PLACEMENTS_HEAD.count("\n") + 1


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
        each.place.value for each in parse_script(PLACEMENTS_HEAD + text, "train.py").placements
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
        (f"{PLACEMENTS_HEAD}{LOAD}", True),
        (f"{PLACEMENTS_HEAD}def load():\n    {LOAD.replace('name', 'args.model')}load()", True),
        (f"{PLACEMENTS_HEAD}def load(name):\n    {LOAD}load('gpt2')", False),
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


def test_the_file_that_a_parser_of_another_module_takes_first_is_read(tmp_path: Path) -> None:
    """Its values are defaults of the words that follow."""
    text = "from alignment import H4ArgumentParser, SFTConfig\nH4ArgumentParser((SFTConfig,)).parse()\n"
    (tmp_path / "train.py").write_text(text)
    file = tmp_path / "a.yaml"
    file.write_text("per_device_train_batch_size: 2\ngradient_accumulation_steps: 16\n")
    words = (str(file), "--gradient_accumulation_steps=4")
    settings = ScriptRun(read_script(tmp_path / "train.py", words), words).settings
    assert settings.micro_batch is not None
    assert settings.accumulation_steps is not None
    assert (2, 4) == (settings.micro_batch.value, settings.accumulation_steps.value)
