"""Enter alone leads to a job, or to an end: no number of Enters goes in a circle."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from app.wizard.enters import Counting
from cli.harness import HF_IN_CODE, HF_PARSER
from recorded import Install, library

from zerowiz.app.command import Command
from zerowiz.app.options import Options
from zerowiz.app.reporter import SILENT
from zerowiz.app.wizard import ask_init, ask_open
from zerowiz.app.wizard_plan import CopiedTemplate, InitOptions, InitPlan
from zerowiz.app.wizard_state import Wizard
from zerowiz.core.decision.questions import Answers
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.settings import Origin, SettingValue, fold
from zerowiz.errors import UsageError
from zerowiz.ui.wizard import WizardReporter


def converse(person: Counting, options: Options) -> InitPlan | None:
    """A whole conversation."""
    reporter = WizardReporter(quiet=True)
    return ask_init(None, (), options, InitOptions(), reporter, person, {})


@pytest.mark.parametrize(
    ("model", "default"), [("7b", "8xH100-80GB-SXM"), ("70b", "8xH100-80GB-SXM"), ("10m", "cpu")]
)
def test_the_machine_that_enter_takes_is_one_that_the_job_fits(
    folder: Path, model: str, default: str
) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    person = Counting(outcome="write")
    done = converse(person, Options(model=model))
    assert person.asked[0].key == "machine"
    assert default == person.asked[0].default
    assert done is not None
    assert list(folder.glob("ds_config_zero*.json"))


def test_enter_alone_takes_no_longer_sequences_than_the_model_has_positions(folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    person = Counting(model="openai-community/gpt2", outcome="write")
    done = converse(person, Options())
    assert ["machine", "model", "sequence_tokens", "outcome"] == [q.key for q in person.asked]
    assert "1024" == person.asked[2].default
    assert done is not None


def test_nobody_is_asked_how_many_patches_an_image_has(folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    (folder / "vit").mkdir()
    (folder / "vit" / "config.json").write_text('{"model_type": "vit"}')
    person = Counting(model="vit", outcome="write")
    assert converse(person, Options()) is not None
    assert ["machine", "model", "outcome"] == [q.key for q in person.asked]


@pytest.mark.parametrize("model", ["7b", "900b"])
def test_a_model_that_is_named_after_the_machine_ends_in_a_job(folder: Path, model: str) -> None:
    for name in ("train.py", "other.py"):
        (folder / name).write_text(HF_PARSER)
    person = Counting(model=model, remedy="0", outcome="write")
    done = converse(person, Options())
    assert "cpu" == person.asked[0].default
    assert done is not None


def test_a_script_that_is_refused_again_ends_the_conversation(folder: Path) -> None:
    (folder / "train.py").write_text(HF_IN_CODE.replace(", use_cpu=True", ""))
    person = Counting(outcome="launch")
    options = Options(accelerator=Accelerator.CPU, gpus_per_node=2, model="10m", sequence_tokens=64)
    assert converse(person, options) is None
    assert person.asked[-1].default == "stop"
    assert ["train.py"] == [path.name for path in folder.iterdir()]


def test_a_folder_that_cannot_be_written_leads_to_another_one(folder: Path) -> None:
    (folder / "train.py").write_text(HF_IN_CODE)
    (folder / "taken").write_text("")
    person = Counting(outcome="write")
    options = Options(
        accelerator=Accelerator.CPU,
        gpus_per_node=2,
        model="10m",
        sequence_tokens=64,
        output_dir=Path("taken"),
    )
    done = converse(person, options)
    assert done is not None
    assert (folder / "zerowiz" / "ds_config_zero0.json").is_file()


def test_what_takes_other_gpus_than_are_here_is_no_edit_of_the_script(
    folder: Path, driver: Install
) -> None:
    driver(library("h200-x2"))
    (folder / "train.py").write_text(HF_IN_CODE)
    person = Counting(remedy="stop")
    options = Options(model="30b", sequence_tokens=1024, stage="2", micro_batch=4)
    assert converse(person, options) is None
    heading = person.told.index("Not in the menu below, as it changes your script or this machine:")
    # Which of them help depends on the memory and the speed of this host.
    below = [line for line in person.told[heading + 1 :] if line.startswith("`--")]
    assert below
    needs_edit = {
        line.partition(" ")[0]: "; first wrap the model with peft" in line for line in below
    }
    assert needs_edit.get("`--method", True)
    assert not needs_edit.get("`--machine", False)


# How many questions a conversation has, over all that can be open when it starts.

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


def converse_question_count(person: Counting, **options: object) -> tuple[Wizard, Answers]:
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
    converse_question_count(person, model=model)
    keys = [question.key for question in person.asked]
    assert (machine is not None) == ("machine" in keys)
    assert (count != 1) == ("script" in keys)
    assert len(keys) <= MOST, keys


def test_what_is_not_asked_has_its_default_and_can_be_changed(
    folder: Path,
) -> None:
    lay(folder, ADAPTERS_KNOWN, 2)
    person = Counting(machine="4xA100-40GB", sequence_tokens="512")
    wizard, answers = converse_question_count(person)
    assert ["machine", "script", "method", "sequence_tokens"] == [q.key for q in person.asked]
    assert "flowchart" == wizard.known(answers)["goal"]
    # What the script does by itself is where the menu starts.
    assert "lora" == person.asked[2].default
    lay(folder, ADAPTERS, 2)
    person = Counting(machine="4xA100-40GB")
    wizard, answers = converse_question_count(person)
    assert ["machine", "script", "model", "sequence_tokens"] == [q.key for q in person.asked]
    spared = {"method": "lora", "goal": "flowchart", "precision": "bf16"}
    assert spared == wizard.spared(answers)
    assert "bf16" == wizard.options(answers).precision
    assert ("lora", "flowchart") == tuple(wizard.known(answers)[k] for k in ("method", "goal"))


def test_what_is_answered_is_no_option_that_somebody_typed(folder: Path) -> None:
    lay(folder, HF_PARSER, 1)
    wizard, answers = converse_question_count(
        Counting(machine="4xA100-40GB", sequence_tokens="512"), micro_batch=8
    )
    named = wizard.named
    machine, read, run = named.machine(answers), named.model(answers), named.run(answers)
    assert machine is not None
    assert read is not None
    values = named.resolve(wizard.options(answers), machine, run, read).values
    origins = {value.name: value.origin for value in values}
    assert (Origin.ANSWER, Origin.OPTION) == (origins["sequence_tokens"], origins["micro_batch"])


def test_an_answer_that_contradicts_the_script_can_be_given_again() -> None:
    script = SettingValue(name="micro_batch", value=8, origin=Origin.SCRIPT, source="train.py")
    answer = SettingValue(name="micro_batch", value=4, origin=Origin.ANSWER, source="4")
    with pytest.raises(UsageError) as raised:
        fold([answer, script], lambda script, other: script.value == other.value)
    assert "or give another answer" == raised.value.hints[-1]
