"""Describe a model by its tensors, read from the facts in its config.json."""

import math
import re
from collections.abc import Mapping
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
    dropout_rate: float

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
    def layer_params(self) -> int:
        """Elements of one transformer block."""
        layers = self.architecture.layers
        return sum(t.numel * t.copies for t in self.tensors if t.copies >= layers) // layers

    def lora_params(self, rank: int) -> int:
        """Elements of rank-`rank` adapters on every linear layer of every block.

        Hu et al. 2021, section 4.1: a weight of shape (out, in) gains B (out, r) and A (r, in).
        """
        return sum(t.copies * rank * sum(t.shape) for t in self.tensors if t.linear)


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """How one `model_type` differs from the plain Llama block."""

    tied_by_default: bool = False
    qkv_bias: bool = False
    """Biases on q, k and v alone, whatever the config says."""
    qk_norm: bool = False
    norms_per_layer: int = 2
    fused_experts: bool = False
    gated_mlp: bool = True
    gpt2_block: bool = False
    keys: tuple[tuple[str, str], ...] = ()
    """Config keys under another name, (ours, theirs); theirs is read first."""


# Rule: what a family adds to or takes from the Llama block is said here and nowhere else.
# Source of every row: transformers 5.23, models/<family>/modeling_<family>.py.
FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True),
    "gemma": Family(tied_by_default=True),
    "gemma2": Family(tied_by_default=True, norms_per_layer=4),
    "gemma3_text": Family(tied_by_default=True, norms_per_layer=4, qk_norm=True),
    "mixtral": Family(fused_experts=True, keys=(("num_experts", "num_local_experts"),)),
    "qwen3_moe": Family(
        qk_norm=True,
        fused_experts=True,
        keys=(("num_experts", "num_local_experts"), ("intermediate_size", "moe_intermediate_size")),
    ),
    "gpt2": Family(
        tied_by_default=True,
        gated_mlp=False,
        gpt2_block=True,
        keys=(
            ("hidden_size", "n_embd"),
            ("num_hidden_layers", "n_layer"),
            ("num_attention_heads", "n_head"),
            ("max_position_embeddings", "n_positions"),
            ("intermediate_size", "n_inner"),
            ("attention_dropout", "attn_pdrop"),
        ),
    ),
}


