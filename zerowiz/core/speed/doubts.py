"""How far a predicted time may be off, by what the job is."""

from zerowiz.core.machine.types import Machine
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.strategy import Part

# The GPUs of tests/measured.
_MEASURED_GPUS = frozenset({"NVIDIA H200", "NVIDIA H100 80GB HBM3"})

_PLAIN = 0.30
_STAGE_3 = 0.20
_OFFLOADED = 0.40
_NEW_GPU = 0.30
_UNKNOWN_LINK = 0.50
_NODES = 0.30
_STRANGE_MODEL = 0.20
_TIGHT = 0.30
_CALIBRATED = 0.5


def doubt_fraction(
    model: Model, r: RankSizes, machine: Machine, *, calibrated: bool, tight: bool
) -> float:
    """By which factor, beyond 1, a step may be longer or shorter; each doubt adds to it."""
    link_known = len(machine.gpus) == 1 or machine.interconnect.bytes_per_s is not None
    doubts = (
        (_PLAIN, True),
        (_STAGE_3, Part.PARAMETERS in r.strategy.sharded),
        (_OFFLOADED, r.offloaded),
        (_NEW_GPU, machine.gpus[0].name not in _MEASURED_GPUS),
        (_UNKNOWN_LINK, not link_known),
        (_NODES, machine.nodes > 1),
        (_STRANGE_MODEL, model.source in {ModelSource.SIZE, ModelSource.GUESS, ModelSource.TRACE}),
    )
    total = sum(fraction for fraction, holds in doubts if holds)
    total = total * _CALIBRATED if calibrated else total
    return total + (_TIGHT if tight else 0.0)
