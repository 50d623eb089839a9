"""Read a model from the content of its config.json."""

from collections.abc import Mapping

from zerowiz.core.families import FAMILIES, Family
from zerowiz.core.model import Architecture, Model, ModelSource
from zerowiz.core.tensors import list_tensors
from zerowiz.errors import UsageError


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
