"""The words of the command line, which scripts out there depend on."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import cycle
from pathlib import Path

import pytest
from cli.harness import CONFIG_ARGUMENTS, HF_PARSER, Result, Run, Terminal
from cli.shown import RANK_PROGRAM
from hub import Answer, serving
from paths import ROOT

from zerowiz.app.options import choices_of, kinds, rows
from zerowiz.cli.options import option_of

# Frozen: an option leaves or changes its name on purpose only.
SHARED = {
    *("--model", "--method", "--lora-rank", "--lora-target-modules", "--trace", "--no-trace"),
    *("--loss", "--packing", "--no-packing"),
    *("--machine", "--accelerator", "--gpus", "--nodes", "--gpus-per-node", "--hostfile"),
    *("--interconnect", "--host-memory", "--probe-timeout"),
    *("--memory-budget", "--micro-batch", "--seq-len", "--grad-accum", "--global-batch"),
    *("--precision", "--optimizer", "--optimizer-state-dtype", "--attention"),
    *("--gradient-checkpointing", "--no-gradient-checkpointing"),
    *("--torch-autocast", "--nvme-path", "--hpz", "--no-hpz", "--quantized-weights"),
    *("--calibration", "--no-calibration"),
    *("--objective", "--stage", "--offload", "--allow-slow", "--accounting", "--integration"),
    *("--config", "--config-via"),
    *("--output-dir", "--yes", "--json", "--dry-run", "--force", "--quiet"),
    *("--diff", "--show-removed"),
    "--module",
    "--isolated",
    *("--trainer", "--reference", "--completion-tokens", "--generation-batch"),
    *("--vllm-memory-fraction", "--vllm-sleeps", "--no-vllm-sleeps"),
    *("--eval-batch", "--sequence-parallel"),
    *("--lr", "--weight-decay", "--warmup-steps", "--max-grad-norm"),
}
# A value for each that this job bears; `None` is a switch.
VALUES: dict[str, str | None] = {
    "--model": "10m",
    "--method": "full",
    "--lora-rank": "8",
    "--lora-target-modules": "all-linear",
    "--machine": "cpu",
    "--accelerator": "cpu",
    "--gpus": "0",
    "--nodes": "1",
    "--gpus-per-node": "2",
    "--hostfile": "hosts",
    "--interconnect": "ethernet",
    "--host-memory": "1TiB",
    "--probe-timeout": "60",
    "--memory-budget": "0.5",
    "--micro-batch": "8",
    "--seq-len": "64",
    "--grad-accum": "1",
    "--global-batch": "8",
    "--precision": "fp32",
    "--optimizer": "adamw",
    "--optimizer-state-dtype": "fp32",
    "--attention": "sdpa",
    "--loss": "plain",
    "--objective": "smallest",
    "--stage": "auto",
    "--offload": "none",
    "--accounting": "real",
    "--integration": "deepspeed",
    "--config": "own.json",
    "--config-via": "flag:deepspeed_config",
    "--torch-autocast": "bf16",
    "--nvme-path": "nvme",
    "--output-dir": "out",
    "--trainer": "dpo",
    "--reference": "precomputed",
    "--completion-tokens": "32",
    "--generation-batch": "8",
    "--vllm-memory-fraction": "0.3",
    "--vllm-sleeps": None,
    "--eval-batch": "4",
    "--sequence-parallel": "1",
    "--lr": "6e-4",
    "--weight-decay": "0.1",
    "--warmup-steps": "20",
    "--max-grad-norm": "0.5",
}
# What some of them need beside them.
BESIDE: dict[str, list[str]] = {
    "--hpz": ["--stage", "3"],
    "--quantized-weights": ["--stage", "3"],
    # Whether this host can do so is not the question.
    "--nvme-path": ["--stage", "3", "--offload", "all", "--force"],
    "--reference": ["--trainer", "dpo"],
    "--lora-rank": ["--method", "lora"],
    "--lora-target-modules": ["--method", "lora"],
    "--completion-tokens": ["--trainer", "grpo"],
    "--generation-batch": ["--trainer", "grpo"],
    "--vllm-memory-fraction": ["--trainer", "grpo"],
    "--vllm-sleeps": ["--trainer", "grpo", "--vllm-memory-fraction", "0.3"],
    # A Trainer has its own arguments for these.
    "--lr": ["--integration", "deepspeed"],
    "--weight-decay": ["--integration", "deepspeed"],
    "--warmup-steps": ["--integration", "deepspeed"],
    "--max-grad-norm": ["--integration", "deepspeed"],
}
# These say how a script is run.
OF_SCRIPTS = frozenset({"--module", "--config-via"})
ON_GPUS = frozenset({"--gpus", "--quantized-weights"})
COMMANDS = ("init", "plan", "launch", "doctor")
OWN = {
    "init": {"--slurm", "--launch", "--no-script"},
    "doctor": {"--explain", "--fix"},
    "plan": {
        *("--explain", "--verbose", "--limits", "--price"),
        *("--html", "--compare", "--origins"),
    },
    "launch": {
        *("--supervise", "--no-supervise", "--escalate", "--max-attempts", "--grace-seconds"),
        "--verbose",
    },
}


# What a page leaves out, since the command does not heed it; it is still taken.
LEFT_OUT = {
    "init": {"--accounting"},
    "plan": {"--yes", "--dry-run"},
    "launch": {"--accounting"},
    "doctor": {
        "--accounting",
        "--calibration",
        "--no-calibration",
        "--dry-run",
        "--machine",
        "--yes",
    },
}


@pytest.fixture(autouse=True)
def script(folder: Path) -> None:
    """A script, which some tests write anew."""
    (folder / "train.py").write_text(HF_PARSER)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_are_the_frozen_ones(here: Run, command: str) -> None:
    options = here(command, "--help").stdout.partition("\nExamples:\n")[0]
    said = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", options))
    assert (SHARED - LEFT_OUT[command]) | OWN.get(command, set()) | {"--help"} == said


# One declaration makes the options of all commands: each is tried with one of them.
@pytest.mark.parametrize(
    ("command", "option"),
    list(zip(cycle(("init", "plan", "launch")), sorted(SHARED), strict=False)),
)
@pytest.mark.usefixtures("pdsh")
def test_every_shared_option_is_taken(here: Run, folder: Path, command: str, option: str) -> None:
    (folder / "train.py").write_text(f"import peft\n{CONFIG_ARGUMENTS}")
    (folder / "hosts").write_text("localhost slots=1\n")
    (folder / "own.json").write_text('{"train_micro_batch_size_per_gpu": 8}')
    value = VALUES.get(option)
    words = [option, *([] if value is None else [value]), *BESIDE.get(option, [])]
    machine = "1xH200" if option in ON_GPUS else "cpu"
    base = ["--machine", machine, "--model", "10m", "--micro-batch", "8", "--dry-run"]
    script = "train" if option == "--module" else "train.py"
    stands_alone = command == "plan" and option not in OF_SCRIPTS
    result = here(command, *base, *words, *([] if stands_alone else [script]))
    assert 0 == result.code, result.stderr


def test_no_words_at_all_show_the_help(here: Run) -> None:
    start = "\nNew here? Start with `zerowiz init`\n"
    shown = here("--help").stdout
    assert shown + start == here().stdout
    listed = re.findall(r"^  (\w+) ", shown.partition("Commands:")[2], re.MULTILINE)
    order = ["init", "plan", "launch", "machine"]
    assert order == [name for name in listed if name in order]
    assert re.fullmatch(r"zerowiz \d+\.\d+\S*\n", here("--version").stdout)


def test_the_parser_of_a_choice_gives_what_the_command_takes() -> None:
    """Older typer makes a member of an enum out of what a parser gives; 0.29 does not."""
    enums = {name: kind for name, kind in kinds().items() if issubclass(kind, Enum)}
    assert "accounting" in enums
    for name, kind in enums.items():
        parser = option_of(rows()[name], kind).parser
        assert parser is not None
        assert [*kind] == [parser(word) for word in choices_of(kind, rows()[name])]
        assert all(isinstance(parser(word), kind) for word in choices_of(kind, rows()[name]))


# What people type instead of a script: another launcher, a module, a shell script, a notebook.

JOB = ("--accelerator", "cpu", "--model", "10m", "--seq-len", "64")
DRY = ("launch", "--dry-run", "--yes", *JOB)


def argv(result: Result) -> list[str]:
    """The command of a dry run, without variables and the port."""
    assert 0 == result.code, result.stderr
    words = shlex.split(result.stdout.splitlines()[-1])
    first = next(index for index, word in enumerate(words) if word.endswith("/deepspeed"))
    at = words.index("--master_port")
    return [*words[first + 1 : at], *words[at + 2 :]]


NOWHERE = (
    "neither `pkg/none.py` nor `pkg/none/__main__.py` exists here, in PYTHONPATH or in the"
    " installed packages"
)


def test_the_script_keeps_its_own_words(here: Run, folder: Path) -> None:
    own = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 1}}
    (folder / "ds.json").write_text(json.dumps(own))
    words = ("train.py", "--deepspeed", "ds.json")
    result = here(*DRY, "--gpus-per-node", "2", "--config", "ds.json", *words)
    assert ["train.py", "--deepspeed", "ds.json"] == argv(result)[-3:]


def test_the_files_say_how_they_are_written_again(here: Run, folder: Path) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "train.py").write_text(HF_PARSER)
    assert 0 == here("init", "--yes", "--module", *JOB, "--gpus-per-node", "2", "pkg.train").code
    first = json.loads((folder / "ds_config_zero0.plan.json").read_text())["reproduce"]["argv"]
    assert ["--module", "pkg.train"] == [*first[first.index("--module") :][:1], first[-1]]
    again = here("launch", "--dry-run", *first[2:])
    assert ["-m", "pkg.train"] == argv(again)[-4:-2]
    recorded = here("launch", "--dry-run")
    assert ["-m", "pkg.train"] == argv(recorded)[-4:-2]


@pytest.mark.parametrize("flag", ["-m", "--module"])
def test_a_module_is_read_where_it_lies_and_launched_as_a_module(
    here: Run, folder: Path, flag: str
) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "train.py").write_text(CONFIG_ARGUMENTS)
    words = ("--micro-batch", "1", flag, "pkg.train", "--batch", "3")
    config = ["--batch", "3", "--deepspeed", "--deepspeed_config", "ds_config_zero0.json"]
    ranks = ["--num_gpus", "1"]
    watched = argv(here(*DRY, "--supervise", *words))
    assert [*ranks, RANK_PROGRAM, "-m", "pkg.train", *config] == watched
    alone = argv(here(*DRY, "--no-supervise", *words))
    assert [*ranks, "--module", "pkg.train", *config] == alone


def test_a_module_finds_its_libraries_from_the_working_folder(here: Run, folder: Path) -> None:
    (folder / "pkg").mkdir()
    (folder / "beside.py").write_text("")
    (folder / "pkg" / "train.py").write_text(f"import beside\n{HF_PARSER}")
    found = here("doctor", "--quiet", *JOB, "-m", "pkg.train")
    assert "beside" not in found.stdout, found.stdout
    (folder / "pkg" / "train.py").write_text(f"import inside\n{HF_PARSER}")
    (folder / "pkg" / "inside.py").write_text("")
    found = here("doctor", "--quiet", *JOB, "-m", "pkg.train")
    assert "inside" in found.stdout, found.stdout


def test_plan_and_init_understand_the_same_words(here: Run, folder: Path) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "train.py").write_text(HF_PARSER)
    line = ["--gpus-per-node", "2", "-m", "pkg.train", "--per_device_train_batch_size", "3"]
    plan = here("plan", "--json", *JOB, *line).content
    assert (3, 2) == (plan["workload"]["micro_batch"], len(plan["machine"]["gpus"]))
    done = here("init", "--yes", *JOB, *line)
    assert 0 == done.code, done.stderr
    again = here("launch", "--dry-run")
    assert ["-m", "pkg.train", "--per_device_train_batch_size", "3"] == argv(again)[-6:-2]


def test_what_was_recorded_for_a_script_is_not_a_modules(here: Run, folder: Path) -> None:
    (folder / "train").mkdir()
    (folder / "train" / "__main__.py").write_text(HF_PARSER)
    assert 0 == here("init", "--yes", *JOB, "-m", "train").code
    (folder / "train" / "__main__.py").rename(folder / "other")
    (folder / "train").rmdir()
    (folder / "other").rename(folder / "train")
    assert ["train"] == argv(here(*DRY, "train"))[-3:-2]


def test_a_file_of_that_name_is_the_script(here: Run, folder: Path) -> None:
    (folder / "torchrun").write_text(HF_PARSER)
    result = here(*DRY, "torchrun", "--seed", "1")
    assert ["torchrun", "--seed", "1"] == argv(result)[2:][-5:-2]
    (folder / "time").write_text(HF_PARSER)
    assert "time" in argv(here(*DRY, "time"))


@pytest.mark.parametrize(
    ("words", "code", "problem", "hints"),
    [
        (
            ("run.sh",),
            1,
            "`run.sh` is a shell script, not a Python script",
            ("write `zerowiz launch` in front of the command in it that starts the training",),
        ),
        (("bash", "run.sh"), 1, "`run.sh` is a shell script, not a Python script", ()),
        (
            ("swift.sh",),
            1,
            "`swift.sh` is a shell script, not a Python script",
            ("`swift sft` in it starts ranks of its own", "`zerowiz init my.yaml`"),
        ),
        (
            ("train.ipynb",),
            1,
            "`train.ipynb` is a notebook, not a script",
            ("convert it to `train.py`: `jupyter nbconvert --to script train.ipynb`",),
        ),
        (
            ("ds.json",),
            1,
            "`ds.json` is a JSON file, not a script",
            ("a DeepSpeed config has an option: `--config ds.json`", "`zerowiz check ds.json`"),
        ),
        (
            ("acc.yaml",),
            1,
            "acc.yaml is a YAML file, and no training script",
            ("a DeepSpeed config has an option: `--config acc.yaml`", "`zerowiz init acc.yaml`"),
        ),
        (("train",), 5, "there is no script `train`", ("did you mean `train.py`?",)),
        (
            ("-m", "pkg.none"),
            5,
            f"there is no module `pkg.none`: {NOWHERE}",
            ("start zerowiz in the folder that contains the package",),
        ),
        (
            ("-m", "train.py"),
            5,
            "`train.py` is not a module name",
            ("to start it as a script: `zerowiz launch train.py`",),
        ),
        (("-m",), 2, "`--module` needs a module", ()),
        (("pkg.train",), 5, "there is no script `pkg.train`", ("`zerowiz launch -m pkg.train`",)),
        *(
            (tuple(typed.split()), 2, None, (f"put `{before}` before `zerowiz`",))
            for typed, before in (
                ("uv run train.py", "uv run"),
                ("srun -n 2 torchrun train.py", "srun -n 2"),
                ("env A=1 python train.py", "env A=1"),
                ("CUDA_VISIBLE_DEVICES=0 torchrun train.py", "CUDA_VISIBLE_DEVICES=0"),
                ("nohup", "nohup"),
            )
        ),
        *(
            (
                (*typed.split(), "train.py", "--seed", "1"),
                2,
                f"`{typed.removeprefix('-m ').split()[0]}` starts ranks of its own, and so does zerowiz",
                ("`zerowiz launch train.py --seed 1`", "`--gpus-per-node 8`"),
            )
            for typed in (
                "torchrun --nproc_per_node 2",
                "accelerate launch --config_file a.yaml",
                "deepspeed --num_gpus 2",
                "python -u",
                "-m torch.distributed.run --nproc_per_node 2",
            )
        ),
        *(
            (
                tuple(typed.split()),
                2,
                f"`{typed.split(maxsplit=1)[0]}` starts ranks of its own",
                (hint,),
            )
            for typed, hint in (
                ("axolotl train my.yml", "`zerowiz init my.yml`"),
                ("llamafactory-cli train runs/a.yaml", "`zerowiz init runs/a.yaml`"),
                ("llamafactory-cli train", "`zerowiz init my.yaml`"),
                ("swift sft my.yaml", "`zerowiz init my.yaml`"),
                ("swift sft --model m", "in a YAML file: `zerowiz init my.yaml`"),
                (
                    "trl sft --dataset_name x",
                    "`zerowiz launch -m trl.scripts.sft --dataset_name x`",
                ),
                ("trl", "`zerowiz launch -m trl.scripts.sft`"),
            )
        ),
    ],
)
def test_what_is_no_script_is_said_with_the_way_on(
    here: Run,
    folder: Path,
    words: tuple[str, ...],
    code: int,
    problem: str | None,
    hints: tuple[str, ...],
) -> None:
    line = "torchrun --nproc_per_node 2 \\\n  train.py --seed 1\n"
    (folder / "run.sh").write_text(f"#!/bin/bash\nset -e\n{line}")
    (folder / "swift.sh").write_text("NPROC_PER_NODE=8 swift sft --model m\n")
    (folder / "train.ipynb").write_text("{}")
    (folder / "ds.json").write_text('{"train_batch_size": 8}')
    (folder / "acc.yaml").write_text("zero_stage: 2: 3\n")
    (folder / "pkg").mkdir()
    (folder / "pkg" / "train.py").write_text(HF_PARSER)
    result = here("launch", *JOB, *words)
    assert (code, problem or result.problem) == (result.code, result.problem)
    for hint in hints:
        assert hint in result.hints


@pytest.mark.parametrize("machine", ["8xH100-80GB-SXM", "all"])
@pytest.mark.parametrize(
    ("model", "tokens", "is_noted"),
    [
        ("llama-3.1-8b", "131072", False),
        ("llama-3.1-8b", "131200", True),
        ("8b", "131200", False),
    ],
)
def test_sequences_longer_than_the_model_was_made_for_are_noted(
    here: Run, machine: str, model: str, tokens: str, *, is_noted: bool
) -> None:
    # One GPU of each kind is enough to say so.
    few = ("--gpus-per-node", "1", "--nodes", "1") if machine == "all" else ()
    words = ("plan", "--machine", machine, *few, "--model", model, "--method", "lora")
    said = here(*words, "--seq-len", tokens).stderr
    note = (
        f"note: sequences of {tokens} tokens are longer than the 131072 positions that"
        " `Llama-3.1-8B` was made for (`--seq-len`)"
    )
    assert (note in said) is is_noted


# At a terminal a wait for the hub is seen while it lasts, and is gone afterwards.

CONFIG = (ROOT / "tests" / "models" / "qwen2.5-0.5b" / "config.json").read_text()
PLAN = ("plan", "--machine", "1xH100-80GB", "--model", "someone/slow")


@pytest.fixture
def slow_hub() -> Iterator[str]:
    """A hub that answers after two seconds."""
    with serving() as hub:
        hub.answers["/someone/slow/resolve/main/config.json"] = Answer(body=CONFIG, after_s=2)
        yield hub.endpoint


def test_a_wait_for_the_hub_is_shown_while_it_lasts(
    terminal: Callable[..., Terminal], slow_hub: str
) -> None:
    asks = {"HF_ENDPOINT": slow_hub, "HF_HUB_OFFLINE": ""}
    person = terminal(*PLAN, **asks)
    program = terminal(*PLAN, "--json", **asks)
    dumb = terminal(*PLAN, TERM="dumb", **asks)

    person.wait_for("reading config.json of `someone/slow` 0:0")
    assert 0 == person.end()
    assert "reading" not in person.text
    assert "recommended" in person.text

    assert 0 == program.end()
    assert b"reading" not in program.received
    shown = program.received.decode()
    assert json.loads(shown[shown.index("{") : shown.rindex("}") + 1])["strategies"]

    assert 0 == dumb.end()
    assert b"\x1b" not in dumb.received
    assert dumb.text.count("reading config.json") == 1
