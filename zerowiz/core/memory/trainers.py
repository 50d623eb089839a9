"""Add what trainers hold beside training: frozen copies, what generation and evaluation need.

Theory: the reference model is an engine of its own, without an optimizer. Below stage 3 it lies
whole on every GPU, at stage 3 in shards (trl 1.16, models/utils.py, prepare_deepspeed). To generate
with transformers, stage 3 gathers the whole model on every GPU
(`ds3_gather_for_generation`), and keys and values of all sequences grow token by token.
An evaluation runs between optimizer steps, and keeps nothing for backward.
Symbols are those of `rank_sizes.py`. Held against tests/measured/2026-11-trl.jsonl.
"""

from zerowiz.core.memory.ledger import Allocation, AllocationKind, Moment, Moments, Phase
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.model.types import Architecture, Model
from zerowiz.core.strategy import Offload
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import FP32_BYTES, Reference, Trainer
from zerowiz.words import N_

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
# Of a micro-step, and there in a pass without gradients too: what stage 3 gathers in the order that
# it knows from training, also of a reference, and what autocast makes of the weights.
_OF_ANY_PASS = frozenset(
    {
        AllocationKind.HALF_WEIGHTS,
        AllocationKind.GATHERED_PARAMETERS,
        AllocationKind.REFERENCE_GATHERED,
    }
)
# With the sequences that are evaluated at a time.
GROWS_WITH_EVALUATION = frozenset({AllocationKind.EVALUATED_BLOCK, AllocationKind.EVALUATED_LOGITS})
# transformers/generation/utils.py, _sample: the logits in fp32, those that may be sampled, and
# their probabilities.
_SAMPLED_COPIES = 3
# Modules of a block that have no weights of their own: it, its attention, its MLP, its activation.
_CONTAINERS = 4


def _copies(r: RankSizes) -> int:
    """Frozen models beside the one that trains; PPO has a reward model too."""
    scores = r.workload.trainer is Trainer.PPO
    return int(r.workload.resolved_reference is Reference.MODEL) + int(scores)


def _copy_bytes(model: Model, r: RankSizes) -> int:
    return _copies(r) * r.weight_bytes * model.params


def _held(model: Model, r: RankSizes) -> Moment:
    """The frozen models on the GPU."""
    size_bytes = _copy_bytes(model, r)
    if not r.strategy.shards_weights:
        return (Allocation(AllocationKind.REFERENCE, size_bytes, "w (N + F)"),)
    # The engine is made of the same config, less `offload_optimizer`.
    on_gpu_bytes = 0 if r.strategy.offload is Offload.ALL else size_bytes // r.ranks
    return (Allocation(AllocationKind.REFERENCE_SHARDED, on_gpu_bytes, "w (N + F) / d"),)


