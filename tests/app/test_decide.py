"""What a script leaves open is chosen, at the same global batch, and said in one line."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli.harness import HF_PARSER, Result, Run, answers_of
from paths import TEMPLATES
from probe.reading import RAW_HEAD, RAW_TAIL
from probe.scripts import SCRIPTS
from recorded import Install, library

from zerowiz.app.decide import plan_options
from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.core.machine.types import Accelerator, with_host_memory
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.strategies import find_strategy
from zerowiz.core.strategy_types import OffloadChoice
from zerowiz.core.workload import Precision
from zerowiz.probe.script.read_script import parse_script

MODEL = ("--model", str(TEMPLATES / "model"))
# A host whose ranks take no time that anything predicts; more memory than a step needs.
CPU = ("--accelerator", "cpu", "--gpus-per-node", "2")
H100 = ("--machine", "4xH100-80GB-SXM", "--model", "1b")


def lay(folder: Path, template: str) -> None:
    """A template and the module that it imports."""
    shutil.copy(TEMPLATES / template, folder / "train.py")
    shutil.copytree(TEMPLATES / "portable_checkpoint", folder / "portable_checkpoint")


@pytest.fixture
def trainer(folder: Path) -> Path:
    """The Trainer's template: 4 sequences at a time, if nobody says otherwise."""
    lay(folder, "train_hf.py")
    return folder


def chosen_words(result: Result) -> str:
    """The words for the strategy that is chosen."""
    strategy = find_strategy(result.content["chosen"])
    assert strategy is not None
    return strategy.words


def batch(content: dict[str, Any]) -> tuple[int, int]:
    step = content["workload"]
    return step["micro_batch"], step["accumulation_steps"]


def words_of(content: dict[str, Any]) -> dict[str, list[str]]:
    return {each["setting"]: each["words"] for each in content["settled"]}


def choices(result: Result) -> list[str]:
    """The lines that say what was chosen."""
    pattern = r"^note: ((?:micro-batch|gradient checkpointing|no gradient).*)$"
    return re.findall(pattern, result.stderr, re.MULTILINE)


TIGHT = ("--memory-budget", "700MiB")
SPLIT = (
    "micro-batch 2 x 2, as the script's 4 x 1 does not fit with DDP; `--micro-batch 4` keeps yours"
)
JOINED = (
    "micro-batch 8 x 1, the fewest micro-steps that fit, instead of 1 x 8;"
    " `--micro-batch N` sets your own"
)
# The plain loop's batch is the config's.
TRAINER, PLAIN = "train_hf.py", "train_deepspeed.py"


@pytest.mark.parametrize(
    ("template", "words", "expected", "said", "delivered"),
    [
        pytest.param(
            TRAINER,
            TIGHT,
            (2, 2),
            [SPLIT],
            [
                *("--per_device_train_batch_size", "2"),
                *("--gradient_accumulation_steps", "2"),
            ],
            id="a step that does not fit is split and delivered",
        ),
        pytest.param(
            TRAINER,
            (*TIGHT, "--micro-batch", "4"),
            (4, 1),
            [],
            [],
            id="a micro-batch that is said is kept",
        ),
        pytest.param(TRAINER, (), (4, 1), [], [], id="what fits stays without a word"),
        pytest.param(
            PLAIN,
            ("--global-batch", "16"),
            (8, 1),
            [JOINED],
            [],
            id="micro-steps that need not be are joined where no time is predicted",
        ),
        pytest.param(PLAIN, (), (1, 1), [], [], id="micro-batch 1 is left where nobody says more"),
    ],
)
def test_a_batch_is_chosen_where_it_has_to_be_and_said_in_one_line(
    here: Run,
    folder: Path,
    template: str,
    words: tuple[str, ...],
    expected: tuple[int, int],
    said: list[str],
    delivered: list[str],
) -> None:
    lay(folder, template)
    given = ("--seq_len", "256") if TIGHT[0] in words else ()
    result = here("plan", "--json", *CPU, *MODEL, *words, "train.py", *given)
    content = result.content
    assert expected == batch(content)
    assert said == choices(result)
    added = words_of(content)
    batch_words = [added.get(name, []) for name in ("micro_batch", "accumulation_steps")]
    assert delivered == [word for each in batch_words for word in each]