class _Facts:
    """Typed reads from a config, with errors that name the key."""

    def __init__(self, name: str, config: Mapping[str, object], family: Family) -> None:
        self.name = name
        self.config = config
        self.theirs = dict(family.keys)

    def _value(self, key: str) -> object:
        theirs = self.config.get(self.theirs.get(key, key))
        return self.config.get(key) if theirs is None else theirs

    def count(self, key: str, default: int | None = None) -> int:
        value = self._value(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            said = "is missing" if value is None else f"is `{value}`, not a count"
            raise UsageError(f"config.json of `{self.name}`: `{key}` {said}")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.config.get(key)
        return value if isinstance(value, bool) else default

    def fraction(self, key: str) -> float:
        value = self._value(key)
        return float(value) if isinstance(value, int | float) else 0.0


def read_architecture(name: str, config: Mapping[str, object]) -> Architecture:
    """Parse the content of a config.json.

    Raises:
        UsageError: `model_type` is unknown, or a key is missing or no count.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise UsageError(
            f"config.json of `{name}`: architecture `{model_type}` is not known yet",
            f"known are {', '.join(sorted(FAMILIES))}",
            "give the size instead, such as `--model 7b`, to plan with a Llama of that size",
        )
    family = FAMILIES[model_type]
    facts = _Facts(name, config, family)
    hidden_size, heads = facts.count("hidden_size"), facts.count("num_attention_heads")
    if heads < 1 or hidden_size < 1:
        raise UsageError(f"config.json of `{name}`: a model needs heads and a hidden size")
    return Architecture(
        family=model_type,
        layers=facts.count("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=facts.count(
            "intermediate_size", 4 * hidden_size if family.gpt2_block else None
        ),
        heads=heads,
        kv_heads=facts.count("num_key_value_heads", heads),
        head_dim=facts.count("head_dim", hidden_size // heads),
        vocab_size=facts.count("vocab_size"),
        positions=facts.count("max_position_embeddings", 0),
        tied_embeddings=facts.flag("tie_word_embeddings", default=family.tied_by_default),
        attention_bias=facts.flag("attention_bias", default=False),
        mlp_bias=facts.flag("mlp_bias", default=False),
        experts=facts.count("num_experts") if family.fused_experts else 0,
        experts_per_token=facts.count("num_experts_per_tok") if family.fused_experts else 0,
        dropout_rate=facts.fraction("attention_dropout"),
    )


def list_tensors(architecture: Architecture) -> tuple[Tensor, ...]:
    """Every trainable tensor of the model, as transformers builds it, tied weights once."""
    block = _gpt2_block if FAMILIES[architecture.family].gpt2_block else _llama_block
    a = architecture
    embeddings = [Tensor(name="embed_tokens", shape=(a.vocab_size, a.hidden_size))]
    if FAMILIES[a.family].gpt2_block:
        embeddings.append(Tensor(name="embed_positions", shape=(a.positions, a.hidden_size)))
    if not a.tied_embeddings:
        embeddings.append(Tensor(name="lm_head", shape=(a.vocab_size, a.hidden_size)))
    return (*embeddings, *block(a))


def _llama_block(a: Architecture) -> tuple[Tensor, ...]:
    family = FAMILIES[a.family]
    h, layers = a.hidden_size, a.layers
    qkv_bias = family.qkv_bias or a.attention_bias
    biases = [
        ("q_proj.bias", a.query_size, qkv_bias),
        ("k_proj.bias", a.kv_size, qkv_bias),
        ("v_proj.bias", a.kv_size, qkv_bias),
        ("o_proj.bias", h, a.attention_bias and not family.qkv_bias),
        ("gate_proj.bias", a.intermediate_size, a.mlp_bias),
        ("up_proj.bias", a.intermediate_size, a.mlp_bias),
        ("down_proj.bias", h, a.mlp_bias),
        ("q_norm", a.head_dim, family.qk_norm),
        ("k_norm", a.head_dim, family.qk_norm),
    ]
    mlp = _fused_experts if family.fused_experts else _gated_mlp
    return (
        Tensor(name="q_proj", shape=(a.query_size, h), copies=layers, linear=True),
        Tensor(name="k_proj", shape=(a.kv_size, h), copies=layers, linear=True),
        Tensor(name="v_proj", shape=(a.kv_size, h), copies=layers, linear=True),
        Tensor(name="o_proj", shape=(h, a.query_size), copies=layers, linear=True),
        *(Tensor(name=n, shape=(size,), copies=layers) for n, size, held in biases if held),
        *mlp(a),
        Tensor(name="norm", shape=(h,), copies=family.norms_per_layer * layers),
        Tensor(name="final_norm", shape=(h,)),
    )


def _gated_mlp(a: Architecture) -> tuple[Tensor, ...]:
    h, wide = a.hidden_size, a.intermediate_size
    return (
        Tensor(name="gate_proj", shape=(wide, h), copies=a.layers, linear=True),
        Tensor(name="up_proj", shape=(wide, h), copies=a.layers, linear=True),
        Tensor(name="down_proj", shape=(h, wide), copies=a.layers, linear=True),
    )


def _fused_experts(a: Architecture) -> tuple[Tensor, ...]:
    h, wide = a.hidden_size, a.intermediate_size
    return (
        Tensor(name="router", shape=(a.experts, h), copies=a.layers),
        Tensor(name="experts.gate_up_proj", shape=(a.experts, 2 * wide, h), copies=a.layers),
        Tensor(name="experts.down_proj", shape=(a.experts, h, wide), copies=a.layers),
    )


def _gpt2_block(a: Architecture) -> tuple[Tensor, ...]:
    h, wide, layers = a.hidden_size, a.intermediate_size, a.layers
    linears = (("c_attn", h, 3 * h), ("attn.c_proj", h, h), ("c_fc", h, wide), ("c_proj", wide, h))
    return (
        *(Tensor(name=n, shape=(i, o), copies=layers, linear=True) for n, i, o in linears),
        *(Tensor(name=f"{n}.bias", shape=(o,), copies=layers) for n, _, o in linears),
        Tensor(name="ln", shape=(h,), copies=4 * layers),
        Tensor(name="ln_f", shape=(h,), copies=2),
    )


def model_from_config(name: str, config: Mapping[str, object]) -> Model:
    """The model that transformers would build from this config.json, counted exactly."""
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

# Kaplan et al. 2020, section 3.2: shape matters little at a given size; Llama-2-7B is 4096/32.
_WIDTH_PER_LAYER = 128


def parse_size(text: str) -> int | None:
    """The parameter count that `7b`, `1.5B` or `10m` stands for, or None when it is no size."""
    match = _SIZE.fullmatch(text.strip())
    return round(float(match[1]) * _UNITS[match[2].lower()]) if match else None


def model_from_size(name: str, params: int) -> Model:
    """A Llama of about this size: its count is exactly `params`, its shape is assumed."""
    # A block holds 4 h^2 (attention) + 8 h^2 (MLP of 8/3 h, gated); L = h / 128 of them.
    hidden_size = max(64, 64 * round((params * _WIDTH_PER_LAYER / 12) ** (1 / 3) / 64))
    layers = max(1, round(params / (12 * hidden_size**2)))
    architecture = read_architecture(
        name,
        {
            "model_type": "llama",
            "hidden_size": hidden_size,
            "num_hidden_layers": layers,
            "num_attention_heads": max(1, hidden_size // _WIDTH_PER_LAYER),
            "head_dim": min(_WIDTH_PER_LAYER, hidden_size),
            "intermediate_size": 256 * math.ceil(8 * hidden_size / 3 / 256),
            "vocab_size": 32000,
        },
    )
    return Model(
        name=name,
        source=ModelSource.SIZE,
        params=params,
        architecture=architecture,
        tensors=list_tensors(architecture),
    )


