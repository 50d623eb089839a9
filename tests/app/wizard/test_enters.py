"""Enter alone leads to a job, or to an end: no number of Enters goes in a circle."""

from pathlib import Path

import pytest
from app.wizard.enters import Counting
from cli.harness import HF_IN_CODE, HF_PARSER
from recorded import Install, library

from zerowiz.app.init import ask_init
from zerowiz.app.init_plan import InitOptions, InitPlan
from zerowiz.app.options import Options
from zerowiz.core.machine.types import Accelerator
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
    person = Counting(model=model, outcome="write")
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
    others, edits = (
        [words in line for line in person.told].index(True)
        for words in ("as this machine cannot change", "you have to edit your script")
    )
    on_others = [i for i, line in enumerate(person.told) if line.startswith("`--machine ")]
    assert others < min(on_others) <= max(on_others) < edits
