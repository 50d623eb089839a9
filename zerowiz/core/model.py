"""Describe a model by its tensors, read from the facts in its config.json."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from zerowiz.errors import UsageError


class ModelSource(StrEnum):
    """Where the parameter count comes from."""

    CONFIG = "config"
    SAFETENSORS = "safetensors"
    SIZE = "size"
    TRACE = "trace"


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A decoder-only transformer, in the words of its config.json."""

    family: str
    """`model_type` of the config, a key of FAMILIES."""
    layers: int
    hidden_size: int
    intermediate_size: int
    """Width of one MLP, or of one expert in a mixture."""
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    positions: int
    tied_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    experts: int
    """0 for a dense model."""
    experts_per_token: int
    expert_layers: int
    """Layers whose MLP is a mixture: mostly all of them, 0 for a dense model."""
    dense_intermediate_size: int
    """Width of the MLP in the other layers."""
    dropout_rate: float
    """On the attention scores."""
    residual_dropout_rate: float
    """On what attention and MLP add to the residual stream."""
    logit_softcap: bool
    """Whether the logits pass through a tanh before the loss."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """How one `model_type` differs from the plain Llama block."""

    defaults: Mapping[str, float | None]
    """What its config class assumes where config.json is silent, None where it derives the value.

    A key that is not listed is one that its modelling code never reads.
    """
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """How its config.json spells our keys, where it does so differently."""
    unsupported: tuple[str, ...] = ()
    """Switches of its config that add tensors nobody counts here."""
    qkv_bias: bool = False
    """Biases on q, k and v alone, whatever the config says."""
    qk_norm: bool = False
    norms_per_layer: int = 2
    gated_mlp: bool = True
    gpt2_block: bool = False
    supports_sdpa: bool = True
    """Otherwise transformers falls back to eager attention."""


_LLAMA: Mapping[str, float | None] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
}
_BIASED: Mapping[str, float | None] = {"attention_bias": False}
_MISTRAL = {
    **_LLAMA,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
_QWEN2 = {
    **_LLAMA,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}
_GEMMA2 = {
    **_LLAMA,
    **_BIASED,
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "final_logit_softcapping": 30.0,
}

# Rule: what a family adds to or takes from the Llama block is said here and nowhere else.
# Source of every row: transformers 5.23, models/<family>/configuration_<family>.py for the
# defaults and modeling_<family>.py for the rest; tests/core/test_model.py builds them all.
FAMILIES: Mapping[str, Family] = {
    "llama": Family(defaults={**_LLAMA, **_BIASED, "mlp_bias": False}),
    "mistral": Family(defaults=_MISTRAL),
    "qwen2": Family(defaults=_QWEN2, qkv_bias=True),
    "qwen3": Family(defaults={**_QWEN2, **_BIASED, "head_dim": 128}, qk_norm=True),
    "gemma": Family(
        defaults={
            **_LLAMA,
            **_BIASED,
            "vocab_size": 256000,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 256,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
    ),
    "gemma2": Family(defaults=_GEMMA2, norms_per_layer=4, supports_sdpa=False),
    "gemma3_text": Family(
        defaults={
            **_GEMMA2,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "final_logit_softcapping": None,
        },
        norms_per_layer=4,
        qk_norm=True,
    ),
    "mixtral": Family(
        defaults={**_MISTRAL, "num_experts": 8, "num_experts_per_tok": 2},
        spellings={"num_experts": ("num_local_experts", "num_experts")},
    ),
    "qwen3_moe": Family(
        defaults={
            **_QWEN2,
            **_BIASED,
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_key_value_heads": 4,
            "intermediate_size": 768,
            "dense_intermediate_size": 6144,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "decoder_sparse_step": 1,
            "mlp_only_layers": None,
        },
        spellings={
            "num_experts": ("num_experts", "num_local_experts"),
            "intermediate_size": ("moe_intermediate_size",),
            "dense_intermediate_size": ("intermediate_size",),
        },
        qk_norm=True,
    ),
    "gpt2": Family(
        defaults={
            "vocab_size": 50257,
            "hidden_size": 768,
            "intermediate_size": None,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 1024,
            "tie_word_embeddings": True,
            "attention_dropout": 0.1,
            "residual_dropout": 0.1,
        },
        spellings={
            "hidden_size": ("n_embd", "hidden_size"),
            "num_hidden_layers": ("n_layer", "num_hidden_layers"),
            "num_attention_heads": ("n_head", "num_attention_heads"),
            "max_position_embeddings": ("n_positions", "max_position_embeddings"),
            "intermediate_size": ("n_inner",),
            "attention_dropout": ("attn_pdrop",),
            "residual_dropout": ("resid_pdrop",),
        },
        unsupported=("add_cross_attention",),
        gated_mlp=False,
        gpt2_block=True,
    ),
}


class _Facts:
    """Typed reads from a config, as its config class reads it; errors name the key."""

    def __init__(self, name: str, config: Mapping[str, object], family: Family) -> None:
        self.name = name
        self.config = config
        self.family = family

    def _read(self, key: str) -> tuple[str, object]:
        """The key as this config spells it, and its value, the family's default or None."""
        spellings = self.family.spellings.get(key, (key,))
        if key in self.family.defaults:
            for spelling in spellings:
                if spelling in self.config:
                    return spelling, self.config[spelling]
        return spellings[0], self.family.defaults.get(key)

    def _refuse(self, key: str, value: object, wanted: str) -> UsageError:
        said = "is missing" if value is None else f"is `{value}`, not {wanted}"
        return UsageError(f"config.json of `{self.name}`: `{key}` {said}")

    def count(self, key: str, derived: int | None = None, *, at_least: int = 1) -> int:
        spelling, value = self._read(key)
        value = derived if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            raise self._refuse(spelling, value, f"a count of at least {at_least}")
        return value

    def flag(self, key: str) -> bool:
        spelling, value = self._read(key)
        if not isinstance(value, bool | None):
            raise self._refuse(spelling, value, "true or false")
        return bool(value)

    def number(self, key: str) -> float:
        spelling, value = self._read(key)
        if not isinstance(value, int | float | None) or isinstance(value, bool):
            raise self._refuse(spelling, value, "a number")
        return float(value or 0)

    def indices(self, key: str) -> frozenset[int]:
        spelling, value = self._read(key)
        if not isinstance(value, list | None):
            raise self._refuse(spelling, value, "a list of layers")
        return frozenset(index for index in value or () if isinstance(index, int))


