"""Find where a DeepSpeed engine keeps each parameter's master weight and optimizer states.

Under every stage the optimizer steps flat tensors, and its states are flat like them. All that the
stages differ in is which part of a parameter lies where: that is a `Piece`. (DeepSpeed's own
`safe_get_full_optimizer_state` knows stages 1 to 3 alone, and knows them after a first step.)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import distributed as dist


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Piece:
    """A part of a parameter in a flat tensor that this rank's optimizer steps."""

    flat: torch.Tensor
    in_flat: int
    """Where the part starts in the flat tensor."""
    in_param: int
    """Where it starts in the parameter."""
    numel: int

    def of(self, flat: torch.Tensor) -> "Held":
        """The part of the flat tensor, or of a state shaped like it."""
        values = flat.detach().view(-1)[self.in_flat : self.in_flat + self.numel]
        return Held(values=values, start=self.in_param)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Held:
    """Elements of a parameter that this rank holds, living."""

    values: torch.Tensor
    start: int

    def overlap(self, start: int, count: int) -> tuple[slice, slice] | None:
        """Where it meets elements of the whole: in them, and in itself."""
        first = max(start, self.start)
        last = min(start + count, self.start + self.values.numel())
        if first >= last:
            return None
        return slice(first - start, last - start), slice(first - self.start, last - self.start)


Pieces = dict[torch.nn.Parameter, Piece | None]
"""What this rank holds of each parameter that is trained; None where that is nothing."""


# Every class that engine.optimizer may be (deepspeed 0.19.8, runtime/engine.py,
# _configure_optimizer): which tensors it steps, and where in them the parameters lie.
def find_pieces(engine: object) -> Pieces:
    """Where the masters of all trained parameters lie."""
    wrapper = engine.optimizer
    find = {
        "FP16_Optimizer": _flat_groups,
        "FP16_UnfusedOptimizer": _unfused,
        "DeepSpeedZeroOptimizer": _partitions,
        "BF16_Optimizer": _partitions,
        "DeepSpeedZeroOptimizer_Stage3": _sub_groups,
    }.get(type(wrapper).__name__)
    if find is None and wrapper is engine.basic_optimizer:
        find = _raw
    refused = {
        type(wrapper).__name__: find is None,
        "MoE layers": engine.has_moe_layers,
        "states on NVMe": getattr(wrapper, "swap_optimizer", False),
    }
    for what, is_so in refused.items():
        if is_so:
            raise NotImplementedError(f"no portable checkpoint of {what}")
    return find(engine)


def is_replicated(engine: object) -> bool:
    """Whether every rank holds all of the masters and states."""
    return engine.zero_optimization_stage() == 0


def _raw(engine: object) -> Pieces:
    """fp32 without ZeRO: the parameters are stepped themselves."""
    params = [p for group in engine.basic_optimizer.param_groups for p in group["params"]]
    return {p: _whole(p, p) for p in params if p.requires_grad}


# deepspeed 0.19.8, runtime/fp16/unfused_optimizer.py, __init__: one fp32 clone per parameter.
def _unfused(engine: object) -> Pieces:
    groups = zip(engine.optimizer.fp16_groups, engine.optimizer.fp32_groups, strict=True)
    return {
        p: _whole(p, master)
        for params, masters in groups
        for p, master in zip(params, masters, strict=True)
    }


# deepspeed 0.19.8, runtime/fp16/fused_optimizer.py, __init__: a group's parameters end to end.
def _flat_groups(engine: object) -> Pieces:
    groups = zip(engine.optimizer.fp16_groups, engine.optimizer.fp32_groups_flat, strict=True)
    return {
        p: Piece(flat=flat, in_flat=end - p.numel(), in_param=0, numel=p.numel())
        for params, flat in groups
        for p, end in zip(params, accumulate(p.numel() for p in params), strict=True)
    }


# deepspeed 0.19.8, utils/mixed_precision_linkage.py, link_hp_params: stages 1 and 2 note on each
# parameter which part of it lies in this rank's share of its group.
def _partitions(engine: object) -> Pieces:
    groups = engine.basic_optimizer.param_groups
    pieces: Pieces = {}
    for p in engine.module.parameters():
        if not hasattr(p, "_hp_mapping"):
            continue
        mapping = p._hp_mapping  # noqa: SLF001 - DeepSpeed's note on the parameter
        pieces[p] = mapping and Piece(
            flat=groups[mapping.param_group_index]["params"][0],
            in_flat=mapping.hp_fragment_address.start,
            in_param=mapping.lp_fragment_address.start,
            numel=mapping.hp_fragment_address.numel,
        )
    return pieces


