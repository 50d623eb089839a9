"""Find what would make a job fit: changes and their combinations, other machines, other models."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict, evaluate
from zerowiz.core.decision.flowchart import (
    Constraints,
    Decision,
    OffloadChoice,
    choose_only,
    considered,
)
from zerowiz.core.decision.job import Job
from zerowiz.core.decision.remedy_table import (
    KEEPING,
    PAST_SLOW_LINK,
    ROUNDING,
    Attempt,
    Kind,
    Lazy,
    Remedy,
    allow_offload,
    allow_slow,
    cut_loss,
    make_remedy,
    quantize,
    recompute,
    shorten,
    split_batch,
    state_network,
    train_adapters,
    unpin_stage,
    use_bf16,
    use_sdpa,
    worth_offering,
)
from zerowiz.core.machine.interconnect import with_interconnect
from zerowiz.core.machine.names import GpuModel, match_models
from zerowiz.core.machine.types import Machine, Network, with_host_memory
from zerowiz.core.machine_kinds import ADAPTER_BYTES_PER_S, GPUS_OF_A_NODE, NODES, MachineKind, Size
from zerowiz.core.model.from_name import KnownModel, find_siblings, model_from_size, parse_size
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.settings import Change
from zerowiz.core.speed.costs import find_rates
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy_types import Offload
from zerowiz.core.structs import replace
from zerowiz.core.workload import Precision
from zerowiz.errors import UsageError

Complete = Callable[[Machine], Machine]
"""What the options add to a machine of the table: the memory of its hosts."""

_BITS_OF_A_BYTE = 8


class MachineTable:
    """The machines that a job can be tried on."""

    def __init__(self, table: Sequence[GpuModel], complete: Complete) -> None:
        # Of those with as much memory the ones that NVLink joins, then the slowest: the cheapest.
        self._table = sorted(
            table,
            key=lambda gpu: (
                gpu.usable_bytes // 2**30,
                -gpu.nvlink_gpus,
                -gpu.nvlink_bytes_per_s,
                gpu.fp16_flop_per_s,
            ),
        )
        self._complete = complete

    def more_of_the_same(self, job: Job, constraints: Constraints) -> Iterator[Attempt]:
        """More GPUs like those of the job in its node, then more nodes."""
        gpu, machine = self._own(job.machine), job.machine
        if gpu is None:
            return
        count = len(machine.gpus)
        for gpus in GPUS_OF_A_NODE:
            if gpus > count and machine.nodes == 1:
                yield from self._on(gpu, Size(nodes=1, gpus=gpus), job, constraints)
        count = max(count, GPUS_OF_A_NODE[-1]) if machine.nodes == 1 else count
        for nodes in (2 * machine.nodes, 4 * machine.nodes):
            if nodes <= NODES[-1]:
                yield from self._on(gpu, Size(nodes=nodes, gpus=count), job, constraints)

    def larger(self, job: Job, constraints: Constraints) -> list[Lazy]:
        """As many GPUs with more memory, the smallest of them first."""
        machine = job.machine
        if machine.accelerator.row.on_host:
            return []
        size = Size(nodes=machine.nodes, gpus=len(machine.gpus))
        return self.of_size(size, job, constraints, above_bytes=machine.total_bytes or 0)

    def of_size(
        self, size: Size, job: Job, constraints: Constraints, above_bytes: int = 0
    ) -> list[Lazy]:
        """Every GPU of the table in this number, the smallest first; over nodes with a network."""
        bf16 = job.workload.precision is Precision.BF16
        return [
            partial(self._last, gpu, size, job, constraints)
            for gpu in self._table
            if gpu.usable_bytes > above_bytes and (gpu.bf16_flop_per_s or not bf16)
        ]

    def _last(
        self, gpu: GpuModel, size: Size, job: Job, constraints: Constraints
    ) -> Attempt | None:
        return list(self._on(gpu, size, job, constraints))[-1]

    def _own(self, machine: Machine) -> GpuModel | None:
        """The row of a machine's GPUs; None where they are of two kinds, or in no table."""
        sliced = any(gpu.mig_slice is not None for gpu in machine.gpus)
        if machine.accelerator.row.on_host or not machine.is_uniform or sliced:
            return None
        models = match_models(machine.gpus[0].name, self._table)
        return models[0] if len(models) == 1 else None

    def _on(
        self, gpu: GpuModel, size: Size, job: Job, constraints: Constraints
    ) -> Iterator[Attempt]:
        """The job on so many of these; over several nodes also with the network of their time."""
        built = MachineKind(gpu=gpu, sizes=()).build(size, self._table)
        plain = replace(built.machine, network=Network())
        yield self._attempt({"machine": built.name}, plain, job, constraints)
        if size.nodes > 1:
            bytes_per_s = size.gpus * ADAPTER_BYTES_PER_S[min(5, gpu.pcie_generation)]
            words = f"infiniband:{bytes_per_s * _BITS_OF_A_BYTE // 10**9}Gb/s"
            joined = with_interconnect(plain, words)
            change = {"machine": built.name, "interconnect": words}
            yield self._attempt(change, joined, job, constraints)

    def _attempt(
        self, change: Change, machine: Machine, job: Job, constraints: Constraints
    ) -> Attempt:
        machine = self._complete(machine)
        changed = replace(
            job,
            machine=machine,
            rates=find_rates(machine, self._table),
            # What was seen on the job's own machine says nothing of another.
            calibration=None,
            ran_out=(),
        )
        return Attempt(change=change, job=changed, constraints=constraints)


