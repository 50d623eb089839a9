"""The words of the command line, which scripts out there depend on."""

import re
from enum import Enum
from pathlib import Path

import pytest
from cli.harness import CONFIG_ARGUMENTS, Run

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
    *("--ignore-oom", "--calibration", "--no-calibration"),
    *("--objective", "--stage", "--offload", "--allow-slow", "--accounting", "--integration"),
    *("--config", "--config-via"),
    *("--output-dir", "--yes", "--json", "--dry-run", "--force", "--quiet"),
    "--module",
    "--isolated",
    *("--trainer", "--reference", "--completion-tokens", "--generation-batch"),
    *("--vllm-memory-fraction", "--vllm-sleeps", "--no-vllm-sleeps"),
    "--eval-batch",
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
}
# These say how a script is run.
OF_SCRIPTS = frozenset({"--module", "--config-via"})
ON_GPUS = frozenset({"--gpus", "--quantized-weights"})
COMMANDS = ("init", "plan", "launch", "doctor")
OWN = {
    "init": {"--slurm", "--launch", "--no-script"},
    "doctor": {"--explain"},
    "plan": {
        *("--explain", "--verbose", "--limits", "--tokens", "--sequences", "--epochs", "--price"),
        *("--html", "--svg", "--compare", "--origins"),
    },
    "launch": {
        *("--supervise", "--no-supervise", "--escalate", "--max-attempts"),
        *("--grace-seconds", "--launcher"),
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


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_are_the_frozen_ones(here: Run, command: str) -> None:
    options = here(command, "--help").stdout.partition("\nExamples:\n")[0]
    said = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", options))
    assert (SHARED - LEFT_OUT[command]) | OWN.get(command, set()) | {"--help"} == said


@pytest.mark.parametrize("command", ["init", "plan", "launch"])
@pytest.mark.parametrize("option", sorted(SHARED))
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


@pytest.mark.parametrize("flag", ["-y", "-q"])
def test_the_short_options_are_taken(here: Run, flag: str) -> None:
    assert 0 == here("plan", flag, "--machine", "cpu", "--model", "10m").code


def test_the_commands_are_listed_in_the_order_of_use(here: Run) -> None:
    shown = here("--help").stdout.partition("Commands:")[2]
    listed = re.findall(r"^  (\w+) ", shown, re.MULTILINE)
    assert ["init", "plan", "launch", "machine"] == [
        name for name in listed if name in {"init", "plan", "launch", "machine"}
    ]


def test_no_words_at_all_show_the_help(here: Run) -> None:
    start = "\nNew here? Start with `zerowiz init`\n"
    assert here("--help").stdout + start == here().stdout


def test_the_version_is_one_line(here: Run) -> None:
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
