"""Replay how stage 3 gathers parameters and releases them, module by module.

Theory: a module's parameters are gathered as it begins. From the second micro-step on the order of
modules is known, and each module that begins asks for one more bucket of what comes next, until
`max_live` is reached. A parameter is released behind its module unless it is used again within
`max_reuse_distance`, or was asked for again. How much is whole, and how much of that is still on
its way, follows from sizes and limits alone, so it is replayed rather than fitted.

Source: DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py (fetch_sub_module,
release_sub_module, __params_to_release) and partition_parameters.py (AllGatherHandle,
AllGatherCoalescedHandle). tests/core/memory/test_gathering.py holds it to the real coordinator.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

Module = tuple[int, ...]
"""The parameters that a module has itself, by their number; empty for one that only has others."""
_NEVER = -1


class Layout(NamedTuple):
    """The modules of a model in the order in which forward runs them."""

    sizes: tuple[int, ...] = ()
    """Elements of each parameter that is gathered and released."""
    first: tuple[Module, ...] = ()
    """In front of the blocks."""
    blocks: tuple[tuple[Module, ...], ...] = ()
    last: tuple[Module, ...] = ()
    """Behind the blocks."""
    mixtures: frozenset[int] = frozenset()
    """Those of mixtures of experts, which DeepSpeed gathers by the block."""
    kept: frozenset[int] = frozenset()
    """Whose slices autograd keeps from forward to backward, released or not."""
    small: int = 0
    """Elements below the threshold, which are gathered once and stay."""

    def __hash__(self) -> int:
        """By identity: replays are looked up by it, and a large model has thousands of modules."""
        return id(self)


class Limits(NamedTuple):
    """What DeepSpeed's config allows, in elements."""

    prefetch: int
    live: int
    reuse: int


class Gathered(NamedTuple):
    """What is whole at one time, in elements; the largest is the one with most parameters."""

    parameters: int = 0
    """Gathered, or on their way."""
    copies: int = 0
    """Once more, of what came together and is not taken out of its buffer yet."""
    alone: int = 0
    """Of those on their way, what comes tensor by tensor: their own shards wait beside them."""


# Of `Gathered`: a large model has ten thousand moments, and most are not the largest.
_Numbers = tuple[int, int, int]


class Most(NamedTuple):
    """The most that is whole while a block runs."""

    running: Gathered = Gathered()
    """While a module computes."""
    waiting: Gathered = Gathered()
    """As a module takes its parameters out of their buffer, before it computes."""


class Gathering(NamedTuple):
    """The most that is whole at the moments of one micro-step."""

    forward: tuple[Most, ...]
    """While each block runs."""
    loss: Gathered
    """As forward ends."""
    backward: tuple[Most, ...]
    """While each block runs, the last one first."""
    end: Gathered
    """As backward ends with the embedding."""


class _Visit(NamedTuple):
    """A module begins, or ends."""

    begins: bool
    module: Module
    place: int
    """The moment to which it belongs, in the order of `Gathering`."""


def _through(modules: Iterable[Module], place: int) -> Iterator[_Visit]:
    for module in modules:
        yield _Visit(begins=True, module=module, place=place)
        yield _Visit(begins=False, module=module, place=place)


def _visits(layout: Layout, *, checkpointing: bool) -> Iterator[_Visit]:
    """One micro-step; hooks of DeepSpeed fire for modules without parameters too."""
    count = len(layout.blocks)
    yield from _through(((), (), *layout.first, ()), 0)
    for place, block in enumerate(layout.blocks):
        yield from _through(block, place)
    yield from _through(layout.last, count)
    yield from _through(((), *reversed(layout.last), ()), count + 1)
    for place, block in enumerate(reversed(layout.blocks), start=count + 1):
        yield from _through(((),), place)
        if checkpointing:
            # Its output's gradient comes to the last module first; that computes the block again.
            yield from _through(((),), place)
            yield _Visit(begins=True, module=block[-1], place=place)
            yield from _through(block, place)
        yield from _through(reversed(block), place)
    yield from _through(reversed(layout.first), 2 * count + 1)


class _Order(NamedTuple):
    """A micro-step, whatever the limits are; a step is the number of a module that begins."""

    visits: tuple[_Visit, ...]
    queue: tuple[tuple[int, int], ...]
    """Each parameter with the step that needs it."""
    uses: tuple[Sequence[int], ...]
    """The steps that need each parameter, as __params_to_release sees them."""
    passed: Sequence[int]
    """Elements of the modules in front of each step."""
    passed_by_mixtures: Sequence[int]
    """The same, as mixtures of experts count them."""


@lru_cache(maxsize=32)
def _order(layout: Layout, *, checkpointing: bool) -> _Order:
    visits = tuple(_visits(layout, checkpointing=checkpointing))
    begun = [visit for visit in visits if visit.begins]
    uses: tuple[list[int], ...] = tuple([] for _ in layout.sizes)
    passed, passed_by_mixtures = [0], [0]
    # __params_to_release: what a mixture holds is seen from another mixture alone, and that
    # looks into all modules: into a block, and once more into its parts.
    opening = next(i for i, visit in enumerate(begun) if visit.place > len(layout.blocks))
    for step, (_, module, place) in enumerate(begun):
        for number in (*module, *(layout.mixtures if step == opening else ())):
            uses[number].append(step)
        size = sum(layout.sizes[number] for number in module)
        mixed = bool(layout.mixtures) and not layout.mixtures.isdisjoint(module)
        passed.append(passed[-1] + (0 if mixed else size))
        times = 1 if place == len(layout.blocks) else 2
        passed_by_mixtures.append(passed_by_mixtures[-1] + times * size)
    queue = tuple((number, step) for step, visit in enumerate(begun) for number in visit.module)
    return _Order(visits, queue, uses, passed, passed_by_mixtures)


