"""What a launch makes of the findings of its preflight checks."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from cli.harness import HF_PARSER, Result, Run
from probe.scripts import SCRIPTS
from ranks.harness import rank_environ, read_reports, run_loaded
from recorded import Install, library

from zerowiz.app.decide import plan_options
from zerowiz.app.launch.start import note_findings, require_no_error
from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.core.decision.job import Objective
from zerowiz.core.findings import Finding, found
from zerowiz.core.preflight.builds import COMPILES, NO_NINJA
from zerowiz.core.preflight.hardware import NVME_FOLDER, SMALL_SHM
from zerowiz.core.script.settings import ScriptRun
from zerowiz.errors import PreflightError
from zerowiz.probe.script.read_script import parse_script
from zerowiz.ui.reporter import TerminalReporter

ERROR = found(NVME_FOLDER, "`/nvme` is not a folder", "choose another")
WARNING = found(SMALL_SHM, "little is free", "rm /dev/shm/x")


def test_an_error_stops_a_launch_with_its_fixes_as_hints() -> None:
    second = found(NO_NINJA, "no `ninja` found", "pip install ninja")
    with pytest.raises(PreflightError, match=r"`/nvme` is not a folder \(PF501 nvme-folder\)") as e:
        require_no_error((WARNING, ERROR, second))
    first, other, fix, force = e.value.hints
    assert ("choose another", "pip install ninja") == (first, fix)
    assert other.startswith("no `ninja` found (PF402")
    assert "$force" in force


def test_what_may_go_well_stops_nothing() -> None:
    require_no_error((WARNING,))
    require_no_error((ERROR,), force=True)


@pytest.mark.parametrize(
    ("findings", "force", "expected"),
    [((WARNING, ERROR), False, 1), ((WARNING, ERROR), True, 2), ((), False, 0)],
)
def test_warnings_are_notes(
    findings: tuple[Finding, ...],
    force: bool,
    expected: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    note_findings(findings, TerminalReporter(), force=force)
    notes = capsys.readouterr().err.splitlines()
    assert expected == len(notes)
    assert all(note.startswith("note: ") for note in notes)


def test_what_the_job_waits_for_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    note_findings([found(COMPILES, "DeepSpeed compiles it")], TerminalReporter())
    assert "note: DeepSpeed compiles it\n" == capsys.readouterr().err


# What a further attempt keeps of the step that was chosen for the first.


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What read_version finds of a library that is installed."""
    for name in ("liger_kernel-0.8.5", "flash_attn-2.8.3"):
        (tmp_path / f"{name}.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("installed", "folder")
def test_a_further_attempt_keeps_all_that_was_chosen_of_the_step(driver: Install) -> None:
    driver(library("h200-x4"))
    options = Options(
        model="meta-llama/Llama-3.2-1B",
        objective=Objective.FASTEST,
        micro_batch=1,
        sequence_tokens=8192,
        memory_budget="44GiB",
    )
    facts = parse_script(HF_PARSER, "train.py")
    plan = plan_options(options, find_machine(options, {}), ScriptRun(facts))
    step = plan.decision.job.workload
    assert plan.resolved.freedom.losses
    assert {
        "gradient_checkpointing": step.gradient_checkpointing,
        "loss": step.loss,
    } == plan.resolved.freedom.values(step)


# A person says how a config reaches a script that does not show it, once.

A100 = ("--machine", "4xA100-40GB", "--model", "1b", "--micro-batch", "1")
# Nobody sees whether such a script passes an optimizer.
LR = ("--lr", "5e-5")
HIDDEN = "import my_framework\nmy_framework.train()\n"
LITERAL = "import deepspeed\ndeepspeed.initialize(model=net, config='ds.json')\n"


@pytest.fixture
def hidden(folder: Path) -> Path:
    """A script that shows nothing."""
    (folder / "train.py").write_text(HIDDEN)
    return folder


def dry(here: Run, *words: str) -> Result:
    return here("launch", "--dry-run", "--json", *A100, *words)


def planned(result: Result) -> tuple[list[str], dict[str, str], str]:
    """The words after the script, what Accelerate reads, and the config."""
    plan = result.content
    words = plan["command"][plan["command"].index("train.py") + 1 :]
    env = {name: value for name, value in plan["env"].items() if name.startswith("ACCELERATE")}
    return words, env, plan["config_path"]


WRITTEN = "ds_config_zero1.json"
BY_FIRE = (
    "import fire, framework\ndef train(config, **kwargs):\n    framework.run(config)\n"
    "fire.Fire(train)\n"
)
BY_UTILS = "from utils import get_parser\np = get_parser()\np.add_argument('--x')\np.parse_args()\n"
TRAINER = "from transformers import Seq2SeqTrainer\nSeq2SeqTrainer(args=settings.training_args)\n"
DYNAMIC = (
    "from transformers import HfArgumentParser\nfrom ours import AutoArguments\n"
    "Pipeline = AutoArguments.of('finetuner')\n"
    "HfArgumentParser(Pipeline).parse_args_into_dataclasses()\n"
)
BUILT = (
    "import argparse, deepspeed\np = argparse.ArgumentParser()\n"
    "p = deepspeed.add_config_arguments(p)\nargs = p.parse_args()\n"
    "deepspeed.initialize(args=args, model=model, config=make_config(args))\n"
)
FOR_ACCELERATE = ["ACCELERATE_DEEPSPEED_CONFIG_FILE", "ACCELERATE_USE_DEEPSPEED"]


@pytest.mark.parametrize(
    ("text", "way", "given", "words", "env", "config"),
    [
        (HIDDEN, "flag:ds", (), ["--ds", WRITTEN], [], WRITTEN),
        (HIDDEN, "flag:--ds", (), ["--ds", WRITTEN], [], WRITTEN),
        (HIDDEN, "flag:ds", ("--ds", WRITTEN), ["--ds", WRITTEN], [], WRITTEN),
        (HIDDEN, "env", (), [], FOR_ACCELERATE, WRITTEN),
        (HIDDEN, "file:conf/my_ds.json", (), [], [], "conf/my_ds.json"),
        (HIDDEN, "none", (), [], [], WRITTEN),
        (BY_FIRE, "flag:deepspeed", (), ["--deepspeed", WRITTEN], [], WRITTEN),
        (BY_UTILS, "flag:deepspeed", (), ["--deepspeed", WRITTEN], [], WRITTEN),
        (TRAINER, "env", (), [], FOR_ACCELERATE, WRITTEN),
        (DYNAMIC, "flag:deepspeed", (), ["--deepspeed", WRITTEN], [], WRITTEN),
        (BUILT, "none", (), [], [], WRITTEN),
        # A script may change its folder.
        (LITERAL, "file:sub/ds.json", (), [], [], "sub/ds.json"),
    ],
)
def test_each_way_is_taken(
    here: Run,
    folder: Path,
    text: str,
    way: str,
    given: tuple[str, ...],
    words: list[str],
    env: list[str],
    config: str,
) -> None:
    (folder / "train.py").write_text(text)
    (folder / "sub").mkdir()
    lr = LR if way.startswith(("flag", "file")) and text != DYNAMIC else ()
    found, variables, path = planned(dry(here, *lr, "--config-via", way, "train.py", *given))
    assert (words, env, config) == (found, sorted(variables), path)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (HIDDEN, "`--config-via flag:NAME`, `--config-via env` or `--config-via file:PATH`"),
        (HIDDEN, "`--integration hf` if a Trainer"),
        (TRAINER, "`--config-via env`"),
        (DYNAMIC, "`--config-via flag:NAME`"),
        (BUILT, "pass `args=args` and no `config=` in train.py line 5"),
    ],
)
def test_a_refusal_says_the_way_out(here: Run, folder: Path, text: str, hint: str) -> None:
    (folder / "train.py").write_text(text)
    result = dry(here, "train.py")
    assert (5, True) == (result.code, hint in result.hints)


