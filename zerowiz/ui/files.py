"""Show what would be lost in a file, and what changed since it was written."""

from collections.abc import Sequence
from typing import TextIO

from zerowiz.core.launch.provenance import MachineChange, difference
from zerowiz.core.machine.types import Machine
from zerowiz.errors import HandEditedError, LostEdit
from zerowiz.translation import N_, _, listing
from zerowiz.ui import text
from zerowiz.ui.assumptions import global_batch
from zerowiz.ui.text import on_device, say

# What one looks through at a terminal; a config takes some 40 lines.
_MOST_LINES = 60
# One line may be a whole config without line ends.
_MOST_COLUMNS = 200

# As `diff --color` and git have it, by a line's first letters; the first that fits.
_STYLES = (("---", "bold"), ("+++", "bold"), ("@@", "magenta"), ("-", "red"), ("+", "green"))


def error(refusal: HandEditedError, stream: TextIO) -> None:
    """What went wrong, what would be lost, what to do next."""
    text.error(refusal.message, (), stream)
    losses(refusal.losses, stream)
    text.what_next(refusal.hints, stream)


def losses(edits: Sequence[LostEdit], stream: TextIO) -> None:
    """What would be lost, file by file, each after an empty line."""
    for loss in edits:
        stream.write("\n")
        lines = difference(loss.path, loss.there, loss.wanted, loss.new_path)
        if isinstance(lines, str):
            say(stream, f"{loss.path}: {_(lines)}", hang=2)
            continue
        _print([_cut(line) for line in lines[:_MOST_LINES]], stream)
        if len(lines) > _MOST_LINES:
            more = len(lines) - _MOST_LINES
            say(
                stream,
                _("... 1 more line of this diff")
                if more == 1
                else _("... {lines} more lines of this diff", lines=more),
            )


def _cut(line: str) -> str:
    more = len(line) - _MOST_COLUMNS
    return (
        line
        if more <= 0
        else _("{line} ... {more} more characters", line=line[:_MOST_COLUMNS], more=more)
    )


def _print(lines: Sequence[str], stream: TextIO) -> None:
    """In colours at a terminal alone; lines are folded by the terminal, so they can be copied."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    for line in lines:
        style = next((style for start, style in _STYLES if line.startswith(start)), "")
        console.print(Text(line, style=style), soft_wrap=True)


# Say that a machine is not what it was when a job was planned, and what follows.

_FACTS = {
    "nodes": N_("{before} -> {now} nodes"),
    "gpus_per_node": N_("{before} -> {now} GPUs per node"),
    "gpu_names": "{before} -> {now}",
}


def machine_change(change: MachineChange, machine: Machine) -> str:
    """All of it in one line: what has changed, then the batch and how to keep it.

    Args:
        change: What has changed.
        machine: That of today.
    """
    facts = (_(_FACTS[fact.fact], before=fact.before, now=fact.now) for fact in change.facts)
    changed = _(
        "the machine has changed since `{path}`: {facts}",
        path=change.plan_path,
        facts=listing(on_device(fact, machine) for fact in facts),
    )
    batch = change.global_batch
    return changed if batch is None else f"{changed}; {global_batch(batch)}"
