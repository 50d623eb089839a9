"""What people run most, by command: each line runs as it stands beside a script `train.py`."""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from msgspec import Struct

from zerowiz.app.options import rows
from zerowiz.core import settings
from zerowiz.core.settings import Panel, SettingRow
from zerowiz.core.workload import SETTINGS, Workload
from zerowiz.errors import HAS_SITE, UsageError, page_of
from zerowiz.ui.text import cells, fill_wide, pad
from zerowiz.words import N_, _

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "init": (
        ("zerowiz init", _("answer a few questions, and launch")),
        ("zerowiz init train.py", _("the same for this script")),
        ("zerowiz init --yes --model 7b --machine 8xH100", _("write a config, and ask nothing")),
    ),
    "template": (
        ("zerowiz template first-run", _("a script for the Trainer, a small model and a text")),
        ("zerowiz template --loop engine first-run", _("a plain loop over DeepSpeed's engine")),
        ("zerowiz template", _("list the templates")),
    ),
    "plan": (
        ("zerowiz plan train.py", _("plan with the script's own settings")),
        ("zerowiz plan --model llama-3.1-8b --machine 8xH100", _("a model and a machine by name")),
        ("zerowiz plan --model 7b --machine 4xA100-40 --method lora --limits", _("how much fits")),
        ("zerowiz plan --model 7b --machine all", _("compare the machines that the job fits")),
    ),
    "launch": (
        (
            "zerowiz launch --dry-run train.py",
            _("show the config and the command, and start nothing"),
        ),
        ("zerowiz launch train.py", _("write the config, and train")),
        ("zerowiz launch --stage zero2 train.py", _("choose the strategy yourself")),
    ),
    "machine": (
        ("zerowiz machine", _("show this machine")),
        ("zerowiz machine --machine p5.48xlarge", _("show what a spec or an instance stands for")),
        (
            "zerowiz machine --save node.json",
            _("save it, to plan elsewhere with --machine node.json"),
        ),
    ),
    "measure": (
        (
            "zerowiz measure --model 10m --seq-len 64",
            _("train a model of this size for some steps"),
        ),
        ("zerowiz measure train.py", _("run the script for some steps")),
    ),
    "report": (("zerowiz report", _("compare the last launch in this folder with its plan")),),
    "check": (
        ("zerowiz check .", _("every config of this folder")),
        ("zerowiz check --fix ds_config.json", _("apply the safe fixes")),
        ("zerowiz check --script train.py ds_config.json", _("compare it with the script, too")),
    ),
    "doctor": (
        ("zerowiz doctor train.py", _("find what would make this job fail")),
        (
            "zerowiz doctor --stage zero3 --offload optimizer train.py",
            _("the same, with a strategy that you choose"),
        ),
    ),
}

# The option that says what a code of `check` or `doctor` means, and what to do about it.


def _show_explanation(code: str | None) -> None:
    if code is None:
        return
    from zerowiz.probe.package_data import (  # noqa: PLC0415 - most runs explain none
        ALL,
        read_explanation,
    )

    address = f"\n{page_of(code)}\n" if HAS_SITE and code.lower() != ALL else ""
    sys.stdout.write(f"{read_explanation(code)}{address}")
    raise typer.Exit


Explain = Annotated[
    str | None,
    typer.Option(
        "--explain",
        metavar="<code>",
        callback=_show_explanation,
        is_eager=True,
        help=_("Show an example of a code (ZW101, PF402, exit-4) and the way out; all lists them"),
    ),
]

# Write texts and lists of a help page; click counts letters, and some are two columns wide.

# Rule: what click and typer say of their own options.
_OF_TYPER = (
    N_("Show this message and exit."),
    N_("Install completion for the current shell."),
    N_("Show completion for the current shell, to copy it or customize the installation."),
)
# A longer name has its description below it.
_WIDEST_NAME_COLUMNS = 30


def write_text(formatter: Any, text: str) -> None:  # noqa: ANN401 - typer's own or click's, by typer's release
    """A paragraph."""
    if cells(text) == len(text):
        formatter.write_text(text)
        return
    indent = " " * formatter.current_indent
    formatter.write("\n".join(fill_wide(text, formatter.width, indent, indent)) + "\n")