def test_micro_batch_1_is_left_where_there_is_no_script(here: Run) -> None:
    assert (1, 1) == batch(here("plan", "--json", *H100).content)


@pytest.mark.parametrize("objective", ["flowchart", "fastest", "smallest"])
@pytest.mark.parametrize("sequences", [4, 12, 28, 52, 96])
@pytest.mark.usefixtures("trainer")
def test_the_global_batch_never_changes(here: Run, sequences: int, objective: str) -> None:
    words = ("--objective", objective, "--global-batch", str(4 * sequences), "train.py")
    result = here("plan", "--json", *H100, *words, "--seq_len", "1024", "--bf16", "True")
    micro_batch, steps = batch(result.content)
    assert sequences == micro_batch * steps


def test_what_is_fixed_in_the_code_is_never_changed(here: Run, folder: Path) -> None:
    shutil.copy(SCRIPTS / "hf_in_code.py", folder / "train.py")
    for objective in ("flowchart", "fastest"):
        result = here("plan", "--json", *H100, "--objective", objective, "train.py")
        content = result.content
        assert {} == words_of(content)
        assert [] == choices(result)


def test_checkpointing_is_switched_on_where_nothing_fits_without(here: Run, folder: Path) -> None:
    lay(folder, PLAIN)
    machine = ("--machine", "4xA100-40GB", "--model", "7b")
    words = ("plan", "--json", *machine, "train.py", "--seq_len", "2048")
    result = here(*words)
    content = result.content
    assert content["workload"]["gradient_checkpointing"]
    assert ["--gradient_checkpointing"] == words_of(content)["gradient_checkpointing"]
    assert [("gradient checkpointing, as the step without it does not fit with ZeRO-3")] == choices(
        result
    )
    without = here("plan", "--no-gradient-checkpointing", *words[2:])
    assert 4 == without.code
    assert "`--gradient-checkpointing`: ZeRO-3 " in without.hints


@pytest.mark.usefixtures("trainer")
def test_where_nothing_fits_no_remedy_asks_for_what_was_tried(here: Run) -> None:
    result = here("plan", "--machine", "2xA100-40GB", "--model", "7b", "--stage", "2", "train.py")
    assert 4 == result.code
    assert [] == choices(result)
    assert "--micro-batch" not in result.hints
    assert "added after the script" not in result.stderr


def test_init_and_launch_after_it_choose_alike(here: Run, trainer: Path) -> None:
    said = ("--yes", *CPU, *MODEL, "--memory-budget", "700MiB")
    result = here("init", *said, "train.py", "--seq_len", "256").good
    assert 1 == len(choices(result))
    plan = json.loads((trainer / "ds_config_zero0.plan.json").read_text())
    assert (2, 2) == batch(plan)
    # The record holds what was answered; what was chosen is chosen anew.
    record = answers_of(trainer)
    assert "micro-batch" not in record
    started = here("launch", "--dry-run", "--json")
    assert (2, 2) == batch(started.content)
    command = json.loads(started.stdout)["command"]
    assert "2" == command[command.index("--per_device_train_batch_size") + 1]


def test_the_plan_file_reproduces_what_was_chosen(here: Run, trainer: Path) -> None:
    said = ("--yes", *CPU, *MODEL, "--memory-budget", "700MiB")
    assert 0 == here("init", *said, "train.py", "--seq_len", "256").code
    first = (trainer / "ds_config_zero0.plan.json").read_text()
    reproduce = json.loads(first)["reproduce"]["argv"][1:]
    assert "--micro-batch" not in reproduce
    command = [each for each in reproduce if each != "launch"]
    again = here("plan", "--json", *[each for each in command if each != "--yes"])
    assert batch(json.loads(first)) == batch(again.content)


def test_a_settings_file_gets_what_was_chosen_in_its_copy(here: Run, trainer: Path) -> None:
    shutil.copy(SCRIPTS / "hf_parser.py", trainer / "train.py")
    (trainer / "args.json").write_text(json.dumps({"output_dir": "out", "use_cpu": True}))
    words = ("launch", "--dry-run", "--json", *CPU, "--model", "1m", "--global-batch", "8")
    content = here(*words, "train.py", "args.json").content
    assert (4, 1) == batch(content)
    assert {"micro_batch"} == set(words_of(content))


