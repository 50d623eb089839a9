"""Read the style and the script of the page that `plan --html` writes."""

from pathlib import Path

from msgspec import Struct

_DATA = Path(__file__).parents[1] / "data"


class PageFiles(Struct, frozen=True, kw_only=True):
    """What stands inside the page, so that it opens without a network."""

    style: str
    script: str


def read_page_files() -> PageFiles:
    """`page.css` and `page.js` of `zerowiz/data`."""
    return PageFiles(
        style=(_DATA / "page.css").read_text(encoding="utf-8"),
        script=(_DATA / "page.js").read_text(encoding="utf-8"),
    )
