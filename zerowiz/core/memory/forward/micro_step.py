"""Predict what a micro-step and an evaluation keep, also under autocast and of PPO's models."""

from zerowiz.core.memory.forward.activations import Activations, activations
from zerowiz.core.memory.forward.traced import Traced
from zerowiz.core.model.types import Architecture, Model
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Trainer
from zerowiz.core.workload.workload import Workload
from zerowiz.words import _

# Bytes of a token, a layer and a hidden element that forward keeps under autocast beyond a model in
# 16 bits: each linear layer keeps a cast of its input of its own, and the norms work in fp32
# (j1-033 to j1-040, Llama).
_CASTS_BYTES = 10
# Of a token, a layer and an element inside the MLP: autocast computes powers in fp32, and what
# depends on them (j3-008): transformers/activations.py, NewGELUActivation, AccurateGELUActivation.
_POWERS_BYTES = 6
_WITH_POWERS = frozenset({"gelu_new", "gelu_accurate"})


def micro_step(
    model: Model, workload: Workload, traced: Traced | None, *, sharded: bool
) -> Activations:
    """What one micro-step keeps and holds: by the trace where there is one, else by formulas.

    Args:
        model: As its trainer builds it.
        workload: The step.
        traced: A trace of the model.
        sharded: Whether ZeRO-3 holds the weights, which changes what adapters keep.
    """
    if traced is not None:
        return traced.activations(workload)
    if workload.trainer is Trainer.PPO:
        # The policy and the value model run forward, then both backward.
        alone = micro_step(
            model, replace(workload, trainer=Trainer.SFT, reference=None), None, sharded=sharded
        )
        return replace(alone, saved_bytes=2 * alone.saved_bytes)
    if workload.torch_autocast is not None:
        halved = replace(workload, precision=workload.torch_autocast, torch_autocast=None)
        whole = replace(workload, torch_autocast=None)
        return _autocast_run(model.architecture, whole, halved, sharded=sharded)
    return activations(model.architecture, workload, sharded=sharded)


def evaluation(
    model: Model, workload: Workload, traced: Traced | None, *, sharded: bool
) -> Activations | None:
    """The sequences that are evaluated at a time, which are as long as those that train.

    Args:
        model: As for `micro_step`, as are the others.
        workload: The step; None is the answer where nothing is evaluated.
        traced: A trace of the model.
        sharded: Whether ZeRO-3 holds the weights.
    """
    if not workload.eval_batch:
        return None
    step = replace(workload, micro_batch=workload.eval_batch)
    return micro_step(model, step, traced, sharded=sharded)


def _autocast_run(
    a: Architecture, in_fp32: Workload, halved: Workload, *, sharded: bool
) -> Activations:
    """One micro-step that computes in 16 bits between layers whose inputs are fp32."""
    whole = activations(a, in_fp32, sharded=sharded)
    half = activations(a, halved, sharded=sharded)
    powers_bytes = _POWERS_BYTES * a.intermediate_size if a.hidden_act in _WITH_POWERS else 0
    casts_bytes = (_CASTS_BYTES * a.hidden_size + powers_bytes) * halved.tokens
    block_bytes = min(whole.block_bytes, half.block_bytes + casts_bytes)
    if halved.gradient_checkpointing:
        return replace(
            half,
            saved_bytes=whole.saved_bytes,
            saved_formula=whole.saved_formula,
            block_bytes=block_bytes,
        )
    saved_bytes = min(whole.saved_bytes, half.saved_bytes + casts_bytes * a.layers)
    formula = _("{formula} + casts", formula=half.saved_formula)
    return replace(half, saved_bytes=saved_bytes, saved_formula=formula, block_bytes=block_bytes)
