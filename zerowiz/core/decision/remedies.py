"""Find what would make a job fit: a change alone, or the cheapest ones that do together.

Each change is tried alone, in the order of what it costs. Where none is enough they are added up in
that order until the job fits, and then left out again where they are not needed, the dearest first.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import (
    Constraints,
    Decision,
    OffloadChoice,
    choose_leanest,
    decide,
)
from zerowiz.core.decision.job import Job
from zerowiz.core.decision.remedy_table import (
    CHEAP,
    LEANER,
    ROUNDING,
    Kind,
    Patch,
    Remedy,
    add_host_memory,
    allow_offload,
    allow_slow,
    make_remedy,
    on_machine,
    quantize,
    raise_budget,
    shorten,
    state_network,
    train_adapters,
    unpin_stage,
    use_bf16,
    worth_offering,
)
from zerowiz.core.machine.interconnect import spell_network
from zerowiz.core.machine.names import GpuModel, match_models
from zerowiz.core.machine.types import Machine
from zerowiz.core.machine_kinds import GPUS_OF_A_NODE, NODES, MachineKind, Size
from zerowiz.core.model.from_name import KnownModel, find_siblings, model_from_size, parse_size
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.settings import Change
from zerowiz.core.speed.costs import find_rates
from zerowiz.core.strategy_types import Offload
from zerowiz.core.structs import replace
from zerowiz.core.workload import Precision
from zerowiz.errors import UsageError


class Attempt(Struct, frozen=True, kw_only=True):
    """Changes, and the job and the constraints that they make."""

    change: Change
    job: Job
    constraints: Constraints


Typed = Callable[[Attempt], tuple[Change, StrategyEstimate | None]]
"""A change as it has to be typed, and the strategy that is chosen then."""


def always(_: Change) -> bool:
    """Every change is possible."""
    return True


def _as_it_is(machine: Machine) -> Machine:
    return machine


def _by_itself(attempt: Attempt) -> tuple[Change, StrategyEstimate | None]:
    return attempt.change, decide(attempt.job, attempt.constraints).chosen


class RemedyScope(Struct, frozen=True, kw_only=True):
    """What there is to change to."""

    takes: Callable[[Change], bool] = always
    """Whether a change reaches the ranks, if it is made: a script may fix what it changes."""
    gpus: Sequence[GpuModel] = ()
    """The table that other machines are taken from."""
    models: Callable[[], Sequence[KnownModel]] = tuple
    """The table that smaller models are taken from; read when it is needed."""
    complete: Callable[[Machine], Machine] = _as_it_is
    """What the options add to a machine of the table: the memory of its hosts."""
    typed: Typed = _by_itself
    """What a change leads to, if it is typed."""
    kept: frozenset[str] = frozenset()
    """The settings that somebody said."""


# Other machines of the table.

# The sizes in which the smallest machine is looked for; clusters are built of whole nodes.
SIZES: tuple[Size, ...] = (
    *(Size(nodes=1, gpus=gpus) for gpus in GPUS_OF_A_NODE),
    *(Size(nodes=nodes, gpus=GPUS_OF_A_NODE[-1]) for nodes in NODES if nodes > 1),
)


class _Machines:
    """The machines that a job can be tried on, the smallest first."""

    def __init__(self, scope: RemedyScope) -> None:
        self.table, self.complete = scope.gpus, scope.complete

    def larger(self, job: Job, _: Constraints) -> Iterator[Patch]:
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
        yield from self._patches(job, found)

    def any(self, job: Job, _: Constraints) -> Iterator[Patch]:
        """Every GPU of the table in each size."""
        yield from self._patches(job, [(row, size) for row in self.table for size in SIZES])

    def _patches(self, job: Job, found: Sequence[tuple[GpuModel, Size]]) -> Iterator[Patch]:
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
            machine = self.complete(built.machine)
            rates = find_rates(machine, self.table)
            yield Patch(
                change={"machine": built.name, **network},
                job=partial(on_machine, machine=machine, rates=rates),
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
        self.machines = _Machines(scope)
        # Where nothing fits, what is uncertain is better than nothing.
        self.grades = (_SURELY,) if decision.chosen is not None else (_SURELY, _PERHAPS)
        self.known: dict[frozenset[tuple[str, object]], int] = {}
        self.is_hard = False

    def find(self) -> list[Way]:
        """Each change that is enough alone, and what is enough together where no cheap one is."""
        alone = self.alone(*CHEAP)
        ways = [*alone] or self.together(CHEAP)
        self.is_hard = is_hard = not ways
        ways += self.alone_or_joined(state_network)
        # A Trainer trains in fp32 unless its script says otherwise, which few people mean.
        ways += self.alone_or_joined(use_bf16)
        adapters = self.alone(train_adapters)
        if not adapters:
            adapters = [] if alone else self.joined(train_adapters, allow_slow)
            adapters += self.alone_or_joined(quantize, allow_slow, join=not alone)
        ways += adapters + self.alone(shorten) + (self.joined(shorten) if is_hard else [])
        machines = self.alone_or_joined(self.machines.larger, join=is_hard)
        if not (ways or machines):
            ways += self.joined(shorten, train_adapters)
            machines = self.joined(self.machines.any, unpin_stage, allow_offload)
        ways += machines
        for kind in (raise_budget, add_host_memory):
            ways += self.alone_or_joined(kind, join=is_hard)
        # A model that is hardly smaller, with a leaner step, is nearer to what was asked for.
        joined = self.joined(self.smaller_models) if is_hard else []
        return ways + (joined or self.alone(self.smaller_models))

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
        bought = {add_host_memory, self.machines.larger}
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


def _roomier(decision: Decision, chosen: StrategyEstimate) -> Iterator[Remedy]:
    """The strategies below the chosen one that fit, without being tight or uncertain."""
    forbidden = decision.constraints.offload is OffloadChoice.NONE
    for estimate in decision.evaluated[decision.evaluated.index(chosen) + 1 :]:
        strategy = estimate.strategy
        if estimate.verdict is Verdict.FITS and not (
            forbidden and strategy.offload is not Offload.NONE
        ):
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
    scope = scope or RemedyScope()
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