def _find_family(name: str, config: Mapping[str, object]) -> tuple[str, Family]:
    """The family of this config.

    Raises:
        UsageError: it is not in the table, or has a switch on that the table cannot count.
    """
    by_size = "give the size instead, such as `--model 7b`, to plan with a Llama of that size"
    model_type = config.get("model_type")
    if isinstance(config.get("text_config"), dict):
        raise UsageError(
            f"config.json of `{name}`: `{model_type}` wraps a language model with others, "
            "which is not counted yet",
            by_size,
        )
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        said = "has no `model_type`" if model_type is None else f"`{model_type}` is not known yet"
        raise UsageError(
            f"config.json of `{name}`: {said}", f"known are {', '.join(sorted(FAMILIES))}", by_size
        )
    for switch in FAMILIES[model_type].unsupported:
        if config.get(switch):
            raise UsageError(
                f"config.json of `{name}`: `{switch}` adds tensors that are not counted yet",
                by_size,
            )
    return model_type, FAMILIES[model_type]


def _count_expert_layers(facts: _Facts, layers: int) -> int:
    """How many layers hold a mixture (Qwen3MoeDecoderLayer.__init__; Mixtral has no exceptions)."""
    if facts.count("num_experts", 0, at_least=0) == 0:
        return 0
    step = facts.count("decoder_sparse_step", 1)
    dense = facts.indices("mlp_only_layers")
    return sum(i not in dense and (i + 1) % step == 0 for i in range(layers))


