"""Predict, allocation by allocation, what one rank holds under a strategy, and in which trainer."""

from collections.abc import Collection, Mapping

from msgspec import Struct

from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.memory.allocations import (
    Allocation,
    AllocationKind,
    Moment,
    Moments,
    Phase,
    moment_bytes,
)
from zerowiz.core.memory.gradient_shards import find_emptiest, find_fullest
from zerowiz.core.memory.rank_sizes import RankSizes, StrategyRow, forward, opening
from zerowiz.core.memory.zero3 import left_by_a_pass
from zerowiz.core.model.types import Architecture, Model
from zerowiz.core.strategy_types import Offload, Part
from zerowiz.core.structs import replace, shows
from zerowiz.core.workload import FP32_BYTES, Reference, StateDtype, Workload
from zerowiz.translation import N_

# Add what trainers hold beside training: frozen copies, what generation and evaluation need.
#
# Theory: the reference model is an engine of its own, without an optimizer. Below stage 3 it lies
# whole on every GPU, at stage 3 in shards (trl 1.16, models/utils.py, prepare_deepspeed). To
# generate with transformers, stage 3 gathers the whole model on every GPU
# (`ds3_gather_for_generation`), and keys and values of all sequences grow token by token. An
# evaluation runs between optimizer steps, and keeps nothing for backward. Symbols are those of
# `rank_sizes.py`. Held against tests/measured/2026-11-trl.jsonl.

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
# With the tokens that a rank trains at a time.
_OF_TOKENS = frozenset(
    {
        AllocationKind.ACTIVATIONS,
        AllocationKind.ONE_BLOCK,
        AllocationKind.LOSS_SAVED,
        AllocationKind.LOSS_LOGITS,
        AllocationKind.LOSS_GRADIENTS,
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
    w = r.workload
    return int(w.resolved_reference is Reference.MODEL) + int(w.trainer.row.has_value_model)


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
    running = () if r.workload.trainer.row.generates else _gathered(model, r)

    def beside(phase: Phase, moment: Moment) -> Moment:
        if phase is Phase.MODEL:
            return ()
        # The reference runs behind the model: what is held of its loss is there by then (tr1-024).
        is_done = any(allocation.kind is AllocationKind.LOSS_SAVED for allocation in moment)
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


def as_it_runs(r: RankSizes) -> RankSizes:
    """The rank in steady state: whether stage 3 knows in which order the modules come.

    trl 1.16, models/utils.py, add_hooks: to generate, stage 3 loses its hooks, and the first
    micro-step after that learns the order anew (tr1-005, tr1-021). A pass of the same model as its
    own reference ends the order in the middle of each micro-step (tr1-013).
    """
    sampled = r.workload.trainer.row.generates and r.workload.vllm_memory_fraction is None
    if r.workload.is_own_reference:
        return replace(r, prefetching=False)
    return replace(r, prefetching=r.accumulating) if sampled else r


def with_generation(moments: Moments, model: Model, r: RankSizes) -> Moments:
    """The moments with those in which completions are sampled and scored."""
    if not r.workload.trainer.row.generates:
        return moments
    first = moments[Phase.FORWARD][0]
    base = tuple(allocation for allocation in first if allocation.kind not in OF_A_MICRO_STEP)
    here = r.workload.vllm_memory_fraction is None
    sampled = _generating(base, model.architecture, r) if here else ()
    # The log-probabilities of the reference, or of the model itself, of a micro-batch.
    scoring_bytes = max(r.activations.pass_bytes, r.activations.loss_forward_bytes)
    scoring = Allocation(AllocationKind.SCORING, scoring_bytes, N_("a pass without gradients"))
    return {**moments, Phase.GENERATE: (*sampled, (*base, *_gathered(model, r), scoring))}


def _between_steps(moment: Moment, r: RankSizes) -> Moment:
    """What is held of a moment of forward when no micro-step is under way.

    stage_1_and_2.py: stage 1 drops its bucket as it steps. Stage 3 keeps the one that it made.
    """
    gone = OF_A_MICRO_STEP - _OF_ANY_PASS
    if not r.strategy.shards_weights:
        gone |= {AllocationKind.REDUCE_BUCKET}
    return tuple(allocation for allocation in moment if allocation.kind not in gone)


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
    held = [_between_steps(moment, r) for moment in (forward[-1], forward[0])]
    if r.strategy.shards_weights:
        held = [(*moment, left_by_a_pass(r, moment)) for moment in held]
    return {**moments, Phase.EVALUATE: ((*held[0], block, layer), (*held[1], logits))}


# torch/aten/src/ATen/cuda/CUDABlas.cpp: 32 MiB per handle on sm_90; the forward and the backward
# thread hold one each. 67 MB in every run of tests/measured/h200.jsonl.
_CUBLAS = Allocation(AllocationKind.CUBLAS_WORKSPACES, 64 * 2**20, "2 x 32 MiB")
# In the first iteration backward opens with the loss, and its thread has multiplied nothing yet.
_SINGLE = Allocation(AllocationKind.CUBLAS_WORKSPACE, 32 * 2**20, "32 MiB")
_BEFORE_BACKWARD = {(Phase.FORWARD, 0), (Phase.BACKWARD, 0)}
_WITH_MATMULS = (Phase.GENERATE, Phase.FORWARD, Phase.BACKWARD, Phase.STEP, Phase.EVALUATE)


@shows("strategy.name", "peak_bytes", "peak_phase")
class Estimate(Struct, frozen=True, kw_only=True):
    """What one rank holds under a strategy.

    The peak is that of the steady state: no run of tests/measured had a larger first iteration.
    """

    model: Model
    rank: RankSizes
    """What it was predicted from."""
    accelerator: Accelerator = Accelerator.CUDA
    moments: Moments
    """On the GPU, once every optimizer state exists: all that compete for the peak of a phase."""
    host: Moment
    """In host memory, beyond the interpreter, once the optimizer has stepped."""
    flattens_on_host: bool = False
    """Whether ZeRO-1 or ZeRO-2 makes its flat copy of the weights there, not on the GPU."""

    @property
    def flattening_bytes(self) -> int:
        """What the GPU holds while ZeRO-1 or ZeRO-2 makes its flat copy there; 0 without one."""
        copying = filter(_flattens, self.moments.get(Phase.INIT, ()))
        return max(map(moment_bytes, copying), default=0)

    @property
    def of_tokens_bytes(self) -> int:
        """Of the peak, what is there for the tokens of a rank alone."""
        moments = (moment for moments in self.moments.values() for moment in moments)
        without = (moment_bytes(a for a in m if a.kind not in _OF_TOKENS) for m in moments)
        return self.peak_bytes - max(without, default=0)

    @property
    def flattened_on_host(self) -> "Estimate":
        """The same where the GPU has no room for the flat copy that ZeRO-1 and ZeRO-2 make at init.

        DeepSpeed 0.19.8, stage_1_and_2.py, __init__: what NVML shows as free has to hold the copy;
        where it does not, the weights are flattened on the host and come back flat.
        """
        init = self.moments.get(Phase.INIT, ())
        without = tuple(moment for moment in init if not _flattens(moment))
        if len(without) == len(init):
            return self
        moments = {**self.moments, Phase.INIT: without}
        return replace(self, moments=moments, flattens_on_host=True)

    @property
    def strategy(self) -> StrategyRow:
        """The strategy that it is for."""
        return self.rank.strategy

    def peaks(self) -> Mapping[Phase, Moment]:
        """Of each phase, the largest moment on the GPU, without what takes no bytes in it."""
        return {
            phase: tuple(
                allocation for allocation in max(moments, key=moment_bytes) if allocation.size_bytes
            )
            for phase, moments in self.moments.items()
        }

    def phase_bytes(self) -> Mapping[Phase, int]:
        """Bytes held on the GPU at the peak of each phase."""
        peaks = _peaks_bytes(self.moments)
        # Of some trainers, and of runs that evaluate.
        absent = {Phase.GENERATE, Phase.EVALUATE} - peaks.keys()
        return {phase: peaks.get(phase, 0) for phase in Phase if phase not in absent}

    @property
    def first_moments(self) -> Moments:
        """Forward, backward and step of the first iteration; none by the rule of thumb."""
        if Phase.FORWARD not in self.moments:
            return {}
        r = self.rank
        # Adam has no moments before it steps; only the wrapper of stage 0 steps once at init
        # (fp16/unfused_optimizer.py, initialize_optimizer_states). Stage 3 gathers nothing early
        # before it has seen a backward (partitioned_param_coordinator.py, fetch_sub_module).
        stepped_at_init = r.strategy.stage == 0 and r.weight_bytes != FP32_BYTES
        unstepped = replace(
            r,
            state_bytes=r.state_bytes if stepped_at_init else 0,
            state_scales_bytes=r.state_scales_bytes if stepped_at_init else 0,
            prefetching=r.accumulating,
            evaluation=None,
        )
        early = r.strategy.moments(as_it_runs(unstepped))
        return _with_all(
            {
                Phase.FORWARD: early[Phase.FORWARD],
                Phase.BACKWARD: early[Phase.BACKWARD],
                # The last moment is the optimizer's own, which makes its states as it begins.
                Phase.STEP: (
                    *early[Phase.STEP][:-1],
                    r.strategy.moments(as_it_runs(r))[Phase.STEP][-1],
                ),
            },
            self.model,
            as_it_runs(unstepped),
            self.accelerator,
            () if r.accumulating else _BEFORE_BACKWARD,
        )

    @property
    def first_iteration_bytes(self) -> Mapping[Phase, int]:
        """Bytes held on the GPU at the peak of each phase of the first iteration."""
        return _peaks_bytes(self.first_moments)

    @property
    def peak_phase(self) -> Phase:
        """The phase that decides whether the rank lives."""
        phases = self.phase_bytes()
        return max(phases, key=lambda phase: phases[phase])

    @property
    def peak_bytes(self) -> int:
        """Predicts `torch.cuda.max_memory_allocated` of a rank in steady state."""
        return max(_peaks_bytes(self.moments).values())

    @property
    def training_peak_bytes(self) -> int:
        """The same of a run that evaluates nothing."""
        sizes = _peaks_bytes(self.moments)
        return max(size for phase, size in sizes.items() if phase is not Phase.EVALUATE)

    @property
    def eval_batch_below_training(self) -> int | None:
        """The most sequences that are evaluated at a time without deciding the peak.

        None where one alone decides it, or nothing is evaluated.
        """
        evaluated, peak_bytes = self.rank.workload.eval_batch, self.training_peak_bytes
        most = []
        for moment in self.moments.get(Phase.EVALUATE, ()):
            growing = moment_bytes(
                allocation for allocation in moment if allocation.kind in GROWS_WITH_EVALUATION
            )
            left = peak_bytes - (moment_bytes(moment) - growing)
            most.append(left * evaluated // growing if growing else evaluated)
        fewest = min(most, default=0)
        return fewest if fewest > 0 else None


def _flattens(moment: Moment) -> bool:
    return any(allocation.kind is AllocationKind.FLATTENING_COPY for allocation in moment)


def _peaks_bytes(moments: Moments) -> Mapping[Phase, int]:
    return {phase: max(map(moment_bytes, competing)) for phase, competing in moments.items()}


def _with_workspaces(moments: Moments, single: Collection[tuple[Phase, int]]) -> Moments:
    """Two workspaces in each moment with matmuls; one in those named by phase and place."""
    return {
        phase: tuple(
            (*moment, _SINGLE if (phase, place) in single else _CUBLAS)
            for place, moment in enumerate(competing)
        )
        if phase in _WITH_MATMULS
        else competing
        for phase, competing in moments.items()
    }


def _with_all(
    moments: Moments,
    model: Model,
    r: RankSizes,
    accelerator: Accelerator,
    single: Collection[tuple[Phase, int]] = (),
) -> Moments:
    """The wrapper's moments with all else that a rank holds, in any iteration.

    Args:
        moments: As the row of the strategy makes them.
        model: What is trained.
        r: The rank, as it runs in this iteration.
        accelerator: What it runs on.
        single: The moments with one workspace, by phase and place.
    """
    moments = with_frozen_models(moments, model, r)
    moments = with_evaluation(with_generation(moments, model, r), r)
    return _with_workspaces(moments, single) if accelerator is Accelerator.CUDA else moments


def estimate(
    model: Model, rank: RankSizes, accelerator: Accelerator = Accelerator.CUDA
) -> Estimate:
    """What this one rank holds; `rank` holds the strategy, whose row has the formulas."""
    return Estimate(
        model=model,
        rank=rank,
        accelerator=accelerator,
        moments=_with_all(rank.strategy.moments(as_it_runs(rank)), model, rank, accelerator),
        host=(*rank.strategy.host_allocations(model, rank), *host_allocations(model, rank)),
    )


def floor_bytes(rank: RankSizes) -> int:
    """What a rank holds at least as a micro-step turns to backward, in much less time.

    Args:
        rank: Also one whose cuts, and what stage 3 gathers, were not worked out.
    """
    turning = max(moment_bytes(forward(rank)), moment_bytes(opening(rank)))
    return moment_bytes(rank.strategy.lasting(rank)) + turning


def estimate_fullest(
    model: Model, rank: RankSizes, accelerator: Accelerator = Accelerator.CUDA
) -> Estimate:
    """What the rank holds that has the largest peak: it decides whether a job fits.

    All ranks make the same flat copy at init: where that is the peak, the others decide.
    """
    ranks = (replace(rank, cut=cut) for cut in find_fullest(rank.cuts, offloaded=rank.offloaded))
    return max(
        (estimate(model, sizes, accelerator) for sizes in ranks),
        key=lambda result: result.flattened_on_host.peak_bytes,
    )


def estimate_full(model: Model, rank: RankSizes, accelerator: Accelerator) -> Estimate:
    """One of those among which `estimate_fullest` finds the largest peak."""
    cut, *_ = find_fullest(rank.cuts, offloaded=rank.offloaded)
    return estimate(model, replace(rank, cut=cut), accelerator)


def estimate_emptiest(fullest: Estimate) -> Estimate:
    """No rank of the job holds less."""
    emptiest = replace(fullest.rank, cut=find_emptiest(fullest.rank.cuts))
    if emptiest.cut == fullest.rank.cut:
        return fullest
    estimated = estimate(fullest.model, emptiest, fullest.accelerator)
    return estimated.flattened_on_host if fullest.flattens_on_host else estimated


# Count what a vLLM takes of the GPUs that train, by arithmetic: no run of it was measured.


class VllmShare(Struct, frozen=True, kw_only=True):
    """What vLLM takes of each GPU, and what is there beside it."""

    share_bytes: int
    sleeps: bool
    """Whether it holds that while it generates alone."""
    resting_bytes: int
    """What the rank holds between two steps, while vLLM generates."""

    def with_training(self, training_bytes: int) -> int:
        """The most of the GPU that is held, where training alone holds so much of it."""
        if self.sleeps:
            return max(training_bytes, self.resting_bytes + self.share_bytes)
        return training_bytes + self.share_bytes


def vllm_share(machine: Machine, workload: Workload, predicted: Estimate) -> VllmShare | None:
    """What vLLM takes of each GPU; None where none runs there.

    vLLM 0.11, v1/worker/gpu_worker.py: its weights, its cache and what a forward pass of it needs
    have `gpu_memory_utilization` of the GPU's whole memory. trl 1.16, generation/
    vllm_generation.py: with sleep mode it holds that while it generates alone, for level 2 discards
    weights and cache.
    """
    fraction = workload.vllm_memory_fraction
    total_bytes = machine.total_bytes
    if not fraction or total_bytes is None or machine.accelerator.row.on_host:
        return None
    return VllmShare(
        share_bytes=int(fraction * total_bytes),
        sleeps=workload.vllm_sleeps,
        resting_bytes=max(
            moment_bytes(held for held in moment if held.kind not in OF_A_MICRO_STEP)
            for moment in predicted.moments[Phase.FORWARD]
        ),
    )


# Predict by the rule of thumb, to check the tool against what people have read.
#
# Weights and gradients in the model's precision, two Adam moments in the same precision, a flat 4
# GB of activations, no master weights, no buffers, no transients; a sharded part is divided by
# the number of GPUs. docs/concepts/rule-of-thumb.md says where DeepSpeed allocates something
# else.
#
# Symbols: N parameters, d ranks.

# The usual 7B example: "4 GB activations"; GB = 1e9 bytes.
_ACTIVATIONS = Allocation(AllocationKind.ACTIVATIONS, 4_000_000_000, "4 GB")
_KINDS = {
    Part.PARAMETERS: AllocationKind.PARAMETERS,
    Part.GRADIENTS: AllocationKind.GRADIENTS,
    Part.OPTIMIZER: AllocationKind.OPTIMIZER,
}
_ON_HOST = {
    Offload.NONE: frozenset[Part](),
    Offload.OPTIMIZER: frozenset({Part.OPTIMIZER}),
    Offload.ALL: frozenset({Part.OPTIMIZER, Part.PARAMETERS}),
}


def rule_of_thumb_estimate(
    model: Model, rank: RankSizes, state_dtype: StateDtype | None = None
) -> Estimate:
    """What one rank holds by the rule of thumb.

    Args:
        model: Only its parameter count matters.
        rank: Only its strategy, its precision and the number of ranks matter.
        state_dtype: Of each Adam moment; None takes the model's precision.
    """
    moment_bytes = {None: rank.weight_bytes, StateDtype.BF16: 2, StateDtype.FP32: 4}[state_dtype]
    sizes_bytes = {
        Part.PARAMETERS: rank.weight_bytes,
        Part.GRADIENTS: rank.weight_bytes,
        Part.OPTIMIZER: 2 * moment_bytes,
    }
    held = {}
    for part, size_bytes in sizes_bytes.items():
        whole_bytes, formula = size_bytes * model.params, f"{size_bytes} N"
        sharded = part in rank.strategy.sharded
        held[part] = Allocation(
            _KINDS[part],
            whole_bytes // rank.ranks if sharded else whole_bytes,
            f"{formula} / d" if sharded else formula,
        )
    on_host = _ON_HOST[rank.strategy.offload]
    on_gpu = (*(held[part] for part in held if part not in on_host), _ACTIVATIONS)
    return Estimate(
        model=model,
        rank=rank,
        moments={Phase.STEP: (on_gpu,)},
        host=tuple(held[part] for part in held if part in on_host),
    )
