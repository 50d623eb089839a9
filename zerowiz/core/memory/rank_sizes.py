"""Compute the sizes that the memory formulas are made of, and the allocations they share.

Symbols of the formulas, here and in `zero012.py`, `zero3.py` and `host.py`:

    r  the RankSizes of a rank          N  trainable parameters
    w  bytes of a weight                F  bytes of the frozen parameters
    d  ranks that shard the same        P  N / d, the rank's share
    M  the largest tensor               S  the tensors that reach into the share
    b  the reduce bucket                G  the sub-group that stage 3 steps at a time
    V  words of the vocabulary          h  width of a hidden state, V h the embedding
    t  tokens of a micro-step
"""

from collections.abc import Callable, Mapping
from functools import lru_cache

from msgspec import Struct

from zerowiz.core.memory.activations import AUTO_EP, Activations, shared_kv_size, value_bytes
from zerowiz.core.memory.allocations import Allocation, AllocationKind, Moment, Moments
from zerowiz.core.memory.buffers import Buffers
from zerowiz.core.memory.gathering import Layout, lay_out
from zerowiz.core.memory.gradient_shards import RankShard, find_cuts, list_gradients
from zerowiz.core.memory.losses import has_fused_head
from zerowiz.core.memory.micro_step import Traced, evaluation, micro_step
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.types import Architecture, Model, Tensor
from zerowiz.core.strategy_types import Offload, Part, Strategy
from zerowiz.core.structs import replace, shows
from zerowiz.core.workload import (
    FP32_BYTES,
    HALF_BYTES,
    OPTIMIZERS,
    Head,
    Method,
    Optimizer,
    StateDtype,
    Workload,
)
from zerowiz.translation import N_

_VALUE_BYTES: Mapping[StateDtype, int] = {StateDtype.FP32: FP32_BYTES, StateDtype.BF16: 2}

# bitsandbytes/optim/optimizer.py, Optimizer2State.init_state: so many parameters share scales.
_BLOCK_OF_8BIT = 256

# model/families.py: the head of a language model.
_HEAD = "lm_head"

# bitsandbytes/functional.py, quantize_4bit, compress_statistics: two weights a byte, one byte of
# scale for 64 weights, and one in fp32 for 256 of those.
_WEIGHTS_PER_SCALE, _SCALES_PER_SCALE = 64, 256


@shows("name", "stage", "offload")
class StrategyRow(Strategy, frozen=True, kw_only=True):
    """A strategy with the formulas of its memory: a row of core/strategies.py."""

    lasting: "Callable[[RankSizes], Moment]"
    """What a rank holds on the GPU from step to step."""
    moments: "Callable[[RankSizes], Moments]"
    """What a rank holds on the GPU, by the wrapper that DeepSpeed has for the strategy."""
    host_allocations: "Callable[[Model, RankSizes], Moment]"
    """What a rank holds in host memory."""


