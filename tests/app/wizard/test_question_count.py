"""How many questions a conversation has, over all that can be open when it starts."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from app.wizard.enters import Counting
from cli.harness import HF_IN_CODE, HF_PARSER
from recorded import library

from zerowiz.app.ask import Command
from zerowiz.app.init import ask_open
from zerowiz.app.init_plan import CopiedTemplate, InitOptions
from zerowiz.app.options import Options
from zerowiz.app.reporter import SILENT
from zerowiz.app.wizard import Wizard
from zerowiz.core.decision.questions import Answers

# `Launch now?` is one of the five.
MOST = 5 - 1
# It trains adapters or not, as a word says; without a word it does.
ADAPTERS = """\
import os
from dataclasses import dataclass

from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

@dataclass
class Own:
    use_lora: bool = True

own, args = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL"])
if own.use_lora:
    model = get_peft_model(model, LoraConfig())
Trainer(model=model, args=args).train()
"""
SCRIPTS = {"parser": HF_PARSER, "in code": HF_IN_CODE, "adapters": ADAPTERS}
ADAPTERS_KNOWN = ADAPTERS.replace('(os.environ["MODEL"])', '("openai-community/gpt2")')


def converse(person: Counting, **options: object) -> tuple[Wizard, Answers]:
    """A whole conversation but for its last question."""
    template = CopiedTemplate(person)
    said = Options(**options)  # type: ignore[arg-type]
    command = Command(script=None, script_args=(), options=said)
    wizard = Wizard(command, template, SILENT, InitOptions())
    answers = Answers()
    try:
        for each in ask_open(person, wizard, answers):
            answers = each
    finally:
        template.take_off()
    return wizard, answers


def lay(folder: Path, text: str, count: int) -> None:
    """So many scripts, the first of which the menu starts with."""
    for name in ("train.py", "other.py", "third.py")[:count]:
        (folder / name).write_text(text)


HOSTS = {
    "GPUs here": None,
    "another machine": "4xA100-40GB",
    "CPU ranks": "cpu",
}
CASES = list(product(("parser", "in code", "adapters"), (0, 1, 2, 3), HOSTS, (None, "1b")))


@pytest.mark.parametrize(("script", "count", "host", "model"), CASES)
def test_no_conversation_on_a_hugging_face_script_has_more_than_five_questions(
    folder: Path,
    driver: Callable[[object], None],
    script: str,
    count: int,
    host: str,
    model: str | None,
) -> None:
    machine = HOSTS[host]
    if machine is None:
        driver(library("h200-x4"))
    lay(folder, SCRIPTS[script], count)
    person = Counting() if machine is None else Counting(machine=machine)
    converse(person, model=model)
    keys = [question.key for question in person.asked]
    assert (machine is not None) == ("machine" in keys)
    assert (count != 1) == ("script" in keys)
    assert len(keys) <= MOST, keys


def test_what_is_not_asked_has_its_default_and_can_be_changed(
    folder: Path,
) -> None:
    lay(folder, ADAPTERS_KNOWN, 2)
    person = Counting(machine="4xA100-40GB", sequence_tokens="512")
    wizard, answers = converse(person)
    assert ["machine", "script", "method", "sequence_tokens"] == [q.key for q in person.asked]
    assert "flowchart" == wizard.known(answers)["goal"]
    # What the script does by itself is where the menu starts.
    assert "lora" == person.asked[2].default
    lay(folder, ADAPTERS, 2)
    person = Counting(machine="4xA100-40GB")
    wizard, answers = converse(person)
    assert ["machine", "script", "model", "sequence_tokens"] == [q.key for q in person.asked]
    assert {"method": "lora", "goal": "flowchart"} == wizard.spared(answers)
    assert ("lora", "flowchart") == tuple(wizard.known(answers)[k] for k in ("method", "goal"))
