"""Predict, allocation by allocation, what one rank holds under a strategy."""

from collections.abc import Collection, Mapping

from msgspec import Struct

from zerowiz.core.machine.types import Accelerator
from zerowiz.core.memory.cuts import find_emptiest, find_fullest
from zerowiz.core.memory.ledger import (
    Allocation,
    AllocationKind,
    MemoryKind,
    Moment,
    Moments,
    Phase,
    moment_bytes,
)
from zerowiz.core.memory.rank_sizes import RankSizes, StrategyRow
from zerowiz.core.memory.trainers import (
    GROWS_WITH_EVALUATION,
    as_it_runs,
    host_allocations,
    with_evaluation,
    with_frozen_models,
    with_generation,
)
from zerowiz.core.model.types import Model
from zerowiz.core.values import replace, shows
from zerowiz.core.workload.choices import FP32_BYTES

# torch/aten/src/ATen/cuda/CUDABlas.cpp: 32 MiB per handle on sm_90; the forward and the backward
# thread hold one each. 67 MB in every run of tests/measured/h200.jsonl.
_CUBLAS = Allocation(AllocationKind.CUBLAS_WORKSPACES, 64 * 2**20, "2 x 32 MiB")
# In the first iteration backward opens with the loss, and its thread has multiplied nothing yet.
_SINGLE = Allocation(AllocationKind.CUBLAS_WORKSPACE, 32 * 2**20, "32 MiB")
_BEFORE_BACKWARD = {(Phase.FORWARD, 0), (Phase.BACKWARD, 0)}
_WITH_MATMULS = (Phase.GENERATE, Phase.FORWARD, Phase.BACKWARD, Phase.STEP, Phase.EVALUATE)
# Of some trainers, and of runs that evaluate.
_OF_SOME = frozenset({Phase.GENERATE, Phase.EVALUATE})


