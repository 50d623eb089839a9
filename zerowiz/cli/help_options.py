"""The options on a help page, under headings in the order of use."""

import re
from typing import Any

from zerowiz.cli.help_page import UNHEEDED
from zerowiz.core.settings import OTHER_SETTINGS, Panel
from zerowiz.core.workload import SETTINGS, Workload

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
