"""The page of command help is what each `--help` prints."""

import pytest
from cli.harness import COLUMNS, Run
from page_tables import Block
from paths import ROOT

from zerowiz.cli import COMMANDS

PAGE = ROOT / "docs" / "reference" / "commands.md"


def test_the_help_of_each_command_stands_on_the_page(
    here: Run, golden_block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    parts = [f"```text\n{here('--help').stdout.rstrip()}\n```\n"]
    for name in COMMANDS:
        shown = here(name, "--help").stdout.rstrip()
        parts.append(f"## {name}\n\n```text\n{shown}\n```\n")
    golden_block(PAGE, "help", "\n".join(parts))