@pytest.mark.parametrize(
    ("text", "words", "problem"),
    [
        *(
            (HIDDEN, ("--config-via", way, "train.py"), f"`--config-via {way}` is not a way to")
            for way in ("flag", "flag:", "flag:--", "env:X", "file:", "none:", "post")
        ),
        *(
            (HIDDEN, ("--config-via", way, "train.py"), f"`--config-via {way}` is not a way")
            for way in ("file:.", "file:sub/", "file:..")
        ),
        (HIDDEN, (*LR, "--config-via", "flag:ds", "train.py", "--ds", "mine.json"), "--ds"),
        (LITERAL, ("--config-via", "file:other.json", "train.py"), "names `ds.json`"),
        (
            HIDDEN,
            ("--config-via", "file:other.json", "--config", "mine.json", "train.py"),
            "`--config-via file:other.json` and `--config mine.json`",
        ),
    ],
)
def test_what_is_no_way_is_refused(
    here: Run, folder: Path, text: str, words: tuple[str, ...], problem: str
) -> None:
    (folder / "train.py").write_text(text)
    values = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}}
    (folder / "mine.json").write_text(json.dumps(values))
    result = dry(here, *words)
    assert (2, True) == (result.code, problem in result.problem)


def test_a_config_may_be_the_file_that_the_script_reads(here: Run, hidden: Path) -> None:
    (hidden / "mine.json").write_text('{"train_micro_batch_size_per_gpu": 1}')
    own = ("--config-via", "file:mine.json", "--config", "mine.json", "train.py")
    assert 0 == dry(here, *own).code


