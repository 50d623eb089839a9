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

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from msgspec import Struct

from zerowiz.core.memory.buffers import Buffers
from zerowiz.core.memory.losses import LOSS_ROWS
from zerowiz.core.model.types import Architecture, Model, Tensor
from zerowiz.core.workload import Head, Method, Workload

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
    whole: Module = ()
    """What the model itself has, besides its modules: whole from its first module to the last."""

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


class Gathering(Struct, frozen=True, kw_only=True):
    """The most that is whole at the moments of one micro-step."""

    forward: tuple[Most, ...]
    """While each block runs."""
    loss: Gathered
    """As forward ends."""
    backward: tuple[Most, ...]
    """While each block runs, the last one first."""
    end: Gathered
    """As backward ends with the embedding."""


_Visit = tuple[Module, int, bool]
"""A module that begins, the moment to which it belongs, in the order of `Gathering`, and whether
it also ends before the next one begins."""


def _through(modules: Iterable[Module], place: int) -> list[_Visit]:
    """Each module begins and ends."""
    return [(module, place, True) for module in modules]


def _visits(layout: Layout, *, checkpointing: int) -> list[_Visit]:
    """One micro-step; hooks of DeepSpeed fire for modules without parameters too."""
    count = len(layout.blocks)
    model = layout.whole
    visits: list[_Visit] = [(model, 0, False)]
    visits += _through(((), *layout.first, ()), 0)
    for place, block in enumerate(layout.blocks):
        visits += _through(block, place)
    visits += _through(layout.last, count)
    visits.append((model, count + 1, False))
    visits += _through((*reversed(layout.last), ()), count + 1)
    for place, block in enumerate(reversed(layout.blocks), start=count + 1):
        visits += _through(((),), place)
        if checkpointing and (2 * count - place) % checkpointing == 0:
            # Its output's gradient comes to the last module first; that computes the block again.
            visits += _through(((),), place)
            visits.append((block[-1], place, False))
            visits += _through(block, place)
        visits += _through(reversed(block), place)
    return visits + _through(reversed(layout.first), 2 * count + 1)


class _Order(NamedTuple):
    """A micro-step, whatever the limits are; a step is the number of a module that begins."""

    visits: tuple[_Visit, ...]
    queue: Sequence[tuple[int, int]]
    """Each parameter with the step that needs it."""
    uses: tuple[Sequence[int], ...]
    """The steps that need each parameter, as __params_to_release sees them."""
    passed: Sequence[int]
    """Elements of the modules in front of each step."""
    passed_by_mixtures: Sequence[int]
    """The same, as mixtures of experts count them."""


@lru_cache(maxsize=32)
def _order(layout: Layout, *, checkpointing: int) -> _Order:
    visits = tuple(_visits(layout, checkpointing=checkpointing))
    sizes, mixtures, count = layout.sizes, layout.mixtures, len(layout.blocks)
    queue: list[tuple[int, int]] = []
    uses: tuple[list[int], ...] = tuple([] for _ in sizes)
    elements = [0] * len(visits)
    for step, (module, *_) in enumerate(visits):
        for number in module:
            queue.append((number, step))
            uses[number].append(step)
            elements[step] += sizes[number]
    passed = passed_by_mixtures = list(accumulate(elements, initial=0))
    if mixtures:
        # __params_to_release: what a mixture holds is seen from another mixture alone, and that
        # looks into all modules: into a block, and once more into its parts.
        opening = next(step for step, (_, place, _) in enumerate(visits) if place > count)
        for number in mixtures:
            insort(uses[number], opening)
        seen = [
            n if place == count else 2 * n
            for n, (_, place, _) in zip(elements, visits, strict=True)
        ]
        passed_by_mixtures = list(accumulate(seen, initial=0))
        others = [
            n if mixtures.isdisjoint(module) else 0
            for n, (module, *_) in zip(elements, visits, strict=True)
        ]
        passed = list(accumulate(others, initial=0))
    return _Order(
        visits=visits,
        queue=queue,
        uses=uses,
        passed=passed,
        passed_by_mixtures=passed_by_mixtures,
    )


class _Handle:
    """Parameters that are gathered together."""

    __slots__ = ("arrived", "size", "untaken")

    def __init__(self, size: int, count: int) -> None:
        self.size, self.untaken = size, count
        self.arrived = False