def read_architecture(name: str, config: Mapping[str, object]) -> Architecture:
    """Parse the content of a config.json.

    Raises:
        UsageError: `model_type` is unknown, or a key is missing or no count.
    """
    model_type, family = _find_family(name, config)
    facts = _Facts(name, config, family)
    hidden_size, heads = facts.count("hidden_size"), facts.count("num_attention_heads")
    layers = facts.count("num_hidden_layers")
    expert_layers = _count_expert_layers(facts, layers)
    wide = facts.count("intermediate_size", 4 * hidden_size if family.gpt2_block else None)
    dense_wide = facts.count("dense_intermediate_size", wide)
    return Architecture(
        family=model_type,
        layers=layers,
        hidden_size=hidden_size,
        intermediate_size=wide if expert_layers else dense_wide,
        heads=heads,
        kv_heads=facts.count("num_key_value_heads", heads),
        head_dim=facts.count("head_dim", hidden_size // heads),
        vocab_size=facts.count("vocab_size"),
        positions=facts.count("max_position_embeddings"),
        tied_embeddings=facts.flag("tie_word_embeddings"),
        attention_bias=facts.flag("attention_bias"),
        mlp_bias=facts.flag("mlp_bias"),
        experts=facts.count("num_experts") if expert_layers else 0,
        experts_per_token=facts.count("num_experts_per_tok") if expert_layers else 0,
        expert_layers=expert_layers,
        dense_intermediate_size=dense_wide,
        dropout_rate=facts.number("attention_dropout"),
        residual_dropout_rate=facts.number("residual_dropout"),
        logit_softcap=facts.number("final_logit_softcapping") != 0,
    )


def list_tensors(architecture: Architecture) -> tuple[Tensor, ...]:
    """Every trainable tensor of the model, as transformers builds it, tied weights once."""
    a, is_gpt2 = architecture, FAMILIES[architecture.family].gpt2_block
    vocabulary = (a.vocab_size, a.hidden_size)
    ends = (
        ("embed_tokens", vocabulary, True),
        ("embed_positions", (a.positions, a.hidden_size), is_gpt2),
        ("lm_head", vocabulary, not a.tied_embeddings),
    )
    return (
        *(Tensor(name=n, shape=shape, in_block=False) for n, shape, held in ends if held),
        *(_gpt2_block(a) if is_gpt2 else _llama_block(a)),
    )


def _llama_block(a: Architecture) -> tuple[Tensor, ...]:
    family = FAMILIES[a.family]
    h, layers = a.hidden_size, a.layers
    qkv_bias = family.qkv_bias or a.attention_bias
    vectors = (
        ("q_proj.bias", a.query_size, qkv_bias),
        ("k_proj.bias", a.kv_size, qkv_bias),
        ("v_proj.bias", a.kv_size, qkv_bias),
        ("o_proj.bias", h, a.attention_bias),
        ("gate_proj.bias", a.intermediate_size, a.mlp_bias),
        ("up_proj.bias", a.intermediate_size, a.mlp_bias),
        ("down_proj.bias", h, a.mlp_bias),
        ("q_norm", a.head_dim, family.qk_norm),
        ("k_norm", a.head_dim, family.qk_norm),
    )
    return (
        Tensor(name="q_proj", shape=(a.query_size, h), copies=layers, linear=True),
        Tensor(name="k_proj", shape=(a.kv_size, h), copies=layers, linear=True),
        Tensor(name="v_proj", shape=(a.kv_size, h), copies=layers, linear=True),
        Tensor(name="o_proj", shape=(h, a.query_size), copies=layers, linear=True),
        *(Tensor(name=n, shape=(size,), copies=layers) for n, size, held in vectors if held),
        *_gated_mlp(a),
        *_fused_experts(a),
        Tensor(name="norm", shape=(h,), copies=family.norms_per_layer * layers),
        Tensor(name="final_norm", shape=(h,), in_block=False),
    )


def _gated_mlp(a: Architecture) -> tuple[Tensor, ...]:
    """Of the layers without experts."""
    h, wide, layers = a.hidden_size, a.dense_intermediate_size, a.layers - a.expert_layers
    if not layers:
        return ()
    return (
        Tensor(name="gate_proj", shape=(wide, h), copies=layers, linear=True),
        Tensor(name="up_proj", shape=(wide, h), copies=layers, linear=True),
        Tensor(name="down_proj", shape=(h, wide), copies=layers, linear=True),
    )


def _fused_experts(a: Architecture) -> tuple[Tensor, ...]:
    """Of the layers with experts, which transformers keeps as two tensors of three dimensions."""
    h, wide, layers = a.hidden_size, a.intermediate_size, a.expert_layers
    if not layers:
        return ()
    return (
        Tensor(name="router", shape=(a.experts, h), copies=layers),
        Tensor(name="experts.gate_up_proj", shape=(a.experts, 2 * wide, h), copies=layers),
        Tensor(name="experts.down_proj", shape=(a.experts, h, wide), copies=layers),
    )


def _gpt2_block(a: Architecture) -> tuple[Tensor, ...]:
    h, wide, layers = a.hidden_size, a.intermediate_size, a.layers
    linears = (("c_attn", h, 3 * h), ("attn.c_proj", h, h), ("c_fc", h, wide), ("c_proj", wide, h))
    return (
        *(Tensor(name=n, shape=(i, o), copies=layers, linear=True) for n, i, o in linears),
        *(Tensor(name=f"{n}.bias", shape=(o,), copies=layers) for n, _, o in linears),
        Tensor(name="ln", shape=(h,), copies=4 * layers),
        Tensor(name="ln_f", shape=(h,), copies=2, in_block=False),
    )


def model_from_config(name: str, config: Mapping[str, object]) -> Model:
    """The causal language model that transformers builds from this config.json, counted exactly."""
    architecture = read_architecture(name, config)
    tensors = list_tensors(architecture)
    params = sum(tensor.numel * tensor.copies for tensor in tensors)
    return Model(
        name=name,
        source=ModelSource.CONFIG,
        params=params,
        architecture=architecture,
        tensors=tensors,
    )


_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmbt])", re.IGNORECASE)
_UNITS: Mapping[str, float] = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def parse_size(text: str) -> int | None:
    """The parameter count that `7b`, `1.5B` or `10m` stands for, or None when it is no size."""
    match = _SIZE.fullmatch(text.strip())
    return round(float(match[1]) * _UNITS[match[2].lower()]) if match else None


