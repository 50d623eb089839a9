"""Predict how long an optimizer step takes, term by term.

Theory: a GPU computes while the host launches what comes next and other streams communicate, so a
phase takes as long as the slowest of them: each term counts what it adds to those before it. A step
is A micro-steps of forward and backward, then the optimizer. Stage 0 reduces gradients behind the
last backward, stages 1 and 2 while it runs where `overlap_comm` is on, and gather the updated
weights behind the step; stage 3 gathers weights in both passes of each micro-step, ahead of the
module that needs them. The optimizer moves bytes of the GPU's memory, or of the host's.

Sources: DeepSpeed 0.19.8, runtime/engine.py (allreduce_gradients, _take_model_step),
runtime/zero/stage_1_and_2.py (reduce_ipg_grads, step), runtime/zero/stage3.py and
partitioned_param_coordinator.py. The constants stand in costs.py.
"""

import math
from collections.abc import Iterable, Mapping
from statistics import NormalDist
from typing import NamedTuple

from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.memory.forward.attention import length_tokens
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.model.types import Model
from zerowiz.core.speed.calibration import Calibration
from zerowiz.core.speed.communication import regathered_bytes, whole_bytes
from zerowiz.core.speed.compute import Counted, Pass, compute_passes, count_products
from zerowiz.core.speed.costs import COSTS, Costs, memory_rate_on, on_host
from zerowiz.core.speed.doubts import doubt_fraction
from zerowiz.core.speed.links import find_ring
from zerowiz.core.speed.optimizer import Stepping, step_optimizer
from zerowiz.core.speed.rates import GpuRates
from zerowiz.core.speed.terms import StepTime, Term, TermKind
from zerowiz.core.strategy import Offload, Part
from zerowiz.core.workload.workload import Workload
from zerowiz.words import N_, _

_FORMULAS: Mapping[TermKind, str] = {
    TermKind.MATRIX_PRODUCTS: N_(
        "2 t x weights forward, 4 t backward, 2 t again where checkpointed"
    ),
    TermKind.ATTENTION: N_("4 t s q forward, half where causal, 2.5 times as much backward"),
    TermKind.ELEMENTWISE: N_("bytes that small kernels move / memory bandwidth"),
    TermKind.HOST: N_("modules x launches - what the GPU computes meanwhile"),
    TermKind.HOOKS: N_("modules x hooks of stage 3 - what the GPU computes meanwhile"),
    TermKind.GATHERING: N_("w (N + F) / link - what the GPU computes meanwhile"),
    TermKind.REDUCTION: N_("w N / link - what the GPU computes meanwhile"),
    TermKind.OPTIMIZER: N_("bytes of P parameters / memory bandwidth + launches"),
    TermKind.CPU_OPTIMIZER: N_("bytes of P parameters / what the cores move"),
    TermKind.PCIE: N_("w P / PCIe - what the GPU computes meanwhile"),
    TermKind.ALLOCATOR: N_("flushes near the limit of memory"),
}

Seconds = dict[TermKind, float]
_NORMAL = NormalDist()


class _MicroStep(NamedTuple):
    """What a micro-step takes on the other streams, in seconds, if nothing else ran."""

    gathered_first: float
    """Weights for the first forward of an optimizer step."""
    gathered: float
    """Weights for each forward after it."""
    gathered_again: float
    """Weights for backward."""
    reduced: float
    """Gradients, behind or beside backward."""
    fetched: float
    """Weights from the host, for forward and as often for backward."""
    stored: float
    """Gradients to the host."""
    updated: float
    """Weights that others have stepped, behind the optimizer's step."""
    overlaps: bool
    """Whether gradients are reduced while backward goes on."""
    alone_fraction: float
    """Of what is reduced, what comes last: nothing runs beside it."""


def _beside(
    parts: Mapping[TermKind, float], busy: float, alone_fraction: float, costs: Costs
) -> Seconds:
    """What other streams add to a phase of `busy` seconds, in the shares that they have."""
    total = sum(parts.values())
    if not total:
        return {}
    exposed = max(total - (1 - alone_fraction) * busy, alone_fraction * total)
    exposed += costs.contention_fraction * (total - exposed)
    return {kind: seconds * exposed / total for kind, seconds in parts.items()}