@shows("strategy.name", "ranks", "trainable", "weight_bytes", "trained_bytes")
class RankSizes(Struct, frozen=True, kw_only=True):
    """One rank; counts are elements unless the name says bytes."""

    strategy: StrategyRow
    buffers: Buffers
    activations: Activations
    evaluation: Activations | None
    """Those of the sequences that are evaluated at a time; None where nothing is evaluated."""
    ranks: int
    cut: RankShard
    """What is this rank's own."""
    cuts: tuple[RankShard, ...]
    """What all ranks hold, by each grouping of the parameters that the optimizer may have."""
    weight_bytes: int
    trained_bytes: int
    """Of one trainable parameter: adapters stay in fp32 under `zero.Init`."""
    trainable: int
    share: int
    """P: the parameters whose optimizer states this rank keeps, also of experts of other ranks."""
    built: int
    """Parameters of the model as the script builds it, before its layers are cut or dealt out."""
    frozen_bytes: int
    largest: int
    """The largest trainable tensor."""
    layers: int
    module: int
    """All tensors of the module that holds most: the experts of one layer are one module."""
    layout: Layout
    """The modules that stage 3 gathers; empty at the other stages."""
    block_largest: int
    """The largest trainable tensor of a transformer block."""
    block: int
    """All trainable parameters of one block."""
    persistent_parameters: int
    """Elements of adapters that stage 3 keeps whole, as they are below its threshold."""
    embedding: int
    gathered_head: int
    """Elements of the head that TRL's loss gathers by itself."""
    staying_embedding: int
    """Elements of an embedding without a head, which stays gathered from step to step.

    parameter_offload.py, _post_backward_module_hook: a module is released where the gradient of
    its input was made, and token ids have none (tr1-023).
    """
    tied: bool
    untied_head_bytes: int
    """Of the head, or embeddings, that exist until they are tied to an embedding."""
    master_bytes: int
    """Of one parameter, in the optimizer's own copy of the weights."""
    state_bytes: int
    """Of one parameter, in the optimizer's moments."""
    state_scales_bytes: int
    """Of the scales that 256 parameters share, in an optimizer of 8 bits."""
    dequantized_bytes: int
    """Of the largest layer of 4 bits, which is held whole while it is multiplied with."""
    half_weight_bytes: int
    """Of what autocast keeps of the weights in 16 bits, from forward on."""
    stepping_bytes: int
    """Of one parameter, allocated while the optimizer steps."""
    workload: Workload
    """What the rank trains; a formula that depends on a setting asks it."""
    offloaded: bool
    """Whether the optimizer lives on the host."""
    gathers: bool = True
    """Whether stage 3 has sharded anything over more than this rank."""
    exchanged_bytes: int = 0
    """That a pass over all layers sends to the ranks that share its sequences, and as many back."""
    prefetching: bool = True
    """Whether stage 3 knows in which order the modules come, and gathers the next ones early."""

    @property
    def accumulating(self) -> bool:
        """Whether an optimizer step has several micro-steps."""
        return self.workload.accumulation_steps > 1

    @property
    def reduced_bytes(self) -> int:
        """Of one element of a gradient on its way to the other ranks.

        runtime/engine.py, 2182: in fp32 where ranks share sequences, unless the config says
        `seq_parallel_communication_data_type`.
        """
        return FP32_BYTES if self.workload.sequence_parallel > 1 else self.weight_bytes

    @property
    def own_head(self) -> int:
        """Elements of a head that is a tensor of its own: its gradient is the first of backward.

        A tied one's comes with the embedding's, and a reward has a score in its place.
        """
        has_one = not self.tied and self.workload.trainer.row.head is not Head.VALUE
        return self.embedding if has_one else 0

    @property
    def sub_group(self) -> int:
        """G: stage 3 steps so many elements at a time.

        stage3.py, _create_fp16_sub_groups: a group is closed by the tensor that fills it.
        """
        border = self.block_largest // self.ranks // 2
        return min(self.share, self.buffers.sub_group_size + border)

    def states_bytes(self, params: int) -> int:
        """Of the optimizer's moments of so many parameters in one vector."""
        return self.state_bytes * params + self.state_scales_bytes * params // _BLOCK_OF_8BIT


def with_trainer_heads(model: Model, workload: Workload) -> Model:
    """The model as its trainer builds it: with a score for a head, or with a second model.

    trl 1.16, RewardTrainer: AutoModelForSequenceClassification with one label. trl 0.24,
    PPOTrainer, PolicyAndValueWrapper: the value model trains beside the policy.
    """
    if workload.trainer.row.has_value_model:
        tensors = tuple(replace(tensor, copies=2 * tensor.copies) for tensor in model.tensors)
        return replace(model, params=2 * model.params, tensors=tensors)
    if workload.trainer.row.head is not Head.VALUE:
        return model
    heads = [tensor for tensor in model.tensors if tensor.name == _HEAD]
    scored = model.params - sum(head.numel * head.copies for head in heads)
    return replace(
        model,
        params=scored + model.architecture.hidden_size,
        tensors=tuple(tensor for tensor in model.tensors if tensor.name != _HEAD),
    )


# transformers' `base_model_tp_plan` of the models that have these names.
_BY_COLUMN = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", _HEAD})
_BY_ROW = frozenset({"o_proj.weight", "o_proj", "down_proj"})


