"""Read a model from the content of its config.json."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import cast

from zerowiz.core.model.families import FAMILIES, NEVER, Family, Slot, Spec
from zerowiz.core.model.types import Architecture, Model, ModelSource, Tensor
from zerowiz.errors import UsageError

# List the tensors that transformers builds for an architecture.

# The sizes that the symbols in the rows of families.py stand for.
SYMBOLS: Mapping[str, Callable[[Architecture], int]] = {
    "h": lambda a: a.hidden_size,
    "q": lambda a: a.query_size,
    "kv": lambda a: a.kv_size,
    "i": lambda a: a.intermediate_size,
    "dense_i": lambda a: a.dense_intermediate_size,
    "shared_i": lambda a: a.shared_expert_intermediate_size,
    "V": lambda a: a.vocab_size,
    "head_dim": lambda a: a.head_dim,
    "heads": lambda a: a.heads,
    "experts": lambda a: a.experts,
    "positions": lambda a: a.positions,
    "embedding": lambda a: a.embedding_size,
    "types": lambda a: a.type_vocab_size,
    "buckets": lambda a: a.relative_attention_num_buckets,
    "image_tokens": lambda a: a.image_tokens,
    "labels": lambda a: a.labels,
}
_TERM = re.compile(r"(\d*)([A-Za-z_]*)")

COPIES: Mapping[Slot, Callable[[Architecture], int]] = {
    Slot.ENDS: lambda _: 1,
    Slot.BLOCK: lambda a: a.layers,
    Slot.DENSE: lambda a: a.layers - a.expert_layers,
    Slot.EXPERTS: lambda a: a.expert_layers,
    Slot.DECODER: lambda a: a.layers - a.encoder_layers,
}

# Where some blocks have experts, the others are counted as the first ones (as in DeepSeek-V3).
_IN_LAST_BLOCKS = frozenset({Slot.EXPERTS, Slot.DECODER})


def holds(architecture: Architecture, when: str) -> bool:
    """Whether a condition of families.py holds for an architecture."""
    return when != NEVER and all(
        (name.lstrip("!") in architecture.switches) is not name.startswith("!")
        for name in when.split()
    )


def _term(architecture: Architecture, text: str) -> int:
    """The value of a term such as `2`, `h` or `2h`."""
    times, symbol = _TERM.fullmatch(text).groups()  # type: ignore[union-attr]
    count = int(times or 1)
    return count * SYMBOLS[symbol](architecture) if symbol else count


def _shape(architecture: Architecture, text: str) -> Iterator[int]:
    for word in text.split():
        if word == "patch":
            yield from architecture.patch
        else:
            yield sum(_term(architecture, term) for term in word.split("+"))


def _tensor(architecture: Architecture, spec: Spec) -> Tensor:
    targets = (spec.name,) if spec.linear else ()
    copies = COPIES[spec.slot](architecture)
    return Tensor(
        name=spec.name,
        shape=tuple(_shape(architecture, spec.shape)),
        copies=copies,
        linear=spec.linear,
        transposed=spec.transposed,
        targets=FAMILIES[architecture.family].lora_targets.get(spec.name, targets),
        in_block=spec.slot is not Slot.ENDS,
        is_output=spec.is_output,
        first_block=architecture.layers - copies if spec.slot in _IN_LAST_BLOCKS else 0,
    )


@cache
def list_tensors_by_slot(architecture: Architecture) -> tuple[tuple[Slot, Tensor], ...]:
    """Every tensor of the model that transformers builds, with the blocks that have it."""
    return tuple(
        (spec.slot, _tensor(architecture, spec))
        for spec in FAMILIES[architecture.family].tensors
        if holds(architecture, spec.when) and COPIES[spec.slot](architecture)
    )


def list_tensors(architecture: Architecture) -> tuple[Tensor, ...]:
    """Every tensor of the model that transformers builds; tied weights once."""
    return tuple(tensor for _, tensor in list_tensors_by_slot(architecture))


MOST_LAYERS = 10_000
"""Predictions go through every layer; models have some hundred."""
_MOST = 10**12


class _Facts:
    """Reads typed values of a config, with its family's spellings and defaults."""

    def __init__(self, name: str, config: Mapping[str, object], family: Family) -> None:
        self.name = name
        self.config = config
        self.family = family

    def _read(self, key: str) -> tuple[str, object]:
        """The key as this config spells it; and its value, else the family's default, else None."""
        defaults = {**self.family.defaults, **self.family.switches}
        spellings = self.family.spellings.get(key, (key,))
        if key in defaults:
            for spelling in spellings:
                if spelling in self.config:
                    return spelling, self.config[spelling]
        return spellings[0] if spellings else key, defaults.get(key)

    def _refuse(self, key: str, value: object, wanted: str) -> UsageError:
        problem = "is missing" if value is None else f"is `{value}`, not {wanted}"
        return UsageError(
            f"config.json of `{self.name}`: `{key}` {problem}",
            "take the file that the model's page has, or name a size: `$model 7b`",
        )

    def count(
        self, key: str, derived: int | None = None, *, at_least: int = 1, at_most: int = _MOST
    ) -> int:
        spelling, value = self._read(key)
        value = derived if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            raise self._refuse(spelling, value, f"a count of at least {at_least}")
        if value > at_most:
            raise self._refuse(spelling, value, f"a count of at most {at_most:,}")
        return value

    def _typed(self, key: str, wanted: str, *kinds: type) -> object:
        spelling, value = self._read(key)
        if type(value) not in kinds:
            raise self._refuse(spelling, value, wanted)
        return value

    def flag(self, key: str) -> bool:
        return bool(self._typed(key, "true or false", bool, type(None)))

    def number(self, key: str) -> float:
        return cast("float", self._typed(key, "a number", int, float, type(None)) or 0)

    def word(self, key: str) -> str:
        return str(self._typed(key, "a word", str))

    def pair(self, key: str) -> tuple[int, int]:
        """Height and width; one number means both."""
        spelling, value = self._read(key)
        sides = value if isinstance(value, list) else [value, value]
        match sides:
            case [int(height), int(width)] if min(height, width) > 0:
                return height, width
            case _:
                raise self._refuse(spelling, value, "a height and a width")

    def listed(self, key: str) -> list[object] | None:
        return cast("list[object] | None", self._typed(key, "a list of layers", list, type(None)))

    def indices(self, key: str) -> frozenset[int]:
        return frozenset(index for index in self.listed(key) or () if isinstance(index, int))