class _Coordinator:
    """What `PartitionedParameterCoordinator` keeps, by numbers."""

    def __init__(self, layout: Layout, limits: Limits, order: _Order) -> None:
        self._sizes, self._limits, self._order = layout.sizes, limits, order
        self._queue, self._live = order.queue, limits.live
        self._mixtures = layout.mixtures
        self._asked_until = [_NEVER] * len(layout.sizes)
        self._whole: set[int] = set()
        # None where a parameter comes by itself.
        self._handles: dict[int, _Handle | None] = {}
        self._next, self._step = 0, 0
        self.parameters = self.copies = self.alone = 0
        self._kept, self._of_model = layout.kept, layout.whole
        self._left: set[int] = set()
        self.held = layout.small

    def _gather(self, numbers: Sequence[int], size: int) -> None:
        """Gather parameters that are counted as whole already."""
        self.parameters += size
        if len(numbers) == 1:
            self._handles[numbers[0]] = None
            self.alone += size
            return
        handle = _Handle(size, len(numbers))
        for number in numbers:
            self._handles[number] = handle

    def _take(self, module: Module) -> int:
        """Wait for parameters; the elements of the buffers that are dropped then."""
        handles, dropped = self._handles, 0
        for number in module:
            if number not in handles:
                continue
            handle = handles.pop(number)
            if handle is None:
                self.alone -= self._sizes[number]
                continue
            handle.untaken -= 1
            self.copies += 0 if handle.arrived else handle.size
            dropped += 0 if handle.untaken else handle.size
            handle.arrived = True
        return dropped

    def _ask_ahead(self) -> None:
        room = min(self._live - self.parameters, self._limits.prefetch)
        queue, following, until = self._queue, self._next, self._asked_until
        whole, sizes = self._whole, self._sizes
        asked: list[int] = []
        size = 0
        while size < room and following < len(queue):
            number, step = queue[following]
            following += 1
            if until[number] < step:  # noqa: PLR1730 - `max` takes longer, thousands of times
                until[number] = step
            if number not in whole:
                whole.add(number)
                asked.append(number)
                size += sizes[number]
        self._next = following
        if asked:
            self._gather(asked, size)

    def _catch_up(self, module: Module) -> None:
        """What nobody asked for early is not to come any more."""
        until, late = self._asked_until, 0
        for number in module:
            late += until[number] < self._step
        for number, step in self._queue[self._next : self._next + late]:
            until[number] = step
        self._next += late

    def begin(self, module: Module, *, known: bool) -> _Numbers:
        """fetch_sub_module: what is whole at its largest, which is before the buffers are freed."""
        dropped = 0
        if module:
            wanted = [number for number in module if number not in self._whole]
            if wanted:
                self._whole.update(wanted)
                self._gather(wanted, sum([self._sizes[number] for number in wanted]))
            dropped = self._take(module)
        waited = self.parameters + self.held, self.copies, self.alone
        self.copies -= dropped
        if known:
            if module:
                self._catch_up(module)
            if self.parameters < self._live and self._next < len(self._queue):
                self._ask_ahead()
        self._step += 1
        return waited

    def end(self, module: Module, *, known: bool, forward: bool) -> None:
        """release_sub_module."""
        for number in module:
            if not forward and number in self._left:
                self._left.remove(number)
                self.held -= self._sizes[number]
            is_gone = number not in self._whole or number in self._handles
            # __release_param: the model runs as long as its modules, and its ids have no gradient.
            if is_gone or number in self._of_model:
                continue
            if known and (self._asked_until[number] > self._step or self._is_near(number)):
                continue
            self._whole.remove(number)
            self.parameters -= self._sizes[number]
            if forward and number in self._kept:
                self._left.add(number)
                self.held += self._sizes[number]

    def _is_near(self, number: int) -> bool:
        """Whether it is used again within the distance."""
        uses = self._order.uses[number]
        following = bisect_left(uses, self._step)
        if following == len(uses):
            return False
        order = self._order
        passed = order.passed_by_mixtures if number in self._mixtures else order.passed
        return passed[uses[following]] - passed[self._step] < self._limits.reuse