def _cut_shape(tensor: Tensor, workload: Workload) -> tuple[int, ...]:
    first, *rest = tensor.shape
    if tensor.holds_experts:
        return (first // workload.expert_parallel, *rest)
    if tensor.name.partition(".")[0] in _BY_COLUMN:
        return (first // workload.tensor_parallel, *rest)
    return (first, *(n // workload.tensor_parallel if tensor.name in _BY_ROW else n for n in rest))


def _in_halves(
    tensor: Tensor, shape: tuple[int, ...], workload: Workload
) -> tuple[tuple[int, ...], ...]:
    """moe/ep_experts.py, GroupedExperts: gate and up are tensors of their own."""
    if workload.expert_parallel == 1 or tensor.name != "experts.gate_up_proj":
        return (shape,)
    experts, wide, *rest = shape
    return ((experts, wide // 2, *rest),) * 2


@lru_cache(maxsize=256)
def cut_weights(model: Model, workload: Workload, *, is_dealt: bool = False) -> Model:
    """The model that one of the ranks has which share its weights, as ZeRO gets it.

    deepspeed 0.19.8, runtime/engine.py, _apply_autotp_partitioning and _configure_expert_parallel:
    embeddings, norms and routers stay whole.

    Args:
        model: What is trained.
        workload: Which ranks share it.
        is_dealt: Whether the experts of the other ranks are in it too, in pieces: a rank keeps as
            much of its own on the host as if all ranks sharded all.
    """
    if not workload.shares_weights:
        return model
    a, ranks = model.architecture, workload.tensor_parallel
    pieces = workload.expert_parallel if is_dealt else 1
    tensors = tuple(
        replace(tensor, shape=shape)
        for tensor in model.tensors
        for _ in range(pieces if tensor.holds_experts else 1)
        for shape in _in_halves(tensor, _cut_shape(tensor, workload), workload)
    )
    return replace(
        model,
        tensors=tensors,
        params=sum(tensor.numel * tensor.copies for tensor in tensors),
        architecture=replace(
            a,
            heads=a.heads // ranks,
            kv_heads=a.kv_heads // ranks,
            intermediate_size=a.intermediate_size // ranks,
            dense_intermediate_size=a.dense_intermediate_size // ranks,
            switches=a.switches | ({AUTO_EP} if workload.expert_parallel > 1 else set()),
        ),
    )


# A search asks the same of a model for every strategy.
@lru_cache(maxsize=256)
def trainable_params(model: Model, workload: Workload) -> int:
    """The parameters that this method trains: all, or the adapters alone."""
    model = with_trainer_heads(model, workload)
    full = workload.method is Method.FULL
    rank, modules = workload.lora_rank, workload.lora_target_modules
    return model.params if full else model.lora_params(rank, modules)


def _halves(model: Model, workload: Workload) -> list[tuple[int, int]]:
    """How many adapter tensors there are of how many elements: narrowing ones, widening ones."""
    return [
        (tensor.copies, workload.lora_rank * tensor.adapters * width)
        for tensor in model.adapted(workload.lora_target_modules)
        for width in tensor.shape[-2:]
    ]


def _persistent(model: Model, workload: Workload, buffers: Buffers) -> int:
    """parameter_offload.py, mark_persistent_parameters: tensors below a threshold."""
    threshold = buffers.stage3_param_persistence_threshold
    halves = _halves(model, workload)
    return sum(copies * numel for copies, numel in halves if numel <= threshold)


@lru_cache(maxsize=256)
def _frozen_bytes(model: Model, workload: Workload) -> int:
    """The base below the adapters; of QLoRA, only linear layers have 4 bits."""
    if workload.method is Method.FULL:
        return 0
    weight_bytes = workload.precision.size_bytes
    if workload.method is Method.LORA:
        return weight_bytes * model.params
    quantized = _quantized(model)
    whole = model.params - sum(tensor.numel * tensor.copies for tensor in quantized)
    packed_bytes = sum(_four_bit_bytes(tensor.numel) * tensor.copies for tensor in quantized)
    return packed_bytes + weight_bytes * whole


def _quantized(model: Model) -> list[Tensor]:
    """The weights that QLoRA holds in 4 bits.

    transformers/integrations/bitsandbytes.py, replace_with_bnb_linear: torch's own linear layers
    and GPT-2's; embeddings, the head, norms and fused experts keep the model's precision.
    """
    family = FAMILIES.get(model.architecture.family)
    torch_linear = family is None or family.torch_linear
    return [
        tensor for tensor in model.tensors if tensor.linear and (torch_linear or tensor.transposed)
    ]


def _four_bit_bytes(numel: int) -> int:
    scales = -(-numel // _WEIGHTS_PER_SCALE)
    return -(-numel // 2) + scales + FP32_BYTES * -(-scales // _SCALES_PER_SCALE)


def _dequantized_bytes(model: Model, workload: Workload) -> int:
    """bitsandbytes/autograd/_functions.py, MatMul4Bit.backward: the weight, and its fp32 scales."""
    if workload.method is not Method.QLORA:
        return 0
    largest = max((tensor.numel for tensor in _quantized(model)), default=0)
    return workload.precision.size_bytes * largest + FP32_BYTES * largest // _WEIGHTS_PER_SCALE


def _half_weight_bytes(model: Model, workload: Workload, *, sharded: bool) -> int:
    """torch/csrc/autocast_mode.cpp, cached_cast: weights that train and are no views (j1-034).

    An embedding is looked up in fp32, unless it is the head too. What stage 3 gathers is cast
    anew each time (j1-040).
    """
    if workload.torch_autocast is None or workload.method is not Method.FULL or sharded:
        return 0
    a = model.architecture
    looked_up = 0 if a.tied_embeddings else a.embedding_params
    return HALF_BYTES * (model.params - looked_up)


@lru_cache(maxsize=256)
def _largest(model: Model, workload: Workload) -> tuple[int, int]:
    """The largest trainable tensor, of the model and of its blocks."""
    if workload.method is not Method.FULL:
        largest = max(numel for _, numel in _halves(model, workload))
        return largest, largest
    # A trace may find no blocks; its model is counted as one.
    in_block = max((t.numel for t in model.tensors if t.in_block), default=model.largest_param)
    return min(model.largest_param, model.params), in_block


def _cuts(
    job: tuple[Model, Workload],
    ranks: int,
    strategy: Strategy,
    buffers: Buffers,
    decay_apart: bool | None,
) -> tuple[RankShard, ...]:
    """What is peculiar to each rank: ZeRO-1 and ZeRO-2 cut their shares from flat vectors."""
    gradients = list_gradients(*job)
    after = buffers.keeps_gradients and strategy.offload is Offload.OPTIMIZER
    shards = (
        find_cuts(
            gradients,
            ranks,
            buffers.reduce_bucket_size,
            in_backward=(Part.GRADIENTS in strategy.sharded and not after) or buffers.overlap_comm,
            autocast=job[1].torch_autocast is not None,
            decay_apart=apart,
            each_rank=decay_apart is not None,
            dealt=job[1].expert_parallel,
        )
        for apart in ((False, True) if decay_apart is None else (decay_apart,))
    )
    return tuple(cut for cuts in shards for cut in cuts)


def _share(
    model: Model, workload: Workload, trainable: int, ranks: int, all_ranks: int, *, sharded: bool
) -> int:
    """P: the experts of a rank are sharded over the ranks that have the same ones.

    AutoTP replaces what it cuts. `zero.Init` has sharded the rest over all ranks before, and it
    stays so (runtime/zero/partition_parameters.py; g1-tp-llama-2x2-z3).
    """
    if not workload.shares_weights:
        return -(-trainable // ranks)
    stays = sharded and workload.resolved_zero_init

    def spread(tensor: Tensor) -> int:
        if tensor.holds_experts:
            return ranks // workload.expert_parallel
        return all_ranks if stays and _cut_shape(tensor, workload) == tensor.shape else ranks

    return sum(-(-t.numel * t.copies // spread(t)) for t in model.tensors)


def _gathered(model: Model, workload: Workload, ranks: int) -> Model:
    """What stage 3 gathers: nothing that one rank alone has.

    partition_parameters.py, NoGatherHandle.
    """
    cut_later = workload.tensor_parallel > 1 and not workload.resolved_zero_init
    if ranks > workload.expert_parallel or cut_later or not workload.shares_weights:
        return model
    alike = (t for t in model.tensors if _cut_shape(t, workload) == t.shape)
    return replace(model, tensors=tuple(alike))


def rank_sizes(
    model: Model,
    workload: Workload,
    ranks: int,
    strategy: StrategyRow,
    buffers: Buffers,
    traced: Traced | None = None,
    decay_apart: bool | None = None,
    *,
    is_whole: bool = True,
) -> RankSizes:
    """Compute the sizes of the first rank of this job.

    Args:
        model: What is trained.
        workload: One step of it.
        ranks: Of all nodes.
        strategy: What is sharded, and where it lies.
        buffers: Of the config.
        traced: A trace of the model, whose activations then count.
        decay_apart: Whether weights that do not decay are a group of the optimizer of their own, as
            the Trainer makes it; then every rank has its cut. None where nobody knows: the cuts are
            those of both, each different one once.
        is_whole: Whether the cuts, and what stage 3 gathers, are worked out: most of the time.
    """
    whole, all_ranks = model, ranks
    model, ranks = cut_weights(model, workload), ranks // workload.tensor_parallel
    trainable = trainable_params(model, workload)
    model = with_trainer_heads(model, workload)
    architecture, weight_bytes = model.architecture, workload.precision.size_bytes
    tied = architecture.tied_embeddings and workload.trainer.row.head is not Head.VALUE
    # transformers builds a head, and an encoder's and a decoder's embedding, before it ties them
    # (b4-000; f3-016 for encoder and decoder).
    untied = (3 if architecture.encoder_layers else 1) * architecture.embedding_params
    adapters = workload.method is not Method.FULL
    sharded = strategy.shards_weights
    experts = [t for t in model.tensors if t.in_block and t.holds_experts]
    largest, block_largest = _largest(model, workload)
    cuts: tuple[RankShard, ...] = (RankShard(),)
    if is_whole and strategy.cuts_shares:
        cuts = _cuts((model, workload), ranks, strategy, buffers, decay_apart)
    # DeepSpeed keeps bf16 states at stages 1 to 3 only (runtime/config.py, 0.19.8).
    dtype = workload.optimizer_state_dtype if strategy.stage > 0 else StateDtype.FP32
    # Under offload DeepSpeed's own CPU Adam steps, whatever was asked for (accelerate/utils/
    # deepspeed.py, map_pytorch_optim_to_deepspeed). Its CPU Lion takes as much: it makes a second
    # moment, which it never reads (deepspeed/ops/lion/cpu_lion.py, step).
    keeps = buffers.keeps_optimizer and strategy.offload is Offload.ALL
    offloaded = strategy.offload is not Offload.NONE and not keeps
    stepping = OPTIMIZERS[Optimizer.ADAMW if offloaded else workload.optimizer]
    # torch/optim/adam.py, _multi_tensor_adam: the denominators (f3-010, f3-011).
    foreach = workload.optimizer is Optimizer.ADAMW and not workload.optimizer_fused
    foreach_bytes = _VALUE_BYTES[workload.optimizer_state_dtype] if foreach else 0
    return RankSizes(
        strategy=strategy,
        offloaded=offloaded,
        buffers=buffers,
        activations=micro_step(model, workload, traced, sharded=sharded),
        evaluation=evaluation(model, workload, traced, sharded=sharded),
        ranks=ranks,
        cut=cuts[0],
        cuts=cuts,
        weight_bytes=weight_bytes,
        trained_bytes=value_bytes(workload, sharded=sharded),
        trainable=trainable,
        share=_share(model, workload, trainable, ranks, all_ranks, sharded=sharded),
        built=trainable_params(whole, workload),
        frozen_bytes=_frozen_bytes(model, workload),
        largest=largest,
        layers=architecture.layers,
        module=max(model.largest_param, sum(tensor.numel for tensor in experts)),
        layout=lay_out(_gathered(model, workload, ranks), workload, buffers)
        if sharded and is_whole
        else Layout(),
        block_largest=block_largest,
        block=trainable // architecture.layers if adapters else model.layer_params,
        persistent_parameters=_persistent(model, workload, buffers) if adapters else 0,
        embedding=0 if adapters else architecture.embedding_params,
        gathered_head=architecture.embedding_params if has_fused_head(workload) else 0,
        staying_embedding=architecture.embedding_params
        if workload.trainer.row.head is Head.VALUE
        else 0,
        tied=tied,
        untied_head_bytes=weight_bytes * untied if tied else 0,
        master_bytes=_VALUE_BYTES[dtype],
        state_bytes=(stepping.flat_state_bytes if strategy.stage > 0 else stepping.state_bytes)[
            dtype
        ],
        state_scales_bytes=stepping.scales_bytes,
        dequantized_bytes=_dequantized_bytes(model, workload),
        half_weight_bytes=_half_weight_bytes(model, workload, sharded=sharded),
        stepping_bytes=0 if offloaded else stepping.stepping_bytes + foreach_bytes,
        workload=workload,
        # AutoTP leaves what `zero.Init` has sharded over all ranks as it is (`_share`).
        gathers=ranks > 1 or (all_ranks > 1 and workload.resolved_zero_init),
        exchanged_bytes=_exchanged_bytes(architecture, workload),
    )


def _exchanged_bytes(a: Architecture, workload: Workload) -> int:
    """Queries, keys, values and what attention gives, less the rank's own part.

    deepspeed 0.19.8, runtime/sequence_parallel/ulysses_sp.py: four all-to-alls for each layer.
    """
    ranks, step = workload.sequence_parallel, workload.of_one_rank
    if ranks == 1:
        return 0
    width = 2 * (a.query_size + shared_kv_size(a, ranks))
    return a.layers * step.precision.size_bytes * step.tokens * width * (ranks - 1) // ranks


def weights(r: RankSizes) -> Moment:
    """All parameters, whole."""
    return (
        Allocation(AllocationKind.PARAMETERS, r.weight_bytes * r.trainable, "w N"),
        Allocation(AllocationKind.FROZEN_PARAMETERS, r.frozen_bytes, "F"),
    )


def master_weights(r: RankSizes, params: int, symbol: str) -> Allocation:
    """The optimizer's own copy of so many parameters."""
    size_bytes = r.master_bytes * params
    return Allocation(AllocationKind.MASTER_WEIGHTS, size_bytes, f"{r.master_bytes} {symbol}")


def optimizer_states(r: RankSizes, params: int, symbol: str) -> Allocation:
    """The optimizer's moments of so many parameters."""
    size_bytes = r.states_bytes(params)
    return Allocation(AllocationKind.OPTIMIZER_STATES, size_bytes, f"{r.state_bytes} {symbol}")


def optimizer(r: RankSizes, params: int, symbol: str) -> Moment:
    """What the optimizer keeps of so many parameters once it has stepped."""
    return (master_weights(r, params, symbol), optimizer_states(r, params, symbol))


def share_gradients(r: RankSizes) -> Allocation:
    """The gradients whose parameters this rank steps; offloaded, they leave the bucket at once."""
    size_bytes = 0 if r.offloaded else r.weight_bytes * r.cut.held
    return Allocation(AllocationKind.SHARE_GRADIENTS, size_bytes, "w S")


def _untied_head(r: RankSizes) -> Allocation:
    # transformers builds a head and then ties it: both exist for a moment (b4-000).
    return Allocation(AllocationKind.UNTIED_HEAD, r.untied_head_bytes, "w V h")


def new_adapters(r: RankSizes) -> Allocation:
    """The adapters as peft makes them."""
    # peft/tuners/tuners_utils.py, cast_adapter_dtype: fp32, until DeepSpeed casts them (f3-007).
    return Allocation(AllocationKind.NEW_ADAPTERS, FP32_BYTES * r.trainable, "4 N")


def built(r: RankSizes) -> tuple[Moment, ...]:
    """The model as it is built; adapters are made when the base is complete."""
    trained, frozen = weights(replace(r, trainable=r.built))
    if not r.frozen_bytes:
        return ((trained, _untied_head(r)),)
    return ((frozen, _untied_head(r)), (frozen, new_adapters(r)))


def _half_weights(size_bytes: int) -> Allocation:
    return Allocation(AllocationKind.HALF_WEIGHTS, size_bytes, N_("2 N of the linear layers"))


def _saved_half_weights(r: RankSizes) -> Allocation:
    # A checkpointed block frees its copies as forward ends (j1-038).
    return _half_weights(0 if r.workload.checkpointed_each == 1 else r.half_weight_bytes)


def _saved(r: RankSizes) -> Moment:
    saved = r.activations
    return (
        Allocation(AllocationKind.ACTIVATIONS, saved.saved_bytes, saved.saved_formula),
        Allocation(AllocationKind.LOSS_SAVED, saved.head_bytes, saved.head_formula),
    )


def forward(r: RankSizes) -> Moment:
    """What forward holds as it ends."""
    logits_bytes = r.activations.loss_forward_bytes
    logits = Allocation(AllocationKind.LOSS_LOGITS, logits_bytes, N_("logits in w and in fp32"))
    return (*_saved(r), _half_weights(r.half_weight_bytes), logits)


def opening(r: RankSizes) -> Moment:
    """What backward holds as it opens with the loss."""
    gradients_bytes = r.activations.loss_backward_bytes
    gradients = Allocation(AllocationKind.LOSS_GRADIENTS, gradients_bytes, "8 V t")
    return (*_saved(r), _saved_half_weights(r), gradients)


def one_block(r: RankSizes) -> Moment:
    """What backward needs to run through one block."""
    in_flight_bytes = r.trained_bytes * r.block_largest
    return (
        Allocation(
            AllocationKind.ONE_BLOCK,
            r.activations.block_bytes,
            N_("recomputed activations, temporaries"),
        ),
        Allocation(AllocationKind.GRADIENT_IN_FLIGHT, in_flight_bytes, N_("w M of a block")),
        Allocation(AllocationKind.DEQUANTIZED_LAYER, r.dequantized_bytes, N_("w of the largest")),
    )


def head_gradient(r: RankSizes) -> Allocation:
    """A tied head's gradient, which waits for the embedding's (b4-002)."""
    size_bytes = r.weight_bytes * r.embedding if r.tied else 0
    return Allocation(AllocationKind.HEAD_GRADIENT, size_bytes, "w V h")


def kept_blocks(r: RankSizes, blocks: int) -> Moment:
    """What so many blocks keep for backward, and a tied head's gradient."""
    saved_bytes = r.activations.saved_bytes * blocks // r.layers
    # The head's are free by then.
    inside_bytes = max(0, _saved_half_weights(r).size_bytes - HALF_BYTES * r.embedding)
    halves_bytes = inside_bytes * blocks // r.layers
    saved = Allocation(AllocationKind.ACTIVATIONS, saved_bytes, r.activations.saved_formula)
    return (saved, _half_weights(halves_bytes), head_gradient(r))


def some_blocks(r: RankSizes, blocks: int) -> Moment:
    """What backward holds in a block, with so many blocks left."""
    return (*kept_blocks(r, blocks), *one_block(r))


def summed_gradients(r: RankSizes, counted: int = 0) -> Allocation:
    """The embedding's gradient as it is added to a tied head's, without those counted already.

    Both and their sum exist at the same time (acts-000, f1-007). Autocast casts the head's into a
    tensor of its own, into which the other is added (j1-038).
    """
    times = (2 if r.half_weight_bytes else 3) if r.tied else 1
    size_bytes = (times - counted) * r.weight_bytes * r.embedding
    return Allocation(AllocationKind.EMBEDDING_GRADIENT, size_bytes, f"{times - counted} w V h")


def embedding_gradient(r: RankSizes) -> Allocation:
    """What is allocated of the embedding's gradient as backward closes with it."""
    # A tied weight's two gradients and their sum exist at the same time (acts-000, acts-033); where
    # gradients are fp32, the second is added into the first (f1-007).
    times = 2 if r.tied and r.weight_bytes != FP32_BYTES else 1
    size_bytes = times * r.weight_bytes * r.embedding
    return Allocation(AllocationKind.EMBEDDING_GRADIENT, size_bytes, f"{times} w V h")
