"""The menus of the wizard: machines, scripts and models that lie near or are known by name."""

import os
from collections.abc import Sequence
from pathlib import Path

from zerowiz.app.ask.script import DEFAULT_SCRIPT
from zerowiz.app.machines.machine import CPU_MACHINE, find_machine
from zerowiz.app.options import Options
from zerowiz.app.wizard.template import script_of
from zerowiz.core.decision.questions import TEMPLATE, Choice, Question
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.values import replace
from zerowiz.errors import PreflightError, ZerowizError
from zerowiz.probe.launch.programs import find_programs
from zerowiz.probe.model.known_models import read_known_models
from zerowiz.probe.model.libraries import read_version
from zerowiz.probe.nearby import find_models
from zerowiz.ui.sentences import scripts
from zerowiz.ui.text.units import count
from zerowiz.ui.wizard import lines
from zerowiz.words import _

# The model that the menu starts with where none lies near.
_COMMON, _COMMON_ON_CPU = "meta-llama/Llama-3.1-8B", "openai-community/gpt2"
# What people rent or have, the common ones first.
LARGEST_MACHINE = "8xH100-80GB-SXM"
_OTHER_MACHINES = (
    (LARGEST_MACHINE, _("8 GPUs of one node, NVLink")),
    ("8xA100-80GB-SXM", _("8 GPUs of one node, NVLink")),
    ("4xA100-40GB-SXM", _("4 GPUs of one node, NVLink")),
    ("1xH100-80GB-SXM", _("one GPU")),
    ("2xRTX4090", _("2 GPUs of a workstation, PCIe")),
    ("1xRTX4090", _("one GPU of a workstation")),
)


def offer_machines(question: Question, options: Options) -> Question:
    """The question with this machine first where it can train, and some that people rent."""
    return _menu(question, _machines(options))


def _machines(options: Options) -> list[tuple[str, str]]:
    try:
        here = find_machine(replace(options, machine=CPU_MACHINE), os.environ)
    except ZerowizError:
        # What was typed is for GPUs.
        return [*_OTHER_MACHINES]
    cpu = (CPU_MACHINE, _("this machine, without a GPU: {host}", host=lines.host(here)))
    return [cpu, *_OTHER_MACHINES] if _can_train_here() else [*_OTHER_MACHINES, cpu]


def _can_train_here() -> bool:
    try:
        find_programs(os.environ)
    except PreflightError:
        return False
    return all(read_version(name) for name in ("torch", "deepspeed"))


def offer_scripts(question: Question, nearby: Sequence[ScriptFacts], answered: str) -> Question:
    """The question with the scripts nearby, then what it offers by itself.

    Args:
        question: Of the script.
        nearby: What was found.
        answered: The answer before; empty where there was none.
    """
    copied = script_of(answered) if answered.startswith(TEMPLATE) else None
    found = [(f.path, scripts.convention(f)) for f in nearby if f.path != copied]
    default = DEFAULT_SCRIPT if DEFAULT_SCRIPT in dict(found) else None
    others = tuple(
        each
        for each in question.choices
        if each.value == answered or not Path(script_of(each.value)).exists()
    )
    menu = _menu(question, found, default)
    choices = (*menu.choices, *others)
    return replace(menu, choices=choices, default=menu.default or choices[0].value)


def offer_models(question: Question, machine: Machine | None) -> Question:
    """The question with what lies near, then what is known by name, a common one first."""
    return _menu(question, _models(machine))


def _models(machine: Machine | None) -> list[tuple[str, str]]:
    near = dict(find_models(Path(), os.environ))
    on_cpu = machine is not None and machine.accelerator is Accelerator.CPU
    common = _COMMON_ON_CPU if on_cpu else _COMMON
    rows = sorted(read_known_models(), key=lambda row: row.id != common)
    known = {row.id: _("{params} parameters", params=count(row.params)) for row in rows}
    return list({**near, **{k: v for k, v in known.items() if k not in near}}.items())


def _menu(
    question: Question,
    found: "tuple[tuple[str, str], ...] | list[tuple[str, str]]",
    default: str | None = None,
) -> Question:
    """The question with what was found, the first of which is the default.

    What is typed is an answer, too.
    """
    listed = (Choice(value=value, title=value, detail=detail) for value, detail in found)
    first = found[0][0] if found else None
    return replace(question, choices=tuple(listed), default=default or first)


def with_default(question: Question, default: str | None) -> Question:
    """The question with this default, a line of its menu; as it is where there is none."""
    if default is None:
        return question
    values = [choice.value for choice in question.choices]
    if question.choices and default not in values:
        listed = (Choice(value=default, title=default), *question.choices)
        return replace(question, default=default, choices=listed)
    return replace(question, default=default)
