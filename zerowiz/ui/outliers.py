"""Say in what the nodes of a fleet differ."""

from collections.abc import Iterator, Mapping

from zerowiz.core.machine.links import Interconnect
from zerowiz.core.machine.merge import Fleet
from zerowiz.core.machine.network import Network
from zerowiz.core.machine.outliers import Outlier, OutlierKind, OutlierValue
from zerowiz.ui.sentences import machines
from zerowiz.ui.text.units import gib
from zerowiz.words import _

_SENTENCES: Mapping[OutlierKind, str] = {
    OutlierKind.FEWER_GPUS: _("has fewer GPUs"),
    OutlierKind.FEWER_THAN_SLOTS: _("has fewer GPUs than its slots"),
    OutlierKind.GPU_MODEL: _("has a different GPU model"),
    OutlierKind.BUSY_GPU: _("is busy, with little memory free"),
    OutlierKind.DRIVER: _("has a different driver"),
    OutlierKind.SLOWER_LINK: _("has a slower link"),
    OutlierKind.SLOWER_NETWORK: _("has a slower network"),
    OutlierKind.LESS_HOST_MEMORY: _("has less host memory available"),
}

_IN_BYTES = frozenset({OutlierKind.BUSY_GPU, OutlierKind.LESS_HOST_MEMORY})


def outlier(value: Outlier) -> str:
    """In what a node is the odd one out."""
    where = _("node `{host}`", host=value.host) + (
        _(", GPU {gpu},", gpu=value.gpu) if value.gpu else ""
    )
    own, usual = (_show(value.kind, each) for each in (value.value, value.usual))
    if value.kind is OutlierKind.FEWER_THAN_SLOTS:
        return _(
            "{where} {what}: {own} of {usual}",
            where=where,
            what=_SENTENCES[value.kind],
            own=own,
            usual=usual,
        )
    return _(
        "{where} {what}: {own}; most have {usual}",
        where=where,
        what=_SENTENCES[value.kind],
        own=own,
        usual=usual,
    )


def notes(fleet: Fleet) -> Iterator[str]:
    """In what its nodes differ, and what each of them noted."""
    yield from map(outlier, fleet.outliers)
    for note in fleet.notes:
        yield _("node `{host}`: {note}", host=note.host, note=note.note)


def _show(kind: OutlierKind, value: OutlierValue) -> str:
    match value:
        case int():
            return gib(value) if kind in _IN_BYTES else str(value)
        case str():
            return value
        case Interconnect():
            return machines.link(value)
        case Network():
            return machines.network(value)