class _Sum:
    """Adds up terms of a kind."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}

    def add(self, parts: Mapping[TermKind, float], times: float = 1) -> None:
        for kind, seconds in parts.items():
            self.seconds[kind] = self.seconds.get(kind, 0.0) + times * seconds


def _waited(gpu: float, host: float, spread: float) -> float:
    """How long the GPU waits for the host on average.

    Theory: a host that others use is not always as fast; with a lognormal factor X of mean 1, whose
    logarithm has this standard deviation, it is the mean of max(0, host X - gpu).
    """
    if not host or not spread:
        return max(0.0, host - gpu)
    upper = math.log(host / gpu) / spread + spread / 2
    mean = host * _NORMAL.cdf(upper) - gpu * _NORMAL.cdf(upper - spread)
    # Of two numbers that are nearly equal the difference may round below 0.
    return max(0.0, mean)


def _phase(computed: Pass, host: float, hooks: float, costs: Costs) -> tuple[Seconds, float]:
    """What the GPU computes and waits for the host, and how long that takes."""
    gpu = computed.seconds
    waited = _waited(gpu, host, costs.host_spread_fraction)
    parts = {
        TermKind.MATRIX_PRODUCTS: computed.products,
        TermKind.ATTENTION: computed.attention,
        TermKind.ELEMENTWISE: computed.elementwise,
        TermKind.HOST: waited,
    }
    if hooks:
        hooked = _waited(gpu, host + hooks, costs.host_spread_fraction)
        parts[TermKind.HOOKS] = max(0.0, hooked - waited)
        waited = hooked
    return parts, gpu + waited


def _hooks_seconds(r: RankSizes, counted: Counted, costs: Costs) -> float:
    """DeepSpeed hooks every module, also one without weights of its own, and gathers by tensor."""
    if not r.strategy.shards_weights:
        return 0.0
    layout = r.layout
    visits = len(layout.first) + sum(map(len, layout.blocks)) + len(layout.last)
    gathered = len(layout.sizes) if r.ranks > 1 else 0
    hooks = costs.hook_seconds * max(visits, counted.modules)
    return hooks + costs.gather_seconds * gathered


def _bucket_seconds(r: RankSizes, rates: GpuRates, costs: Costs) -> float:
    """The GPU's copies of the gradients of one backward on their way through buckets.

    Stage 0 flattens them, divides them among several ranks and copies them back (engine.py,
    allreduce_bucket, allreduce_and_copy). The others copy each into a bucket and divide it there;
    stages 1 and 2 flatten the bucket once more and copy it back (stage_1_and_2.py,
    reduce_independent_p_g_buckets_and_remove_grads, average_tensor, allreduce_and_copy), stage 3
    sorts it by rank (coalesced_collectives.py, reduce_scatter_coalesced). At last a rank copies its
    share.
    """
    if Part.OPTIMIZER not in r.strategy.sharded:
        copied = r.trainable * (3 if r.ranks > 1 else 2)
    else:
        copied = r.trainable * (3 if r.strategy.shards_weights else 4) + r.share
    moved_bytes = 2 * r.weight_bytes * copied
    return moved_bytes / memory_rate_on(costs, rates)


def _communication(
    r: RankSizes, machine: Machine, rates: GpuRates, costs: Costs, stepping: Stepping
) -> _MicroStep:
    ring = find_ring(machine, rates, costs)
    others = (r.ranks - 1) / r.ranks
    gradient_bytes = others * r.weight_bytes * r.trainable
    bucket = max(1, r.buffers.reduce_bucket_size)
    buckets = -(-r.trainable // bucket) if others else 0
    # The last gradient is that of the embedding, and buckets are half full as backward ends.
    alone = min(1.0, (bucket / 2 + r.embedding) / r.trainable)
    moves_weights = r.strategy.offload is Offload.ALL
    if not r.strategy.shards_weights:
        updated = ring.seconds(gradient_bytes, min(1, buckets)) if r.strategy.cuts_shares else 0.0
        return _MicroStep(
            gathered_first=0.0,
            gathered=0.0,
            gathered_again=0.0,
            reduced=ring.queued(2 * gradient_bytes, buckets),
            fetched=0.0,
            stored=stepping.stored,
            updated=updated,
            overlaps=r.buffers.overlap_comm and not r.offloaded and r.strategy.stage > 0,
            alone_fraction=alone,
        )
    weights_bytes, again_bytes = whole_bytes(r), regathered_bytes(r)
    # With a copy of the weights on each node, gathers stay inside it, but for those behind a step:
    # it drops the copies of what it trained (stage3.py, _post_step, invalidate_secondary_tensor).
    has_copies = r.buffers.hpz_partition_size > 1
    near = find_ring(machine, rates, costs, inside=True) if has_copies else ring
    modules = len(r.layout.sizes) if others else 0
    gathered = near.seconds(others * weights_bytes, modules)
    stale_bytes = others * r.weight_bytes * r.trainable
    return _MicroStep(
        gathered_first=gathered + ring.seconds(stale_bytes, 0) - near.seconds(stale_bytes, 0),
        gathered=gathered,
        gathered_again=near.seconds(others * again_bytes, modules * again_bytes / weights_bytes),
        reduced=ring.queued(gradient_bytes, buckets),
        fetched=stepping.fetched if moves_weights else 0.0,
        stored=stepping.stored,
        updated=0.0,
        overlaps=True,
        alone_fraction=alone,
    )


def _seconds(
    model: Model, r: RankSizes, machine: Machine, rates: GpuRates, flop_per_s: float, costs: Costs
) -> Seconds:
    """What each kind of term adds to an optimizer step."""
    workload = r.workload
    counted = count_products(model, workload)
    passes = compute_passes(model, r, counted, rates, flop_per_s, costs)
    stepping = step_optimizer(r, machine, rates, counted.trained_tensors, costs)
    sent = _communication(r, machine, rates, costs, stepping)
    micro_steps = workload.accumulation_steps
    host = costs.host_seconds * counted.modules + costs.micro_step_seconds / 2
    hooks = _hooks_seconds(r, counted, costs)
    reducing = costs.gradient_seconds * counted.trained_tensors if r.strategy.cuts_shares else 0.0
    again = 2 if workload.gradient_checkpointing else 1
    checkpoints = costs.checkpoint_seconds * counted.modules * (again - 1)
    total = _Sum()

    forward, busy = _phase(passes.forward, host + checkpoints, hooks, costs)
    total.add(forward, micro_steps * (2 if workload.runs_reference else 1))
    for gathered, times in ((sent.gathered_first, 1), (sent.gathered, micro_steps - 1)):
        incoming = {TermKind.GATHERING: gathered, TermKind.PCIE: sent.fetched}
        total.add(_beside(incoming, busy, 0.0, costs), times)

    # Below stage 2 gradients accumulate where they are, and the last backward alone reduces them
    # (stage_1_and_2.py, reduce_ready_partitions_and_remove_grads).
    each_time = Part.GRADIENTS in r.strategy.sharded
    reductions = micro_steps if each_time else 1
    host_behind = again * host + 2 * checkpoints
    copied = _bucket_seconds(r, rates, costs)
    last = passes.backward._replace(elementwise=passes.backward.elementwise + copied)
    backward, busy = _phase(last, host_behind, again * hooks + reducing, costs)
    total.add(backward, reductions)
    accumulating, _ = _phase(passes.backward, host_behind, again * hooks, costs)
    total.add(accumulating, micro_steps - reductions)
    behind = {TermKind.REDUCTION: sent.reduced, TermKind.PCIE: sent.stored}
    incoming = {TermKind.GATHERING: sent.gathered_again, TermKind.PCIE: sent.fetched}
    if not sent.overlaps:
        total.add(behind, reductions)
    elif each_time:
        both = _Sum()
        both.add(incoming)
        both.add(behind)
        alone = sent.alone_fraction * sum(behind.values()) / (sum(both.seconds.values()) or 1)
        total.add(_beside(both.seconds, busy, alone, costs), micro_steps)
    else:
        total.add(_beside(behind, busy, sent.alone_fraction, costs))
    total.add(stepping.seconds)
    total.add({TermKind.GATHERING: sent.updated})
    return total.seconds


def _is_unknown(model: Model, r: RankSizes) -> bool:
    """What takes time that nothing here counts: sampling, disks, and images in no known patches."""
    on_disk = r.offloaded and r.buffers.on_nvme
    return r.workload.trainer.generates or on_disk or model.architecture.has_unknown_patches


def why_untimed(model: Model, workload: Workload, machine: Machine, rates: GpuRates | None) -> str:
    """Why no time of a step is known, where none is.

    Args:
        model: What is trained.
        workload: The step.
        machine: What it runs on.
        rates: Of each GPU.
    """
    precision = workload.torch_autocast or workload.precision
    if machine.accelerator is not Accelerator.CUDA:
        return _(
            "zerowiz has no speeds for a {accelerator}", accelerator=machine.accelerator.upper()
        )
    if rates is None:
        return _why_no_rates(machine)
    if rates.flop_per_s(precision) is None:
        return _(
            "zerowiz has no speed for {gpus} in {precision}",
            gpus=machine.gpus[0].name,
            precision=precision,
        )
    if workload.trainer.generates:
        return _("zerowiz cannot predict the time to generate completions")
    if model.architecture.has_unknown_patches:
        return _("zerowiz has no formulas for this model of images")
    return _("zerowiz cannot predict the time of NVMe offload")


def _why_no_rates(machine: Machine) -> str:
    if not machine.is_uniform:
        return _("the GPUs are of different models")
    if any(gpu.mig_slice is not None for gpu in machine.gpus):
        return _("zerowiz has no speeds for MIG slices")
    return _("{gpus} is not in the table of GPUs", gpus=machine.gpus[0].name)


def predict_step_time(
    model: Model,
    rank: RankSizes,
    machine: Machine,
    rates: GpuRates | None,
    calibration: Calibration | None = None,
    *,
    near_limit: bool = False,
    costs: Costs = COSTS,
) -> StepTime | None:
    """How long a step of this rank takes.

    None where the rates of its GPU are not known, or where the step has parts that nothing here
    counts: completions that are sampled, states on a disk.

    Args:
        model: What is trained.
        rank: The strategy, its buffers and its workload.
        machine: The links and the host.
        rates: Of each GPU.
        calibration: What was learned from steps that were measured on the machine.
        near_limit: Whether memory is so full that the allocator flushes now and then.
        costs: The constants of the model.
    """
    workload = rank.workload
    flop_per_s = None
    if rates is not None and not _is_unknown(model, rank):
        flop_per_s = rates.flop_per_s(workload.torch_autocast or workload.precision)
    if rates is None or flop_per_s is None:
        return None
    host = machine.host if calibration is None else calibration.describe(machine.host)
    here = on_host(costs, host)
    seconds = _seconds(model, rank, machine, rates, flop_per_s, here)
    if near_limit:
        seconds[TermKind.ALLOCATOR] = costs.tight_fraction * sum(seconds.values())
    terms = _terms(seconds, calibration)
    return _step_time(model, rank, machine, rates, terms, calibration, near_limit=near_limit)


def _terms(seconds: Seconds, calibration: Calibration | None) -> tuple[Term, ...]:
    terms = (
        Term(kind=kind, exposed_seconds=seconds[kind], formula=_FORMULAS[kind])
        for kind in TermKind
        if seconds.get(kind)
    )
    return tuple(terms if calibration is None else map(calibration.apply, terms))


def _step_time(
    model: Model,
    rank: RankSizes,
    machine: Machine,
    rates: GpuRates,
    terms: Iterable[Term],
    calibration: Calibration | None,
    *,
    near_limit: bool,
) -> StepTime:
    terms, workload = tuple(terms), rank.workload
    length = length_tokens(model.architecture, workload)
    expected = sum(term.exposed_seconds for term in terms)
    factor = 1 + doubt_fraction(
        model,
        rank,
        machine,
        rates,
        terms,
        calibrated=calibration is not None,
        near_limit=near_limit,
    )
    return StepTime(
        terms=terms,
        expected_seconds=expected,
        low_seconds=expected / factor,
        high_seconds=expected * factor,
        tokens=machine.world_size * workload.accumulation_steps * workload.rows * length,
        measured_steps=0 if calibration is None else calibration.measured_steps,
    )
