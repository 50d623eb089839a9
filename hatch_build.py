"""Compile the catalogs of `zerowiz/data/locale`, which gettext reads, and the man page."""

import re
from datetime import UTC, datetime
from pathlib import Path

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def compile_catalog(path: Path) -> None:
    """Write the binary form of a catalog beside it."""
    with path.open("rb") as file:
        catalog = read_po(file)
    # The same catalog gives the same bytes.
    catalog.creation_date = datetime(2026, 1, 1, tzinfo=UTC)
    with path.with_suffix(".mo").open("wb") as file:
        write_mo(file, catalog)


def write_man_page(help_pages: str) -> str:
    """The man page, of the page that has every command's `--help`."""
    about = "from a training script, a model and GPUs to a running DeepSpeed job"
    lines = ['.TH ZEROWIZ 1 "" zerowiz', ".SH NAME", rf"zerowiz \- {about}", ".SH SYNOPSIS"]
    lines += ["zerowiz COMMAND [OPTIONS] [SCRIPT] [ARGS]..."]
    shape = r"(?:^## (\S+)\n\n)?^```text\n(.*?)^```"
    parts = re.findall(shape, help_pages, re.MULTILINE | re.DOTALL)
    for name, text in parts:
        verbatim = text.rstrip().replace("\\", r"\e").replace("-", r"\-")
        # A line that begins with a dot or a quote is a request of roff.
        verbatim = re.sub(r"^([.'])", r"\\&\1", verbatim, flags=re.MULTILINE)
        lines += [f".SH {name.upper() or 'COMMANDS'}", ".nf", verbatim, ".fi"]
    return "\n".join([*lines, ""])


class BuiltFiles(BuildHookInterface):
    """Run by `pip install`, `pip install -e` and a build of the wheel."""

    def initialize(self, version: str, build_data: dict[str, object]) -> None:  # noqa: ARG002 - hatchling hands them over
        """Compile the catalogs, and write the man page."""
        pages = Path(self.root, "docs", "reference", "commands.md").read_text(encoding="utf-8")
        Path(self.root, "docs", "zerowiz.1").write_text(write_man_page(pages), encoding="utf-8")
        for path in sorted(Path(self.root, "zerowiz", "data", "locale").rglob("*.po")):
            compile_catalog(path)
