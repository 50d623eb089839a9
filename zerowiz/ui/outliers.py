"""Say in what the nodes of a fleet differ."""

from collections.abc import Iterator, Mapping

from zerowiz.core.machine.links import Interconnect
from zerowiz.core.machine.merge import Fleet
from zerowiz.core.machine.network import Network
from zerowiz.core.machine.outliers import Outlier, OutlierKind, OutlierValue
from zerowiz.ui import sentences
from zerowiz.ui.text.units import gib

_SENTENCES: Mapping[OutlierKind, str] = {
    OutlierKind.FEWER_GPUS: "has fewer GPUs",
    OutlierKind.FEWER_THAN_SLOTS: "has fewer GPUs than its slots",
    OutlierKind.GPU_MODEL: "has a different GPU model",
    OutlierKind.BUSY_GPU: "is busy, with little memory free",
    OutlierKind.DRIVER: "has a different driver",
    OutlierKind.SLOWER_LINK: "has a slower link",
    OutlierKind.SLOWER_NETWORK: "has a slower network",
    OutlierKind.LESS_HOST_MEMORY: "has less host memory available",
}

_IN_BYTES = frozenset({OutlierKind.BUSY_GPU, OutlierKind.LESS_HOST_MEMORY})


def outlier(value: Outlier) -> str:
    """In what a node is the odd one out."""
    where = f"node `{value.host}`" + (f", GPU {value.gpu}," if value.gpu else "")
    own, usual = (_show(value.kind, each) for each in (value.value, value.usual))
    if value.kind is OutlierKind.FEWER_THAN_SLOTS:
        return f"{where} {_SENTENCES[value.kind]}: {own} of {usual}"
    return f"{where} {_SENTENCES[value.kind]}: {own}; most have {usual}"


def notes(fleet: Fleet) -> Iterator[str]:
    """In what its nodes differ, and what each of them noted."""
    yield from map(outlier, fleet.outliers)
    for note in fleet.notes:
        yield f"node `{note.host}`: {note.note}"


def _show(kind: OutlierKind, value: OutlierValue) -> str:
    match value:
        case int():
            return gib(value) if kind in _IN_BYTES else str(value)
        case str():
            return value
        case Interconnect():
            return sentences.link(value)
        case Network():
            return sentences.network(value)