@lru_cache(maxsize=128)
def replay(
    layout: Layout, limits: Limits, *, alone: bool, checkpointing: int, known: bool
) -> Gathering:
    """The most that is whole at each moment of a micro-step.

    Args:
        layout: The model's modules.
        limits: What the config allows.
        alone: Whether one rank has all parameters, and gathers nothing; the others gather alike.
        checkpointing: Each such block is computed again in backward; 0 for none.
        known: Whether the order of modules is known, so that what comes next is gathered early.
    """
    count = len(layout.blocks)
    nothing: _Numbers = (0, 0, 0)
    running, waiting = ([nothing] * (2 * count + 2) for _ in range(2))
    if not alone:
        order = _order(layout, checkpointing=checkpointing)
        coordinator = _Coordinator(layout, limits, order)
        for module, place, ends in order.visits:
            waited = coordinator.begin(module, known=known)
            if waiting[place] < waited:  # noqa: PLR1730 - as above
                waiting[place] = waited
            now = coordinator.parameters + coordinator.held, coordinator.copies, coordinator.alone
            if running[place] < now:  # noqa: PLR1730 - as above
                running[place] = now
            if ends and module:
                # Never more is whole behind a module than while it runs.
                coordinator.end(module, known=known, forward=place <= count)
            if place == count:
                # As forward ends counts, not while its last modules run.
                now = (
                    coordinator.parameters + coordinator.held,
                    coordinator.copies,
                    coordinator.alone,
                )
                running[place] = now
    most = tuple(
        Most(Gathered(*run), Gathered(*wait)) for run, wait in zip(running, waiting, strict=True)
    )
    return Gathering(
        forward=most[:count],
        loss=most[count].running,
        backward=most[count + 1 : 2 * count + 1],
        end=most[2 * count + 1].running,
    )


# Lay out the modules that stage 3 gathers, in the order in which forward runs them.

_MIXTURE = ("experts.", "mlp.gate")
_NORMED = ("q_proj", "k_proj")
# The settings that a layout depends on.
_SHAPING = (
    *("precision", "method", "lora_rank", "lora_target_modules", "gradient_checkpointing"),
    *("every_n_layers", "trainer", "loss"),
)
# Modules whose parameters are none, or too small to be released.
_BLOCK = _NORM = _ATTENTION = _MLP = _ACTIVATION = ()


class _Builder:
    """Numbers the parameters as it comes to them."""

    def __init__(self, workload: Workload, threshold: int) -> None:
        self._workload, self._threshold = workload, threshold
        self.sizes: list[int] = []
        self.kept: set[int] = set()
        self.mixtures: set[int] = set()
        self.small = 0

    def module(self, *tensors: Tensor) -> Module:
        """A module with these parameters."""
        numbers = []
        for tensor in tensors:
            numel = self._numel(tensor)
            # parameter_offload.py, mark_persistent_parameters.
            if numel <= self._threshold:
                self.small += numel
                continue
            number = len(self.sizes)
            numbers.append(number)
            self.sizes.append(numel)
            # transformers' experts multiply with slices of one tensor, and bitsandbytes with a view
            # of the gathered one (autograd/_functions.py, MatMul4Bit): autograd keeps slices and
            # views, which no partitioning frees (h1-002, i1-003). A checkpoint keeps none.
            viewed = tensor.holds_experts or self._is_4_bit(tensor)
            if viewed and self._workload.checkpointed_each != 1:
                self.kept.add(number)
        return tuple(numbers)

    def _is_4_bit(self, tensor: Tensor) -> bool:
        return self._workload.method is Method.QLORA and tensor.linear

    def _numel(self, tensor: Tensor) -> int:
        """Elements, as many as its bytes would be in the model's precision."""
        elements_each = 2 * self._workload.precision.size_bytes if self._is_4_bit(tensor) else 1
        return tensor.numel // elements_each

    def adapters(self, tensor: Tensor) -> Iterator[Module]:
        """The two layers of its adapters."""
        w = self._workload
        if w.method is Method.FULL or not tensor.is_adapted(w.lora_target_modules):
            return
        for width in tensor.shape[-2:]:
            numel = w.lora_rank * tensor.adapters * width
            if numel > self._threshold:
                self.sizes.append(numel)
                yield (len(self.sizes) - 1,)