def test_the_hint_past_an_option_that_is_not_there_works(here: Run, folder: Path) -> None:
    shutil.copy(SCRIPTS / "hf_parser.py", folder / "train.py")
    refused = dry(here, "--config-via", "flag:nope", "train.py")
    assert (2, True) == (refused.code, "train.py has no option `--nope`" in refused.problem)
    assert "remove `--config-via`" in refused.hints
    assert 0 == dry(here, "train.py").code


def test_the_plan_is_written_under_the_name_that_a_script_reads(here: Run, folder: Path) -> None:
    shutil.copy(SCRIPTS / "raw_literal.py", folder / "train.py")
    words = ("init", "--yes", "--machine", "4xA100-40GB", "--model", "1b")
    refused = here(*words, *LR, "train.py")
    assert 1 == refused.code
    (hint,) = [line for line in refused.stderr.splitlines() if "--config-via file:" in line]
    way = hint.partition("`--config-via ")[2].partition("`")[0]
    assert 0 == here(*words, *LR, "--config-via", way, "train.py").code
    written = folder / way.partition(":")[2]
    assert 1 == json.loads(written.read_text())["zero_optimization"]["stage"]
    assert written.with_suffix(".plan.json").is_file()


def test_a_file_of_ones_own_is_not_overwritten_unasked(here: Run, hidden: Path) -> None:
    (hidden / "mine.json").write_text('{"train_batch_size": 1}')
    result = here("init", "--yes", *A100, *LR, "--config-via", "file:mine.json", "train.py")
    assert 1 == result.code
    assert '{"train_batch_size": 1}' == (hidden / "mine.json").read_text()


def test_it_is_said_once_and_kept_for_this_script_alone(here: Run, hidden: Path) -> None:
    (hidden / "other.py").write_text(HIDDEN)
    assert 0 == here("init", "--yes", *A100, *LR, "--config-via", "flag:ds", "train.py").code
    again = here("launch", "--dry-run", "--json", "--yes", "--machine", "4xA100-40GB", "train.py")
    assert ["--ds", "ds_config_zero1.json"] == planned(again)[0]
    words = "--model 1b --micro-batch 1 --lr 5e-05 --config-via flag:ds"
    kept = f"note: from `zerowiz.toml`: `{words}`"
    assert kept in " ".join(again.stderr.split())
    assert ["--x", "ds_config_zero1.json"] == planned(
        dry(here, *LR, "--config-via", "flag:x", "train.py")
    )[0]
    assert 5 == dry(here, "other.py").code


