"""Cut the gradients of a job into the shares of its ranks, as ZeRO-1 and ZeRO-2 do.

Theory: DeepSpeed flattens each group of the optimizer into one vector, in the order of
`model.parameters()`, and gives each rank an equal piece (stage_1_and_2.py, get_partition_info). A
rank keeps every gradient that reaches into its piece, whole, in one buffer, which it allocates
when the first of them is reduced (copy_grads_in_partition). Gradients wait for that in a bucket,
until the next one does not fit into it (reduce_independent_p_g_buckets_and_remove_grads): at
stage 2, and where communication overlaps, they come from the last tensor to the first while
backward runs; at stage 1 from the first to the last when it is over (reduce_gradients). What a
bucket has for several ranks is copied before it is reduced (allreduce_bucket, flatten).
tests/core/memory/test_gradient_shards.py holds this against the lists of real optimizers.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from msgspec import Struct

from zerowiz.core.model.types import Model, Tensor
from zerowiz.core.workload import Method, Workload

# DeepSpeedZeroOptimizer.__init__, nccl_start_alignment_factor: a vector is a multiple of 2 d.
_ALIGNMENT = 2
# moe/utils.py, split_params_into_different_moe_groups_for_optimizer, max_group_size: elements.
_MOST_OF_EXPERTS = 178_956_971
# In place of the blocks that are kept.
WITH_EMBEDDING, AFTER_BACKWARD = -1, -2


class Reduction(Struct, frozen=True, kw_only=True):
    """When a bucket is reduced; counts are elements."""

    blocks_kept: int = AFTER_BACKWARD
    """Blocks whose activations backward has not freed yet."""
    moved: int = 0
    """Gradients that have left their own memory for the bucket until then."""
    left: int = 0
    """Those that have left it once it is done: besides, what was reduced alone."""
    copied: int = 0
    """What the bucket has for several ranks."""
    alone: int = 0
    """The one gradient that is reduced outside the bucket, as it is larger."""


class RankShard(Struct, frozen=True, kw_only=True):
    """What is peculiar to one rank; counts are elements."""

    held: int = 0
    """Of all tensors that reach into the rank's share."""
    largest_slice: int = 0
    """Of one tensor in the share."""
    appearing: Reduction = Reduction()
    """The reduction that makes the memory of the share's gradients."""
    groups: int = 1
    """The optimizer's groups, which it steps one by one."""
    stepped: int = 0
    """Of the share, in the group that has most; 0 where one has nearly all."""
    copies: tuple[Reduction, ...] = ()
    """Of any rank, those that copy: none of them has an earlier one that copies as much."""

    def holds_as_much(self, other: "RankShard") -> bool:
        """Whether there is no moment at which the other one holds more."""
        ours, theirs = self.appearing, other.appearing
        return (
            self.held >= other.held
            and self.largest_slice >= other.largest_slice
            and ours.blocks_kept >= theirs.blocks_kept
            and ours.moved <= theirs.moved
            and ours.left <= theirs.left
            and ours.alone >= theirs.alone
            and self.groups >= other.groups
            and self.stepped >= other.stepped
            and {*self.copies} >= {*other.copies}
        )


class Gradient(NamedTuple):
    """One trainable tensor."""

    numel: int
    block: int
    """As `Model.placed` counts them."""
    decays: bool
    """Whether the Trainer lets its weights decay; the others are a group of their own."""
    is_cast: bool
    """Whether autocast computes with it in 16 bits; then its gradient travels so."""
    holds_experts: bool = False


class _Share(NamedTuple):
    """The tensors that reach into the piece of one rank."""

    held: int
    largest_slice: int
    places: tuple[int, ...]


_Part = tuple[int, int, int]
"""What consecutive ranks step of one gradient: the first rank, how many, and elements of each."""


_Flush = tuple[list[int], int, int]
"""A reduction: the places of its gradients, the blocks kept, and what was moved before."""


class _Group(NamedTuple):
    """A group of the optimizer: what is flattened together."""

    places: tuple[int, ...]
    starts: tuple[int, ...]
    """Where each gradient begins in the flat vector, and where the last one ends."""
    piece: int
    """Elements of a rank's share."""
    dealt: int = 1
    """Ranks that have other experts each; the others shard these."""


