"""The picture of the wizard in the README: its last screen, at a real pseudo-terminal."""

import re
from pathlib import Path
from typing import TextIO

import pyte
import pytest
from cli.harness import CTRL_C, ENTER, Terminal
from paths import ROOT

from zerowiz.ui.page import as_svg

PICTURE = ROOT / "docs" / "pictures" / "wizard.svg"
SCRIPT = """\
from transformers import Trainer, TrainingArguments

args = TrainingArguments("out", per_device_train_batch_size=1, bf16=True, gradient_checkpointing=True)
Trainer(model=None, args=args).train()
"""
COLUMNS = 92
# The numbers of SGR for the colours that pyte names.
_NAMES = ("black", "red", "green", "brown", "blue", "magenta", "cyan", "white")
_COLOURS = {
    **{name: str(30 + number) for number, name in enumerate(_NAMES)},
    **{f"bright{name}": str(90 + number) for number, name in enumerate(_NAMES)},
}


def as_written(cell: pyte.screens.Char) -> str:
    """A character with the colours that it has on the screen."""
    codes = [code for on, code in ((cell.bold, "1"), (cell.reverse, "7")) if on]
    codes += [_COLOURS[cell.fg]] if cell.fg in _COLOURS else []
    return f"\x1b[{';'.join(codes)}m{cell.data}\x1b[0m" if codes else cell.data


def with_pinned_versions(screen: str) -> str:
    """The screen with the libraries of `constraints.txt`, whichever are installed here."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    for name, version in re.findall(r"^(torch|deepspeed|transformers)==(\S+)$", pins, re.MULTILINE):
        screen = re.sub(rf"\b{name} \d[^\s,]*", f"{name} {version}", screen)
    return screen


def screen_of(person: Terminal) -> str:
    """The screen as a terminal was told to draw it."""
    rows = (
        "".join(as_written(person.screen.buffer[y][x]) for x in range(person.screen.columns))
        for y in range(len(person.text.splitlines()))
    )
    return "\n".join(row.rstrip() for row in rows)


def test_the_picture_of_the_wizard_is_current(folder: Path, request: pytest.FixtureRequest) -> None:
    (folder / "train.py").write_text(SCRIPT)
    person = Terminal(folder, ("init", "--machine", "4xA100-40GB-SXM"), {}, columns=COLUMNS)
    person.reply("Which model?", "7b" + ENTER)
    person.reply("How many tokens per sequence?", ENTER)
    person.wait_for("Write the files?")
    person.settle()
    screen = f"$ zerowiz init --machine 4xA100-40GB-SXM\n{with_pinned_versions(screen_of(person))}"
    person.reply("Write the files?", CTRL_C)
    person.end()

    def draw(stream: TextIO) -> None:
        stream.write(screen + "\n")

    made = as_svg("zerowiz init: the wizard with its flowchart", draw, COLUMNS)
    if request.config.getoption("--update-golden"):
        PICTURE.write_text(made, encoding="utf-8")
    assert PICTURE.read_text(encoding="utf-8") == made, "`make golden` draws it again"
