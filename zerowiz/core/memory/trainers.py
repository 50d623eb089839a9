"""Add what trainers hold beside the model that trains: frozen copies, and what generation needs.

Theory: the reference model is an engine of its own, without an optimizer. Below stage 3 it lies
whole on every GPU, at stage 3 in shards (trl 1.16, models/utils.py, prepare_deepspeed). To generate
with transformers, stage 3 gathers the whole model on every GPU
(`ds3_gather_for_generation`), and keys and values of all sequences grow token by token.
Symbols are those of `rank_sizes.py`. Held against tests/measured/2026-11-trl.jsonl.
"""

from zerowiz.core.memory.ledger import Allocation, AllocationKind, Moment, Moments, Phase
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.model.types import Architecture, Model
from zerowiz.core.strategy import Offload, Part
from zerowiz.core.workload import FP32_BYTES, Reference, Trainer

# Of a micro-step: not there while completions are sampled.
OF_A_MICRO_STEP = frozenset(
    {
        AllocationKind.ACTIVATIONS,
        AllocationKind.LOSS_SAVED,
        AllocationKind.LOSS_LOGITS,
        AllocationKind.HALF_WEIGHTS,
        AllocationKind.GATHERED_PARAMETERS,
        AllocationKind.GRADIENTS,
        AllocationKind.ACCUMULATED_GRADIENTS,
        AllocationKind.REFERENCE_GATHERED,
    }
)
# transformers/generation/utils.py, _sample: the logits in fp32, those that may be sampled, and
# their probabilities.
_SAMPLED_COPIES = 3


def _is_sharded(r: RankSizes) -> bool:
    return Part.PARAMETERS in r.strategy.sharded


def _copies(r: RankSizes) -> int:
    """Frozen models beside the one that trains; PPO has a reward model too."""
    scores = r.workload.trainer is Trainer.PPO
    return int(r.workload.resolved_reference is Reference.MODEL) + int(scores)


def _copy_bytes(model: Model, r: RankSizes) -> int:
    return _copies(r) * r.weight_bytes * model.params


def _held(model: Model, r: RankSizes) -> Moment:
    """The frozen models on the GPU."""
    size_bytes = _copy_bytes(model, r)
    if not _is_sharded(r):
        return (Allocation(AllocationKind.REFERENCE, size_bytes, "w (N + F)"),)
    # The engine is made of the same config, less `offload_optimizer`.
    on_gpu_bytes = 0 if r.strategy.offload is Offload.ALL else size_bytes // r.ranks
    return (Allocation(AllocationKind.REFERENCE_SHARDED, on_gpu_bytes, "w (N + F) / d"),)


def _gathered(r: RankSizes) -> Moment:
    """What stage 3 gathers of a copy: each module is used once, and released at once."""
    if not _is_sharded(r) or not _copies(r) or r.ranks == 1:
        return ()
    numel = r.module + r.buffers.stage3_prefetch_bucket_size
    formula = "w (M + prefetch)"
    return (Allocation(AllocationKind.REFERENCE_GATHERED, r.weight_bytes * numel, formula),)


def with_frozen_models(moments: Moments, model: Model, r: RankSizes) -> Moments:
    """The moments with the frozen models in them, from the trainer's own start on."""
    held = _held(model, r)
    if not _copies(r):
        return moments
    # A trainer that generates asks its reference before the micro-steps.
    running = () if r.workload.trainer.generates else _gathered(r)
    extra = {Phase.MODEL: (), Phase.FORWARD: (*held, *running)}
    return {
        phase: tuple((*moment, *extra.get(phase, held)) for moment in competing)
        for phase, competing in moments.items()
    }


def host_allocations(model: Model, r: RankSizes) -> Moment:
    """What the frozen models take of host memory: nothing, unless parameters are offloaded."""
    if r.strategy.offload is not Offload.ALL or not _copies(r):
        return ()
    size_bytes = _copy_bytes(model, r) // r.ranks
    return (Allocation(AllocationKind.REFERENCE_PINNED, size_bytes, "w (N + F) / d"),)


def _whole_model(r: RankSizes) -> Moment:
    """Stage 3: all parameters at once, beside their shards."""
    if not _is_sharded(r) or r.ranks == 1:
        return ()
    size_bytes = r.trained_bytes * r.trainable + r.frozen_bytes
    return (Allocation(AllocationKind.GATHERED_PARAMETERS, size_bytes, "w N + F"),)


def _cached_tokens(a: Architecture, tokens: int) -> int:
    """Of one sequence, over all layers; a window keeps no more than itself."""
    window = min(tokens, a.sliding_window_tokens) if a.sliding_layers else 0
    return a.sliding_layers * window + (a.layers - a.sliding_layers) * tokens


def _generating(base: Moment, a: Architecture, r: RankSizes) -> tuple[Moment, ...]:
    """As the prompts run, and as the last token is sampled."""
    w, step = r.weight_bytes, r.workload
    sequences, prompt_tokens = step.resolved_generation_batch, step.prompt_tokens
    token_bytes = 2 * w * a.kv_size * sequences
    prompted_bytes = token_bytes * _cached_tokens(a, prompt_tokens)
    cached_bytes = token_bytes * _cached_tokens(a, step.sequence_tokens)
    # transformers/cache_utils.py, DynamicLayer.update: a longer copy is made of each.
    growth_bytes = w * a.kv_size * sequences * step.sequence_tokens
    sampled_bytes = _SAMPLED_COPIES * FP32_BYTES * a.vocab_size * sequences
    passed_bytes = r.activations.pass_bytes * sequences * prompt_tokens // step.tokens
    sampling = Allocation(AllocationKind.SAMPLING, sampled_bytes, "12 V per sequence")
    kept = (*base, *_whole_model(r))
    return (
        (
            *kept,
            Allocation(AllocationKind.KV_CACHE, prompted_bytes, "2 w kv per layer and token"),
            Allocation(AllocationKind.PROMPTS, passed_bytes, "w (3 i + 2 h) per token"),
        ),
        (
            *kept,
            Allocation(AllocationKind.KV_CACHE, cached_bytes, "2 w kv per layer and token"),
            Allocation(AllocationKind.KV_GROWTH, growth_bytes, "w kv per token"),
            sampling,
        ),
    )


def _scoring(base: Moment, r: RankSizes) -> Moment:
    """The log-probabilities of the reference, or of the model itself, of a micro-batch."""
    size_bytes = max(r.activations.pass_bytes, r.activations.loss_forward_bytes)
    scoring = Allocation(AllocationKind.SCORING, size_bytes, "a pass without gradients")
    return (*base, *_gathered(r), scoring)


def with_generation(moments: Moments, model: Model, r: RankSizes) -> Moments:
    """The moments with those in which completions are sampled and scored."""
    if not r.workload.trainer.generates:
        return moments
    first = moments[Phase.FORWARD][0]
    base = tuple(each for each in first if each.kind not in OF_A_MICRO_STEP)
    here = r.workload.vllm_memory_fraction is None
    sampled = _generating(base, model.architecture, r) if here else ()
    return {**moments, Phase.GENERATE: (*sampled, _scoring(base, r))}
