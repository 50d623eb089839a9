"""Find the changes after which a job fits: one alone, or the least of a combination."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import Decision, OffloadChoice
from zerowiz.core.remedies.attempts import AttemptSearch, Found, RemedyScope, always
from zerowiz.core.remedies.changes import (
    KEEPING,
    ROUNDING,
    Kind,
    allow_offload,
    allow_slow,
    cut_loss,
    quantize,
    recompute,
    shorten,
    split_batch,
    state_network,
    train_adapters,
    unpin_stage,
    use_bf16,
    use_sdpa,
)
from zerowiz.core.remedies.machines import SIZES, MachineTable
from zerowiz.core.remedies.models import smaller_models
from zerowiz.core.remedies.remedy import Attempt, Lazy, Remedy, make_remedy, worth_offering
from zerowiz.core.strategy import Offload
from zerowiz.core.values import replace

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
        same = [found for kind in (*KEEPING, *ROUNDING) if (found := search.alone(kind))]
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

    def _in_bf16(self, found: Sequence[Found]) -> Iterator[Found]:
        """Weights in bf16 with what it takes besides, where only other changes were found.

        A Trainer trains in fp32 unless its script says otherwise, which few people mean: on a GPU
        it takes several times as long.
        """
        if not any("precision" in each.attempt.change for each in found):
            yield from filter(None, [self.search.combined((use_bf16, *_LEANER), use_bf16)])

    def _shorter(self, *, leanest: bool) -> Iterator[Found]:
        """Shorter sequences; where nothing else does, with what it takes besides."""
        if found := self.search.alone(shorten):
            yield found
        elif leanest:
            together = self.search.combined((*_LEANER, shorten), shorten)
            yield from self.search.past_slow_link(together)
        if leanest:
            yield from filter(None, [self._longest(_LEANER_STEP, _LEANER)])

    def _longest(self, *leaner: Sequence[Kind]) -> Found | None:
        """The longest sequences that fit with a leaner step, and no more of it than they need."""
        search = self.search
        for kinds in leaner:
            found = search.alone(shorten, search.most(kinds, search.start))
            if found is None:
                continue
            tokens = found.attempt.change["sequence_tokens"]
            shorter = search.attempts(shorten, search.start)
            base = next(each for each in shorter if each.change["sequence_tokens"] == tokens)
            return search.combined(kinds, base=base)
        return None

    def _adapters(self) -> Iterator[Found]:
        """Adapters; where that takes more changes, adapters on quantized weights as well."""
        for kind in (train_adapters, quantize):
            if found := self.search.alone(kind):
                yield found
                return
            together = self.search.combined((*_LEANEST, allow_slow, kind), kind)
            yield from self.search.past_slow_link(together)

    def _budget(self, *, leanest: bool) -> Found | None:
        """More memory of each GPU, where a person set less than is free."""
        search = self.search
        for kinds in ((), _LEANEST) if leanest else ((),):
            if found := search.with_budget(search.most(kinds, search.start)):
                return search.pruned(found, kinds, search.start)
        return None

    def _host(self, *, leanest: bool) -> Found | None:
        """More memory of the host, with offload allowed or a leaner step where it takes that."""
        search = self.search
        offloading = [search.start, *search.attempts(allow_offload, search.start)]
        for kinds in ((), _LEANEST) if leanest else ((),):
            for start in offloading:
                base = search.most(kinds, start)
                if found := search.with_host(base):
                    return search.pruned(found, kinds, start)
        return None

    def _on_others(self, *, leanest: bool) -> Iterator[Found]:
        """More GPUs like these, and the smallest of the larger ones; surely enough, if any is."""
        for of_kind in (self._more_of_the_same, self._larger):
            for kinds in ((), _LEANEST) if leanest else ((),):
                base = self.search.most(kinds, self.search.start)
                if found := of_kind(base):
                    yield self.search.pruned(found, kinds, self.search.start)
                    break

    def _more_of_the_same(self, base: Attempt) -> Found | None:
        more = self.machines.more_of_the_same(base.job, base.constraints)
        taken = (self.search.found(base.then(each)) for each in more if self._takes(each))
        return next(filter(None, taken), None)

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
        found = search.mildest(self._after(base, models))
        return search.pruned(found, kinds, search.start) if found else None

    def _after(self, base: Attempt, attempts: Sequence[Lazy]) -> list[Lazy]:
        """Attempts that were made of the job after a change; those that reach the ranks."""

        def made(attempt: Lazy) -> Attempt | None:
            found = attempt()
            if found is None or not self._takes(found):
                return None
            return base.then(found)

        return [partial(made, attempt) for attempt in attempts]

    def _smallest_machine(self) -> Iterator[Found]:
        """The fewest and smallest GPUs of the table with which the job fits, leaner if need be."""
        search = self.search
        for kinds in (_LEANEST, (unpin_stage, allow_offload, *_LEANEST)):
            base = search.most(kinds, search.start)
            for size in SIZES:
                gpus = self.machines.of_size(size, base.job, base.constraints)
                if gpus and (found := search.smallest(self._after(base, gpus))):
                    yield search.pruned(found, kinds, search.start)
                    return


def _roomier(decision: Decision, chosen: StrategyEstimate) -> Iterator[Remedy]:
    """The strategies below the chosen one that fit, without being tight or uncertain."""
    forbidden = decision.constraints.offload is OffloadChoice.NONE
    for each in decision.evaluated[decision.evaluated.index(chosen) + 1 :]:
        offloads = each.strategy.offload is not Offload.NONE
        if each.verdict is Verdict.FITS and not (forbidden and offloads):
            change = {"stage": str(each.strategy.stage), "offload": each.strategy.offload.value}
            remedy = make_remedy(decision, change, each)
            yield replace(remedy, frees_bytes=max(0, chosen.device_bytes - each.device_bytes))


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
        if roomier or chosen.verdict is Verdict.TIGHT or not _may_be_sure(chosen):
            return roomier
    found = _Finder(decision, scope or RemedyScope()).find()
    return worth_offering(make_remedy(decision, e.attempt.change, e.chosen) for e in found)


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
    found = [each for kind in kinds if (each := search.alone(kind))]
    free = _Finder(decision, replace(scope, takes=always))
    found += free.with_edits(leanest=not found)
    needed = (each for each in found if not scope.takes(each.attempt.change))
    return worth_offering(
        make_remedy(decision, each.attempt.change, each.chosen) for each in needed
    )


def _may_be_sure(evaluated: StrategyEstimate) -> bool:
    """Whether less memory makes it sure: not where something is not counted."""
    return evaluated.interval is None or not evaluated.interval.uncounted