_SMALLEST_PARAMS, _LARGEST_PARAMS = 10**6, 10**12
# Touvron et al. 2023a, table 2: from 128 (7B, 13B) down to 102 (65B) channels per layer.
_WIDTH_PER_LAYER = 120
# Touvron et al. 2023a, section 2.2: an MLP of 2/3 times 4 h.
_MLP_PER_WIDTH = 8 / 3
# Touvron et al. 2023a, section 2.1: the tokenizer of Llama 1 and 2.
_VOCAB_SIZE = 32000
# Llama 1 to 3 at every size but the 1B, which has half of it, as toys do here.
_HEAD_DIM = 128
# Round numbers, as people choose them: 7B is 4096 wide and 32 deep, 13B is 5120 and 40.
_WIDTHS = (*range(64, 1024, 64), *range(1024, 32769, 512))
_DEPTHS = range(4, 257, 4)


class _Shape(NamedTuple):
    """A Llama without grouped queries, its embeddings untied."""

    hidden_size: int
    layers: int
    intermediate_size: int
    vocab_size: int

    @property
    def strangeness(self) -> float:
        """How far its proportions are from those of a published Llama."""
        width_per_layer = self.hidden_size / self.layers
        mlp_per_width = self.intermediate_size / self.hidden_size
        return abs(math.log(width_per_layer / _WIDTH_PER_LAYER)) + abs(
            math.log(mlp_per_width / _MLP_PER_WIDTH)
        )


def _shapes_of(params: int) -> Iterator[_Shape]:
    """Every width and depth, the MLP being as wide as brings the sum to `params`."""
    for width in _WIDTHS:
        # A toy has a small tokenizer: the embeddings take half of the parameters at most.
        vocab_size = min(_VOCAB_SIZE, 8 * (params // (4 * width) // 8))
        for layers in _DEPTHS:
            mlp_params = params - 2 * vocab_size * width - layers * 4 * width**2
            wide = 16 * round(mlp_params / (3 * width * layers) / 16)
            if wide >= width:
                yield _Shape(width, layers, wide, vocab_size)


def model_from_size(name: str, params: int) -> Model:
    """A Llama of this size: its count is exactly `params`, its shape is the likeliest one.

    Raises:
        UsageError: No language model has this size.
    """
    if not _SMALLEST_PARAMS <= params <= _LARGEST_PARAMS:
        raise UsageError(
            f"a model of {params} parameters (`{name}`) cannot be planned from its size",
            "a size lies between `1m` and `1t`; a smaller model needs a folder with config.json",
        )
    shape = min(_shapes_of(params), key=lambda shape: shape.strangeness)
    architecture = read_architecture(
        name,
        {
            "model_type": "llama",
            "hidden_size": shape.hidden_size,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.hidden_size // math.gcd(shape.hidden_size, _HEAD_DIM),
            "intermediate_size": shape.intermediate_size,
            "vocab_size": shape.vocab_size,
        },
    )
    return Model(
        name=name,
        source=ModelSource.SIZE,
        params=params,
        architecture=architecture,
        tensors=list_tensors(architecture),
    )