def _is_cast(model: Model, tensor: Tensor, block: int) -> bool:
    """torch_autocast.py, LOWER_PRECISION_SAFE_MODULES: torch's linear layers, and so the head."""
    if tensor.in_block:
        return tensor.linear and not tensor.transposed
    a = model.architecture
    is_head = block >= 0 or a.tied_embeddings
    return is_head and tensor.shape[0] == a.vocab_size and len(tensor.shape) > 1


def list_gradients(model: Model, workload: Workload) -> tuple[Gradient, ...]:
    """Those of all trainable tensors, in the order of `model.parameters()`."""
    is_full = workload.method is Method.FULL
    return _gradients(model, None if is_full else workload.lora_rank, workload.lora_target_modules)


# Neither the batch nor the length changes them.
@lru_cache(maxsize=64)
def _gradients(model: Model, rank: int | None, adapted: tuple[str, ...]) -> tuple[Gradient, ...]:
    if rank is None:
        # transformers/trainer.py, get_decay_parameter_names: no norms, nothing called bias.
        return tuple(
            Gradient(
                numel=tensor.numel,
                block=block,
                decays=len(tensor.shape) > 1 and "bias" not in tensor.name,
                is_cast=_is_cast(model, tensor, block),
                holds_experts=tensor.holds_experts,
            )
            for block, tensor in model.placed()
        )
    tensors = frozenset(model.adapted(adapted))
    return tuple(
        Gradient(
            # The names of fused experts share one pair of so many times the rank (peft/utils/
            # transformers_weight_conversion.py, _convert_peft_config_moe).
            numel=rank * tensor.adapters * width,
            block=block,
            decays=True,
            is_cast=True,
        )
        for block, tensor in model.placed()
        if tensor in tensors
        for width in (tensor.shape[-2:] if tensor.transposed else tensor.shape[:-3:-1])
    )


def _groups(
    gradients: Sequence[Gradient], ranks: int, *, decay_apart: bool, dealt: int
) -> Iterator[_Group]:
    for decays in (True, False):
        places = [
            place
            for place, gradient in enumerate(gradients)
            if (gradient.decays or not decay_apart) is decays
            and (dealt == 1 or not gradient.holds_experts)
        ]
        if places:
            yield _group(gradients, places, ranks)
    # moe/utils.py, split_params_into_different_moe_groups_for_optimizer.
    experts = list[int]()
    for place, gradient in enumerate(gradients if dealt > 1 else ()):
        if not gradient.holds_experts:
            continue
        size = sum(gradients[other].numel for other in experts) + gradient.numel
        if experts and size > _MOST_OF_EXPERTS:
            yield _group(gradients, experts, ranks, dealt)
            experts = []
        experts.append(place)
    if experts:
        yield _group(gradients, experts, ranks, dealt)


