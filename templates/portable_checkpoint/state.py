"""Read and restore what a run has beside its tensors: counts, rates, random numbers."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from deepspeed import DeepSpeedEngine
from deepspeed.accelerator import get_accelerator
from torch import distributed as dist

from portable_checkpoint.layout import Pieces

# What DeepSpeed's engine counts (deepspeed 0.19.8, runtime/engine.py, load_checkpoint).
# Its micro-steps begin anew: with another accumulation they would not end where a step does.
_COUNTERS = ("global_steps", "global_samples", "skipped_steps")
# Of DynamicLossScaler and of LossScaleConfig (deepspeed 0.19.8, runtime/fp16/loss_scaler.py).
_LOSS_SCALE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def read_counts(engine: DeepSpeedEngine) -> dict[str, Any]:
    """Numbers that every rank has."""
    return {
        "counters": {name: getattr(engine, name) for name in _COUNTERS},
        "learning_rates": [float(group["lr"]) for group in engine.basic_optimizer.param_groups],
        "loss_scale": _loss_scale(_scaler(engine)),
    }


def restore_counts(engine: DeepSpeedEngine, saved: Mapping[str, Any]) -> None:
    """Count on from there."""
    for name in _COUNTERS:
        setattr(engine, name, saved["counters"][name])
    groups = engine.basic_optimizer.param_groups
    for group, rate in zip(groups, saved["learning_rates"], strict=True):
        group["lr"] = rate
    scaler = _scaler(engine)
    if _loss_scale(scaler):
        for name, value in saved["loss_scale"].items():
            setattr(scaler, name, value)


def _scaler(engine: DeepSpeedEngine) -> object:
    wrapper = engine.optimizer
    return getattr(wrapper, "loss_scaler", None) or getattr(wrapper, "loss_scale_config", None)


def _loss_scale(scaler: object) -> dict[str, float]:
    """What a dynamic loss scale has come to; nothing of a fixed one."""
    if not (getattr(scaler, "dynamic", False) or getattr(scaler, "dynamic_loss_scale", False)):
        return {}
    return {name: getattr(scaler, name) for name in _LOSS_SCALE if hasattr(scaler, name)}


Params = Mapping[str, torch.nn.Parameter]


def read_steps(engine: DeepSpeedEngine, params: Params, pieces: Pieces) -> dict[str, int]:
    """How often the optimizer stepped each parameter; rank 0 may hold no part of some."""
    steps = torch.full((len(params),), -1, device=engine.device)
    for index, p in enumerate(params.values()):
        piece = pieces.get(p)
        if piece is not None:
            steps[index] = int(engine.basic_optimizer.state[piece.flat].get("step", -1))
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    return {name: step for name, step in zip(params, steps.tolist(), strict=True) if step >= 0}


def restore_steps(
    engine: DeepSpeedEngine,
    params: Params,
    pieces: Pieces,
    flats: Sequence[torch.Tensor],
    saved: Mapping[str, int],
) -> None:
    """Let Adam correct its bias as if it had taken those steps."""
    taken = {id(flat): 0 for flat in flats}
    for name, p in params.items():
        piece = pieces.get(p)
        if piece is not None:
            taken[id(piece.flat)] = max(taken[id(piece.flat)], saved.get(name, 0))
    for flat in flats:
        state = engine.basic_optimizer.state[flat]
        # torch keeps a tensor, on the device where the step is fused; DeepSpeed's own an int.
        if torch.is_tensor(state.get("step")):
            state["step"].fill_(taken[id(flat)])
        elif "step" in state:
            state["step"] = taken[id(flat)]


def read_randoms() -> list[dict[str, Any]]:
    """The state of every rank's random numbers."""
    mine = {
        "python": random.getstate(),
        "host": torch.get_rng_state(),
        "device": get_accelerator().get_rng_state(),
    }
    all_of_them: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_of_them, mine)
    return all_of_them


def restore_randoms(saved: Sequence[Mapping[str, Any]]) -> None:
    """Draw on as each rank would have; another number of ranks draws its own."""
    if len(saved) == dist.get_world_size():
        mine = saved[dist.get_rank()]
        random.setstate(mine["python"])
        torch.set_rng_state(mine["host"])
        get_accelerator().set_rng_state(mine["device"])
