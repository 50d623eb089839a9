"""A model: its architecture and its tensors."""

import math
from collections.abc import Collection
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.structs import shows
from zerowiz.core.workload import ALL_LINEAR
from zerowiz.errors import UsageError


class ModelSource(StrEnum):
    """The source of the parameter count."""

    CONFIG = "config"
    SIZE = "size"
    TRACE = "trace"
    GUESS = "guess"
    """The sizes in the config of an unknown family."""


class Architecture(Struct, frozen=True, kw_only=True):
    """A transformer, with the names of config.json."""

    family: str
    """`model_type` of the config, a key of FAMILIES."""
    layers: int
    """The blocks of encoder and decoder together."""
    encoder_layers: int = 0
    """The blocks of the encoder of an encoder-decoder."""
    hidden_size: int
    intermediate_size: int
    """Width of one MLP, or of one expert in a mixture of experts."""
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    """0 for a model of images."""
    embedding_size: int
    """Width of an embedded token: the hidden size in most families."""
    positions: int
    type_vocab_size: int = 0
    relative_attention_num_buckets: int = 0
    image_tokens: int = 0
    """The tokens of one image, which are the sequence."""
    patch: tuple[int, ...] = ()
    """Channels, height and width of the patch that becomes one token of an image."""
    labels: int = 0
    """The classes of an image."""
    experts: int
    """0 for a dense model."""
    experts_per_token: int
    expert_layers: int
    """Layers whose MLP is a mixture: all of them in most models, 0 for a dense model."""
    dense_intermediate_size: int
    """Width of the MLP in the other layers."""
    shared_expert_intermediate_size: int = 0
    """Width of the expert that processes every token, 0 for none."""
    sliding_window_tokens: int = 0
    sliding_layers: int = 0
    """Layers whose attention is limited to the sliding window."""
    hidden_act: str
    """The MLP's activation function."""
    switches: frozenset[str]
    """The family's switches that are on, and the conditions that follow from other keys."""
    dropout_rate: float
    """On the attention scores."""
    residual_dropout_rate: float
    """On the outputs of attention and MLP, before they are added to the residual stream."""
    embedding_dropout_rate: float = 0
    """On the embedded tokens."""
    logit_softcap: bool
    """Whether the logits pass through a tanh before the loss."""

    @property
    def tied_embeddings(self) -> bool:
        """Whether the head and the embedding are one tensor."""
        return "tie_word_embeddings" in self.switches

    @property
    def reads_images(self) -> bool:
        """Whether the size of its images decides how long a sequence is."""
        return self.vocab_size == 0

    @property
    def has_unknown_patches(self) -> bool:
        """Whether it reads images, and nothing says how many tokens one is."""
        return self.reads_images and not self.image_tokens

    @property
    def embedding_params(self) -> int:
        """Elements of the token embedding, and of a head: narrower than the blocks in OPT-350M."""
        return self.vocab_size * self.embedding_size

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.kv_heads * self.head_dim


class Tensor(Struct, frozen=True, kw_only=True):
    """One tensor of a model, and how often the model has it."""

    name: str
    shape: tuple[int, ...]
    copies: int = 1
    linear: bool = False
    """Whether it is the weight of a linear layer, other than the head."""
    transposed: bool = False
    """Whether its shape is (in, out) instead of (out, in)."""
    targets: tuple[str, ...] = ()
    """The names that peft needs, all of them, to adapt it; empty where peft cannot adapt it."""
    in_block: bool = True
    """Whether it belongs to a transformer block, not to the model's ends."""
    is_output: bool = False
    """Whether it works behind the blocks, though it stands in front of them."""
    first_block: int = 0
    """The first block that has it; the next ones have the other copies."""

    @property
    def numel(self) -> int:
        """Elements of one copy."""
        return math.prod(self.shape)

    @property
    def holds_experts(self) -> bool:
        """Whether it stacks a layer of all experts, which is one module with their router."""
        return self.name.startswith("experts.")

    @property
    def input_size(self) -> int:
        """Width of a linear layer's input."""
        return self.shape[0] if self.transposed else self.shape[-1]

    @property
    def adapters(self) -> int:
        """The count of adapters on one copy: one for each name, and for each expert of a stack."""
        return len(self.targets) * math.prod(self.shape[:-2])

    @property
    def adapter_size(self) -> int:
        """Elements of the adapters on one copy, at rank 1."""
        return self.adapters * sum(self.shape[-2:])

    def is_adapted(self, modules: Collection[str]) -> bool:
        """Whether peft adapts it with these target modules; with none it adapts every tensor."""
        named = (names_one_of(target, modules) for target in self.targets)
        return bool(self.targets) and (not modules or all(named))