@pytest.mark.usefixtures("trainer")
def test_another_strategy_that_is_clearly_faster_is_named(here: Run) -> None:
    machine = ("--machine", "4xH100", "--model", "7b", "--global-batch", "64")
    words = ("train.py", "--seq_len", "2048", "--bf16", "True")
    shown = here("plan", *machine, *words).stdout
    named = re.search(
        r"^(\S+): [^;]*;\s+(\S+) with another\s+split of\s+the\s+batch\s+is (.*) faster",
        shown,
        re.MULTILINE | re.DOTALL,
    )
    assert named is not None
    assert named[1] == chosen_words(here("plan", "--json", *machine, *words))
    by_time = (*machine, "--objective", "fastest", *words)
    assert named[2] == chosen_words(here("plan", "--json", *by_time))
    assert "with less room" not in here("plan", *by_time).stdout


def test_an_option_without_a_default_is_filled_where_a_global_batch_is_said(
    here: Run, folder: Path
) -> None:
    option = 'p.add_argument("--batch", type=int, default=4)'
    text = RAW_HEAD.replace(option, 'p.add_argument("--batch", type=int, required=True)')
    assert text != RAW_HEAD
    text += "loader = DataLoader(data, batch_size=args.batch)\n"
    text += "steps = engine.gradient_accumulation_steps()\n" + RAW_TAIL
    (folder / "train.py").write_text(text)
    words = ("launch", "--dry-run", "--json", "--yes", *CPU, "--model", "1m", "--lr", "1e-3")
    asked = here(*words, "train.py")
    assert 3 == asked.code
    content = here(*words, "--global-batch", "12", "train.py").content
    assert (6, 1) == batch(content)
    assert ["--batch", "6"] == words_of(content)["micro_batch"]
    tight = here(*words, "--global-batch", "2", "train.py")
    assert ["--batch", "1"] == words_of(tight.content)["micro_batch"]


# Liger's loss is a remedy only where its kernels run: they are Triton's, which has no CPU driver.


def offers_liger(**said: object) -> bool:
    facts = parse_script(HF_PARSER, "train.py")
    model = {"model": "meta-llama/Llama-3.2-1B", "micro_batch": 1, "gradient_checkpointing": True}
    said = {**model, "sequence_tokens": 65536, "memory_budget": "30GiB", **said}
    options = Options(**said)  # type: ignore[arg-type]
    machine = find_machine(options, {})
    plan = plan_options(options, machine, ScriptRun(facts))
    assert plan.strategy is None
    return any("loss" in each.change for each in plan.remedies if each.edit is None)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What read_version finds of a library that is installed."""
    (tmp_path / "liger_kernel-0.8.5.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("installed", "folder")
def test_it_is_offered_to_gpus_alone(driver: Install) -> None:
    assert not offers_liger(machine="cpu")
    assert offers_liger(machine="2xH200")
    driver(library("h200-x4"))
    assert offers_liger()


@pytest.mark.usefixtures("folder")
def test_here_it_is_offered_only_where_it_is_installed(driver: Install) -> None:
    driver(library("h200-x4"))
    assert not offers_liger()


def test_without_a_script_cpu_ranks_are_offered_a_loss_in_chunks() -> None:
    options = Options(
        model="llama-3.2-1b",
        sequence_tokens=8192,
        memory_budget="2GiB",
        offload=OffloadChoice.NONE,
        # What is assumed depends on this host's CPU.
        precision=Precision.BF16,
        accelerator=Accelerator.CPU,
        gpus_per_node=2,
    )
    job = find_machine(options, {})
    # As much memory as the remedy asks for, whatever this host has.
    roomy = with_host_memory(job, 64 * 2**30)
    plan = plan_options(options, roomy, None)
    assert plan.strategy is None
    losses = {each.change["loss"] for each in plan.remedies if "loss" in each.change}
    assert {"chunked"} == losses