@pytest.mark.usefixtures("hidden")
def test_a_trainer_that_is_not_seen_gets_a_config_for_the_trainer(here: Run) -> None:
    words = ("--config-via", "flag:deepspeed", "--integration", "hf", "train.py")
    result = here("launch", "--dry-run", *A100, *words)
    assert '"gradient_clipping": "auto"' in result.stdout
    assert '"optimizer"' not in result.stdout


@pytest.mark.usefixtures("hidden")
def test_a_plan_takes_what_is_kept_of_its_script(here: Run) -> None:
    kept = ("--model", "1b", *LR, "--micro-batch", "3", "--config-via", "flag:ds", "train.py")
    assert 0 == here("init", "--yes", "--machine", "4xA100-40GB", *kept).code
    assert (
        3
        == here("plan", "--json", "--machine", "4xA100-40GB", "train.py").content["workload"][
            "micro_batch"
        ]
    )


def test_a_config_of_ones_own_counts_more_than_what_is_kept(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(LITERAL)
    machine = ("--machine", "4xA100-40GB", "--model", "1b")
    literal = "ds.json"
    words = ("--micro-batch", "3", *LR, "--config-via", f"file:{literal}", "train.py")
    assert 0 == here("init", "--yes", *machine, *words).code
    own = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}
    (folder / literal).write_text(json.dumps(own))
    # Without `--yes` the answers of `init` are recalled, too.
    for yes in ((), ("--yes",)):
        words = ("--dry-run", "--json", *yes, *machine, "--config", literal, "train.py")
        assert 2 == here("launch", *words).content["workload"]["micro_batch"]


ENGINE = """\
import sys

import deepspeed
import torch


def train():
    deepspeed.init_distributed()
    model = torch.nn.Linear(16, 16)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=CONFIG
    )
    for _ in range(2):
        rows = torch.ones(engine.train_micro_batch_size_per_gpu(), 16)
        engine.backward(engine(rows.to(next(engine.module.parameters()).dtype)).float().mean())
        engine.step()
    torch.distributed.barrier()
    sys.stdout.flush()
    __import__("os")._exit(0)
"""
LOADED = "import importlib\n\nimportlib.import_module('project_engine').train()\n"


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "config"),
    [
        ("file:conf/my_ds.json", "'conf/my_ds.json'"),
        pytest.param(
            *("flag:ds", "sys.argv[sys.argv.index('--ds') + 1]"), marks=pytest.mark.thorough
        ),
    ],
)
def test_the_ranks_get_what_was_said(folder: Path, way: str, config: str) -> None:
    (folder / "project_engine.py").write_text(ENGINE.replace("CONFIG", config))
    (folder / "train.py").write_text(LOADED)
    words = ("--accelerator", "cpu", "--gpus-per-node", "2", "--stage", "2", "--precision", "fp32")
    stated = ("--model", "10m", "--micro-batch", "3", "--seq-len", "16", "--config-via", way, *LR)
    reports = folder / "reports"
    argv = [sys.executable, "-m", "zerowiz", "launch", "--yes", *words, *stated, "train.py"]
    done = run_loaded(argv, env=rank_environ(reports), cwd=folder)
    assert 0 == done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert [(0, 2, 3), (1, 2, 3)] == [
        (report["rank"], report["stage"], report["micro_batch"]) for report in read_reports(reports)
    ]


@pytest.mark.usefixtures("hidden")
def test_it_holds_for_configs_that_are_written_elsewhere(here: Run) -> None:
    assert 0 == here("init", "--yes", *A100, *LR, "--config-via", "flag:ds", "train.py").code
    words = ("launch", "--dry-run", "--json", "--yes", "--machine", "4xA100-40GB")
    found = planned(here(*words, "--output-dir", "other", "train.py"))[0]
    assert ["--ds", "other/ds_config_zero1.json"] == found
