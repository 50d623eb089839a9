"""Describe a model by its tensors."""

import math
from dataclasses import dataclass
from enum import StrEnum

from zerowiz.errors import UsageError


class ModelSource(StrEnum):
    """Where the parameter count comes from."""

    CONFIG = "config"
    SAFETENSORS = "safetensors"
    SIZE = "size"
    TRACE = "trace"


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A transformer, in the words of its config.json."""

    family: str
    """`model_type` of the config, a key of FAMILIES."""
    layers: int
    """Blocks of all stacks together."""
    encoder_layers: int = 0
    """Those of them that are the encoder of an encoder-decoder."""
    hidden_size: int
    intermediate_size: int
    """Width of one MLP, or of one expert in a mixture."""
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    """0 for a model of images."""
    embedding_size: int
    """Width of an embedded token: mostly the hidden size."""
    positions: int
    type_vocab_size: int = 0
    relative_attention_num_buckets: int = 0
    image_tokens: int = 0
    """Tokens of one image, which take the place of the sequence."""
    patch: tuple[int, ...] = ()
    """Channels, height and width of what becomes one token of an image."""
    labels: int = 0
    """Classes of an image."""
    experts: int
    """0 for a dense model."""
    experts_per_token: int
    expert_layers: int
    """Layers whose MLP is a mixture: mostly all of them, 0 for a dense model."""
    dense_intermediate_size: int
    """Width of the MLP in the other layers."""
    shared_expert_intermediate_size: int = 0
    """Width of the expert that every token visits, 0 for none."""
    sliding_window_tokens: int = 0
    sliding_layers: int = 0
    """Layers whose attention ends at the sliding window."""
    hidden_act: str
    """The MLP's activation function."""
    switches: frozenset[str]
    """What is on of the family's switches, and of what follows from its other keys."""
    dropout_rate: float
    """On the attention scores."""
    residual_dropout_rate: float
    """On what attention and MLP add to the residual stream."""
    embedding_dropout_rate: float = 0
    """On the embedded tokens."""
    logit_softcap: bool
    """Whether the logits pass through a tanh before the loss."""

    @property
    def tied_embeddings(self) -> bool:
        """Whether the head is the embedding."""
        return "tie_word_embeddings" in self.switches

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """One trainable tensor and how often the model holds one like it."""

    name: str
    shape: tuple[int, ...]
    copies: int = 1
    linear: bool = False
    """Whether LoRA can adapt it: a weight of a linear layer inside a block."""
    in_block: bool = True
    """Whether a transformer block holds it, rather than the model's ends."""

    @property
    def numel(self) -> int:
        """Elements of one copy."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """What the predictions need to know of a model."""

    name: str
    source: ModelSource
    params: int
    architecture: Architecture
    tensors: tuple[Tensor, ...]
    stored_params: int | None = None
    """What the checkpoint beside the config holds, where that is not the same."""

    def __post_init__(self) -> None:
        """Refuse a model without parameters."""
        if self.params < 1:
            raise UsageError(f"model `{self.name}` has no parameters")

    @property
    def largest_param(self) -> int:
        """Elements of the largest tensor."""
        return max(tensor.numel for tensor in self.tensors)

    @property
    def tensor_count(self) -> int:
        """How many tensors the optimizer is handed."""
        return sum(tensor.copies for tensor in self.tensors)

    @property
    def layer_params(self) -> int:
        """Elements of one transformer block; of the average one when some hold no experts."""
        blocks = sum(t.numel * t.copies for t in self.tensors if t.in_block)
        return blocks // self.architecture.layers

    def lora_params(self, rank: int) -> int:
        """Elements of rank-`rank` adapters on every linear layer of every block.

        Hu et al. 2021, section 4.1: a weight of shape (out, in) gains B (out, r) and A (r, in).
        """
        return sum(t.copies * rank * sum(t.shape) for t in self.tensors if t.linear)