def write_rows(formatter: Any, rows: Sequence[tuple[str, str]]) -> None:  # noqa: ANN401 - as above
    """Names, and what they mean in a column beside them."""
    if all(cells(text) == len(text) for row in rows for text in row):
        formatter.write_dl(rows)
        return
    indent = " " * formatter.current_indent
    room = min(_WIDEST_NAME_COLUMNS, max(cells(name) for name, _ in rows)) + 2
    hang = indent + " " * room
    for name, text in rows:
        lines = fill_wide(text, formatter.width, hang, hang)
        fits = cells(name) <= room - 2
        first = lines[0].removeprefix(hang) if lines else ""
        head = indent + (pad(name, room) + first if fits else name)
        formatter.write("\n".join([head.rstrip(), *lines[fits:]]) + "\n")


# What an option means to which command, and what it needs beside it.

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


def heeded_params(command: Any, name: str) -> list[Any]:  # noqa: ANN401 - typer's own or click's, by typer's release
    """The arguments and options of a command that its `--help` shows, but for `--help`."""
    unheeded = UNHEEDED.get(name, frozenset())
    return [param for param in command.params if param.name not in unheeded]


class Need(Struct, frozen=True, kw_only=True):
    """An option that means nothing without another."""

    option: str
    beside: str
    alone: tuple[str, ...] = ()
    """Only where these are said: without them another file may say what it needs."""


# Rule: of a model that stands alone there is no script.
_SCRIPT = tuple(
    Need(option=name, beside="script", alone=("model",)) for name in ("module", "config_via")
)
NEEDS: Mapping[str, tuple[Need, ...]] = {
    "plan": _SCRIPT,
    "measure": _SCRIPT,
    "launch": (Need(option="max_attempts", beside="escalate"),),
    "machine": (
        Need(option="force", beside="save"),
        Need(option="deadline", beside="hostfile"),
    ),
}


class Idle(Struct, frozen=True, kw_only=True):
    """An option that means nothing beside another."""

    option: str
    beside: str
    is_off: bool = False
    """Whether that is its negative form: `--no-supervise`."""


# What is shown of one plan and its run: a comparison of two plans shows none of it.
_OF_ONE_PLAN = (
    *("explain", "verbose", "limits", "html", "svg", "origins"),
    *("tokens", "sequences", "epochs", "price"),
)
# What describes the one run of the options: in a file, each case says it for itself.
_OF_ONE_RUN = ("loop", "cap_bytes", "steps", "timed_steps")
IDLE: Mapping[str, tuple[Idle, ...]] = {
    "plan": tuple(Idle(option=name, beside="compare") for name in _OF_ONE_PLAN),
    "launch": (Idle(option="grace_seconds", beside="supervise", is_off=True),),
    "machine": (Idle(option="disk", beside="spec"),),
    "measure": (
        Idle(option="case_deadline", beside="script"),
        *(Idle(option=name, beside="cases") for name in _OF_ONE_RUN),
    ),
}


# What stands after a script is its own, and `--compare` says what it lacks.
_MAY_BE_EMPTY = frozenset({"args", "compare"})


def refuse_empty(command: Any, context: Any, words: list[str]) -> None:  # noqa: ANN401 - as above
    """Refuse an option or an argument without a value, which as a path would be this folder.

    Args:
        command: The command.
        context: Of the command.
        words: After its name, as typed.

    Raises:
        UsageError: There is one.
    """
    if all(word.rpartition("=")[2] for word in words):
        return
    values = command.make_parser(context).parse_args(args=[*words])[0]
    for param in command.params:
        value = values.get(param.name)
        if param.name not in _MAY_BE_EMPTY and "" in _several(value):
            is_option = param.param_type_name == "option"
            shown = (param.metavar or param.name).rstrip(".").upper()
            name = f"`{_long(param)}`" if is_option else shown
            raise UsageError(
                _("{name} is empty", name=name),
                _("leave it out, or set the shell variable that it comes from"),
            )