def names_one_of(target: str, modules: Collection[str]) -> bool:
    """Whether one of these is the target's name or its end.

    Source: peft/tuners/tuners_utils.py, check_target_module_exists.
    """
    return any(target == name or target.endswith(f".{name}") for name in modules)


@shows("name", "params", "source", "architecture.family")
class Model(Struct, frozen=True, kw_only=True):
    """What the predictions need of a model."""

    name: str
    source: ModelSource
    params: int
    architecture: Architecture
    tensors: tuple[Tensor, ...]
    """In the order of transformers' `model.parameters()`, each where its first copy stands."""
    wrapped: bool = False
    """Whether a multimodal model wraps it with others, which are not counted."""
    heaviest: "Model | None" = None
    """Of a size: the model that holds most, of those that have it."""

    def __post_init__(self) -> None:
        """Refuse a model without parameters."""
        if self.params < 1:
            raise UsageError(f"model `{self.name}` has no parameters")

    @property
    def made_for_tokens(self) -> int | None:
        """The longest sequence that it was made for; None where that is not known.

        The stand-in for a size has positions of its own, which bind nobody.
        """
        positions = self.architecture.image_tokens or self.architecture.positions
        return positions if self.source is not ModelSource.SIZE and positions > 0 else None

    @property
    def largest_param(self) -> int:
        """Elements of the largest tensor."""
        return max([math.prod(tensor.shape) for tensor in self.tensors])

    @property
    def layer_params(self) -> int:
        """Elements of one transformer block; of an average one where only some have experts."""
        blocks = sum(t.numel * t.copies for t in self.tensors if t.in_block)
        return blocks // self.architecture.layers

    def placed(self) -> list[tuple[int, Tensor]]:
        """Each copy of each tensor with its block, in the order of `model.parameters()`.

        What works in front of the blocks has -1, what works behind them has the count of blocks.
        """
        inside = [place for place, tensor in enumerate(self.tensors) if tensor.in_block]
        start, layers = min(inside, default=0), self.architecture.layers
        order = sorted(
            (
                tensor.first_block + copy if tensor.in_block else -1 if place < start else layers,
                place,
            )
            for place, tensor in enumerate(self.tensors)
            for copy in range(tensor.copies)
        )
        placed = ((block, self.tensors[place]) for block, place in order)
        return [(layers if tensor.is_output else block, tensor) for block, tensor in placed]

    def adapted(self, modules: Collection[str] = ()) -> tuple[Tensor, ...]:
        """The tensors that peft adapts.

        Args:
            modules: The target modules; empty for all that can be adapted.

        Raises:
            UsageError: No module has one of these names.
        """
        tensors = tuple(tensor for tensor in self.tensors if tensor.is_adapted(modules))
        met = {target for tensor in tensors for target in tensor.targets}
        unmet = [m for m in modules if not any(names_one_of(target, [m]) for target in met)]
        if unmet or not tensors:
            targets = dict.fromkeys(t for tensor in self.tensors for t in tensor.targets)
            named = ",".join(unmet) or ALL_LINEAR
            raise UsageError(
                f"`$lora_target_modules {named}`: `{self.name}` has no such linear layer",
                f"its linear layers: {', '.join(targets) or 'none'}",
                f"use `{ALL_LINEAR}` for all of them; if your script names them, use its `$model`",
            )
        return tensors

    def lora_params(self, rank: int, modules: Collection[str] = ()) -> int:
        """Elements of adapters of this rank.

        Hu et al. 2021, section 4.1: a weight of shape (out, in) gains B (out, r) and A (r, in).
        """
        adapted = self.adapted(modules)
        return rank * sum(tensor.copies * tensor.adapter_size for tensor in adapted)