# The sizes in which the smallest machine is looked for; clusters are built of whole nodes.
SIZES: tuple[Size, ...] = (
    *(Size(nodes=1, gpus=gpus) for gpus in GPUS_OF_A_NODE),
    *(Size(nodes=nodes, gpus=GPUS_OF_A_NODE[-1]) for nodes in NODES if nodes > 1),
)

# Try changes of a job: what one leads to, the mildest of many, the fewest that do together.

_MIB, _GIB = 2**20, 2**30
# As many machines are tried before the smallest that was found.
_NEAR = 5
# A machine that surely does has at most so many times the memory of one that may do.
_TIMES_AS_LARGE = 2
# More levels than any kind of change has.
_MOST = 2**30
# More than any host has.
_ANY_HOST_BYTES = 2**50


def always(_: Change) -> bool:
    """Every change is possible."""
    return True


def _as_it_is(machine: Machine) -> Machine:
    return machine


class RemedyScope(Struct, frozen=True, kw_only=True):
    """What there is to change to."""

    takes: Callable[[Change], bool] = always
    """Whether a change reaches the ranks, if it is made: a script may fix what it changes."""
    gpus: Sequence[GpuModel] = ()
    """The table that other machines are taken from."""
    models: Callable[[], Sequence[KnownModel]] = tuple
    """The table that smaller models are taken from; read when it is needed."""
    complete: Complete = _as_it_is
    """What the options add to a machine of the table."""


class Found(Struct, frozen=True, kw_only=True):
    """An attempt, and the strategy that it leads to."""

    attempt: Attempt
    chosen: StrategyEstimate


def _surely(chosen: StrategyEstimate | None) -> int:
    return 0 if chosen is None else 2 if chosen.is_sure else 1


def _at_all(chosen: StrategyEstimate | None) -> int:
    return 0 if chosen is None else 2


def _size_of(way: Found) -> int:
    return way.attempt.job.machine.free_bytes or 0


