"""Try changes of a job: what one leads to, the mildest of many, the fewest that do together."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate, evaluate
from zerowiz.core.decision.flowchart import Decision, OffloadChoice, considered, find_way
from zerowiz.core.machine.names.gpus import GpuModel
from zerowiz.core.machine.types import Machine, with_host_memory
from zerowiz.core.model.known import KnownModel
from zerowiz.core.model.types import ModelSource
from zerowiz.core.remedies.changes import PAST_SLOW_LINK, Kind, allow_slow
from zerowiz.core.remedies.machines import Complete
from zerowiz.core.remedies.remedy import Attempt, Lazy
from zerowiz.core.settings import Change
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy import Offload
from zerowiz.core.values import replace
from zerowiz.errors import UsageError

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


def _size_of(found: Found) -> int:
    return found.attempt.job.machine.free_bytes or 0


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
            chosen, _ = find_way(attempt.job, attempt.constraints)
        except UsageError:
            return None
        return chosen if chosen is not None and chosen.runs else None

    def _grade(self, chosen: StrategyEstimate | None) -> int:
        """0: it does not run; 1: perhaps; 2: it surely does, or nothing could tell more surely."""
        if chosen is None:
            return 0
        return 2 if chosen.is_sure or self._takes_doubt else 1

    def mildest(self, attempts: Sequence[Lazy]) -> Found | None:
        """The first attempt that leads to a strategy, of those that free more and more.

        Surely, where the last one does; where nothing fits, an uncertain one is better than none.
        """
        found = self._first(attempts, self._grade)
        return None if found is None else found[1]

    def smallest(self, machines: Sequence[Lazy]) -> Found | None:
        """The first machine that leads to a strategy, of larger and larger ones.

        Surely, even where the doubt is that of a size: nobody buys a machine that may do. One
        without fast links can lack what a smaller one has: those just before it are tried too.
        """
        found = self._first(machines, _surely)
        if found is None:
            return None
        index, best = found
        smaller = self._first(machines[:index], _at_all)
        if smaller is not None and _size_of(best) > _TIMES_AS_LARGE * _size_of(smaller[1]):
            index, best = smaller
        before = (self.mildest([each]) for each in machines[max(0, index - _NEAR) : index])
        wanted = _surely(best.chosen)
        return next((each for each in before if each and _surely(each.chosen) >= wanted), best)

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
            found = known[index]
            return grade(None if found is None else found.chosen)

        wanted = at(len(attempts) - 1)
        if wanted < self._wanted:
            return None
        index = bisect_left(range(len(attempts)), x=True, key=lambda i: at(i) >= wanted)
        at(index)
        best = known[index]
        return None if best is None else (index, best)

    def attempts(self, kind: Kind, base: Attempt) -> list[Attempt]:
        """What of a kind can be done after a change, and reaches the ranks."""
        made = kind(base.job, base.constraints)
        return [base.then(each) for each in made if self.scope.takes(each.change)]

    def alone(self, kind: Kind, base: Attempt | None = None) -> Found | None:
        """The mildest of one kind that is enough."""
        attempts = self.attempts(kind, base or self.start)
        return self.mildest([partial(_same, each) for each in attempts])

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
            others = [each for each in kinds if each is not kind]
            if kind is needed:
                continue
            if self._grade(self.leads(self.most(others, base))) >= grade:
                kinds = others
        for kind in reversed(kinds):
            rest = self.most([each for each in kinds if each is not kind], base)
            found = self.alone(kind, rest)
            if found is not None and len(self.attempts(kind, rest)) > 1:
                return found
        made = self.most(kinds, base)
        chosen = self.leads(made)
        return None if chosen is None else Found(attempt=made, chosen=chosen)

    def found(self, attempt: Attempt) -> Found | None:
        """The attempt, if it leads to a strategy as surely as is asked for."""
        return self.mildest([partial(_same, attempt)])

    def pruned(self, found: Found, kinds: Sequence[Kind], start: Attempt) -> Found:
        """Another machine or model with no more of these changes than it needs, the last first."""
        grade = self._grade(found.chosen)
        leaner = self.most(kinds, start).change
        own = {name: value for name, value in found.attempt.change.items() if name not in leaner}
        whole = replace(found.attempt, change=own)
        taken: dict[Kind, int] = dict.fromkeys(kinds, _MOST)
        for kind in reversed(kinds):
            others = {each: level for each, level in taken.items() if each is not kind}
            levels = range(len(self.attempts(kind, self._with(others, start))))
            milder = ({**taken, kind: level} for level in levels[:-1])
            for fewer in (others, *milder):
                less = _elsewhere(self._with(fewer, start), whole)
                chosen = self.leads(less)
                if chosen is not None and self._grade(chosen) >= grade:
                    taken, found = fewer, Found(attempt=less, chosen=chosen)
                    break
        return found

    def _with(self, levels: Mapping[Kind, int], base: Attempt) -> Attempt:
        """So much of each of these changes; a level that a kind does not have is its most."""
        for kind, level in levels.items():
            made = self.attempts(kind, base)
            base = made[min(level, len(made) - 1)] if made else base
        return base

    def most(self, kinds: Iterable[Kind], base: Attempt) -> Attempt:
        """The most of each of these changes."""
        for kind in kinds:
            base = next(reversed(self.attempts(kind, base)), base)
        return base

    def past_slow_link(self, found: Found | None) -> Iterator[Found]:
        """A combination that takes ZeRO-3 over a slow link, and the same by each other way."""
        if found is None:
            return
        yield found
        if "allow_slow" not in found.attempt.change:
            return
        change = {n: v for n, v in found.attempt.change.items() if n != "allow_slow"}
        free = replace(found.attempt.constraints, allow_slow=self.decision.constraints.allow_slow)
        without = Attempt(change=change, job=found.attempt.job, constraints=free)
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
        first = self._first([partial(_same, each) for each in attempts], _surely)
        found = None if first is None else first[1]
        return found if found and found.chosen.strategy.offload is not Offload.NONE else None

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
        return self.mildest([partial(_same, each) for each in attempts])

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
