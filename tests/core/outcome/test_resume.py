"""From where a restarted script goes on, and with which words."""

import pytest
from cli.harness import HF_IN_CODE
from paths import TEMPLATES

from zerowiz.core.outcome import ResumeFrom, Saved, output_folder, plan_resume, resumes
from zerowiz.core.script.delivery import deliver
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings_file import SettingsFile
from zerowiz.core.strategies import DDP, ZERO1, ZERO2, ZERO2_OFFLOAD, ZERO3
from zerowiz.core.strategy import Strategy
from zerowiz.core.structs import replace
from zerowiz.probe.script.read import parse_script, read_script

RUN_CLM = """\
from dataclasses import dataclass, field
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

@dataclass
class ModelArguments:
    model_name_or_path: str = field(default="gpt2")

model_args, args = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)
Trainer(model=model, args=args).train(resume_from_checkpoint=args.resume_from_checkpoint)
"""
FOREIGN = parse_script(RUN_CLM, "run_clm.py")
ALL = Saved(portable="out/p-3", engine="out/checkpoint-3", weights="out/checkpoint-2")


@pytest.fixture(params=["train_hf.py", "train_deepspeed.py"])
def template(request: pytest.FixtureRequest) -> ScriptFacts:
    return read_script(TEMPLATES / str(request.param))


def test_our_templates_resume_at_every_stage(template: ScriptFacts) -> None:
    resume = plan_resume(template, ("--seed", "3"), ALL, ZERO2, ZERO3)
    assert (ResumeFrom.CHECKPOINT, "out/p-3") == (resume.resume_from, resume.path)
    assert ("--seed", "3", "--resume") == resume.script_args


def test_a_script_that_was_told_to_resume_is_not_told_twice(template: ScriptFacts) -> None:
    resume = plan_resume(template, ("--resume", "--seed", "3"), ALL, ZERO2, ZERO3)
    assert ("--resume", "--seed", "3") == resume.script_args


def test_without_a_checkpoint_it_is_the_beginning_and_said_so(template: ScriptFacts) -> None:
    resume = plan_resume(template, (), Saved(), ZERO2, ZERO3)
    # With `--resume` it would take that of an earlier run.
    assert (ResumeFrom.START, None, ()) == (resume.resume_from, resume.path, resume.script_args)
    assert not resumes(template, ())
    assert resumes(template, ("--resume",))


@pytest.mark.parametrize(
    ("before", "after", "resume_from", "words"),
    [
        (ZERO1, ZERO2, ResumeFrom.CHECKPOINT, ("--resume_from_checkpoint", "out/checkpoint-3")),
        (ZERO2, ZERO3, ResumeFrom.WEIGHTS, ("--model_name_or_path", "out/checkpoint-2")),
        (DDP, ZERO2, ResumeFrom.WEIGHTS, ("--model_name_or_path", "out/checkpoint-2")),
        (ZERO1, ZERO2_OFFLOAD, ResumeFrom.WEIGHTS, ("--model_name_or_path", "out/checkpoint-2")),
    ],
)
def test_deepspeeds_own_checkpoint_is_taken_only_where_it_loads(
    before: Strategy, after: Strategy, resume_from: ResumeFrom, words: tuple[str, ...]
) -> None:
    resume = plan_resume(FOREIGN, ("--output_dir", "out"), ALL, before, after)
    assert resume_from is resume.resume_from
    assert ("--output_dir", "out", *words) == resume.script_args


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (ZERO2, {"resume_from_checkpoint": "out/checkpoint-3"}),
        (ZERO3, {"model_name_or_path": "out/checkpoint-2"}),
    ],
)
def test_a_script_that_takes_one_file_resumes_by_the_copy_of_it(
    after: Strategy, expected: dict[str, str]
) -> None:
    said = {"output_dir": "mine", "model_name_or_path": "gpt2"}
    file = SettingsFile(path="args.json", values=said, is_whole=True)
    facts = replace(FOREIGN, settings_file=file)
    assert "mine" == output_folder(facts, ("args.json",))
    resume = plan_resume(facts, ("args.json",), ALL, ZERO1, after)
    delivery = deliver(facts, resume.script_args, after.config_name)
    assert delivery.copy is not None
    assert {**said, **expected, "deepspeed": after.config_name} == delivery.copy.values
    assert (f"args.ds_config_zero{after.stage}.json",) == delivery.script_args


def test_a_foreign_script_that_saved_nothing_starts_from_the_beginning() -> None:
    resume = plan_resume(FOREIGN, ("--output_dir", "out"), Saved(), ZERO1, ZERO2)
    assert (ResumeFrom.START, ("--output_dir", "out")) == (resume.resume_from, resume.script_args)


def test_a_script_whose_model_cannot_be_named_starts_from_the_beginning() -> None:
    resume = plan_resume(parse_script(HF_IN_CODE, "t.py"), (), ALL, ZERO1, ZERO2)
    assert (ResumeFrom.START, ()) == (resume.resume_from, resume.script_args)


@pytest.mark.parametrize(
    ("words", "expected"),
    [(("--output_dir", "a"), "a"), (("--output_dir=b",), "b"), ((), "trainer_output")],
)
def test_the_folder_is_the_one_that_the_words_name(
    words: tuple[str, ...], expected: str | None
) -> None:
    assert expected == output_folder(FOREIGN, words)


def test_else_it_is_the_scripts_own_default(template: ScriptFacts) -> None:
    assert "out" == output_folder(template, ())
