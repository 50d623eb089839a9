"""A help page: the options under headings in the order of use, and examples."""

import re
from collections.abc import Mapping
from typing import Any

from zerowiz.core.settings import OTHER_SETTINGS, Panel
from zerowiz.core.workload import SETTINGS, Workload

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "init": (
        ("zerowiz init", "answer a few questions, and launch"),
        ("zerowiz init train.py", "the same for this script"),
        ("zerowiz init --yes --model 7b --machine 8xH100", "write a config, and ask nothing"),
    ),
    "template": (
        ("zerowiz template first-run", "a script for the Trainer, a small model and a text"),
        ("zerowiz template --loop engine first-run", "a plain loop over DeepSpeed's engine"),
        ("zerowiz template", "list the templates"),
    ),
    "plan": (
        ("zerowiz plan train.py", "plan with the script's own settings"),
        ("zerowiz plan --model llama-3.1-8b --machine 8xH100", "a model and a machine by name"),
        ("zerowiz plan --model 7b --machine 4xA100-40 --method lora --limits", "how much fits"),
        ("zerowiz plan --model 7b --machine all", "compare the machines that the job fits"),
    ),
    "launch": (
        (
            "zerowiz launch --dry-run train.py",
            "show the config and the command, and start nothing",
        ),
        ("zerowiz launch train.py", "write the config, and train"),
        ("zerowiz launch --stage 2 train.py", "choose the strategy yourself"),
    ),
    "machine": (
        ("zerowiz machine", "show this machine"),
        ("zerowiz machine --machine p5.48xlarge", "show what a spec or an instance stands for"),
        (
            "zerowiz machine --save node.json",
            "save it, to plan elsewhere with --machine node.json",
        ),
    ),
    "measure": (
        (
            "zerowiz measure --model 10m --seq-len 64",
            "train a model of this size for some steps",
        ),
        ("zerowiz measure train.py", "run the script for some steps"),
        (
            "zerowiz measure --all --model 10m",
            "the same with every strategy that fits",
        ),
    ),
    "report": (("zerowiz report", "compare the last launch in this folder with its plan"),),
    "check": (
        ("zerowiz check .", "every config of this folder"),
        ("zerowiz check --fix ds_config.json", "apply the safe fixes"),
        ("zerowiz check --script train.py ds_config.json", "compare it with the script, too"),
    ),
    "doctor": (
        ("zerowiz doctor train.py", "find what would make this job fail"),
        (
            "zerowiz doctor --stage zero3 --offload optimizer train.py",
            "the same, with a strategy that you choose",
        ),
    ),
}

# What an option means to which command.

UNHEEDED: Mapping[str, frozenset[str]] = {
    "init": frozenset({"accounting"}),
    "launch": frozenset({"accounting"}),
    "plan": frozenset({"yes", "dry_run"}),
    "measure": frozenset({"accounting", "yes", "machine", "hostfile", "nodes"}),
    "doctor": frozenset({"accounting", "yes", "dry_run", "machine", "calibration"}),
}
"""Shared options that `--help` of a command leaves out.

What they ask for happens anyway (`plan --dry-run`), or they are refused by a line that says where
they belong (`launch --accounting textbook`).
"""


# Write the page of `--help`: the options that a command heeds, in the order of use.

# Rule: options stand in the order in which people come to need them.
_PANELS = ("Arguments", "Options", "Run", *Panel, "Other")
# typer's words for a range that any sensible number lies in.
_RANGE = re.compile(r"<(int|float) range>")
_BOUNDS = re.compile(r"(; |\[|  \[)(?:-?\d+<=)?x[<>]=-?\d+\]")


def write_options(command: Any, context: Any, formatter: Any) -> None:  # noqa: ANN401 - typer's own or click's, by typer's release
    """The arguments and options of a command under their headings, in the order of use."""
    unheeded = UNHEEDED.get(command.name, frozenset())
    shown = [
        parameter for parameter in command.get_params(context) if parameter.name not in unheeded
    ]
    has_panels = any(_panel(parameter) for parameter in shown)
    of_job = any(parameter.name == "gpus" for parameter in shown)
    panels: dict[str, list[tuple[str, str]]] = {}
    for param in shown:
        record = param.get_help_record(context)
        if record is None:
            continue
        spelling, text = record
        if param.param_type_name == "argument":
            spelling, *_type = spelling.split(" <", 1)  # typer from 0.29 names its type, too
        default = default_of(param.name) if of_job else None
        told = "" if default is None or "[default: " in text else f" [default: {default}]"
        text = _BOUNDS.sub(lambda match: "]" if match[1] == "; " else "", text)
        line = (_RANGE.sub(r"<\1>", spelling), f"{text.strip()}{told}")
        panels.setdefault(_heading(param, has_panels=has_panels), []).append(line)
    for panel in sorted(panels, key=_PANELS.index):
        with formatter.section(panel):
            formatter.write_dl(panels[panel])


def _panel(param: Any) -> str | None:  # noqa: ANN401 - as above
    panel = getattr(param, "rich_help_panel", None)
    return None if panel is None else str(panel)


def _heading(param: Any, *, has_panels: bool) -> str:  # noqa: ANN401 - as above
    """What an option stands under: a command without shared options has one list."""
    if param.param_type_name == "argument":
        return "Arguments"
    if not has_panels:
        return "Options"
    return _panel(param) or ("Other" if param.name == "help" else "Run")


def default_of(name: str) -> str | None:
    """What a setting is by default, in words; None where it has no default at all.

    Example:
        >>> default_of("micro_batch")
        "your script's, else 1"
    """
    row = {**OTHER_SETTINGS, **SETTINGS}.get(name)
    if row is None or row.default is not None or name not in SETTINGS:
        return None if row is None else row.default
    step = Workload()
    value = step.lora_targets if name == "lora_target_modules" else getattr(step, name)
    told = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
    from zerowiz.core.script.settings import BY_SCRIPT  # noqa: PLC0415 - most runs write no page

    return f"your script's, else {told}" if name in BY_SCRIPT else told
