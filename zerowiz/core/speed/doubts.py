"""How far a predicted time may be off, by what the job is."""

from collections.abc import Sequence

from zerowiz.core.machine.types import Machine
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.speed.links import is_assumed
from zerowiz.core.speed.rates import GpuRates
from zerowiz.core.speed.terms import Term, TermKind
from zerowiz.core.workload.choices import Method

# The GPUs of tests/measured.
_MEASURED_GPUS = frozenset({"NVIDIA H200", "NVIDIA H100 80GB HBM3"})
_SEEN_GPUS = 4
"""Of one host, at most, in tests/measured."""

# Fractions, each added to the others. Nine in ten of the free-running steps are within 21 %, fitted
# and set aside (tests/speed/fit.py --free-running); the same setting measured twice differs by up
# to 45 %. Published times of A100s and A800s (tests/speed/public.py) are mostly within 27 % where
# the GPU computes, off by a half where the host launches, as hosts differ, and more than twice as
# long where its cores step.
_PLAIN = 0.25
_STAGE_3 = 0.10
_OFFLOADED = 0.30
_UNKNOWN_CORES = 0.40
"""Beyond it, where nobody knows how many cores step."""
_ADAPTERS = 0.15
_NEW_GPU = 0.15
_LAUNCHED = 0.40
"""Of the share of a step in which the GPU waits for Python, where nobody timed the host."""
_UNKNOWN_LINK = 0.50
_MANY_GPUS = 0.15
_NODES = 0.30
_STRANGE_MODEL = 0.15
_AUTOCAST = 0.30
"""Its casts are counted by no part: a third too little in the two fitted steps that have it."""
_TIGHT = 0.30
# What is left of the doubts once steps of this machine were measured.
_CALIBRATED = 0.5

_BY_HOST = frozenset({TermKind.HOST, TermKind.HOOKS})


def _launched_share(terms: Sequence[Term]) -> float:
    waited = sum(term.exposed_seconds for term in terms if term.kind in _BY_HOST)
    return waited / sum(term.exposed_seconds for term in terms)


def doubt_fraction(
    model: Model,
    r: RankSizes,
    machine: Machine,
    rates: GpuRates,
    terms: Sequence[Term],
    *,
    calibrated: bool,
    near_limit: bool,
) -> float:
    """By which fraction a step may be longer, and as many times shorter; each doubt adds to it."""
    guessed = model.source in {ModelSource.SIZE, ModelSource.GUESS, ModelSource.TRACE}
    doubts = (
        (_PLAIN, True),
        (_STAGE_3, r.strategy.shards_weights),
        (_OFFLOADED, r.offloaded),
        (_ADAPTERS, r.workload.method is not Method.FULL),
        (_NEW_GPU, machine.gpus[0].name not in _MEASURED_GPUS),
        (_UNKNOWN_CORES, r.offloaded and machine.host.cores is None),
        (_LAUNCHED * _launched_share(terms), machine.host.python_call_seconds is None),
        (_UNKNOWN_LINK, is_assumed(machine, rates)),
        (_MANY_GPUS, machine.world_size > _SEEN_GPUS),
        (_NODES, machine.nodes > 1),
        (_STRANGE_MODEL, guessed),
        (_AUTOCAST, r.workload.torch_autocast is not None),
    )
    total = sum(fraction for fraction, holds in doubts if holds)
    # A flush comes or does not, whatever was measured with more room.
    return total * (_CALIBRATED if calibrated else 1) + (_TIGHT if near_limit else 0)
