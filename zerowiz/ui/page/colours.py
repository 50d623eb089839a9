"""The colours of a page: one table for its style, its shapes, and the test of their contrast."""

from collections.abc import Mapping

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.memory.ledger import MemoryPart
from zerowiz.ui.pictures.flowchart import ANSWER_COLOURS, VERDICT_COLOURS
from zerowiz.ui.text.colours import Colour

LIGHT: Mapping[str, str] = {
    "page": "#ffffff",
    "card": "#f5f7f9",
    "text": "#1a1d21",
    "dim": "#565d66",
    "line": "#c9ced6",
    "link": "#0b5cad",
    "good": "#17693b",
    "doubt": "#8f2a84",
    "bad": "#b3261e",
}
DARK: Mapping[str, str] = {
    "page": "#14181d",
    "card": "#1d232a",
    "text": "#e6e9ee",
    "dim": "#a3abb6",
    "line": "#434b56",
    "link": "#7fb8ff",
    "good": "#6fd08c",
    "doubt": "#e79be0",
    "bad": "#ff8d85",
}

PARTS: Mapping[MemoryPart, str] = {
    MemoryPart.WEIGHTS: "#4c86d8",
    MemoryPart.GRADIENTS: "#1f9aa8",
    MemoryPart.OPTIMIZER: "#b06fd0",
    MemoryPart.ACTIVATIONS: "#3d9a4a",
    MemoryPart.LOGITS: "#c07c1a",
    MemoryPart.BUFFERS: "#858b94",
    MemoryPart.CONTEXT: "#a27b5c",
    MemoryPart.VLLM: "#dd5f5f",
}
"""Seen on a light and on a dark page; a black letter in each can be read."""

_CLASSES: Mapping[Colour, str] = {
    Colour.GOOD: "good",
    Colour.DOUBT: "doubt",
    Colour.BAD: "bad",
}
VERDICTS: Mapping[Verdict, str] = {
    verdict: _CLASSES[colour] for verdict, colour in VERDICT_COLOURS.items()
}
ANSWERS: Mapping[str, str] = {answer: _CLASSES[colour] for answer, colour in ANSWER_COLOURS.items()}


def style_rules() -> str:
    """The colours as CSS variables: by the system's theme, by the page's own, and on paper."""
    light, dark = _variables(LIGHT), _variables(DARK)
    parts = "".join(
        f".{part.name.lower()}{{fill:{colour};background:{colour}}}"
        for part, colour in PARTS.items()
    )
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}"
        f":root[data-theme=light]{{color-scheme:light;{light}}}"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}"
        f"@media print{{:root,:root[data-theme]{{color-scheme:light;{light}}}}}"
        f"{parts}"
    )


def _variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())
