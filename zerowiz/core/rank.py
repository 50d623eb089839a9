"""The letters of the memory formulas, for one rank of one job.

N trainable and F frozen parameters, d ranks, P = N/d the rank's share, w bytes of a weight,
M the largest tensor, b the bucket, V h the embedding, t tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from zerowiz.core.activations import Activations, activations
from zerowiz.core.buffers import Buffers
from zerowiz.core.model import Model
from zerowiz.core.strategy import Offload, Strategy
from zerowiz.core.traced import Traced
from zerowiz.core.workload import Method, Optimizer, StateDtype, Workload

# Bytes of optimizer state per trainable parameter, beside the master weights, as (fp32, bf16).
# torch/optim/adamw.py: two moments; torch/optim/sgd.py: none without momentum; Chen et al. 2023
# (Lion): one; Dettmers et al. 2022: two of one byte; Shazeer and Stern 2018: rows plus columns.
_STATE_BYTES: Mapping[Optimizer, tuple[int, int]] = {
    Optimizer.ADAMW: (8, 4),
    Optimizer.ADAMW_8BIT: (2, 2),
    Optimizer.ADAFACTOR: (0, 0),
    Optimizer.LION: (4, 2),
    Optimizer.SGD: (0, 0),
}

# What the optimizer allocates while it steps, in bytes of one parameter, beside the gradients.
# torch/optim/adam.py, _multi_tensor_adam: the denominators (f3-010, f3-011); transformers
# Adafactor.step: the squared gradient and the update (f3-022).
_FOREACH_BYTES = 4
_STEPPING_BYTES: Mapping[Optimizer, int] = {Optimizer.ADAFACTOR: 8}
# Under ZeRO the optimizer is handed one flat vector, whose moments Adafactor cannot factor.
_FLAT_ADAFACTOR_BYTES = 4

# Dettmers et al. 2023, section 3: 4 bits a weight, 0.127 bits of double-quantized constants.
_QLORA_BASE_BITS = 4.127


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """One rank; counts are elements unless the name says bytes."""

    strategy: Strategy
    buffers: Buffers
    activations: Activations
    ranks: int
    weight_bytes: int
    trainable: int
    frozen_bytes: int
    largest: int
    """The largest trainable tensor."""
    module: int
    """All tensors of the module that holds most: the experts of one layer are one module."""
    block_largest: int
    """The largest trainable tensor of a transformer block."""
    block: int
    """All trainable parameters of one block."""
    embedding: int
    tied: bool
    master_bytes: int
    """Of one parameter, in the optimizer's own copy of the weights."""
    state_bytes: int
    """Of one parameter, in the optimizer's moments."""
    stepping_bytes: int
    """Of one parameter, allocated while the optimizer steps."""
    accumulating: bool

    @property
    def share(self) -> int:
        """P: the parameters whose optimizer states this rank keeps."""
        return -(-self.trainable // self.ranks)

    @property
    def held_share(self) -> int:
        """Elements of all tensors that reach into this rank's share.

        stage_1_and_2.py, get_flat_partition: a tensor on the border is held whole, so half of one
        is expected; an embedding wider than the share is held whole by each rank it reaches.
        """
        border = self.block_largest // 2 if self.ranks > 1 else 0
        return max(self.share + border, self.largest)

    @property
    def largest_slice(self) -> int:
        """The part of the largest tensor that lies in this rank's share."""
        return min(self.largest, self.share)

    @property
    def offloaded(self) -> bool:
        """Whether the optimizer lives on the host."""
        return self.strategy.offload is not Offload.NONE


def trainable_params(model: Model, workload: Workload) -> int:
    """The parameters that this method trains: all, or the adapters alone."""
    full = workload.method is Method.FULL
    return model.params if full else model.lora_params(workload.lora_rank)


def _frozen_bytes(model: Model, workload: Workload) -> int:
    """The base below the adapters; only linear layers of blocks are quantized.

    transformers/integrations/bitsandbytes.py, replace_with_bnb_linear: embeddings, the head, norms
    and fused experts keep the model's precision.
    """
    if workload.method is Method.FULL:
        return 0
    weight_bytes = workload.precision.size_bytes
    if workload.method is Method.LORA:
        return weight_bytes * model.params
    linear = sum(tensor.numel * tensor.copies for tensor in model.tensors if tensor.linear)
    return int(linear * _QLORA_BASE_BITS / 8) + weight_bytes * (model.params - linear)


def _state_bytes(optimizer: Optimizer, strategy: Strategy, *, half: bool) -> int:
    if optimizer is Optimizer.ADAFACTOR and strategy.stage > 0:
        return _FLAT_ADAFACTOR_BYTES // (2 if half else 1)
    return _STATE_BYTES[optimizer][half]


def _stepping_bytes(optimizer: Optimizer, workload: Workload) -> int:
    if optimizer is Optimizer.ADAMW and not workload.optimizer_fused:
        halved = workload.optimizer_state_dtype is StateDtype.BF16
        return _FOREACH_BYTES // (2 if halved else 1)
    return _STEPPING_BYTES.get(optimizer, 0)


def place_rank(
    model: Model,
    workload: Workload,
    ranks: int,
    strategy: Strategy,
    buffers: Buffers,
    traced: Traced | None = None,
) -> Rank:
    """Fill in the letters for one rank of this job; a trace knows its activations better."""
    architecture, weight_bytes = model.architecture, workload.precision.size_bytes
    adapters = workload.method is not Method.FULL
    in_block = [tensor for tensor in model.tensors if tensor.in_block]
    experts = [tensor for tensor in in_block if tensor.name.startswith("experts.")]
    trainable = trainable_params(model, workload)
    if adapters:
        widest = max(max(t.shape) for t in model.tensors if t.linear) * workload.lora_rank
        largest = block_largest = min(widest, trainable)
    else:
        largest = min(model.largest_param, trainable)
        block_largest = max(tensor.numel for tensor in in_block)
    # DeepSpeed keeps bf16 states at stages 1 to 3 only (runtime/config.py, 0.19.8).
    half = workload.optimizer_state_dtype is StateDtype.BF16 and strategy.stage > 0
    # Under offload DeepSpeed's own CPU Adam steps, whatever was asked for
    # (accelerate/utils/deepspeed.py, map_pytorch_optim_to_deepspeed).
    offloaded = strategy.offload is not Offload.NONE
    stepping = Optimizer.ADAMW if offloaded else workload.optimizer
    return Rank(
        strategy=strategy,
        buffers=buffers,
        activations=(
            activations(architecture, workload) if traced is None else traced.activations(workload)
        ),
        ranks=ranks,
        weight_bytes=weight_bytes,
        trainable=trainable,
        frozen_bytes=_frozen_bytes(model, workload),
        largest=largest,
        module=max(model.largest_param, sum(t.numel for t in experts)),
        block_largest=block_largest,
        block=trainable // architecture.layers if adapters else model.layer_params,
        embedding=0 if adapters else architecture.vocab_size * architecture.hidden_size,
        tied=architecture.tied_embeddings,
        master_bytes=2 if half else 4,
        state_bytes=_state_bytes(stepping, strategy, half=half),
        stepping_bytes=0 if offloaded else _stepping_bytes(stepping, workload),
        accumulating=workload.accumulation_steps > 1,
    )
