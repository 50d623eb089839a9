"""Compile the catalogs of `zerowiz/data/locale`: gettext reads the binary form."""

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


class CompileCatalogs(BuildHookInterface):
    """Run by `pip install`, `pip install -e` and a build of the wheel."""

    def initialize(self, version: str, build_data: dict[str, object]) -> None:  # noqa: ARG002 - hatchling hands them over
        """Compile all of them."""
        for path in sorted(Path(self.root, "zerowiz", "data", "locale").rglob("*.po")):
            compile_catalog(path)
