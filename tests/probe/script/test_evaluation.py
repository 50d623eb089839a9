"""Whether a Trainer's script evaluates, and with which batch."""

import pytest
from paths import TEMPLATES

from zerowiz.core.script.bindings import State
from zerowiz.core.script.settings import ScriptSettings, resolve_script
from zerowiz.probe.script.read import parse_script, read_script

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
    return resolve_script(parse_script(text, "train.py"), words)


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
    found = of(text, *words).eval_batch
    assert expected == (None if found is None else found.value)


def test_the_trainers_template_evaluates_and_the_plain_loop_does_not() -> None:
    trainer = resolve_script(read_script(TEMPLATES / "train_hf.py"), ()).eval_batch
    assert trainer is not None
    assert (8, State.OPEN) == (trainer.value, trainer.state)
    assert resolve_script(read_script(TEMPLATES / "train_deepspeed.py"), ()).eval_batch is None


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
