"""Draw the links between the GPUs of a machine: the matrix of `nvidia-smi topo -m`.

Example:
          GPU0  GPU1  GPU2
    GPU0     X   NV4   SYS
    GPU1   NV4     X   SYS
    GPU2   SYS   SYS     X
    NV4: 4 NVLinks; SYS: PCIe, between NUMA nodes
"""

from collections.abc import Iterator, Mapping, Sequence

from zerowiz.core.machine.links import UNKNOWN_WORD, PairLink, PciePath
from zerowiz.core.machine.types import Machine
from zerowiz.ui.text.colours import Colour
from zerowiz.ui.text.lines import Line, Picture
from zerowiz.words import _

_PATHS: Mapping[PciePath, str] = {
    PciePath.SAME_BOARD: _("PCIe, one board"),
    PciePath.PIX: _("PCIe, one switch"),
    PciePath.PXB: _("PCIe, several switches"),
    PciePath.PHB: _("PCIe, through the CPU"),
    PciePath.NODE: _("PCIe, through host bridges of one NUMA node"),
    PciePath.SYS: _("PCIe, between NUMA nodes"),
}
_MEANINGS: Mapping[str, str] = {
    **{path.value: words for path, words in _PATHS.items()},
    UNKNOWN_WORD: _("unknown"),
}


def links(machine: Machine, columns: int) -> Picture:
    """Every pair; where the terminal is too narrow, one part of the columns below the other."""
    indices = list(dict.fromkeys(gpu.index for gpu in machine.gpus))
    by_pair = {link.pair: link for link in machine.links}
    names = {index: f"GPU{index}" for index in indices}
    label = max(map(len, names.values()))
    width = max(label, *(len(link.word) for link in machine.links))
    gap = 2 if label + len(indices) * (width + 2) <= columns else 1
    at_once = max(1, (columns - label) // (width + gap))
    lines: list[Line] = []
    for start in range(0, len(indices), at_once):
        shown = indices[start : start + at_once]
        heading = "".join(f"{names[each]:>{width + gap}}" for each in shown)
        lines.append(((f"{'':{label}}{heading}", Colour.LABEL),))
        for row in indices:
            cells = (_cell(by_pair, row, column, width + gap) for column in shown)
            lines.append(((f"{names[row]:{label}}", Colour.LABEL), *cells))
    return (*lines, *_meanings(machine.links, columns))


def _cell(
    by_pair: Mapping[tuple[int, int], PairLink], row: int, column: int, width: int
) -> tuple[str, Colour | None]:
    if row == column:
        return f"{'X':>{width}}", Colour.DIM
    low, high = sorted((row, column))
    link = by_pair.get((low, high))
    if link is None:
        return f"{UNKNOWN_WORD:>{width}}", None
    return f"{link.word:>{width}}", Colour.GOOD if link.nvlinks else Colour.DOUBT


def _meanings(found: Sequence[PairLink], columns: int) -> Iterator[Line]:
    """What the words mean that stand in the matrix, in as many lines as it takes."""
    words = sorted({link.word: link.nvlinks for link in found}.items())
    line = ""
    for word, count in words:
        plural = "NVLink" if count == 1 else "NVLinks"
        meaning = f"{word}: {f'{count} {plural}' if count else _MEANINGS[word]}"
        if line and len(line) + len("; ") + len(meaning) > columns:
            yield ((f"{line};", Colour.DIM),)
            line = ""
        line = f"{line}; {meaning}" if line else meaning
    yield ((line, Colour.DIM),)
