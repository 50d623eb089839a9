"""Find what would make a job fit: a change alone, or the cheapest ones that do together.

Each change is tried alone, in the order of what it costs. Where none is enough they are added up in
that order until the job fits, and then left out again where they are not needed, the dearest first.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import islice, pairwise

from msgspec import Struct

from zerowiz.core.command_words import flags
from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict, evaluate
from zerowiz.core.decision.flowchart import (
    Constraints,
    Decision,
    choose_leanest,
    considered,
    decide,
)
from zerowiz.core.decision.job import Job, list_shared, shared_by
from zerowiz.core.machine.names import GpuModel, match_models
from zerowiz.core.machine.types import (
    Accelerator,
    Machine,
    Network,
    NetworkKind,
    if_known,
    pick_gpus,
    spell_network,
    with_host_memory,
)
from zerowiz.core.machine_kinds import GPUS_OF_A_NODE, NODES, MachineKind, Size
from zerowiz.core.memory.losses import LOSS_ROWS
from zerowiz.core.model.from_name import KnownModel, find_siblings, model_from_size, parse_size
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.settings import Change
from zerowiz.core.speed.costs import StepTime, find_rates
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy_types import Offload, OffloadChoice, Strategy
from zerowiz.core.structs import replace
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
_SLOW_TIMES = 5


class Patch(Struct, frozen=True, kw_only=True):
    """One change of a job, as options say it; it can be made of the job after any other."""

    change: Change
    job: Callable[[Job], Job] = lambda job: job
    """What it makes of a job; raises a UsageError where the job cannot be so."""
    constraints: Callable[[Constraints], Constraints] = lambda constraints: constraints
    """What it makes of the constraints."""


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
    step_time: StepTime | None = None
    """None where none is predicted."""
    time_fraction: float | None = None
    """The time of a token, divided by that of the plan; where none fits, of the job if it did."""
    more_host_bytes: int | None = None
    """What must be added to the memory of each node; None where nobody knows what it has."""
    global_batch: int | None = None
    """What becomes of a script's, on other GPUs; None where it stays."""
    edit: str | None = None
    """What has to be changed in the script first; None where the options alone do it."""

    @property
    def step_seconds(self) -> float | None:
        """None where no time is predicted."""
        return None if self.step_time is None else self.step_time.expected_seconds

    @property
    def costs(self) -> frozenset[Expense]:
        """What it costs besides time."""
        costs = {_COSTS[name] for name in self.change if name in _COSTS}
        # Adapters on weights in 4 bits are less exact than adapters alone.
        quantizes = self.change.get("method") == "qlora"
        return frozenset(costs | ({Expense.PRECISION} if quantizes else set()))

    @property
    def sequence_tokens(self) -> int:
        """What is left of a sequence; 0 where they stay as long as they are."""
        return int(self.change.get("sequence_tokens", 0))

    @property
    def is_slow(self) -> bool:
        """Whether it takes so many times as long that it is paid for like other hardware."""
        return (self.time_fraction or 0.0) >= _SLOW_TIMES

    @property
    def is_sure(self) -> bool:
        """Whether what it leads to runs, as far as anything was measured."""
        return self.verdict in {Verdict.FITS, Verdict.TIGHT}

    def encode(self) -> dict[str, object]:
        """As `plan --json` has it."""
        return {
            "change": {flags()[name]: value for name, value in self.change.items()},
            "strategy": self.strategy,
            "verdict": self.verdict.value,
            "frees_bytes": self.frees_bytes,
            "device_bytes": self.device_bytes,
            "budget_bytes": self.budget_bytes,
            "step_seconds": self.step_seconds,
            "time_fraction": self.time_fraction,
            "costs": sorted(cost.value for cost in self.costs),
            "more_host_bytes": self.more_host_bytes,
            "global_batch": self.global_batch,
            "edit": self.edit,
        }


def seconds_per_token(evaluated: StrategyEstimate) -> float | None:
    """Of the whole job; None where no time is predicted."""
    time = evaluated.step_time
    return None if time is None else time.expected_seconds / time.tokens


