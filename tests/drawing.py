"""Draw what a terminal shows as SVG, which loads nothing: no font, no script, no address."""

import html
from io import StringIO

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

# As the light page has them (`ui/page.py`), in the order of a terminal's colours.
_COLOURS = (
    (0x1A, 0x1D, 0x21),
    (0xB3, 0x26, 0x1E),
    (0x17, 0x69, 0x3B),
    (0x7A, 0x52, 0x00),
    (0x0B, 0x5C, 0xAD),
    (0x8F, 0x2A, 0x84),
    (0x0B, 0x6B, 0x75),
    (0x56, 0x5D, 0x66),
)
_PAPER, _INK = (0xFF, 0xFF, 0xFF), (0x1A, 0x1D, 0x21)

# rich's own (`rich._export_format`) links a font and draws a window around the text.
_TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {terminal_width} {terminal_height}" role="img">
<title>TITLE</title>
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, \
monospace; line-height: {line_height}px }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">\
<rect width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
<rect width="100%" height="100%" fill="#ffffff"/>
<g transform="translate(8 8)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def as_svg(title: str, written: str, columns: int) -> str:
    """What was written to a terminal, drawn.

    Args:
        title: What it is, for those who do not see it.
        written: With its colours.
        columns: How wide the terminal is.
    """
    # Two columns more, so that the frame cuts nothing.
    console = Console(record=True, width=columns + 2, file=StringIO(), highlight=False)
    console.print(Text.from_ansi(written), soft_wrap=True)
    theme = TerminalTheme(_PAPER, _INK, list(_COLOURS), list(_COLOURS))
    svg = console.export_svg(theme=theme, code_format=_TEMPLATE, unique_id="plan")
    lines = "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
    return lines.replace("TITLE", html.escape(title), 1)