# deepspeed 0.19.8, runtime/zero/stage3.py, set_grad_positions and _get_fp32_opt_state_partition.
def _sub_groups(engine: object) -> Pieces:
    wrapper = engine.optimizer
    pieces: Pieces = {}
    for p in engine.module.parameters():
        if not p.requires_grad:
            continue
        group, in_flat, padded = wrapper.grad_position[wrapper.get_param_id(p)]
        start = dist.get_rank(p.ds_process_group) * padded
        pieces[p] = _if_any(
            Piece(
                flat=wrapper.fp32_partitioned_groups_flat[group],
                in_flat=in_flat,
                in_param=start,
                numel=min(padded, p.ds_numel - start),
            )
        )
    return pieces


def _whole(p: torch.nn.Parameter, flat: torch.Tensor) -> Piece:
    return Piece(flat=flat, in_flat=0, in_param=0, numel=p.numel())


def _if_any(piece: Piece) -> Piece | None:
    return piece if piece.numel > 0 else None


def held_weights(p: torch.nn.Parameter) -> list[Held]:
    """This rank's elements of a weight in the model's own precision; each once, then copies."""
    if not hasattr(p, "ds_tensor"):
        return [Held(values=p.detach().view(-1), start=0)]
    if p.ds_tensor.dtype != p.dtype or p.ds_tensor.numel() * _parts(p) < p.ds_numel:
        raise NotImplementedError("no portable checkpoint of quantized or swapped weights")
    start = dist.get_rank(p.ds_process_group) * p.ds_tensor.numel()
    mine = p.ds_tensor.detach().view(-1)[: max(0, p.ds_numel - start)]
    # Small ones stay gathered from one step to the next.
    gathered = [Held(values=p.detach().view(-1), start=0)] if p.numel() == p.ds_numel else []
    return [Held(values=mine, start=start), *gathered]


def is_sharded(p: torch.nn.Parameter) -> bool:
    """Whether its weight is divided over the ranks, as under stage 3."""
    return hasattr(p, "ds_tensor")


def counts(p: torch.nn.Parameter) -> bool:
    """Whether this rank is of the group whose parts make up the whole; MiCS has several."""
    return not is_sharded(p) or 0 in dist.get_process_group_ranks(p.ds_process_group)


def _parts(p: torch.nn.Parameter) -> int:
    return dist.get_world_size(p.ds_process_group)


def shape_of(p: torch.nn.Parameter) -> tuple[int, ...]:
    """Its whole shape."""
    return tuple(getattr(p, "ds_shape", p.shape))


def stepped(engine: object, pieces: Pieces) -> list[torch.Tensor]:
    """The flat tensors that this rank's optimizer steps, each once."""
    wrapper = engine.optimizer
    found = [piece.flat for piece in pieces.values() if piece is not None]
    # A share of padding alone has no parameter, and is stepped all the same.
    found += getattr(wrapper, "single_partition_of_fp32_groups", [])
    return list({id(flat): flat for flat in found}.values())


def make_states(engine: object, flats: list[torch.Tensor]) -> None:
    """Have the optimizer make its states, as its first step would; all values are to be loaded.

    A step on gradients of zero does it for any optimizer, one flat tensor at a time.
    """
    optimizer = engine.basic_optimizer
    for flat in flats:
        if optimizer.state.get(flat):
            continue
        gradient = flat.grad
        flat.grad = torch.zeros_like(flat) if gradient is None else gradient.zero_()
        with _only(engine, flat):
            optimizer.step()
        flat.grad = gradient


@contextmanager
def _only(engine: object, flat: torch.Tensor) -> Iterator[None]:
    """Let the optimizer see one flat tensor, in the group that it belongs to."""
    groups = engine.basic_optimizer.param_groups
    before = [group["params"] for group in groups]
    mine = _group_of(engine, flat)
    for index, group in enumerate(groups):
        group["params"] = [flat] if index == mine else []
    yield
    for group, params in zip(groups, before, strict=True):
        group["params"] = params


def _group_of(engine: object, flat: torch.Tensor) -> int:
    lent = getattr(engine.optimizer, "fp32_partitioned_groups_flat", None)
    if lent is not None:  # stage 3 lends its sub-groups to the optimizer for a step only
        index = next(i for i, each in enumerate(lent) if each is flat)
        return int(engine.optimizer.sub_group_to_group_id[index])
    groups = enumerate(engine.basic_optimizer.param_groups)
    return next(i for i, group in groups if any(each is flat for each in group["params"]))


def elementwise_states(optimizer: torch.optim.Optimizer, flat: torch.Tensor) -> Iterator[str]:
    """The names of the states that have a value per element; refuse what could not be carried."""
    for key, value in sorted(optimizer.state.get(flat, {}).items()):
        if key == "step" or not torch.is_tensor(value):
            continue
        if value.numel() != flat.numel() or not value.is_floating_point():
            name = type(optimizer).__name__
            raise NotImplementedError(f"no portable checkpoint of {name}: its `{key}` is no moment")
        yield key