def own_seconds_per_token(decision: Decision) -> float | None:
    """Of what was chosen; where nothing fits, of the job as it is if memory were no matter.

    That has the fastest strategy that it could have then. What is offloaded, and what the allocator
    flushes, is left out: it is there for want of memory.
    """
    if decision.chosen is not None:
        return seconds_per_token(decision.chosen)
    plain = [e for e in decision.allowed if e.strategy.offload is Offload.NONE]
    times = [estimate.step_time for estimate in plain or decision.allowed]
    seconds = (None if time is None else time.roomy_seconds / time.tokens for time in times)
    return if_known(seconds, min)


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
        step_time=chosen.step_time,
        time_fraction=None if old_time is None or new_time is None else new_time / old_time,
        more_host_bytes=more_host_bytes,
    )


def _is_as_fast(time: float, other_time: float) -> bool:
    """Times that differ by no more than 2 % are the same."""
    return time <= 1.02 * other_time


def keeps_the_step(remedy: Remedy) -> bool:
    """Whether it changes the evaluation alone: whatever is faster changes what is trained."""
    return remedy.change.keys() == {"eval_batch"}


def _is_dominated(remedy: Remedy, by: Remedy) -> bool:
    """Whether another remedy gives as much at no more cost.

    Nobody knows here what machines cost, nor whether a link is there that would have to be. Another
    loss takes a library, or a change of the script's code: a step without it stays beside it. But
    to cut sequences is the last resort, however fast it is.
    """
    if by.change == remedy.change:
        return True
    elsewhere = {"machine", "interconnect"} & by.change.keys()
    takes_code = "loss" in by.change and "loss" not in remedy.change
    is_cut = 0 < by.sequence_tokens < remedy.sequence_tokens
    keeps_length = remedy.sequence_tokens > by.sequence_tokens == 0
    if elsewhere or (takes_code and not keeps_length) or is_cut or keeps_the_step(remedy):
        return False
    if not by.costs <= remedy.costs or (remedy.is_sure and not by.is_sure):
        return False
    if keeps_length and not by.is_slow:
        return True
    if remedy.time_fraction is None or by.time_fraction is None:
        return False
    as_fast = _is_as_fast(by.time_fraction, remedy.time_fraction)
    same = by.costs == remedy.costs and _is_as_fast(remedy.time_fraction, by.time_fraction)
    # Of those that cost the same, the one that changes least, then the first, is kept.
    return as_fast and (not same or len(by.change) <= len(remedy.change))


def worth_offering(
    remedies: Iterable[Remedy], kept: frozenset[str] = frozenset()
) -> tuple[Remedy, ...]:
    """Those that no other one dominates, the cheapest first: in quality and money, then in time.

    Those that cost anything of what somebody said stand last.

    Args:
        remedies: In the order in which they stay where nothing tells their costs apart.
        kept: The settings that somebody said.
    """
    offered: list[Remedy] = []
    for remedy in remedies:
        if any(_is_dominated(remedy, by) for by in offered):
            continue
        offered = [other for other in offered if not _is_dominated(other, remedy)]
        offered.append(remedy)
    return tuple(sorted(offered, key=lambda r: (takes_back(r, kept), price_of(r, offered))))


def takes_back(remedy: Remedy, kept: frozenset[str]) -> bool:
    """Whether it costs anything of these settings, which somebody said."""
    return any(name in kept and name in _COSTS for name in remedy.change)


def price_of(
    remedy: Remedy, offered: Sequence[Remedy]
) -> tuple[bool, tuple[int, ...], bool, int, bool, float]:
    """What remedies are sorted by: what they cost besides time, the dearest first, then time.

    One that changes the evaluation alone is the first. A slow run stands behind other hardware. Of
    shorter sequences the longest cost least. What may not fit stands behind what costs as much. One
    that is as fast as another one stays where it was.
    """
    costs = {_BY_PRICE.index(cost) for cost in remedy.costs}
    if remedy.is_slow:
        costs.add(_BY_PRICE.index(Expense.GPUS))
    dearest = tuple(sorted(costs, reverse=True))
    may_fail = remedy.verdict is Verdict.UNCERTAIN
    times = [other.time_fraction or 0.0 for other in offered]
    by_time = min(time for time in times if _is_as_fast(remedy.time_fraction or 0.0, time))
    longest = -remedy.sequence_tokens
    return not keeps_the_step(remedy), dearest, remedy.is_slow, longest, may_fail, by_time


# The single changes of a job that may make it fit, as a table: each yields the mildest first.

Kind = Callable[[Job, Constraints], Iterator[Patch]]