class _Handle:
    """Parameters that are gathered together."""

    def __init__(self, parameters: Sequence[int]) -> None:
        self.parameters = parameters
        self.untaken = set(parameters)
        self.arrived = False


class _Coordinator:
    """What `PartitionedParameterCoordinator` keeps, by numbers."""

    def __init__(self, layout: Layout, limits: Limits, order: _Order) -> None:
        self._sizes, self._limits, self._order = layout.sizes, limits, order
        self._mixtures = layout.mixtures
        self._asked_until = [_NEVER] * len(layout.sizes)
        self._whole: set[int] = set()
        self._handles: dict[int, _Handle] = {}
        self._next, self._step = 0, 0
        self.parameters = self.copies = self.alone = 0
        self._kept = layout.kept
        self._left: set[int] = set()
        self._held = layout.small

    def _gather(self, numbers: Collection[int]) -> None:
        wanted = [number for number in numbers if number not in self._whole]
        if not wanted:
            return
        handle = _Handle(wanted)
        self._handles.update(dict.fromkeys(wanted, handle))
        self._whole.update(wanted)
        size = sum(self._sizes[number] for number in wanted)
        self.parameters += size
        self.alone += size if len(wanted) == 1 else 0

    def _take(self, number: int) -> int:
        """Wait for a parameter; the elements of the buffer that is dropped then."""
        handle = self._handles.pop(number, None)
        if handle is None:
            return 0
        size = sum(self._sizes[each] for each in handle.parameters)
        together = len(handle.parameters) > 1
        if not handle.arrived:
            handle.arrived = True
            self.copies += size if together else 0
            self.alone -= 0 if together else size
        handle.untaken.discard(number)
        return size if together and not handle.untaken else 0

    def _ask_ahead(self) -> None:
        room = min(self._limits.live - self.parameters, self._limits.prefetch)
        asked: dict[int, None] = {}
        size = 0
        queue = self._order.queue
        while self._next < len(queue) and size < room:
            number, step = queue[self._next]
            self._next += 1
            self._asked_until[number] = max(self._asked_until[number], step)
            if number not in self._whole and number not in asked:
                asked[number] = None
                size += self._sizes[number]
        self._gather(asked)

    def begin(self, module: Module, *, known: bool) -> _Numbers:
        """fetch_sub_module: what is whole at its largest, which is before the buffers are freed."""
        dropped = 0
        if module:
            self._gather(module)
            dropped = sum(self._take(number) for number in module)
        waited = self.now
        self.copies -= dropped
        if known:
            late = sum(1 for number in module if self._asked_until[number] < self._step)
            for number, step in self._order.queue[self._next : self._next + late]:
                self._asked_until[number] = step
            self._next += late
            self._ask_ahead()
        self._step += 1
        return waited

    def end(self, module: Module, *, known: bool, forward: bool) -> None:
        """release_sub_module."""
        for number in module:
            if not forward and number in self._left:
                self._left.remove(number)
                self._held -= self._sizes[number]
            wanted = known and (self._asked_until[number] > self._step or self._is_near(number))
            if wanted or number not in self._whole or number in self._handles:
                continue
            self._whole.remove(number)
            self.parameters -= self._sizes[number]
            if forward and number in self._kept:
                self._left.add(number)
                self._held += self._sizes[number]

    def _is_near(self, number: int) -> bool:
        """Whether it is used again within the distance."""
        uses = self._order.uses[number]
        following = bisect_left(uses, self._step)
        if following == len(uses):
            return False
        order = self._order
        passed = order.passed_by_mixtures if number in self._mixtures else order.passed
        return passed[uses[following]] - passed[self._step] < self._limits.reuse

    @property
    def now(self) -> _Numbers:
        """What is whole."""
        return self.parameters + self._held, self.copies, self.alone


@lru_cache(maxsize=128)
def replay(
    layout: Layout, limits: Limits, *, alone: bool, checkpointing: bool, known: bool
) -> Gathering:
    """The most that is whole at each moment of a micro-step.

    Args:
        layout: The model's modules.
        limits: What the config allows.
        alone: Whether one rank has all parameters, and gathers nothing; the others gather alike.
        checkpointing: Whether blocks are computed again in backward.
        known: Whether the order of modules is known, so that what comes next is gathered early.
    """
    count = len(layout.blocks)
    nothing: _Numbers = (0, 0, 0)
    running, waiting = ([nothing] * (2 * count + 2) for _ in range(2))
    if not alone:
        order = _order(layout, checkpointing=checkpointing)
        coordinator = _Coordinator(layout, limits, order)
        for begins, module, place in order.visits:
            if begins:
                waiting[place] = max(waiting[place], coordinator.begin(module, known=known))
            elif module:
                coordinator.end(module, known=known, forward=place <= count)
            else:
                # Nothing has changed since it began.
                continue
            now = coordinator.now
            # As forward ends counts, not while its last modules run.
            running[place] = now if place == count else max(running[place], now)
    most = tuple(
        Most(Gathered(*run), Gathered(*wait)) for run, wait in zip(running, waiting, strict=True)
    )
    return Gathering(
        forward=most[:count],
        loss=most[count].running,
        backward=most[count + 1 : 2 * count + 1],
        end=most[2 * count + 1].running,
    )
