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
# The comments of cog around what it generates, which nobody reads at a terminal.
_MARKS = re.compile(r"^<!-- \[\[\[(?s:.*?)\]\]\] -->\n?", re.MULTILINE)


def read_explanation(code: str) -> str:
    """The section of the page about a code of `check` or `doctor`, or an exit code, in Markdown.

    Args:
        code: As it stands in a finding, in any case; `exit-4` for an exit code. `all` lists every
            code of findings, one on a line.

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
    titles = re.findall(r"^### ([A-Z]{2}\d+|Exit \d+)$", page, re.MULTILINE)
    codes = {title.replace("Exit ", "exit-"): title for title in titles}
    spelled = {each.lower(): each for each in codes}
    wanted = code.lower()
    if wanted not in spelled:
        near = difflib.get_close_matches(wanted, spelled, n=3)
        raise UsageError(
            _("there is no code `{code}`", code=code),
            *did_you_mean(spelled[each] for each in near),
            _("to list all codes: `zerowiz check --explain all`"),
        )
    title = codes[spelled[wanted]]
    section = page.partition(f"\n### {title}\n")[2]
    text = re.split(r"^#+ ", section, maxsplit=1, flags=re.MULTILINE)[0]
    return f"{title}\n\n{_MARKS.sub('', text).strip()}\n"


def _read_page() -> str:
    """Of the installed package, or beside it in a checkout."""
    package = files("zerowiz")
    inside = package.joinpath("data", "errors.md")
    page = inside if inside.is_file() else package.joinpath("..", "docs", "reference", "errors.md")
    return page.read_text(encoding="utf-8")