def _find_family(name: str, config: Mapping[str, object]) -> tuple[str, Family]:
    """The `model_type` of this config, and its family.

    Raises:
        UsageError: The family is not in the table, or a switch is on that adds uncounted tensors.
    """
    by_size = "or plan with a Llama of about the same size: `$model 7b`"
    model_type = config.get("model_type")
    if isinstance(config.get("text_config"), dict):
        raise UsageError(
            (
                f"config.json of `{name}`: `{model_type}` combines a language model with "
                "others, which zerowiz does not support yet"
            ),
            by_size,
        )
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        why = "has no `model_type`" if model_type is None else f"`{model_type}` is not known yet"
        raise UsageError(
            f"config.json of `{name}`: {why}",
            f"supported: {', '.join(sorted(FAMILIES))}",
            by_size,
        )
    for switch in FAMILIES[model_type].unsupported:
        if config.get(switch):
            raise UsageError(
                (
                    f"config.json of `{name}`: `{switch}` adds tensors that zerowiz does not "
                    "count yet"
                ),
                by_size,
            )
    return model_type, FAMILIES[model_type]


def _count_expert_layers(facts: _Facts, layers: int) -> int:
    """The count of layers with experts (Qwen3MoeDecoderLayer.__init__; in Mixtral all of them)."""
    if facts.count("num_experts", 0, at_least=0) == 0:
        return 0
    step = facts.count("decoder_sparse_step", 1)
    dense = facts.indices("mlp_only_layers")
    return sum(i not in dense and (i + 1) % step == 0 for i in range(layers))


def _count_sliding_layers(facts: _Facts, switches: frozenset[str], layers: int) -> int:
    """The count of layers with a sliding window."""
    every, layer_types = facts.family.sliding_every, facts.listed("layer_types")
    if "use_sliding_window" in facts.family.switches and "use_sliding_window" not in switches:
        return 0
    if not facts.count("sliding_window", 0, at_least=0):
        return 0
    if layer_types is not None and every != 1:
        return layer_types.count("sliding_attention")
    if every:
        period = facts.count("sliding_window_pattern", every)
        return layers if every == 1 else layers - layers // period
    return max(0, layers - facts.count("max_window_layers", layers, at_least=0))