def refuse_meaningless(command: Any, context: Any) -> None:  # noqa: ANN401 - typer's own or click's, by typer's release
    """Refuse an option on the command line that would change nothing.

    Raises:
        UsageError: There is one.
    """
    spelled = {param.name: param for param in command.params}
    for idle in IDLE.get(command.name, ()):
        value = context.params.get(idle.beside)
        is_beside = value is False if idle.is_off else bool(value)
        if not is_beside or not _is_typed(context, idle.option):
            continue
        option, other = _long(spelled[idle.option]), _spell(spelled[idle.beside], idle.is_off)
        raise UsageError(
            _("`{option}` has no effect with {other}", option=option, other=other),
            _("remove `{option}`", option=option),
        )
    for need in NEEDS.get(command.name, ()):
        names = (need.option, *need.alone)
        if not all(_is_typed(context, name) for name in names) or context.params.get(need.beside):
            continue
        option, other = _long(spelled[need.option]), _spell(spelled[need.beside])
        raise UsageError(
            _("`{option}` has no effect without {other}", option=option, other=other),
            _("add {other}, or remove `{option}`", other=other, option=option),
        )


def _several(value: object) -> tuple[object, ...] | list[object]:
    return value if isinstance(value, (tuple, list)) else (value,)


def _long(param: Any, is_off: bool = False) -> str:  # noqa: ANN401 - as above
    return str(max(param.secondary_opts if is_off else param.opts, key=len))


def _spell(param: Any, is_off: bool = False) -> str:  # noqa: ANN401 - as above
    return f"`{_long(param, is_off)}`" if param.param_type_name == "option" else "SCRIPT"


def _is_typed(context: Any, name: str) -> bool:  # noqa: ANN401 - as above
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


# Write the page of `--help`: the options that a command heeds, in the order of use.

# Rule: options stand in the order in which people come to need them.
_PANELS = (N_("Arguments"), N_("Options"), N_("Run"), *Panel, N_("Other"))
# typer's words for a range that any sensible number lies in.
_RANGE = re.compile(r"<(int|float) range>")
_DEFAULT = re.compile(r" \[default: ([^\]]*)\]")
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
        text = _(text)
        line = _tidy(spelling, text, default_of(param.name) if of_job else None)
        panels.setdefault(_heading(param, has_panels=has_panels), []).append(line)
    for panel in sorted(panels, key=_PANELS.index):
        with formatter.section(_(panel)):
            write_rows(formatter, panels[panel])


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


def _tidy(spelling: str, text: str, default: str | None) -> tuple[str, str]:
    """A line of the page: no bounds, and the default of a setting, where it has one."""
    told = (
        ""
        if default is None or "[default: " in text
        else _(" [default: {default}]", default=default)
    )
    text = _BOUNDS.sub(lambda match: "]" if match[1] == "; " else "", text)
    text = _DEFAULT.sub(lambda match: _(" [default: {default}]", default=match[1]), text.strip())
    return _RANGE.sub(r"<\1>", spelling), f"{text}{told}"


def default_of(name: str) -> str | None:
    """What a setting is by default, in words; None where it has no default at all.

    Example:
        >>> default_of("micro_batch")
        "your script's, else 1"
    """
    row = rows().get(name) or getattr(settings, name.upper(), None)
    if not isinstance(row, SettingRow) or row.default is not None:
        return row.default if isinstance(row, SettingRow) else None
    if name not in SETTINGS:
        return None
    step = Workload()
    value = step.lora_targets if name == "lora_target_modules" else getattr(step, name)
    told = {True: _("on"), False: _("off")}[value] if isinstance(value, bool) else str(value)
    return _("your script's, else {told}", told=told) if name in _read_from_scripts() else told


def _read_from_scripts() -> frozenset[str]:
    """The settings that a script can show."""
    from zerowiz.core.script.settings import ScriptSettings  # noqa: PLC0415 - most runs write no page

    return frozenset(ScriptSettings.__struct_fields__)
