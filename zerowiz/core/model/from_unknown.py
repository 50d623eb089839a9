"""Guess a model of an unknown family from the sizes that its config.json tells."""

from collections.abc import Mapping

from zerowiz.core.model.checkpoint_check import Stored
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.values import replace
from zerowiz.errors import UsageError

Config = Mapping[str, object]

# Left in the words of Llama and Qwen3-MoE, right how other families spell the same (transformers,
# attribute_map of models/*/configuration_*.py).
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
}
_TOLD: Mapping[str, tuple[str, ...]] = {
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
_BY_SIZE = "give the size instead, such as `$model 7b`, to plan with a Llama of that size"


def is_unknown(config: Config) -> bool:
    """Whether only transformers knows this model."""
    wraps = isinstance(config.get("text_config"), dict)
    model_type = config.get("model_type")
    return isinstance(model_type, str) and (wraps or model_type not in FAMILIES)


def _text(config: Config) -> Config:
    """What tells of the language model; a model of more than text keeps it apart."""
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def _obstacle(text: Config, told: Config) -> str | None:
    """Why this cannot be a Llama."""
    if text.get("is_encoder_decoder"):
        return "an encoder-decoder is not guessed"
    missing = [key for key in _NEEDED if key not in told]
    if "vocab_size" in missing and "image_size" in text:
        return "a model of images is not guessed"
    return f"`{missing[0]}` is missing" if missing else None


def _read_told(text: Config) -> dict[str, object]:
    """The keys that are there, in Llama's words."""
    found = {
        key: next((text[name] for name in names if text.get(name) is not None), None)
        for key, names in _TOLD.items()
    }
    return {key: value for key, value in found.items() if value is not None}


def _experts(text: Config, told: Config) -> dict[str, object]:
    """What a mixture needs beyond a Llama; nothing for a dense model."""
    if not told.get("num_experts"):
        return {"model_type": "llama"}
    wide = told.get("moe_intermediate_size", told["intermediate_size"])
    shared, dense = text.get("n_shared_experts"), text.get("first_k_dense_replace")
    keys: dict[str, object] = {"model_type": "qwen3_moe", "moe_intermediate_size": wide}
    # transformers, models/deepseek_v3/modeling_deepseek_v3.py: the first layers are dense.
    if isinstance(dense, int):
        keys["mlp_only_layers"] = list(range(dense))
    if isinstance(shared, int) and isinstance(wide, int) and shared > 0:
        keys["shared_expert_intermediate_size"] = shared * wide
    if "shared_expert_intermediate_size" in {**told, **keys}:
        keys |= {"model_type": "qwen2_moe", "qkv_bias": told.get("attention_bias", False)}
    return keys


def _as_llama(text: Config, told: Config) -> Config:
    """The config of the Llama that stands for it."""
    hidden_size, wide = told["hidden_size"], told.get("intermediate_size")
    if wide is None and isinstance(hidden_size, int):
        # Vaswani et al. 2017, section 3.3: two matrices of 4 h.
        wide = 8 * hidden_size // 3
    elif isinstance(wide, int) and str(told.get("hidden_act")) in _WITHOUT_GATE:
        wide = 2 * wide // 3
    heads = {"num_key_value_heads": 1} if text.get("multi_query") is True else {}
    # transformers 4, configuration_utils.py, PretrainedConfig: true, and only false is written.
    sizes = {"tie_word_embeddings": True, **heads, **told, "intermediate_size": wide}
    return {**sizes, **_experts(text, sizes)}


def guess_model(name: str, config: Config) -> Model:
    """A model of an unknown family, counted as the Llama that has the sizes its config tells.

    Where the config wraps a language model that is known, that one is counted alone.

    Raises:
        UsageError: It tells too little, or of something that no Llama resembles.
    """
    text = _text(config)
    if text is not config and str(text.get("model_type")) in FAMILIES:
        return replace(
            model_from_config(name, {**text, "text_config": None}), source=ModelSource.GUESS
        )
    told = _read_told(text)
    obstacle = _obstacle(text, told)
    if obstacle is not None:
        raise UsageError(
            f"config.json of `{name}`: `{config.get('model_type')}` is not known yet,"
            f" and {obstacle}",
            f"known are {', '.join(sorted(FAMILIES))}",
            _BY_SIZE,
        )
    return replace(model_from_config(name, _as_llama(text, told)), source=ModelSource.GUESS)


def settle_guess(model: Model, stored: Stored | None) -> Model:
    """The guess with the true count, where a checkpoint beside the config tells it.

    Weights that are packed into integers hold more than one parameter each, and tell nothing.
    """
    if stored is None or not stored.dtypes or not stored.dtypes[0].startswith(("F", "BF")):
        return model
    return replace(model, params=stored.params(tied=model.architecture.tied_embeddings))