def _find_switches(facts: _Facts, hidden_size: int) -> frozenset[str]:
    """The family's switches that are on, and the conditions that follow from other keys."""
    switches = {name for name in facts.family.switches if facts.flag(name)}
    new_falcon = "new_decoder_architecture" in switches
    norms = facts.count("num_ln_in_parallel_attn", 2 if new_falcon else 1)
    pre_norm = (
        "do_layer_norm_before" in switches or "do_layer_norm_before" not in facts.family.switches
    )
    derived = {
        "gated": facts.word("hidden_act").startswith("gated-"),
        "parallel": new_falcon or bool(switches & {"parallel_attn", "use_parallel_residual"}),
        "two_norms": norms == 2 or "parallel_attn" not in switches,  # noqa: PLR2004
        "projected": facts.count("embedding_size", hidden_size) != hidden_size,
        "final_norm": pre_norm and "_remove_final_layer_norm" not in switches,
        "labelled": _count_labels(facts) > 0,
        "softcapped_scores": facts.number("attn_logit_softcapping") != 0,
    }
    return frozenset(switches | {name for name, on in derived.items() if on})


def _count_labels(facts: _Facts) -> int:
    names = facts.config.get("id2label")
    return len(names) if isinstance(names, dict) else facts.count("num_labels", 0, at_least=0)


def _count_kv_heads(facts: _Facts, switches: frozenset[str], heads: int) -> int:
    """The count of key heads; FalconAttention.__init__ uses the config's only for new models."""
    if "multi_query" in facts.family.switches and "new_decoder_architecture" not in switches:
        return 1 if "multi_query" in switches else heads
    return facts.count("num_key_value_heads", heads)


