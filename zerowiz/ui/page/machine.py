"""Write a machine: its GPUs, and the matrix of the links between them."""

from collections.abc import Mapping

from zerowiz.core.machine.links import UNKNOWN_WORD, PairLink
from zerowiz.core.machine.types import Machine
from zerowiz.ui.page.blocks import table
from zerowiz.ui.sentences import machines
from zerowiz.ui.text.plain import escape
from zerowiz.ui.text.units import gib, gpus, on_device
from zerowiz.words import N_, _


def summary(machine: Machine) -> str:
    """Its devices and links in one sentence."""
    return f"{gpus(machine)} ({machines.source(machine)}); {machines.links(machine)}"


def devices(machine: Machine) -> str:
    """A row for each."""
    rows = "".join(
        f'<tr><th scope="row">{escape(each.label)}</th><td class="words">{escape(each.name)}</td>'
        f"<td>{gib(each.total_bytes)}</td><td>{gib(each.free_bytes)}</td></tr>"
        for each in machine.gpus
    )
    title = on_device("GPU", machine)
    return table(
        on_device(_("The GPUs of a node"), machine), (title, "name", N_("memory"), "free"), rows
    )


def links(machine: Machine) -> str:
    """Each pair, in the words of `nvidia-smi topo -m`; empty where pairs are not known."""
    if not machine.links:
        return ""
    by_pair = {link.pair: link for link in machine.links}
    names = {gpu.index: _("GPU {index}", index=gpu.index) for gpu in machine.gpus}
    rows = "".join(
        f'<tr><th scope="row">{name}</th>'
        + "".join(_pair(by_pair, row, column) for column in names)
        + "</tr>"
        for row, name in names.items()
    )
    return table(_LINKS, (N_("pair"), *names.values()), rows)


_LINKS = _(
    "Each pair of GPUs: NV is NVLink, and how many; the others are paths over PCIe, as nvidia-smi"
    " names them"
)


def _pair(by_pair: Mapping[tuple[int, int], PairLink], row: int, column: int) -> str:
    if row == column:
        return f'<td class="dim">{_("itself")}</td>'
    low, high = sorted((row, column))
    link = by_pair.get((low, high))
    word = UNKNOWN_WORD if link is None else link.word
    kind = "fast" if link is not None and link.nvlinks else "slow"
    return f'<td class="{kind}">{escape(word)}</td>'
