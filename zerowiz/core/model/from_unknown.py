"""Guess a model of an unknown family by the sizes in its config.json."""

from collections.abc import Mapping

from zerowiz.core.model.checkpoint_check import Stored
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.hf_config import MOST_LAYERS, model_from_config
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.values import replace
from zerowiz.errors import UsageError
from zerowiz.words import _, listing

Config = Mapping[str, object]

# The keys of Llama and Qwen3-MoE, each with the names that families use for it (transformers,
# attribute_map of models/*/configuration_*.py).
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
}
_KEYS: Mapping[str, tuple[str, ...]] = {
    **_NEEDED,
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim", "d_kv"),
    "tie_word_embeddings": ("tie_word_embeddings",),
    "hidden_act": ("hidden_act", "hidden_activation", "activation_function", "activation"),
    "attention_bias": ("attention_bias",),
    "mlp_bias": ("mlp_bias",),
    "attention_dropout": ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k"),
    "moe_intermediate_size": ("moe_intermediate_size",),
    "shared_expert_intermediate_size": ("shared_expert_intermediate_size",),
    "decoder_sparse_step": ("decoder_sparse_step",),
    "mlp_only_layers": ("mlp_only_layers",),
}
# transformers, modeling_{bert,gpt2,clip,opt,nemotron,apertus}.py: an MLP with one of these has two
# matrices, where Llama's has three.
_WITHOUT_GATE = frozenset({"gelu", "gelu_new", "gelu_fast", "quick_gelu", "relu", "relu2", "xielu"})
_BY_SIZE = _("or plan with a Llama of about the same size: `$model 7b`")


def is_unknown(config: Config) -> bool:
    """Whether the model's family is not in FAMILIES."""
    wraps = isinstance(config.get("text_config"), dict)
    model_type = config.get("model_type")
    return isinstance(model_type, str) and (wraps or model_type not in FAMILIES)


def _text(config: Config) -> Config:
    """The keys of the language model, which a multimodal model has in a section of their own."""
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def _obstacle(text: Config, sizes: Config) -> str | None:
    """Why no Llama can stand for this model; None where one can."""
    if text.get("is_encoder_decoder"):
        return _("zerowiz does not estimate unknown encoder-decoders")
    missing = [key for key in _NEEDED if key not in sizes]
    if "vocab_size" in missing and "image_size" in text:
        return _("zerowiz does not estimate unknown image models")
    return _("`{missing}` is missing", missing=missing[0]) if missing else None


def _read_sizes(text: Config) -> dict[str, object]:
    """The values of the config, by Llama's keys."""
    found = {
        key: next((text[name] for name in names if text.get(name) is not None), None)
        for key, names in _KEYS.items()
    }
    return {key: value for key, value in found.items() if value is not None}


def _experts(text: Config, sizes: Config) -> dict[str, object]:
    """The family that stands for the model, with the keys that a mixture of experts needs."""
    if not sizes.get("num_experts"):
        return {"model_type": "llama"}
    wide = sizes.get("moe_intermediate_size", sizes["intermediate_size"])
    shared, dense = text.get("n_shared_experts"), text.get("first_k_dense_replace")
    keys: dict[str, object] = {"model_type": "qwen3_moe", "moe_intermediate_size": wide}
    # transformers, models/deepseek_v3/modeling_deepseek_v3.py: the first layers are dense.
    if isinstance(dense, int):
        keys["mlp_only_layers"] = list(range(min(dense, MOST_LAYERS)))
    if isinstance(shared, int) and isinstance(wide, int) and shared > 0:
        keys["shared_expert_intermediate_size"] = shared * wide
    if "shared_expert_intermediate_size" in {**sizes, **keys}:
        keys |= {"model_type": "qwen2_moe", "qkv_bias": sizes.get("attention_bias", False)}
    return keys


def _as_llama(text: Config, read: Config) -> Config:
    """The config of the Llama that stands for the model.

    Args:
        text: The keys of the language model.
        read: Its sizes, of `_read_sizes`.
    """
    hidden_size, wide = read["hidden_size"], read.get("intermediate_size")
    if wide is None and isinstance(hidden_size, int):
        # Vaswani et al. 2017, section 3.3: two matrices of 4 h.
        wide = 8 * hidden_size // 3
    elif isinstance(wide, int) and str(read.get("hidden_act")) in _WITHOUT_GATE:
        wide = 2 * wide // 3
    heads = {"num_key_value_heads": 1} if text.get("multi_query") is True else {}
    # transformers 4, configuration_utils.py, PretrainedConfig: the default is true, and a file has
    # the key only for false.
    sizes = {"tie_word_embeddings": True, **heads, **read, "intermediate_size": wide}
    return {**sizes, **_experts(text, sizes)}


def guess_model(name: str, config: Config) -> Model:
    """A model of an unknown family, counted as a Llama with the sizes of its config.

    Of a multimodal model whose language model is known, only the language model is counted.

    Args:
        name: What the model is called.
        config: The content of its config.json.

    Raises:
        UsageError: A size is missing, or no Llama resembles the model.
    """
    text = _text(config)
    if text is not config and str(text.get("model_type")) in FAMILIES:
        model = model_from_config(name, {**text, "text_config": None})
        return replace(model, source=ModelSource.GUESS, wrapped=True)
    sizes = _read_sizes(text)
    obstacle = _obstacle(text, sizes)
    if obstacle is not None:
        raise UsageError(
            _(
                "config.json of `{name}`: `{model_type}` is not supported yet, and {obstacle}",
                name=name,
                model_type=config.get("model_type"),
                obstacle=obstacle,
            ),
            _("supported: {families}", families=listing(sorted(FAMILIES))),
            _BY_SIZE,
        )
    model = model_from_config(name, _as_llama(text, sizes))
    return replace(model, source=ModelSource.GUESS, wrapped=text is not config)


def settle_guess(model: Model, stored: Stored | None) -> Model:
    """The guessed model with the true count, where its folder has a checkpoint.

    Weights that are packed into integers do not show the count, because each of them holds more
    than one parameter.
    """
    if stored is None or not stored.dtypes or not stored.dtypes[0].startswith(("F", "BF")):
        return model
    return replace(model, params=stored.params(tied=model.architecture.tied_embeddings))