def _cut_image(facts: _Facts) -> tuple[int, tuple[int, ...]]:
    """The tokens of one image with the class token; and channels, height and width of a patch."""
    if "image_size" not in facts.family.defaults:
        return 0, ()
    (height, width), (tall, wide) = facts.pair("image_size"), facts.pair("patch_size")
    return (height // tall) * (width // wide) + 1, (facts.count("num_channels"), tall, wide)


def read_architecture(name: str, config: Mapping[str, object]) -> Architecture:
    """The architecture in the content of a config.json.

    Args:
        name: What errors call the model.
        config: The content.

    Raises:
        UsageError: `model_type` is unknown, or a key is missing or has another type.
    """
    model_type, family = _find_family(name, config)
    facts = _Facts(name, config, family)
    hidden_size, heads = facts.count("hidden_size"), facts.count("num_attention_heads")
    layers = facts.count("num_hidden_layers", at_most=MOST_LAYERS)
    switches = _find_switches(facts, hidden_size)
    decoder_layers = (
        facts.count("num_decoder_layers", layers, at_most=MOST_LAYERS)
        if "num_decoder_layers" in family.defaults
        else 0
    )
    expert_layers = _count_expert_layers(facts, layers)
    wide = facts.count("intermediate_size", 4 * hidden_size)
    dense_wide = facts.count("dense_intermediate_size", wide)
    image_tokens, patch = _cut_image(facts)
    activation = facts.word("hidden_act")
    return Architecture(
        family=model_type,
        layers=layers + decoder_layers,
        encoder_layers=layers if decoder_layers else 0,
        hidden_size=hidden_size,
        intermediate_size=wide if expert_layers else dense_wide,
        heads=heads,
        kv_heads=_count_kv_heads(facts, switches, heads),
        head_dim=facts.count("head_dim", hidden_size // heads),
        vocab_size=facts.count("vocab_size", at_least=0 if image_tokens else 1),
        embedding_size=facts.count("embedding_size", hidden_size),
        positions=facts.count("max_position_embeddings", at_least=0 if image_tokens else 1),
        type_vocab_size=facts.count("type_vocab_size", 0, at_least=0),
        relative_attention_num_buckets=facts.count("relative_attention_num_buckets", 0, at_least=0),
        image_tokens=image_tokens,
        patch=patch,
        labels=_count_labels(facts) if image_tokens else 0,
        experts=facts.count("num_experts") if expert_layers else 0,
        experts_per_token=facts.count("num_experts_per_tok") if expert_layers else 0,
        expert_layers=expert_layers,
        dense_intermediate_size=dense_wide,
        shared_expert_intermediate_size=facts.count(
            "shared_expert_intermediate_size", 0, at_least=0
        ),
        sliding_window_tokens=facts.count("sliding_window", 0, at_least=0),
        sliding_layers=_count_sliding_layers(facts, switches, layers),
        # For T5's `gated-gelu` it is the tanh form (T5Config.__post_init__).
        hidden_act="gelu_new" if activation == "gated-gelu" else activation.removeprefix("gated-"),
        switches=switches,
        dropout_rate=facts.number("attention_dropout"),
        residual_dropout_rate=facts.number("residual_dropout"),
        embedding_dropout_rate=facts.number("embedding_dropout"),
        logit_softcap=facts.number("final_logit_softcapping") != 0,
    )


def model_from_config(name: str, config: Mapping[str, object]) -> Model:
    """The model that transformers builds from a config.json, counted exactly.

    Args:
        name: What the model is called.
        config: The content of the file.

    Raises:
        UsageError: As `read_architecture`.
    """
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


# The classes of modules that hold a model's experts, for ZeRO-3's `leaf_module.classes`.

# transformers 5.23, models/*/modeling_*.py: the class whose `experts` attribute holds the experts,
# by the `model_type` of config.json or of its text model. A family of FAMILIES has it in its row.
_WITHOUT_A_ROW: Mapping[str, str] = {
    "afmoe": "AfmoeSparseMoeBlock",
    "aria": "AriaTextMoELayer",
    "aria_text": "AriaTextMoELayer",
    "dbrx": "DbrxFFN",
    "deepseek_v2": "DeepseekV2Moe",
    "deepseek_v3": "DeepseekV3MoE",
    "deepseek_v32": "DeepseekV32MoE",
    "dots1": "Dots1MoE",
    "ernie4_5_moe": "Ernie4_5_MoeSparseMoeBlock",
    "flex_olmo": "FlexOlmoSparseMoeBlock",
    "glm4_moe": "Glm4MoeMoE",
    "glm4_moe_lite": "Glm4MoeLiteMoE",
    "glm4v_moe": "Glm4vMoeTextMoE",
    "glm4v_moe_text": "Glm4vMoeTextMoE",
    "gpt_oss": "GptOssMLP",
    "granitemoe": "GraniteMoeMoE",
    "granitemoehybrid": "GraniteMoeHybridMoE",
    "granitemoeshared": "GraniteMoeSharedMoE",
    "hunyuan_v1_moe": "HunYuanMoEV1Moe",
    "jamba": "JambaSparseMoeBlock",
    "kimi_linear": "KimiLinearMoE",
    "lfm2_moe": "Lfm2MoeSparseMoeBlock",
    "llama4": "Llama4TextMoe",
    "llama4_text": "Llama4TextMoe",
    "longcat_flash": "LongcatFlashMoE",
    "minimax": "MiniMaxSparseMoeBlock",
    "minimax_m2": "MiniMaxM2SparseMoeBlock",
    "nemotron_h": "NemotronHMoE",
    "nllb-moe": "NllbMoeSparseMLP",
    "olmoe": "OlmoeSparseMoeBlock",
    "phimoe": "PhimoeSparseMoeBlock",
    "qwen3_5_moe": "Qwen3_5MoeSparseMoeBlock",
    "qwen3_5_moe_text": "Qwen3_5MoeSparseMoeBlock",
    "qwen3_next": "Qwen3NextSparseMoeBlock",
    "qwen3_vl_moe": "Qwen3VLMoeTextSparseMoeBlock",
    "qwen3_vl_moe_text": "Qwen3VLMoeTextSparseMoeBlock",
    "switch_transformers": "SwitchTransformersSparseMLP",
}

# Their experts are separate modules (`nn.ModuleDict`), and different experts run on different
# ranks. In all other models transformers 5 holds the experts of a layer in one tensor, which all
# ranks gather at the same time. Those models train to the same weights without leaf modules.
APART = frozenset({"nllb-moe", "switch_transformers"})

MOE_BLOCKS: Mapping[str, str] = {
    **_WITHOUT_A_ROW,
    **{name: family.moe_block for name, family in FAMILIES.items() if family.moe_block is not None},
}
"""By the `model_type` of every model whose experts are known."""


@cache
def size_keys() -> frozenset[str]:
    """The keys of a config.json that decide how large a model of some family is."""
    keys = {
        spelling
        for family in FAMILIES.values()
        for key in (*family.defaults, *family.switches)
        for spelling in family.spellings.get(key, (key,))
    }
    return frozenset(keys)