def _run_ahead(model: Model, r: RankSizes) -> int:
    """How many elements of the blocks are gathered before they run, in a pass without gradients.

    partitioned_param_coordinator.py, fetch_sub_module: with each module, some of the parameters
    that come next are fetched, until they fill the prefetch bucket. So the fetches are through
    with all blocks when the modules are through with a part of them.
    """
    bucket = r.buffers.stage3_prefetch_bucket_size
    layers = model.architecture.layers
    block = [tensor for tensor in model.tensors if tensor.in_block]
    fetches = waiting = 0
    for tensor in block:
        for _ in range(max(1, tensor.copies // layers)):
            waiting += tensor.numel
            fetches, waiting = (fetches + 1, 0) if waiting >= bucket else (fetches, waiting)
    modules = _CONTAINERS + sum(1 for tensor in block if not tensor.name.endswith("bias"))
    done_fraction = min(1, fetches / modules)
    return int(model.layer_params * layers * (1 - done_fraction))


def _gathered(model: Model, r: RankSizes) -> Moment:
    """What stage 3 gathers of a copy: each module is used once, and released at once."""
    if not r.strategy.shards_weights or not _copies(r) or r.ranks == 1 or not r.prefetching:
        return ()
    a, ahead = model.architecture, _run_ahead(model, r)
    # A tied embedding is used again by the head (stage3_max_reuse_distance).
    ends = a.embedding_params if a.tied_embeddings else 0
    live = min(model.params, max(r.module, min(r.buffers.stage3_max_live_parameters, ahead + ends)))
    # What comes from the host is on the GPU as a shard until it is gathered (tr1-024).
    shards = ahead // r.ranks if r.strategy.offload is Offload.ALL else 0
    size_bytes = r.weight_bytes * (live + shards)
    formula = N_("w x what is fetched early")
    return (Allocation(AllocationKind.REFERENCE_GATHERED, size_bytes, formula),)


def with_frozen_models(moments: Moments, model: Model, r: RankSizes) -> Moments:
    """The moments with the frozen models in them, from the trainer's own start on."""
    held = _held(model, r)
    if not _copies(r):
        return moments
    # A trainer that generates asks its reference before the micro-steps.
    running = () if r.workload.trainer.generates else _gathered(model, r)

    def beside(phase: Phase, moment: Moment) -> Moment:
        if phase is Phase.MODEL:
            return ()
        # The reference runs behind the model: what is held of its loss is there by then (tr1-024).
        is_done = any(each.kind is AllocationKind.LOSS_SAVED for each in moment)
        return (*held, *running) if phase is Phase.FORWARD and is_done else held

    return {
        phase: tuple((*moment, *beside(phase, moment)) for moment in competing)
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
    if not r.strategy.shards_weights or r.ranks == 1:
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
    sampling = Allocation(AllocationKind.SAMPLING, sampled_bytes, N_("12 V per sequence"))
    kept = (*base, *_whole_model(r))
    return (
        (
            *kept,
            Allocation(AllocationKind.KV_CACHE, prompted_bytes, N_("2 w kv per layer and token")),
            Allocation(AllocationKind.PROMPTS, passed_bytes, N_("w (3 i + 2 h) per token")),
        ),
        (
            *kept,
            Allocation(AllocationKind.KV_CACHE, cached_bytes, N_("2 w kv per layer and token")),
            Allocation(AllocationKind.KV_GROWTH, growth_bytes, N_("w kv per token")),
            sampling,
        ),
    )


def _scoring(base: Moment, model: Model, r: RankSizes) -> Moment:
    """The log-probabilities of the reference, or of the model itself, of a micro-batch."""
    size_bytes = max(r.activations.pass_bytes, r.activations.loss_forward_bytes)
    scoring = Allocation(AllocationKind.SCORING, size_bytes, N_("a pass without gradients"))
    return (*base, *_gathered(model, r), scoring)


def as_it_runs(r: RankSizes) -> RankSizes:
    """The rank in steady state: whether stage 3 knows in which order the modules come.

    trl 1.16, models/utils.py, add_hooks: to generate, stage 3 loses its hooks, and the first
    micro-step after that learns the order anew (tr1-005, tr1-021). A pass of the same model as its
    own reference ends the order in the middle of each micro-step (tr1-013).
    """
    sampled = r.workload.trainer.generates and r.workload.vllm_memory_fraction is None
    if r.workload.is_own_reference:
        return replace(r, prefetching=False)
    return replace(r, prefetching=r.accumulating) if sampled else r


def with_generation(moments: Moments, model: Model, r: RankSizes) -> Moments:
    """The moments with those in which completions are sampled and scored."""
    if not r.workload.trainer.generates:
        return moments
    first = moments[Phase.FORWARD][0]
    base = tuple(each for each in first if each.kind not in OF_A_MICRO_STEP)
    here = r.workload.vllm_memory_fraction is None
    sampled = _generating(base, model.architecture, r) if here else ()
    return {**moments, Phase.GENERATE: (*sampled, _scoring(base, model, r))}


def _between_steps(moment: Moment, r: RankSizes) -> Moment:
    """What is held of a moment of forward when no micro-step is under way.

    stage_1_and_2.py: stage 1 drops its bucket as it steps. Stage 3 keeps the one that it made.
    """
    gone = OF_A_MICRO_STEP - _OF_ANY_PASS
    if not r.strategy.shards_weights:
        gone |= {AllocationKind.REDUCE_BUCKET}
    return tuple(each for each in moment if each.kind not in gone)


def with_evaluation(moments: Moments, r: RankSizes) -> Moments:
    """The moments with those of an evaluation: as a block runs, and as head and loss do.

    transformers, trainer.py, evaluation_loop and prediction_step: one forward pass of a batch at a
    time, without gradients. loss/loss_utils.py, ForCausalLMLoss: logits, their upcast and the
    log-softmax are there at the same time. What the parameters and the optimizer hold stays.
    """
    run = r.evaluation
    if run is None:
        return moments
    forward = moments[Phase.FORWARD]
    # A trace knows what head and loss keep, and nothing of a pass that keeps nothing.
    logits_bytes = run.loss_pass_bytes or run.head_bytes + run.loss_forward_bytes
    logits = Allocation(
        AllocationKind.EVALUATED_LOGITS, logits_bytes, N_("(w + 8) V + w h per token evaluated")
    )
    block = Allocation(
        AllocationKind.EVALUATED_BLOCK,
        run.block_pass_bytes,
        N_("w (3 i + 2 h) per token evaluated"),
    )
    layer = Allocation(
        AllocationKind.DEQUANTIZED_LAYER, r.dequantized_bytes, N_("w of the largest")
    )
    return {
        **moments,
        Phase.EVALUATE: (
            (*_between_steps(forward[-1], r), block, layer),
            (*_between_steps(forward[0], r), logits),
        ),
    }
