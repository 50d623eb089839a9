"""Changes of a job's options, what each leads to, and what it costs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.command_words import flags
from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import Constraints, Decision, OffloadChoice
from zerowiz.core.decision.job import Job
from zerowiz.core.machine.types import Accelerator, Network, NetworkKind, pick_gpus
from zerowiz.core.memory.losses import LOSS_ROWS
from zerowiz.core.settings import Change
from zerowiz.core.strategy_types import Offload
from zerowiz.core.structs import replace
from zerowiz.core.units import parse_host_memory
from zerowiz.core.workload import (
    Accounting,
    Attention,
    Loss,
    Method,
    Precision,
    StateDtype,
    Trainer,
)
from zerowiz.errors import UsageError


class Expense(StrEnum):
    """What a change costs besides time, the cheapest first; other programs read these names."""

    PRECISION = "precision"
    """Weights or optimizer states in fewer bits."""
    SEQUENCE = "sequence"
    """Shorter sequences than the data has."""
    METHOD = "method"
    """Adapters instead of all parameters."""
    BUDGET = "memory_budget"
    """More of each GPU than a person allowed."""
    HOST_MEMORY = "host_memory"
    GPUS = "gpus"
    """More GPUs, larger ones, or more nodes."""
    MODEL = "model"
    """Another model."""


# What is not here costs time alone.
_COSTS: Mapping[str, Expense] = {
    "precision": Expense.PRECISION,
    "optimizer_state_dtype": Expense.PRECISION,
    "sequence_tokens": Expense.SEQUENCE,
    "method": Expense.METHOD,
    "memory_budget": Expense.BUDGET,
    "host_memory": Expense.HOST_MEMORY,
    "machine": Expense.GPUS,
    "model": Expense.MODEL,
}
_BY_PRICE = tuple(Expense)


def costs_of(change: Change) -> frozenset[Expense]:
    """What a change costs besides time."""
    costs = {_COSTS[name] for name in change if name in _COSTS}
    # Adapters on weights in 4 bits are less exact than adapters alone.
    return frozenset(costs | ({Expense.PRECISION} if change.get("method") == "qlora" else set()))


class Attempt(Struct, frozen=True, kw_only=True):
    """A change, and the job and the constraints that it makes."""

    change: Change
    job: Job
    constraints: Constraints

    def then(self, further: "Attempt") -> "Attempt":
        """This change, and one that was made of the job after it."""
        return Attempt(
            change={**self.change, **further.change},
            job=further.job,
            constraints=further.constraints,
        )


Lazy = Callable[[], Attempt | None]
"""An attempt that is made when it is asked for; None where the job cannot be so."""


class Remedy(Struct, frozen=True, kw_only=True):
    """A change of options, and the strategy that it leads to."""

    change: Change
    strategy: str
    verdict: Verdict
    """Of that strategy."""
    device_bytes: int
    """What it takes of each GPU."""
    budget_bytes: int | None
    frees_bytes: int
    """Of each GPU, compared with the same strategy before."""
    step_seconds: float | None = None
    """None where no time is predicted."""
    time_fraction: float | None = None
    """The time of a token, divided by what it would be with the job as it is if that did fit."""
    more_host_bytes: int | None = None
    """What must be added to the memory of each node; None where nobody knows what it has."""
    edit: str | None = None
    """What has to be changed in the script first; None where the options alone do it."""

    @property
    def costs(self) -> frozenset[Expense]:
        """What it costs besides time."""
        return costs_of(self.change)

    @property
    def sequence_tokens(self) -> int:
        """What is left of a sequence; 0 where they stay as long as they are."""
        return int(self.change.get("sequence_tokens", 0))

    @property
    def is_sure(self) -> bool:
        """Whether what it leads to runs, as far as anything was measured."""
        return self.verdict in {Verdict.FITS, Verdict.TIGHT}


def seconds_per_token(evaluated: StrategyEstimate) -> float | None:
    """Of the whole job; None where no time is predicted."""
    time = evaluated.step_time
    return None if time is None else time.expected_seconds / time.tokens


def own_seconds_per_token(decision: Decision) -> float | None:
    """Of the job as it is, with the fastest strategy that it could have if memory were no matter.

    What is offloaded, and what the allocator flushes, is left out: it is there for want of memory.
    """
    plain = [e for e in decision.allowed if e.strategy.offload is Offload.NONE]
    times = [estimate.step_time for estimate in plain or decision.allowed]
    known = [time.roomy_seconds / time.tokens for time in times if time is not None]
    return min(known) if len(known) == len(times) else None


def make_remedy(decision: Decision, change: Change, chosen: StrategyEstimate) -> Remedy:
    """The change that leads from a decision to this strategy.

    Compared with the same strategy before, so that another one does not count as freed memory.
    """
    is_real = decision.job.accounting is Accounting.REAL
    before = decision.of(chosen.strategy) if is_real else decision.closest
    old_time, new_time = own_seconds_per_token(decision), seconds_per_token(chosen)
    available_bytes = decision.job.machine.host.available_bytes
    more_host_bytes = None
    if "host_memory" in change and available_bytes is not None:
        more_host_bytes = max(0, (chosen.host_budget_bytes or 0) - available_bytes)
    return Remedy(
        change=change,
        strategy=chosen.strategy.name,
        verdict=chosen.verdict,
        device_bytes=chosen.device_bytes,
        budget_bytes=chosen.budget_bytes,
        frees_bytes=max(0, before.device_bytes - chosen.device_bytes),
        step_seconds=None if chosen.step_time is None else chosen.step_time.expected_seconds,
        time_fraction=None if old_time is None or new_time is None else new_time / old_time,
        more_host_bytes=more_host_bytes,
    )


_SAME_FRACTION = 0.02
"""Times that differ by no more are the same."""


def _keeps_the_step(remedy: Remedy) -> bool:
    """Whether it changes the evaluation alone: whatever is faster changes what is trained."""
    return remedy.change.keys() == {"eval_batch"}


def _is_dominated(remedy: Remedy, by: Remedy) -> bool:
    """Whether another remedy gives as much at no more cost.

    Nobody knows here what machines cost, nor whether a link is there that would have to be. Another
    loss takes a library, or a change of the script's code: a step without it stays beside it.
    """
    elsewhere = bool({"machine", "interconnect"} & by.change.keys())
    takes_code = "loss" in by.change and "loss" not in remedy.change
    if by.change != remedy.change and (elsewhere or takes_code or _keeps_the_step(remedy)):
        return False
    if not by.costs <= remedy.costs or (remedy.is_sure and not by.is_sure):
        return False
    if 0 < by.sequence_tokens < remedy.sequence_tokens:
        return False
    if by.change == remedy.change:
        return True
    fewer = by.change.items() < remedy.change.items()
    if remedy.time_fraction is None or by.time_fraction is None:
        return fewer and by.frees_bytes >= remedy.frees_bytes
    factor = 1 + _SAME_FRACTION
    as_fast = by.time_fraction <= remedy.time_fraction * factor
    same = by.costs == remedy.costs and remedy.time_fraction <= by.time_fraction * factor
    # Of those that cost the same, the one that changes least, then the first, is kept.
    return as_fast and (not same or len(by.change) <= len(remedy.change))


def worth_offering(remedies: Iterable[Remedy]) -> tuple[Remedy, ...]:
    """Those that no other one dominates, the cheapest first: in quality and money, then in time.

    Args:
        remedies: In the order in which they stay where nothing tells their costs apart.
    """
    kept: list[Remedy] = []
    for remedy in remedies:
        if any(_is_dominated(remedy, by) for by in kept):
            continue
        kept = [other for other in kept if not _is_dominated(other, remedy)]
        kept.append(remedy)
    return tuple(sorted(kept, key=price_of))


# A run that takes so many times as long is paid for like other hardware; so is a host that is as
# large as those of eight GPUs (data/instances.json).
_SLOW_TIMES = 5
_LARGE_HOST_BYTES = 2 * 2**40


def price_of(remedy: Remedy) -> tuple[bool, bool, tuple[int, ...], bool, int, float]:
    """What remedies are sorted by: what they cost besides time, the dearest first, then time.

    Of shorter sequences the longest cost least.

    One that changes the evaluation alone is the first. A slow run, or a large host, stands behind
    other hardware; another model is always the last.
    """
    costs = {_BY_PRICE.index(cost) for cost in remedy.costs}
    is_slow = (remedy.time_fraction or 0.0) >= _SLOW_TIMES
    host = remedy.change.get("host_memory")
    is_large = host is not None and parse_host_memory(str(host)) >= _LARGE_HOST_BYTES
    if is_slow or is_large:
        costs.add(_BY_PRICE.index(Expense.GPUS))
    dearest = tuple(sorted(costs, reverse=True))
    by_time = remedy.time_fraction or 0.0
    later = not _keeps_the_step(remedy)
    cut = -remedy.sequence_tokens
    return later, Expense.MODEL in remedy.costs, dearest, is_slow or is_large, cut, by_time


def encode_remedy(remedy: Remedy) -> dict[str, object]:
    """As `plan --json` has it."""
    return {
        "change": {flags()[name]: value for name, value in remedy.change.items()},
        "strategy": remedy.strategy,
        "verdict": remedy.verdict.value,
        "frees_bytes": remedy.frees_bytes,
        "device_bytes": remedy.device_bytes,
        "budget_bytes": remedy.budget_bytes,
        "step_seconds": remedy.step_seconds,
        "time_fraction": remedy.time_fraction,
        "costs": sorted(cost.value for cost in remedy.costs),
        "more_host_bytes": remedy.more_host_bytes,
        "edit": remedy.edit,
    }


# The single changes of a job that may make it fit, as a table: each yields the mildest first.

Kind = Callable[[Job, Constraints], Iterator[Attempt]]

# NVIDIA's reference designs for H100 have one NDR adapter, 400 Gb/s, for each GPU; one is enough to
# count as fast.
_INFINIBAND = "infiniband:400Gb/s"
_INFINIBAND_BYTES_PER_S = 50_000_000_000
_LEAST_TOKENS = 256
# Each smaller batch is an attempt: up to here every one, beyond it halves.
_EACH_EVAL_BATCH = 1024
# Below this part of the others' free memory, another job holds the rest, and not a display.
_BUSY_FRACTION = 0.9


def _step(job: Job, constraints: Constraints, **settings: object) -> Attempt:
    """The job with other settings of its training step.

    Raises:
        UsageError: The step cannot have them.
    """
    change = {name: value for name, value in settings.items() if isinstance(value, int | str)}
    workload = replace(job.workload, **settings)  # type: ignore[arg-type]
    return Attempt(
        change={n: str(v) if isinstance(v, str) else v for n, v in change.items()},
        job=replace(job, workload=workload),
        constraints=constraints,
    )


def state_network(job: Job, constraints: Constraints) -> Iterator[Attempt]:
    """The statement that a network of which nothing is known is InfiniBand."""
    machine = job.machine
    if machine.nodes == 1 or machine.network.kind is not NetworkKind.UNKNOWN:
        return
    if machine.network.nics:
        return
    network = Network(kind=NetworkKind.INFINIBAND, bytes_per_s=_INFINIBAND_BYTES_PER_S)
    changed = replace(job, machine=replace(machine, network=network))
    yield Attempt(change={"interconnect": _INFINIBAND}, job=changed, constraints=constraints)


def leave_busy_gpus(job: Job, constraints: Constraints) -> Iterator[Attempt]:
    """The GPUs of one node without the fullest of them, as long as one has clearly less room."""
    gpus = job.machine.gpus
    free = [gpu.free_bytes for gpu in gpus if gpu.free_bytes is not None]
    sliced = any(gpu.mig_slice is not None for gpu in gpus)
    if job.machine.nodes > 1 or job.machine.lives_on_host or sliced or len(free) < len(gpus):
        return
    for least_bytes in sorted(set(free))[1:]:
        chosen = [gpu for gpu in gpus if (gpu.free_bytes or 0) >= least_bytes]
        if min(free) < _BUSY_FRACTION * least_bytes:
            machine = pick_gpus(job.machine, chosen)
            yield Attempt(
                change={"gpus": ",".join(gpu.label for gpu in chosen)},
                # What was seen with all of them says nothing of fewer.
                job=replace(job, machine=machine, calibration=None, ran_out=()),
                constraints=constraints,
            )


def use_bf16(job: Job, constraints: Constraints) -> Iterator[Attempt]:
    """Weights in bf16 instead of fp32."""
    w = job.workload
    if w.precision is Precision.FP32 and w.torch_autocast is None and job.machine.takes_bf16:
        yield _step(job, constraints, precision=Precision.BF16)


def use_sdpa(job: Job, constraints: Constraints) -> Iterator[Attempt]:
    """A fused attention kernel, which keeps no scores."""
    if job.workload.attention.row.keeps_scores and job.own_trace is None:
        yield _step(job, constraints, attention=Attention.SDPA)


def cut_loss(job: Job, constraints: Constraints) -> Iterator[Attempt]:
    """A loss that never holds all logits, which grow with the sequence and the vocabulary."""
    w = job.workload
    by_rule = job.accounting is Accounting.TEXTBOOK
    if w.loss is not Loss.PLAIN or w.trainer is not Trainer.SFT or by_rule:
        return
    # The kernels of a package are Triton's, which has no driver for a CPU.
    on_gpus = job.machine.accelerator is Accelerator.CUDA
    others = (loss for loss in LOSS_ROWS if loss is not Loss.PLAIN)
    for loss in (loss for loss in others if on_gpus or LOSS_ROWS[loss].package is None):
        try:
            yield _step(job, constraints, loss=loss)
        except UsageError:
            # It is not counted for this model.
            continue


def evaluate_fewer(job: Job, constraints: Constraints) -> Iterator[Attempt]:
    """Fewer sequences evaluated at a time, a very large batch by halves; training is as it was."""
    sequences = job.workload.eval_batch
    while sequences > _EACH_EVAL_BATCH:
        sequences //= 2
        yield _step(job, constraints, eval_batch=sequences)
    for fewer in range(sequences - 1, 0, -1):
        yield _step(job, constraints, eval_batch=fewer)


def recompute(job: Job, constraints: Constraints) -> Iterator[Attempt]:
    """Gradient checkpointing."""
    if not job.workload.gradient_checkpointing:
        yield _step(job, constraints, gradient_checkpointing=True)


def split_batch(job: Job, constraints: Constraints) -> Iterator[Attempt]:
    """A part of the micro-batch at a time, in as many more micro-steps: the same global batch."""
    batch, steps = job.workload.micro_batch, job.workload.accumulation_steps
    for parts in range(2, batch + 1):
        if batch % parts == 0:
            yield _step(
                job, constraints, micro_batch=batch // parts, accumulation_steps=steps * parts
            )


def unpin_stage(job: Job, constraints: Constraints) -> Iterator[Attempt]:
    """Any stage, where one was set; then any offload too, where that was set."""
    if constraints.stage is None:
        return
    free = replace(constraints, stage=None)
    yield Attempt(change={"stage": "auto"}, job=job, constraints=free)
    if constraints.offload not in {None, OffloadChoice.AUTO}:
        free = replace(free, offload=OffloadChoice.AUTO)
        yield Attempt(change={"stage": "auto", "offload": "auto"}, job=job, constraints=free)


def shard_one_gpu(job: Job, constraints: Constraints) -> Iterator[Attempt]:
    """ZeRO-3 on one GPU: it shards nothing there, and holds fewer copies than stage 0."""
    if job.machine.world_size == 1 and constraints.free:
        pinned = replace(constraints, stage=3)
        yield Attempt(change={"stage": "3"}, job=job, constraints=pinned)


def allow_offload(job: Job, constraints: Constraints) -> Iterator[Attempt]:
    """Optimizer states and weights in host memory, where that was forbidden or is not asked for."""
    if constraints.offload is not OffloadChoice.AUTO:
        free = replace(constraints, offload=OffloadChoice.AUTO)
        yield Attempt(change={"offload": "auto"}, job=job, constraints=free)


def allow_slow(job: Job, constraints: Constraints) -> Iterator[Attempt]:
    """ZeRO-3 over a slow link."""
    if not constraints.allow_slow:
        free = replace(constraints, allow_slow=True)
        yield Attempt(change={"allow_slow": True}, job=job, constraints=free)


def halve_states(job: Job, constraints: Constraints) -> Iterator[Attempt]:
    """Optimizer states in bf16."""
    if job.workload.precision is Precision.BF16 and job.state_dtype is not StateDtype.BF16:
        changed = replace(job, state_dtype=StateDtype.BF16)
        yield Attempt(
            change={"optimizer_state_dtype": "bf16"}, job=changed, constraints=constraints
        )


def shorten(job: Job, constraints: Constraints) -> Iterator[Attempt]:
    """Shorter sequences, by halves; completions and images have a length of their own."""
    w = job.workload
    tokens = w.sequence_tokens
    is_fixed = w.trainer.row.generates or job.model.architecture.reads_images
    while tokens // 2 >= _LEAST_TOKENS and not is_fixed:
        tokens //= 2
        yield _step(job, constraints, sequence_tokens=tokens)


def train_adapters(job: Job, constraints: Constraints) -> Iterator[Attempt]:
    """Adapters alone."""
    if job.accounting is not Accounting.TEXTBOOK and job.workload.method is Method.FULL:
        yield _step(job, constraints, method=Method.LORA)


def quantize(job: Job, constraints: Constraints) -> Iterator[Attempt]:
    """Adapters on weights in 4 bits, which no CPU has."""
    by_rule = job.accounting is Accounting.TEXTBOOK
    on_cpu = job.machine.accelerator.row.on_host
    if not (by_rule or on_cpu or job.workload.method is Method.QLORA):
        yield _step(job, constraints, method=Method.QLORA)


# The same result, later.
KEEPING: tuple[Kind, ...] = (
    state_network,
    leave_busy_gpus,
    unpin_stage,
    use_sdpa,
    evaluate_fewer,
    cut_loss,
    split_batch,
    recompute,
    shard_one_gpu,
    allow_offload,
    allow_slow,
)
# Nearly the same result.
ROUNDING: tuple[Kind, ...] = (use_bf16, halve_states)
PAST_SLOW_LINK: tuple[Kind, ...] = (state_network, allow_offload, allow_slow)