def _group(
    gradients: Sequence[Gradient], places: Sequence[int], ranks: int, dealt: int = 1
) -> _Group:
    starts = (0, *accumulate([gradients[place].numel for place in places]))
    piece = -(-starts[-1] // (_ALIGNMENT * ranks // dealt)) * _ALIGNMENT
    return _Group(places=tuple(places), starts=starts, piece=piece, dealt=dealt)


def _different_ranks(groups: Iterable[_Group], ranks: int) -> list[int]:
    """Ranks of which one holds as much as any other: those around the ends of gradients.

    All ranks whose pieces lie inside the same gradients hold the same of them.
    """
    ends = {start // group.piece * group.dealt for group in groups for start in group.starts}
    around = ends | {end - 1 for end in ends} | {end + 1 for end in ends}
    return sorted({0, ranks - 1} | {rank for rank in around if 0 <= rank < ranks})


def _share(groups: Iterable[_Group], rank: int) -> _Share:
    """The tensors of a rank; a small model may leave it none."""
    held, slices, places = 0, [0], list[int]()
    for group in groups:
        number = rank // group.dealt
        start, end = number * group.piece, (number + 1) * group.piece
        if start >= group.starts[-1]:
            continue
        first = bisect_right(group.starts, start) - 1
        last = min(bisect_left(group.starts, end), len(group.places)) - 1
        inside = (start, *group.starts[first + 1 : last + 1], min(end, group.starts[-1]))
        slices += [until - since for since, until in pairwise(inside)]
        held += group.starts[last + 1] - group.starts[first]
        places += group.places[first : last + 1]
    return _Share(held=held, largest_slice=max(slices), places=tuple(places))


def _owners(groups: Iterable[_Group], count: int) -> list[list[_Part]]:
    """For each gradient the ranks that step a part of it."""
    owners: list[list[_Part]] = [[]] * count
    for group in groups:
        for place, (start, end) in zip(group.places, pairwise(group.starts), strict=True):
            owners[place] = _parts(start, end, group.piece)
    return owners


def _parts(start: int, end: int, piece: int) -> list[_Part]:
    """The beginning and the end of a gradient, and the whole pieces between them."""
    if start == end:
        return []
    first, last = start // piece, (end - 1) // piece
    if first == last:
        return [(first, 1, end - start)]
    whole = [(first + 1, last - first - 1, piece)] if last - first > 1 else []
    return [
        (first, 1, (first + 1) * piece - start),
        *whole,
        (last, 1, end - last * piece),
    ]


def _copied(parts: Sequence[_Part], bucket: int) -> int:
    """The most that is flattened at once of a bucket with these parts (allreduce_and_scatter)."""
    if len(parts) == 1:
        # Most are of one rank.
        return 0
    merged: list[_Part] = []
    for first, ranks, numel in parts:
        # Only at its ends does a gradient share a rank with the next one.
        if merged and ranks == 1 and merged[-1][:2] == (first, 1):
            merged[-1] = (first, 1, merged[-1][2] + numel)
        else:
            merged.append((first, ranks, numel))
    most = pending = count = 0
    for _, ranks, numel in merged:
        left, cycle = ranks, bucket // numel + 1
        while left:
            # As many as it takes to exceed the bucket.
            chunk = min(left, (bucket - pending) // numel + 1)
            pending, count, left = pending + chunk * numel, count + chunk, left - chunk
            most = max(most, pending if count > 1 else 0)
            if pending > bucket:
                pending = count = 0
                # From an empty bucket it is the same each time, until too few are left.
                left = left if left < cycle else left % cycle + cycle
    return most


def _coming(gradients: Sequence[Gradient], *, in_backward: bool, decay_apart: bool) -> list[int]:
    """The places of the gradients in the order in which they enter the bucket."""
    places = range(len(gradients))
    if in_backward:
        # A block's norms are listed behind its matrices, and work in front of them.
        return sorted(places, key=lambda p: (-gradients[p].block, not gradients[p].decays, -p))
    return sorted(places, key=lambda place: decay_apart and not gradients[place].decays)


@lru_cache(maxsize=64)
def find_cuts(
    gradients: tuple[Gradient, ...],
    ranks: int,
    bucket: int,
    *,
    in_backward: bool,
    autocast: bool = False,
    decay_apart: bool = False,
    each_rank: bool = False,
    dealt: int = 1,
) -> tuple[RankShard, ...]:
    """What the ranks of a job hold, the first rank first; each that is different once.

    Args:
        gradients: Of all trainable tensors.
        ranks: How many ranks there are.
        bucket: The elements that the bucket takes.
        in_backward: Whether buckets are reduced while backward runs.
        autocast: Whether gradients that travel in 16 bits have a bucket of their own.
        decay_apart: Whether weights that do not decay are a group of their own.
        each_rank: Whether ranks that hold the same are all named, in their order.
        dealt: Ranks among which experts are dealt out.
    """
    groups = tuple(_groups(gradients, ranks, decay_apart=decay_apart, dealt=dealt))
    owners = _owners(groups, len(gradients))
    reduced: list[Reduction] = []
    number = [0] * len(gradients)
    apart = decay_apart and not in_backward
    full = _flushes(gradients, bucket, in_backward=in_backward, autocast=autocast, apart=apart)
    for places, blocks_kept, moved in full:
        for place in places:
            number[place] = len(reduced)
        # What is larger than the bucket comes by itself.
        first = gradients[places[0]].numel
        alone = first if first > bucket else 0
        reduced.append(
            Reduction(
                blocks_kept=blocks_kept if in_backward else AFTER_BACKWARD,
                moved=moved,
                left=moved + alone,
                copied=_copied([part for place in places for part in owners[place]], bucket),
                alone=alone,
            )
        )
    named = range(ranks) if each_rank else _different_ranks(groups, ranks)
    last, copies = len(reduced) - 1, tuple(_growing(reduced))
    shards = (
        RankShard(
            held=share.held,
            largest_slice=share.largest_slice,
            appearing=reduced[min([number[place] for place in share.places], default=last)],
            groups=len(groups),
            stepped=max(group.piece for group in groups) if dealt > 1 else 0,
            copies=copies,
        )
        for share in (_share(groups, rank) for rank in named)
    )
    return tuple(shards if each_rank else dict.fromkeys(shards))


# In backward they come alike, whether or not weights that do not decay are apart.
@lru_cache(maxsize=64)
def _flushes(
    gradients: tuple[Gradient, ...], bucket: int, *, in_backward: bool, autocast: bool, apart: bool
) -> tuple[_Flush, ...]:
    """Each reduction, in its order."""
    flushes: list[_Flush] = []
    waiting: dict[bool, list[int]] = {True: [], False: []}
    filled, moved, begun = {True: 0, False: 0}, 0, None
    for place in _coming(gradients, in_backward=in_backward, decay_apart=apart):
        numel, block, _, is_cast, _ = gradients[place]
        kind = autocast and is_cast
        if waiting[kind] and filled[kind] + numel > bucket:
            # A block has freed most of its own when its second gradient comes.
            offset = 0 if block == begun else 1
            flushes.append((waiting[kind], block + offset if block >= 0 else WITH_EMBEDDING, moved))
            waiting[kind], filled[kind] = [], 0
        begun = block
        waiting[kind].append(place)
        filled[kind] += numel
        # One that is larger than the bucket stays where it is.
        moved += numel if numel <= bucket else 0
    left = [(places, AFTER_BACKWARD, moved) for places in waiting.values() if places]
    return (*flushes, *left)


def _growing(reduced: Iterable[Reduction]) -> Iterator[Reduction]:
    """Those that copy more than any before them."""
    most = 0
    for reduction in reduced:
        if reduction.copied > most:
            most = reduction.copied
            yield reduction


@lru_cache(maxsize=64)
def find_fullest(cuts: tuple[RankShard, ...], *, offloaded: bool = False) -> tuple[RankShard, ...]:
    """Ranks of which one has the largest peak, whatever else they hold.

    Args:
        cuts: Of all ranks that differ.
        offloaded: Whether the share's gradients leave the GPU at once.
    """
    fullest: list[RankShard] = []
    for cut in cuts:
        if not any(other.holds_as_much(cut) for other in fullest):
            fullest = [other for other in fullest if not cut.holds_as_much(other)] + [cut]
    if not offloaded:
        return tuple(fullest)
    # No more than slices and copies of the gradients, and one that is larger than the bucket, is on
    # the GPU then.
    same = {
        (cut.largest_slice, cut.copies, cut.appearing.alone and cut.appearing.blocks_kept): cut
        for cut in reversed(fullest)
    }
    return tuple(cut for cut in fullest if cut in same.values())


def find_emptiest(cuts: Sequence[RankShard]) -> RankShard:
    """As little as any of these ranks holds of anything, and as late."""
    return RankShard(
        held=min(cut.held for cut in cuts),
        largest_slice=min(cut.largest_slice for cut in cuts),
        appearing=Reduction(
            blocks_kept=min(cut.appearing.blocks_kept for cut in cuts),
            moved=max(cut.appearing.moved for cut in cuts),
            left=max(cut.appearing.left for cut in cuts),
            alone=min(cut.appearing.alone for cut in cuts),
        ),
        groups=min(cut.groups for cut in cuts),
        stepped=min(cut.stepped for cut in cuts),
    )