# NVIDIA's reference designs for H100 have one NDR adapter, 400 Gb/s, for each GPU; one is enough to
# count as fast.
_INFINIBAND = "infiniband:400Gb/s"
_INFINIBAND_BYTES_PER_S = 50_000_000_000
_LEAST_TOKENS = 256
# Below this part of the others' free memory, another job holds the rest, and not a display.
_BUSY_FRACTION = 0.9
_MIB, _GIB = 2**20, 2**30
# More than any host has.
_ANY_HOST_BYTES = 2**50


def _step(**settings: int | StrEnum) -> Patch:
    """Other settings of the training step."""

    def change(job: Job) -> Job:
        return replace(job, workload=replace(job.workload, **settings))  # type: ignore[arg-type]

    texts = {name: str(v) if isinstance(v, str) else v for name, v in settings.items()}
    return Patch(change=texts, job=change)


def state_network(job: Job, _: Constraints) -> Iterator[Patch]:
    """The statement that a network of which nothing is known is InfiniBand."""
    machine = job.machine
    is_known = machine.network.nics or machine.network.kind is not NetworkKind.UNKNOWN
    if machine.nodes > 1 and not is_known:
        network = Network(kind=NetworkKind.INFINIBAND, bytes_per_s=_INFINIBAND_BYTES_PER_S)
        yield Patch(
            change={"interconnect": _INFINIBAND},
            job=lambda job: replace(job, machine=replace(job.machine, network=network)),
        )


def leave_busy_gpus(job: Job, _: Constraints) -> Iterator[Patch]:
    """The GPUs of one node without the fullest of them, as long as one has clearly less room."""
    gpus = job.machine.gpus
    free = [gpu.free_bytes for gpu in gpus if gpu.free_bytes is not None]
    sliced = any(gpu.mig_slice is not None for gpu in gpus)
    if job.machine.nodes > 1 or job.machine.lives_on_host or sliced or len(free) < len(gpus):
        return
    for busy_bytes, least_bytes in pairwise(sorted(set(free))):
        if busy_bytes < _BUSY_FRACTION * least_bytes:
            chosen = [gpu for gpu in gpus if (gpu.free_bytes or 0) >= least_bytes]
            machine = pick_gpus(job.machine, chosen)
            yield Patch(
                change={"gpus": ",".join(gpu.label for gpu in chosen)},
                job=partial(on_machine, machine=machine, rates=job.rates),
            )


def on_machine(job: Job, machine: Machine, rates: GpuModel | None) -> Job:
    """The job on other GPUs, of which nothing says what was seen on its own."""
    return replace(job, machine=machine, rates=rates, calibration=None)


def use_bf16(job: Job, _: Constraints) -> Iterator[Patch]:
    """Weights in bf16 instead of fp32."""
    w = job.workload
    if w.precision is Precision.FP32 and w.torch_autocast is None and job.machine.takes_bf16:
        yield _step(precision=Precision.BF16)


def use_sdpa(job: Job, _: Constraints) -> Iterator[Patch]:
    """A fused attention kernel, which keeps no scores."""
    if job.workload.attention.row.keeps_scores and job.own_trace is None:
        yield _step(attention=Attention.SDPA)


def _cut_loss(loss: Loss, job: Job, _: Constraints) -> Iterator[Patch]:
    """A loss that never holds all logits, which grow with the sequence and the vocabulary."""
    w = job.workload
    # The kernels of a package are Triton's, which has no driver for a CPU.
    runs_here = job.machine.accelerator is Accelerator.CUDA or LOSS_ROWS[loss].package is None
    by_rule = job.accounting is Accounting.TEXTBOOK
    if w.loss is Loss.PLAIN and w.trainer is Trainer.SFT and runs_here and not by_rule:
        yield _step(loss=loss)


CUT_LOSSES: tuple[Kind, ...] = tuple(
    partial(_cut_loss, loss) for loss in LOSS_ROWS if loss is not Loss.PLAIN
)


def evaluate_fewer(job: Job, _: Constraints) -> Iterator[Patch]:
    """Fewer sequences evaluated at a time, by halves, and then none; training is as it was."""
    sequences = job.workload.eval_batch
    while sequences:
        sequences //= 2
        yield _step(eval_batch=sequences)


def recompute(job: Job, _: Constraints) -> Iterator[Patch]:
    """Gradient checkpointing."""
    if not job.workload.gradient_checkpointing:
        yield _step(gradient_checkpointing=True)