def _modules(tensors: list[Tensor]) -> list[list[Tensor]]:
    """Weights with their biases; a mixture with its router is gathered whole.

    DeepSpeed 0.19.8, runtime/zero/leaf_module_config.py: its block is a leaf.
    """
    modules: list[list[Tensor]] = []
    for tensor in tensors:
        before = modules[-1][0].name if modules else ""
        mixed = before.startswith(_MIXTURE) and (tensor.linear or tensor.name.startswith(_MIXTURE))
        if tensor.name == f"{before}.bias" or mixed:
            modules[-1].append(tensor)
        else:
            modules.append([tensor])
    return modules


def _block(build: _Builder, a: Architecture, tensors: list[Tensor]) -> tuple[Module, ...]:
    """One block; DeepSpeed asks for more at modules without parameters of their own, too."""
    groups = _modules(tensors)
    wide = {a.intermediate_size, a.dense_intermediate_size, 2 * a.intermediate_size}
    of_mlp = (
        place
        for place, group in enumerate(groups)
        if group[0].name.startswith(_MIXTURE) or wide & set(group[0].shape)
    )
    mlp = next(of_mlp, len(groups))
    normed = any(tensor.name == "q_norm" for tensor in tensors)
    modules: list[Module] = [_BLOCK, _NORM, _ATTENTION]
    for place, group in enumerate(groups):
        mixed = group[0].name.startswith(_MIXTURE)
        if place == mlp:
            # A mixture is gathered whole, and OPT's layers are the block's own.
            modules += [_NORM] if mixed or group[0].name == "fc1" else [_NORM, _MLP]
        of_block = build.module(*group)
        build.mixtures.update(of_block if mixed else ())
        parts = (of_block, *(m for tensor in group for m in build.adapters(tensor)))
        modules += [module for module in parts if module]
        if place == mlp and not mixed:
            modules.append(_ACTIVATION)
        if normed and group[0].name in _NORMED:
            modules.append(_NORM)
    return tuple(modules)


def _is_in(tensor: Tensor, place: int, a: Architecture) -> bool:
    """Whether the block at this place has the tensor: dense ones come before mixtures."""
    is_dense = a.expert_layers and tensor.copies == a.layers - a.expert_layers
    return place < tensor.copies if is_dense else place >= a.layers - tensor.copies


def _models(inside: list[Tensor], a: Architecture) -> int:
    """How many models the trainer runs one after the other, each with all blocks."""
    return max(1, min((tensor.copies for tensor in inside), default=1) // a.layers)


def lay_out(model: Model, workload: Workload, buffers: Buffers) -> Layout:
    """The modules of this model as this job trains them; one value for jobs that share it."""
    alike = Workload(**{name: getattr(workload, name) for name in _SHAPING})
    return _lay_out(model, alike, buffers.stage3_param_persistence_threshold)


@lru_cache(maxsize=64)
def _lay_out(model: Model, workload: Workload, threshold: int) -> Layout:
    a = model.architecture
    build = _Builder(workload, threshold)
    ends = [tensor for tensor in model.tensors if not tensor.in_block]
    inside = [tensor for tensor in model.tensors if tensor.in_block]
    places = [place for place, tensor in enumerate(model.tensors) if tensor.in_block]
    before = places[0] if places else len(model.tensors)
    first = [build.module(*group) for group in _modules(ends[:before])]
    blocks = [
        _block(build, a, [tensor for tensor in inside if _is_in(tensor, place, a)])
        for _ in range(_models(inside, a))
        for place in range(a.layers)
    ]
    last = [build.module(*group) for group in _modules(ends[before:])]
    tied = a.tied_embeddings and workload.trainer.row.head is not Head.VALUE
    last += [first[0]] if tied and first else []
    # liger_kernel/transformers/model/llama.py, lce_forward, reads the head's weight without the
    # head: parameter_offload.py, ZeROOrderedDict, makes it one of the model's own.
    fused = LOSS_ROWS[workload.loss].has_liger and workload.trainer.row.head is Head.LOSS
    whole = last.pop() if fused and last else ()
    return Layout(
        sizes=tuple(build.sizes),
        first=tuple(first),
        blocks=tuple(blocks),
        last=tuple(last),
        mixtures=frozenset(build.mixtures),
        kept=frozenset(build.kept),
        small=build.small,
        whole=whole,
    )