@shows("strategy.name", "peak_bytes", "peak_phase")
class Estimate(Struct, frozen=True, kw_only=True):
    """What one rank holds under a strategy.

    The peak is that of the steady state: no run of tests/measured had a larger first iteration.
    """

    model: Model
    rank: RankSizes
    """What it was predicted from."""
    accelerator: Accelerator = Accelerator.CUDA
    moments: Moments
    """On the GPU, once every optimizer state exists: all that compete for the peak of a phase."""
    host: Moments
    """In host memory, beyond the interpreter."""
    flattens_on_host: bool = False
    """Whether ZeRO-1 or ZeRO-2 makes its flat copy of the weights there, not on the GPU."""

    @property
    def flattening_bytes(self) -> int:
        """What the GPU holds while ZeRO-1 or ZeRO-2 makes its flat copy there; 0 without one."""
        copying = filter(_flattens, self.moments.get(Phase.INIT, ()))
        return max(map(moment_bytes, copying), default=0)

    @property
    def flattened_on_host(self) -> "Estimate":
        """The same where the GPU has no room for the flat copy that ZeRO-1 and ZeRO-2 make at init.

        DeepSpeed 0.19.8, stage_1_and_2.py, __init__: what NVML shows as free has to hold the copy;
        where it does not, the weights are flattened on the host and come back flat.
        """
        init = self.moments.get(Phase.INIT, ())
        without = tuple(moment for moment in init if not _flattens(moment))
        if len(without) == len(init):
            return self
        moments = {**self.moments, Phase.INIT: without}
        return replace(self, moments=moments, flattens_on_host=True)

    @property
    def strategy(self) -> StrategyRow:
        """The strategy that it is for."""
        return self.rank.strategy

    def peaks(self, memory: MemoryKind = MemoryKind.GPU) -> Mapping[Phase, Moment]:
        """Of each phase, the largest moment in this memory, without what takes no bytes in it."""
        competing = self.moments if memory is MemoryKind.GPU else self.host
        return {
            phase: tuple(each for each in max(moments, key=moment_bytes) if each.size_bytes)
            for phase, moments in competing.items()
        }

    def phase_bytes(self, memory: MemoryKind = MemoryKind.GPU) -> Mapping[Phase, int]:
        """Bytes held at the peak of each phase."""
        peaks = _peaks_bytes(self.moments if memory is MemoryKind.GPU else self.host)
        absent = _OF_SOME - peaks.keys()
        return {phase: peaks.get(phase, 0) for phase in Phase if phase not in absent}

    @property
    def first_moments(self) -> Moments:
        """Forward, backward and step of the first iteration; none by the rule of thumb."""
        if Phase.FORWARD not in self.moments:
            return {}
        r = self.rank
        unordered = as_it_runs(replace(r, prefetching=r.accumulating))
        first = _first_iteration(r, r.strategy.moments(as_it_runs(r)))
        first = with_generation(
            with_frozen_models(first, self.model, unordered), self.model, unordered
        )
        if self.accelerator is not Accelerator.CUDA:
            return first
        return _with_workspaces(first, () if r.accumulating else _BEFORE_BACKWARD)

    @property
    def first_iteration_bytes(self) -> Mapping[Phase, int]:
        """Bytes held on the GPU at the peak of each phase of the first iteration."""
        return _peaks_bytes(self.first_moments)

    @property
    def peak_phase(self) -> Phase:
        """The phase that decides whether the rank lives."""
        phases = self.phase_bytes()
        return max(phases, key=lambda phase: phases[phase])

    @property
    def peak_bytes(self) -> int:
        """Predicts `torch.cuda.max_memory_allocated` of a rank in steady state."""
        return max(_peaks_bytes(self.moments).values())

    @property
    def training_peak_bytes(self) -> int:
        """The same of a run that evaluates nothing."""
        sizes = _peaks_bytes(self.moments)
        return max(size for phase, size in sizes.items() if phase is not Phase.EVALUATE)

    @property
    def eval_batch_below_training(self) -> int | None:
        """The most sequences that are evaluated at a time without deciding the peak.

        None where one alone decides it, or nothing is evaluated.
        """
        evaluated, peak_bytes = self.rank.workload.eval_batch, self.training_peak_bytes
        most = []
        for moment in self.moments.get(Phase.EVALUATE, ()):
            growing = moment_bytes(each for each in moment if each.kind in GROWS_WITH_EVALUATION)
            left = peak_bytes - (moment_bytes(moment) - growing)
            most.append(left * evaluated // growing if growing else evaluated)
        fewest = min(most, default=0)
        return fewest if fewest > 0 else None

    @property
    def host_peak(self) -> Moment:
        """What one rank holds in host memory beyond its interpreter, where that is most."""
        moments = [moment for competing in self.host.values() for moment in competing]
        return max(moments, key=moment_bytes)


def _flattens(moment: Moment) -> bool:
    return any(allocation.kind is AllocationKind.FLATTENING_COPY for allocation in moment)


def _peaks_bytes(moments: Moments) -> Mapping[Phase, int]:
    return {phase: max(map(moment_bytes, competing)) for phase, competing in moments.items()}


def _with_workspaces(moments: Moments, single: Collection[tuple[Phase, int]]) -> Moments:
    """Two workspaces in each moment with matmuls; one in those named by phase and place."""
    return {
        phase: tuple(
            (*moment, _SINGLE if (phase, place) in single else _CUBLAS)
            for place, moment in enumerate(competing)
        )
        if phase in _WITH_MATMULS
        else competing
        for phase, competing in moments.items()
    }


def _first_iteration(r: RankSizes, steady: Moments) -> Moments:
    """The moments of the first iteration, given the steady ones.

    Adam has no moments before it steps; only the wrapper of stage 0 steps once at init
    (fp16/unfused_optimizer.py, initialize_optimizer_states). Stage 3 gathers nothing early before
    it has seen a backward (partitioned_param_coordinator.py, fetch_sub_module).
    """
    stepped_at_init = r.strategy.stage == 0 and r.weight_bytes != FP32_BYTES
    unstepped = replace(
        r,
        state_bytes=r.state_bytes if stepped_at_init else 0,
        state_scales_bytes=r.state_scales_bytes if stepped_at_init else 0,
        prefetching=r.accumulating,
    )
    early = r.strategy.moments(as_it_runs(unstepped))
    # The last moment of a step is the optimizer's own, which makes its states as it begins.
    step = (*early[Phase.STEP][:-1], steady[Phase.STEP][-1])
    return {
        Phase.FORWARD: early[Phase.FORWARD],
        Phase.BACKWARD: early[Phase.BACKWARD],
        Phase.STEP: step,
    }


def estimate(
    model: Model, rank: RankSizes, accelerator: Accelerator = Accelerator.CUDA
) -> Estimate:
    """What this one rank holds; `rank` holds the strategy, whose row has the formulas."""
    steady = rank.strategy.moments(as_it_runs(rank))
    steady = with_generation(with_frozen_models(steady, model, rank), model, rank)
    steady = with_evaluation(steady, rank)
    if accelerator is Accelerator.CUDA:
        steady = _with_workspaces(steady, ())
    host = (*rank.strategy.host_allocations(model, rank), *host_allocations(model, rank))
    return Estimate(
        model=model,
        rank=rank,
        accelerator=accelerator,
        moments=steady,
        host={phase: (host,) for phase in Phase if phase not in {Phase.MODEL, Phase.EVALUATE}},
    )


def estimate_fullest(
    model: Model, rank: RankSizes, accelerator: Accelerator = Accelerator.CUDA
) -> Estimate:
    """What the rank holds that has the largest peak: it decides whether a job fits.

    All ranks make the same flat copy at init: where that is the peak, the others decide.
    """
    ranks = (replace(rank, cut=cut) for cut in find_fullest(rank.cuts, offloaded=rank.offloaded))
    return max(
        (estimate(model, each, accelerator) for each in ranks),
        key=lambda one: one.flattened_on_host.peak_bytes,
    )


def estimate_full(model: Model, rank: RankSizes, accelerator: Accelerator) -> Estimate:
    """One of those among which `estimate_fullest` finds the largest peak."""
    cut, *_ = find_fullest(rank.cuts, offloaded=rank.offloaded)
    return estimate(model, replace(rank, cut=cut), accelerator)


def estimate_emptiest(fullest: Estimate) -> Estimate:
    """No rank of the job holds less."""
    emptiest = replace(fullest.rank, cut=find_emptiest(fullest.rank.cuts))
    if emptiest.cut == fullest.rank.cut:
        return fullest
    estimated = estimate(fullest.model, emptiest, fullest.accelerator)
    return estimated.flattened_on_host if fullest.flattens_on_host else estimated