def share_sequences(job: Job, _: Constraints) -> Iterator[Patch]:
    """GPUs of a node that share each sequence, the fewest first: the same global batch."""
    step = job.workload
    for ranks in list_shared(job) if step.sequence_parallel == 1 else ():
        steps = shared_by(step, ranks).accumulation_steps
        yield _step(sequence_parallel=ranks, accumulation_steps=steps)


def split_batch(job: Job, _: Constraints) -> Iterator[Patch]:
    """A part of the micro-batch at a time, in as many more micro-steps: the same global batch."""
    batch, steps = job.workload.micro_batch, job.workload.accumulation_steps
    for parts in range(2, batch + 1):
        if batch % parts == 0:
            yield _step(micro_batch=batch // parts, accumulation_steps=steps * parts)


def unpin_stage(_: Job, constraints: Constraints) -> Iterator[Patch]:
    """Any stage, where one was set; then any offload too, where that was set."""
    if constraints.stage is None:
        return
    yield Patch(change={"stage": "auto"}, constraints=partial(replace, stage=None))
    if constraints.offload not in {None, OffloadChoice.AUTO}:
        yield Patch(
            change={"stage": "auto", "offload": "auto"},
            constraints=partial(replace, stage=None, offload=OffloadChoice.AUTO),
        )


def shard_one_gpu(job: Job, constraints: Constraints) -> Iterator[Patch]:
    """ZeRO-3 on one GPU: it shards nothing there, and holds fewer copies than stage 0."""
    if job.machine.world_size == 1 and constraints.free:
        yield Patch(change={"stage": "3"}, constraints=partial(replace, stage=3))


def allow_offload(_: Job, constraints: Constraints) -> Iterator[Patch]:
    """Optimizer states and weights in host memory, where that was forbidden or is not asked for."""
    if constraints.offload is not OffloadChoice.AUTO:
        yield Patch(
            change={"offload": "auto"}, constraints=partial(replace, offload=OffloadChoice.AUTO)
        )


def allow_slow(_: Job, constraints: Constraints) -> Iterator[Patch]:
    """ZeRO-3 over a slow link."""
    if not constraints.allow_slow:
        yield Patch(change={"allow_slow": True}, constraints=partial(replace, allow_slow=True))


def halve_states(job: Job, _: Constraints) -> Iterator[Patch]:
    """Optimizer states in bf16."""
    if job.workload.precision is Precision.BF16 and job.state_dtype is not StateDtype.BF16:
        yield Patch(
            change={"optimizer_state_dtype": "bf16"},
            job=lambda job: replace(job, state_dtype=StateDtype.BF16),
        )


def shorten(job: Job, _: Constraints) -> Iterator[Patch]:
    """Shorter sequences, by halves; completions and images have a length of their own."""
    tokens = job.workload.sequence_tokens
    is_fixed = job.workload.trainer.row.generates or job.model.architecture.reads_images
    while tokens // 2 >= _LEAST_TOKENS and not is_fixed:
        tokens //= 2
        yield _step(sequence_tokens=tokens)


def train_adapters(job: Job, _: Constraints) -> Iterator[Patch]:
    """Adapters alone."""
    if job.accounting is not Accounting.TEXTBOOK and job.workload.method is Method.FULL:
        yield _step(method=Method.LORA)


def quantize(job: Job, _: Constraints) -> Iterator[Patch]:
    """Adapters on weights in 4 bits, which no CPU has."""
    by_rule = job.accounting is Accounting.TEXTBOOK
    on_cpu = job.machine.accelerator.row.on_host
    if not (by_rule or on_cpu or job.workload.method is Method.QLORA):
        yield _step(method=Method.QLORA)


def raise_budget(job: Job, constraints: Constraints) -> Iterator[Patch]:
    """More of each GPU, where a person allows less than is free: as much as a strategy needs."""
    free_bytes = job.machine.free_bytes or 0
    if job.budget_bytes is None or job.budget_bytes >= free_bytes:
        return
    roomy = replace(job, budget_bytes=None)
    rows = [row for row in considered(constraints) if row.offload is Offload.NONE]
    known = [evaluate(roomy, row) for row in STRATEGIES if row in rows]
    needs = {-(-n // _MIB) for e in known for n in (e.device_bytes, e.high_device_bytes)}
    for mib in sorted(needs):
        if job.budget_bytes < mib * _MIB <= free_bytes:
            yield Patch(
                change={"memory_budget": f"{mib}MiB"},
                job=partial(replace, budget_bytes=mib * _MIB),
            )


def add_host_memory(job: Job, constraints: Constraints) -> Iterator[Patch]:
    """More memory of the host: as much as a strategy needs that offloads, if that is allowed."""
    if job.machine.lives_on_host:
        return
    is_pinned = constraints.stage is not None and constraints.offload is None
    forbidden = is_pinned or constraints.offload is OffloadChoice.NONE
    change = {"offload": OffloadChoice.AUTO} if forbidden else {}
    allow: Callable[[Constraints], Constraints] = partial(replace, **change)
    roomy = replace(job, machine=with_host_memory(job.machine, _ANY_HOST_BYTES))
    rows = considered(allow(constraints))
    known = [evaluate(roomy, row) for row in STRATEGIES if row in rows]
    room = [e.host for e in known if e.headroom_bytes is not None and e.headroom_bytes >= 0]
    needs = {-(-n // _GIB) for host in room for n in (host.running_bytes, host.peak_bytes)}
    for gib in sorted(needs):
        if gib * _GIB > (job.machine.host.available_bytes or 0):
            machine = with_host_memory(job.machine, gib * _GIB)
            yield Patch(
                change={**change, "host_memory": f"{gib}GiB"},
                job=partial(replace, machine=machine),
                constraints=allow,
            )


# What leaves the result as it is, or nearly so, the cheapest first: a leaner step, then a slower
# strategy, then fewer bits. The last is the first to be left out again.
LEANER: tuple[Kind, ...] = (
    *(use_sdpa, evaluate_fewer, *CUT_LOSSES, split_batch, recompute),
    share_sequences,
)
ROUNDING: tuple[Kind, ...] = (use_bf16, halve_states)
CHEAP: tuple[Kind, ...] = (
    leave_busy_gpus,
    unpin_stage,
    *LEANER,
    shard_one_gpu,
    allow_offload,
    allow_slow,
    *ROUNDING,
)


class Attempt(Struct, frozen=True, kw_only=True):
    """Changes, and the job and the constraints that they make."""

    change: Change
    job: Job
    constraints: Constraints


Typed = Callable[[Attempt], tuple[Change, StrategyEstimate | None]]
"""A change as it has to be typed, and the strategy that is chosen then."""


class RemedyScope(Struct, frozen=True, kw_only=True):
    """What there is to change to."""

    takes: Callable[[Change], bool] = lambda _: True
    """Whether a change reaches the ranks, if it is made: a script may fix what it changes."""
    gpus: Sequence[GpuModel] = ()
    """The table that other machines are taken from."""
    models: Callable[[], Sequence[KnownModel]] = tuple
    """The table that smaller models are taken from; read when it is needed."""
    complete: Callable[[Machine], Machine] = lambda machine: machine
    """What the options add to a machine of the table: the memory of its hosts."""
    typed: Typed = lambda attempt: (
        attempt.change,
        decide(attempt.job, attempt.constraints).chosen,
    )
    """What a change leads to, if it is typed."""
    supports: Callable[[Strategy], bool] = lambda _: True
    """Whether DeepSpeed trains the job as it was asked with a strategy."""
    kept: frozenset[str] = frozenset()
    """The settings that somebody said."""


# The sizes in which the smallest machine is looked for; clusters are built of whole nodes.
SIZES: tuple[Size, ...] = (
    *(Size(nodes=1, gpus=gpus) for gpus in GPUS_OF_A_NODE),
    *(Size(nodes=nodes, gpus=GPUS_OF_A_NODE[-1]) for nodes in NODES if nodes > 1),
)


# Sizes that people train, from the largest.
_SIZES = ("70b", "32b", "14b", "7b", "3b", "1.5b", "1b", "500m", "100m")
# Of a model's parameters: one that is hardly smaller is no remedy, nor, where something else does,
# one that is far smaller.
_FAR_SMALLER, _HARDLY_SMALLER = 0.1, 0.8


# Find the changes after which a job fits: one alone, or the cheapest that do together.

Way = Mapping[Kind, Patch]
"""One change of each of these kinds, in the order in which they are made."""
_SURELY, _PERHAPS = 2, 1


class _Finder:
    """Puts the remedies of one decision together."""

    def __init__(self, decision: Decision, scope: RemedyScope) -> None:
        self.decision, self.scope = decision, scope
        # One without memory of its own stands alone in a node.
        self.table = tuple(row for row in scope.gpus if not row.shares_host_memory)
        # Where nothing fits, what is uncertain is better than nothing.
        self.grades = (_SURELY,) if decision.chosen is not None else (_SURELY, _PERHAPS)
        self.known: dict[frozenset[tuple[str, object]], int] = {}
        self.is_hard = False

    def find(self) -> list[Way]:
        """Each change that is enough alone, and what is enough together where no cheap one is."""
        alone = self.alone(*CHEAP)
        ways = [*alone] or self.together(CHEAP)
        if any(kind in CUT_LOSSES for way in ways for kind in way):
            ways += self.together([kind for kind in CHEAP if kind not in CUT_LOSSES])
        self.is_hard = is_hard = not ways
        ways += self.alone_or_joined(state_network)
        # A Trainer trains in fp32 unless its script says otherwise, which few people mean.
        ways += self.alone_or_joined(use_bf16)
        adapters = self.alone(train_adapters)
        if not adapters:
            adapters = [] if alone else self.joined(train_adapters, allow_slow)
            adapters += self.alone_or_joined(quantize, allow_slow, join=not alone)
        ways += adapters + self.alone(shorten) + (self.joined(shorten) if is_hard else [])
        machines = self.alone_or_joined(self.larger_machines, join=is_hard)
        if not (ways or machines):
            ways += self.joined(shorten, train_adapters)
            machines = self.joined(self.any_machine, unpin_stage, allow_offload)
        ways += machines
        for kind in (raise_budget, add_host_memory):
            ways += self.alone_or_joined(kind, join=is_hard)
        # A model that is hardly smaller, with a leaner step, is nearer to what was asked for.
        joined = self.joined(self.smaller_models) if is_hard else []
        return ways + (joined or self.alone(self.smaller_models))

    def larger_machines(self, job: Job, _: Constraints) -> Iterator[Patch]:
        """As many GPUs with more memory, and more of the same."""
        machine = job.machine
        if machine.accelerator.row.on_host:
            return
        nodes, gpus = machine.nodes, len(machine.gpus)
        size = Size(nodes=nodes, gpus=gpus)
        is_whole = machine.is_uniform and machine.gpus[0].mig_slice is None
        own = match_models(machine.gpus[0].name, self.table) if is_whole else ()
        # A GPU of half the speed, such as an H20 in place of an H100, is no larger one.
        slowest = min((row.fp16_flop_per_s for row in own), default=0) // 2
        found = [
            (row, size)
            for row in self.table
            if row.usable_bytes > (machine.total_bytes or 0) and row.fp16_flop_per_s >= slowest
        ]
        if len(own) == 1:
            in_node = [n for n in GPUS_OF_A_NODE if n > gpus] if nodes == 1 else []
            of_node = max(gpus, GPUS_OF_A_NODE[-1]) if nodes == 1 else gpus
            several = [n for n in (2 * nodes, 4 * nodes) if n <= NODES[-1]]
            found += [(own[0], Size(nodes=1, gpus=n)) for n in in_node]
            found += [(own[0], Size(nodes=n, gpus=of_node)) for n in several]
        yield from self._on_each(job, found)

    def any_machine(self, job: Job, _: Constraints) -> Iterator[Patch]:
        """Every GPU of the table in each size."""
        yield from self._on_each(job, [(row, size) for row in self.table for size in SIZES])

    def _on_each(self, job: Job, found: Sequence[tuple[GpuModel, Size]]) -> Iterator[Patch]:
        """The job on each; several nodes have the network of their time."""

        def price(sized: tuple[GpuModel, Size]) -> tuple[int, int, int, int, int]:
            """Fewest GPUs, least memory; of as much those that NVLink joins, then the slowest."""
            gpu, size = sized
            joined = -gpu.nvlink_gpus, -gpu.nvlink_bytes_per_s
            return size.world_size, gpu.usable_bytes // 2**30, *joined, gpu.fp16_flop_per_s

        needs_bf16 = job.workload.precision is Precision.BF16
        for gpu, size in sorted(found, key=price):
            if needs_bf16 and not gpu.bf16_flop_per_s:
                continue
            built = MachineKind(gpu=gpu, sizes=()).build(size, self.table)
            network = (
                {} if size.nodes == 1 else {"interconnect": spell_network(built.machine.network)}
            )
            machine = self.scope.complete(built.machine)
            rates = find_rates(machine, self.table)
            yield Patch(
                change={"machine": built.name, **network},
                job=partial(on_machine, machine=machine, rates=rates),
            )

    def smaller_models(self, job: Job, _: Constraints) -> Iterator[Patch]:
        """Each smaller model, the largest first: of the series, or a size where a size was said."""
        model = job.model
        least = 0.0 if self.is_hard else _FAR_SMALLER * model.params
        params = range(int(least), int(_HARDLY_SMALLER * model.params))
        builders: dict[str, Callable[[], Model]]
        if model.source is ModelSource.SIZE:
            sizes = ((name, parse_size(name) or 0) for name in _SIZES)
            builders = {n: partial(model_from_size, n, size) for n, size in sizes if size in params}
        else:
            siblings = find_siblings(model, self.scope.models())
            builders = {row.id: row.build for row in siblings if row.params in params}
        for name, build in builders.items():
            smaller = partial(replace, model=build(), traced=None)
            yield Patch(change={"model": name}, job=smaller)

    def alone(self, *kinds: Kind) -> list[Way]:
        """The mildest of each of these kinds that is enough alone.

        A size stays a size whatever is changed, so its doubt is no reason to change more; but
        nobody buys what may not do.
        """
        bought = {add_host_memory, self.larger_machines}
        by_size = self.decision.job.model.source is ModelSource.SIZE
        return [
            way
            for kind in kinds
            for way in self.mildest(
                kind, {}, self.grades[-1:] if by_size and kind not in bought else self.grades
            )
        ]

    def together(self, kinds: Sequence[Kind]) -> list[Way]:
        """The first of these kinds that are enough together, and no more of them than it takes."""
        for grade in self.grades:
            for way in self.added_up(kinds):
                if self.grade(way) >= grade:
                    return [self.leaner(way, grade)]
        return []

    def alone_or_joined(self, kind: Kind, *others: Kind, join: bool = True) -> list[Way]:
        """The mildest of a kind that is enough alone; where none is, and if asked, with others."""
        return self.alone(kind) or (self.joined(kind, *others) if join else [])

    def joined(self, kind: Kind, *others: Kind) -> list[Way]:
        """The mildest of a kind that is enough with a leaner step, and no more than it takes."""
        kinds = [other for other in (*LEANER, *others, *ROUNDING) if other is not kind]
        *_, most = self.added_up(kinds)
        ways = []
        for way in self.mildest(kind, most, self.grades):
            leaner = self.leaner(way, self.grade(way), keep=kind)
            ways += [leaner] if self.grade(_without(leaner, kind)) < self.grade(way) else []
        return ways

    def added_up(self, kinds: Sequence[Kind]) -> Iterator[Way]:
        """The most of the first of these kinds, then of one more, and so on."""
        way: Way = {}
        for kind in kinds:
            way = [way, *self.levels(kind, way)][-1]
            yield way

    def mildest(self, kind: Kind, way: Way, grades: Iterable[int]) -> list[Way]:
        """These changes with the least of another kind that is enough: surely, if any is."""
        for grade in grades:
            for changed in self.levels(kind, way):
                if self.grade(changed) >= grade:
                    return [changed]
        return []

    def leaner(self, way: Way, grade: int, keep: Kind | None = None) -> Way:
        """No more of these changes than it takes: the dearest is the first that is left out."""
        others = [kind for kind in way if kind != keep]
        for kind in reversed(others):
            fewer = _without(way, kind)
            if fewer and self.grade(fewer) >= grade:
                return self.leaner(fewer, grade, keep)
        for kind in others:
            levels = ({**way, kind: less[kind]} for less in self.levels(kind, _without(way, kind)))
            way = next((milder for milder in levels if self.grade(milder) >= grade), way)
        return way

    def levels(self, kind: Kind, way: Way) -> Iterator[Way]:
        """These changes with each amount of another kind that reaches the ranks, least first."""
        attempt = self.after(way)
        if attempt is None:
            return
        for patch in kind(attempt.job, attempt.constraints):
            changed = {**way, kind: patch}
            if self.scope.takes(patch.change) and self.after(changed) is not None:
                yield changed

    def grade(self, way: Way) -> int:
        """How sure it is that the job runs after these changes; 0 where it does not."""
        key = frozenset(item for patch in way.values() for item in patch.change.items())
        if key not in self.known:
            self.known[key] = self._ask(way)
        return self.known[key]

    def _ask(self, way: Way) -> int:
        attempt = self.after(way)
        if attempt is None:
            return 0
        try:
            chosen = choose_leanest(attempt.job, attempt.constraints)
        except UsageError:
            return 0
        if chosen is None or not chosen.runs or self.needs_unknown(attempt, chosen):
            return 0
        return _SURELY if chosen.is_sure else _PERHAPS

    def needs_unknown(self, attempt: Attempt, chosen: StrategyEstimate) -> bool:
        """Whether it needs a host with more memory than this one, of which nothing is known."""
        here, there = (job.machine.host.available_bytes for job in (self.decision.job, attempt.job))
        return here is not None and there is None and chosen.host.running_bytes > here

    def after(self, way: Way) -> Attempt | None:
        """The job after these changes; None where it cannot be so."""
        change: dict[str, int | str | bool] = {}
        job, constraints = self.decision.job, self.decision.constraints
        try:
            for patch in way.values():
                change |= patch.change
                job = patch.job(job)
                constraints = patch.constraints(constraints)
        except UsageError:
            return None
        return Attempt(change=change, job=job, constraints=constraints)

    def remedies(self, ways: Sequence[Way]) -> Iterator[Remedy]:
        """What each leads to, if it is typed."""
        for attempt in filter(None, map(self.after, ways)):
            change, chosen = self.scope.typed(attempt)
            if chosen is not None and chosen.runs and not self.needs_unknown(attempt, chosen):
                yield make_remedy(self.decision, change, chosen)


def _without(way: Way, kind: Kind) -> Way:
    return {other: patch for other, patch in way.items() if other != kind}


def _roomier(decision: Decision, chosen: StrategyEstimate, scope: RemedyScope) -> Iterator[Remedy]:
    """The strategies below the chosen one that fit, without being tight or uncertain."""
    forbidden = decision.constraints.offload is OffloadChoice.NONE
    for estimate in decision.evaluated[decision.evaluated.index(chosen) + 1 :]:
        strategy = estimate.strategy
        may_take = scope.supports(strategy) and (not forbidden or strategy.offload is Offload.NONE)
        if estimate.verdict is Verdict.FITS and may_take:
            change = {"stage": str(strategy.stage), "offload": strategy.offload.value}
            remedy = make_remedy(decision, change, estimate)
            yield replace(remedy, frees_bytes=max(0, chosen.device_bytes - estimate.device_bytes))


def find_remedies(decision: Decision, scope: RemedyScope | None = None) -> tuple[Remedy, ...]:
    """The changes that would lead to a strategy, the cheapest first; none where one fits well.

    A tight or uncertain choice is given the next strategy that fits. Where there is none, an
    uncertain one is given the changes after which something surely runs.

    Args:
        decision: What was decided.
        scope: What there is to change to; None knows no other machines, and no models by name.
    """
    chosen, scope = decision.chosen, scope or RemedyScope()
    if decision.job.own_buffers is not None:
        # The user's own config sets all this itself; no option can be added to it.
        return ()
    if chosen is not None:
        if chosen.verdict not in {Verdict.TIGHT, Verdict.UNCERTAIN}:
            return ()
        roomier = tuple(islice(_roomier(decision, chosen, scope), 1))
        # Less memory makes nothing sure where something is not counted.
        stays_unsure = chosen.interval is not None and chosen.interval.uncounted
        if roomier or chosen.verdict is Verdict.TIGHT or stays_unsure:
            return roomier
    finder = _Finder(decision, scope)
    return worth_offering(finder.remedies(finder.find()), scope.kept)


def find_edits(decision: Decision, scope: RemedyScope) -> tuple[Remedy, ...]:
    """The changes that would lead to a strategy, and that only the script itself can make.

    Args:
        decision: What was decided, which is nothing.
        scope: What reaches the ranks without a change of the script.
    """
    if decision.job.own_buffers is not None or decision.chosen is not None:
        return ()
    free = RemedyScope(models=scope.models)
    finder = _Finder(decision, free)
    edits = finder.remedies(finder.find())
    return worth_offering((e for e in edits if not scope.takes(e.change)), scope.kept)
