"""Read what the page of errors says of a code."""

import difflib
import re
from importlib.resources import files

from zerowiz.errors import UsageError, did_you_mean
from zerowiz.words import _

ALL = "all"
"""In the place of a code: every code."""

# A line of the page's tables: a code, its name, its severity and what it is about.
_ROW = re.compile(r"^\| \[([A-Z]{2}\d+)\]\(#\w+\) \| `(.+?)` \| (\w+) \| (.*) \|$", re.MULTILINE)


def read_explanation(code: str) -> str:
    """The section of the page about a code of `check` or `doctor`, in Markdown.

    Args:
        code: As it stands in a finding, in any case. `all` lists every code, one on a line.

    Raises:
        UsageError: There is no such code.

    Example:
        >>> read_explanation("zw101").splitlines()[0]
        'ZW101'
    """
    page = _read_page()
    if code.lower() == ALL:
        rows = _ROW.findall(page)
        return "".join(
            f"{each} {name} ({severity}): {about}\n" for each, name, severity, about in rows
        )
    codes = re.findall(r"^### ([A-Z]{2}\d+)$", page, re.MULTILINE)
    wanted = code.upper()
    if wanted not in codes:
        near = difflib.get_close_matches(wanted, codes, n=3)
        raise UsageError(
            _("there is no code `{code}`", code=code),
            *did_you_mean(near),
            _("to list all codes: `zerowiz check --explain all`"),
        )
    section = page.partition(f"\n### {wanted}\n")[2]
    text = re.split(r"^#+ |^<!-- ", section, maxsplit=1, flags=re.MULTILINE)[0]
    return f"{wanted}\n\n{text.strip()}\n"


def _read_page() -> str:
    """Of the installed package, or beside it in a checkout."""
    package = files("zerowiz")
    inside = package.joinpath("data", "errors.md")
    page = inside if inside.is_file() else package.joinpath("..", "docs", "reference", "errors.md")
    return page.read_text(encoding="utf-8")