class AttemptSearch:
    """The changes of one decision that lead to a strategy."""

    def __init__(self, decision: Decision, scope: RemedyScope) -> None:
        self.decision = decision
        self.scope = scope
        self.start = Attempt(change={}, job=decision.job, constraints=decision.constraints)
        # A size stays a size whatever is changed, so its doubt is no reason to look further.
        by_size = decision.job.model.source is ModelSource.SIZE
        refused = decision.chosen is None
        self._takes_doubt = refused and by_size
        # Where nothing fits, what is uncertain is better than nothing.
        self._wanted = 1 if refused else 2

    def leads(self, attempt: Attempt | None) -> StrategyEstimate | None:
        """The strategy that an attempt leads to; None where it leads nowhere."""
        if attempt is None:
            return None
        try:
            chosen, _ = choose_only(attempt.job, attempt.constraints, leanest=True)
        except UsageError:
            return None
        return chosen if chosen is not None and chosen.runs else None

    def remedy(self, way: Found) -> Remedy:
        """The remedy that a change is, with the buffers that its job would have."""
        attempt = way.attempt
        chosen, _ = choose_only(attempt.job, attempt.constraints)
        return make_remedy(self.decision, attempt.change, chosen or way.chosen)

    def _grade(self, chosen: StrategyEstimate | None) -> int:
        """0: it does not run; 1: perhaps; 2: it surely does, or nothing could tell more surely."""
        if chosen is None:
            return 0
        return 2 if chosen.is_sure or self._takes_doubt else 1

    def mildest(self, attempts: Sequence[Lazy]) -> Found | None:
        """The first attempt that leads to a strategy, of those that free more and more.

        Surely, where the last one does; where nothing fits, an uncertain one is better than none.
        """
        first = self._first(attempts, self._grade)
        return None if first is None else first[1]

    def smallest(self, machines: Sequence[Lazy]) -> Found | None:
        """The first machine that leads to a strategy, of larger and larger ones.

        Surely, even where the doubt is that of a size: nobody buys a machine that may do. One
        without fast links can lack what a smaller one has: those just before it are tried too.
        """
        first = self._first(machines, _surely)
        if first is None:
            return None
        index, best = first
        smaller = self._first(machines[:index], _at_all)
        if smaller is not None and _size_of(best) > _TIMES_AS_LARGE * _size_of(smaller[1]):
            index, best = smaller
        before = (self.mildest([machine]) for machine in machines[max(0, index - _NEAR) : index])
        wanted = _surely(best.chosen)
        return next((way for way in before if way and _surely(way.chosen) >= wanted), best)

    def _first(
        self, attempts: Sequence[Lazy], grade: Callable[[StrategyEstimate | None], int]
    ) -> tuple[int, Found] | None:
        """Where the first one is that is graded as high as the last one."""
        if not attempts:
            return None
        known: dict[int, Found | None] = {}

        def at(index: int) -> int:
            if index not in known:
                attempt = attempts[index]()
                chosen = self.leads(attempt)
                both = attempt is not None and chosen is not None
                known[index] = Found(attempt=attempt, chosen=chosen) if both else None  # type: ignore[arg-type]
            way = known[index]
            return grade(None if way is None else way.chosen)

        wanted = at(len(attempts) - 1)
        if wanted < self._wanted:
            return None
        index = bisect_left(range(len(attempts)), x=True, key=lambda i: at(i) >= wanted)
        at(index)
        best = known[index]
        return None if best is None else (index, best)

    def attempts(self, kind: Kind, base: Attempt) -> list[Attempt]:
        """What of a kind can be done after a change, and reaches the ranks."""
        attempts = kind(base.job, base.constraints)
        return [base.then(attempt) for attempt in attempts if self.scope.takes(attempt.change)]

    def alone(self, kind: Kind, base: Attempt | None = None) -> Found | None:
        """The mildest of one kind that is enough."""
        attempts = self.attempts(kind, base or self.start)
        return self.mildest([partial(_same, attempt) for attempt in attempts])

    def combined(
        self, kinds: Sequence[Kind], needed: Kind | None = None, base: Attempt | None = None
    ) -> Found | None:
        """The fewest and mildest of several changes that are enough together.

        All are made; then each is left out again if the others do without it, the last first.

        Args:
            kinds: What may be changed.
            needed: The one of them that is never left out; None where each may be.
            base: The change that they are made after; None is none.
        """
        base = base or self.start
        kinds = [kind for kind in kinds if self.attempts(kind, base)]
        if needed is not None and needed not in kinds:
            return None
        grade = self._grade(self.leads(self.most(kinds, base)))
        if grade < self._wanted:
            return None
        for kind in reversed(kinds):
            others = [other for other in kinds if other is not kind]
            if kind is needed:
                continue
            if self._grade(self.leads(self.most(others, base))) >= grade:
                kinds = others
        for kind in reversed(kinds):
            rest = self.most([other for other in kinds if other is not kind], base)
            way = self.alone(kind, rest)
            if way is not None and len(self.attempts(kind, rest)) > 1:
                return way
        attempt = self.most(kinds, base)
        chosen = self.leads(attempt)
        return None if chosen is None else Found(attempt=attempt, chosen=chosen)

    def found(self, attempt: Attempt) -> Found | None:
        """The attempt, if it leads to a strategy as surely as is asked for."""
        return self.mildest([partial(_same, attempt)])

    def pruned(self, way: Found, kinds: Sequence[Kind], start: Attempt) -> Found:
        """Another machine or model with no more of these changes than it needs, the last first."""
        grade = self._grade(way.chosen)
        leaner = self.most(kinds, start).change
        change = {name: value for name, value in way.attempt.change.items() if name not in leaner}
        whole = replace(way.attempt, change=change)
        current: dict[Kind, int] = dict.fromkeys(kinds, _MOST)
        for kind in reversed(kinds):
            others = {other: level for other, level in current.items() if other is not kind}
            levels = range(len(self.attempts(kind, self._with(others, start))))
            milder = ({**current, kind: level} for level in levels[:-1])
            for fewer in (others, *milder):
                less = _elsewhere(self._with(fewer, start), whole)
                chosen = self.leads(less)
                if chosen is not None and self._grade(chosen) >= grade:
                    current, way = fewer, Found(attempt=less, chosen=chosen)
                    break
        return way

    def _with(self, levels: Mapping[Kind, int], base: Attempt) -> Attempt:
        """So much of each of these changes; a level that a kind does not have is its most."""
        for kind, level in levels.items():
            attempts = self.attempts(kind, base)
            base = attempts[min(level, len(attempts) - 1)] if attempts else base
        return base

    def most(self, kinds: Iterable[Kind], base: Attempt) -> Attempt:
        """The most of each of these changes."""
        for kind in kinds:
            base = next(reversed(self.attempts(kind, base)), base)
        return base

    def past_slow_link(self, way: Found | None) -> Iterator[Found]:
        """A combination that takes ZeRO-3 over a slow link, and the same by each other way."""
        if way is None:
            return
        yield way
        if "allow_slow" not in way.attempt.change:
            return
        change = {n: v for n, v in way.attempt.change.items() if n != "allow_slow"}
        free = replace(way.attempt.constraints, allow_slow=self.decision.constraints.allow_slow)
        without = Attempt(change=change, job=way.attempt.job, constraints=free)
        for kind in PAST_SLOW_LINK:
            other = None if kind is allow_slow else self.alone(kind, without)
            if other is not None:
                yield other

    def with_host(self, base: Attempt) -> Found | None:
        """The least memory of the host with which something is offloaded, surely if any does."""
        machine, constraints = base.job.machine, base.constraints
        if machine.lives_on_host or constraints.offload is OffloadChoice.NONE:
            return None
        if constraints.stage is not None and constraints.offload is None:
            return None
        needs = sorted(
            {
                -(-size_bytes // _GIB)
                for strategy in considered(constraints)
                if strategy.offload is not Offload.NONE
                for size_bytes in self._host_needs(strategy.name, base)
            }
        )
        now_bytes = machine.host.available_bytes or 0
        attempts = [_with_host(base, gib) for gib in needs if gib * _GIB > now_bytes]
        first = self._first([partial(_same, attempt) for attempt in attempts], _surely)
        way = None if first is None else first[1]
        return way if way and way.chosen.strategy.offload is not Offload.NONE else None

    def with_budget(self, base: Attempt) -> Found | None:
        """The least of each GPU that is enough, where a person allows less than is free."""
        job, free_bytes = base.job, base.job.machine.free_bytes or 0
        if job.budget_bytes is None or job.budget_bytes >= free_bytes:
            return None
        roomy = replace(job, budget_bytes=None)
        rows = [row for row in considered(base.constraints) if row.offload is Offload.NONE]
        known = [evaluate(roomy, row) for row in STRATEGIES if row in rows]
        needs = {-(-n // _MIB) for e in known for n in (e.device_bytes, e.high_device_bytes)}
        attempts = [
            Attempt(
                change={**base.change, "memory_budget": f"{mib}MiB"},
                job=replace(job, budget_bytes=mib * _MIB),
                constraints=base.constraints,
            )
            for mib in sorted(needs)
            if job.budget_bytes < mib * _MIB <= free_bytes
        ]
        return self.mildest([partial(_same, attempt) for attempt in attempts])

    def _host_needs(self, name: str, base: Attempt) -> Iterator[int]:
        """What a strategy takes of a host that has enough, if its GPUs have enough as well."""
        row = next(row for row in STRATEGIES if row.name == name)
        known = evaluate(_with_host(base, _ANY_HOST_BYTES // _GIB).job, row)
        room_bytes = known.headroom_bytes
        if room_bytes is not None and room_bytes >= 0:
            yield from (known.host.running_bytes, known.host.peak_bytes)


def _elsewhere(base: Attempt, whole: Attempt) -> Attempt:
    """A change with the machine and the model of another one, which changes nothing else."""
    job = replace(
        base.job,
        budget_bytes=whole.job.budget_bytes,
        machine=whole.job.machine,
        rates=whole.job.rates,
        calibration=whole.job.calibration,
        ran_out=whole.job.ran_out,
        model=whole.job.model,
        traced=whole.job.traced,
    )
    return Attempt(change={**base.change, **whole.change}, job=job, constraints=base.constraints)


def _same(attempt: Attempt) -> Attempt:
    return attempt


def _with_host(base: Attempt, gib: int) -> Attempt:
    machine = with_host_memory(base.job.machine, gib * _GIB)
    return Attempt(
        change={**base.change, "host_memory": f"{gib}GiB"},
        job=replace(base.job, machine=machine),
        constraints=base.constraints,
    )


# Smaller models for a job: of the same series by name, or of a size where a size was said.

# Sizes that people train, from the largest.
_SIZES = ("70b", "32b", "14b", "7b", "3b", "1.5b", "1b", "500m", "100m")
# Of a model's parameters; one that is hardly smaller is no remedy.
_AT_MOST = 0.8


def smaller_models(
    job: Job,
    constraints: Constraints,
    table: Sequence[KnownModel],
    at_least_params: float = 0,
) -> list[Lazy]:
    """The job with each smaller model, the largest first; a model is built when it is asked for."""
    params = range(int(at_least_params), int(_AT_MOST * job.model.params))
    if job.model.source is ModelSource.SIZE:
        return [
            partial(_with_model, name, partial(model_from_size, name, size), job, constraints)
            for name, size in ((name, parse_size(name)) for name in _SIZES)
            if size is not None and size in params
        ]
    return [
        partial(_with_model, row.id, row.build, job, constraints)
        for row in find_siblings(job.model, table)
        if row.params in params
    ]


def _with_model(
    name: str, build: Callable[[], Model], job: Job, constraints: Constraints
) -> Attempt | None:
    """The job with another model; None where that cannot take the step."""
    try:
        changed = replace(job, model=build(), traced=None)
    except UsageError:
        return None
    return Attempt(change={"model": name}, job=changed, constraints=constraints)


# Find the changes after which a job fits: one alone, or the least of a combination.

# Of the parameters of a model that can be trained with a leaner step.
_FAR_SMALLER = 0.1
# What of a run can be made leaner, the cheapest first; the last is the first to be left out again.
_LEANER: tuple[Kind, ...] = (
    *(kind for kind in KEEPING if kind is not state_network),
    *ROUNDING,
)
_LEANER_STEP: tuple[Kind, ...] = (use_sdpa, cut_loss, split_batch, recompute)
# A combination on another machine, or of another model, needs no slow or offloaded strategy.
_LEANEST: tuple[Kind, ...] = (*_LEANER_STEP, *ROUNDING)


class _Finder:
    """Puts the remedies of one decision together."""

    def __init__(self, decision: Decision, scope: RemedyScope) -> None:
        self.search = AttemptSearch(decision, scope)
        self.scope = scope
        self.machines = MachineTable(scope.gpus, scope.complete)

    def find(self) -> Iterator[Found]:
        """Each change that is enough, or the combination where none is."""
        search = self.search
        same = [way for kind in (*KEEPING, *ROUNDING) if (way := search.alone(kind))]
        same = same or list(search.past_slow_link(search.combined(_LEANER)))
        yield from same
        yield from self._in_bf16(same)
        quality = [*self._shorter(leanest=not same), *self._adapters()]
        yield from quality
        leanest = not same
        others = filter(None, (self._budget(leanest=leanest), self._host(leanest=leanest)))
        yield from others
        machines = list(self._on_others(leanest=leanest))
        yield from machines
        if not (same or quality or machines):
            yield from self._smallest_machine()
            adapters = (*_LEANER_STEP, allow_slow, train_adapters)
            yield from filter(None, [self._longest(adapters, (*adapters, quantize))])
        if smaller := self._smaller(leanest=not same):
            yield smaller

    def with_edits(self, *, leanest: bool) -> Iterator[Found]:
        """Adapters and smaller models; where nothing else does, also what takes many changes."""
        if leanest and (together := self.search.combined(_LEANER)):
            yield together
            yield from self._in_bf16([together])
        elif leanest:
            yield from self._on_others(leanest=True)
        yield from self._adapters()
        if smaller := self._smaller(leanest=leanest):
            yield smaller

    def _in_bf16(self, ways: Sequence[Found]) -> Iterator[Found]:
        """Weights in bf16 with what it takes besides, where only other changes were found.

        A Trainer trains in fp32 unless its script says otherwise, which few people mean: on a GPU
        it takes several times as long.
        """
        if not any("precision" in way.attempt.change for way in ways):
            yield from filter(None, [self.search.combined((use_bf16, *_LEANER), use_bf16)])

    def _shorter(self, *, leanest: bool) -> Iterator[Found]:
        """Shorter sequences; where nothing else does, with what it takes besides."""
        if way := self.search.alone(shorten):
            yield way
        elif leanest:
            together = self.search.combined((*_LEANER, shorten), shorten)
            yield from self.search.past_slow_link(together)
        if leanest:
            yield from filter(None, [self._longest(_LEANER_STEP, _LEANER)])

    def _longest(self, *leaner: Sequence[Kind]) -> Found | None:
        """The longest sequences that fit with a leaner step, and no more of it than they need."""
        search = self.search
        for kinds in leaner:
            way = search.alone(shorten, search.most(kinds, search.start))
            if way is None:
                continue
            tokens = way.attempt.change["sequence_tokens"]
            shorter = search.attempts(shorten, search.start)
            base = next(
                attempt for attempt in shorter if attempt.change["sequence_tokens"] == tokens
            )
            return search.combined(kinds, base=base)
        return None

    def _adapters(self) -> Iterator[Found]:
        """Adapters; where that takes more changes, adapters on quantized weights as well."""
        for kind in (train_adapters, quantize):
            if way := self.search.alone(kind):
                yield way
                return
            together = self.search.combined((*_LEANEST, allow_slow, kind), kind)
            yield from self.search.past_slow_link(together)

    def _budget(self, *, leanest: bool) -> Found | None:
        """More memory of each GPU, where a person set less than is free."""
        search = self.search
        for kinds in ((), _LEANEST) if leanest else ((),):
            if way := search.with_budget(search.most(kinds, search.start)):
                return search.pruned(way, kinds, search.start)
        return None

    def _host(self, *, leanest: bool) -> Found | None:
        """More memory of the host, with offload allowed or a leaner step where it takes that."""
        search = self.search
        offloading = [search.start, *search.attempts(allow_offload, search.start)]
        for kinds in ((), _LEANEST) if leanest else ((),):
            for start in offloading:
                base = search.most(kinds, start)
                if way := search.with_host(base):
                    return search.pruned(way, kinds, start)
        return None

    def _on_others(self, *, leanest: bool) -> Iterator[Found]:
        """More GPUs like these, and the smallest of the larger ones; surely enough, if any is."""
        for of_kind in (self._more_of_the_same, self._larger):
            for kinds in ((), _LEANEST) if leanest else ((),):
                base = self.search.most(kinds, self.search.start)
                if way := of_kind(base):
                    yield self.search.pruned(way, kinds, self.search.start)
                    break

    def _more_of_the_same(self, base: Attempt) -> Found | None:
        more = self.machines.more_of_the_same(base.job, base.constraints)
        ways = (self.search.found(base.then(attempt)) for attempt in more if self._takes(attempt))
        return next(filter(None, ways), None)

    def _larger(self, base: Attempt) -> Found | None:
        larger = self._after(base, self.machines.larger(base.job, base.constraints))
        return self.search.smallest(larger)

    def _takes(self, attempt: Attempt) -> bool:
        return self.scope.takes(attempt.change)

    def _smaller(self, *, leanest: bool) -> Found | None:
        """The largest smaller model that fits, with a leaner step where nothing else does.

        Where something else does, a model that is far smaller is no remedy.
        """
        search, table = self.search, self.scope.models()
        kinds = _LEANEST if leanest else ()
        base = search.most(kinds, search.start)
        least = 0.0 if leanest else _FAR_SMALLER * base.job.model.params
        models = smaller_models(base.job, base.constraints, table, least)
        way = search.mildest(self._after(base, models))
        return search.pruned(way, kinds, search.start) if way else None

    def _after(self, base: Attempt, attempts: Sequence[Lazy]) -> list[Lazy]:
        """Attempts that were made of the job after a change; those that reach the ranks."""

        def made(attempt: Lazy) -> Attempt | None:
            change = attempt()
            if change is None or not self._takes(change):
                return None
            return base.then(change)

        return [partial(made, attempt) for attempt in attempts]

    def _smallest_machine(self) -> Iterator[Found]:
        """The fewest and smallest GPUs of the table with which the job fits, leaner if need be."""
        search = self.search
        for kinds in (_LEANEST, (unpin_stage, allow_offload, *_LEANEST)):
            base = search.most(kinds, search.start)
            for size in SIZES:
                gpus = self.machines.of_size(size, base.job, base.constraints)
                if gpus and (way := search.smallest(self._after(base, gpus))):
                    yield search.pruned(way, kinds, search.start)
                    return


def _roomier(decision: Decision, chosen: StrategyEstimate) -> Iterator[Remedy]:
    """The strategies below the chosen one that fit, without being tight or uncertain."""
    forbidden = decision.constraints.offload is OffloadChoice.NONE
    for estimate in decision.evaluated[decision.evaluated.index(chosen) + 1 :]:
        offloads = estimate.strategy.offload is not Offload.NONE
        if estimate.verdict is Verdict.FITS and not (forbidden and offloads):
            change = {
                "stage": str(estimate.strategy.stage),
                "offload": estimate.strategy.offload.value,
            }
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
    chosen = decision.chosen
    if decision.job.own_buffers is not None:
        # The user's own config sets all this itself; no option can be added to it.
        return ()
    if chosen is not None:
        if chosen.verdict not in {Verdict.TIGHT, Verdict.UNCERTAIN}:
            return ()
        roomier = tuple(islice(_roomier(decision, chosen), 1))
        # Less memory makes nothing sure where something is not counted.
        stays_unsure = chosen.interval is not None and chosen.interval.uncounted
        if roomier or chosen.verdict is Verdict.TIGHT or stays_unsure:
            return roomier
    finder = _Finder(decision, scope or RemedyScope())
    return worth_offering(finder.search.remedy(way) for way in finder.find())


def find_edits(decision: Decision, scope: RemedyScope) -> tuple[Remedy, ...]:
    """The changes that would lead to a strategy, and that only the script itself can make.

    Args:
        decision: What was decided, which is nothing.
        scope: What reaches the ranks without a change of the script.
    """
    if decision.job.own_buffers is not None or decision.chosen is not None:
        return ()
    outside = replace(scope, takes=lambda change: not scope.takes(change))
    search = AttemptSearch(decision, outside)
    kinds = (*KEEPING, *ROUNDING, shorten)
    ways = [way for kind in kinds if (way := search.alone(kind))]
    free = _Finder(decision, replace(scope, takes=always))
    ways += free.with_edits(leanest=not ways)
    needed = (edit for edit in ways if not scope.takes(edit.attempt.change))
    return worth_offering(search.remedy(edit) for edit in needed)
