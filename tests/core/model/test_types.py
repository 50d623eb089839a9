"""Counts held against transformers itself, and shapes held against published models."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import MODELS

from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.from_name import model_from_size, parse_size
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.structs import replace
from zerowiz.core.workload import ALL_LINEAR
from zerowiz.errors import UsageError

MEASURED = sorted(folder.name for folder in MODELS.iterdir())

# Small and awkward on purpose: nothing divides anything, so a swapped axis changes the count.
SMALL: dict[str, object] = {
    "vocab_size": 77,
    "hidden_size": 60,
    "intermediate_size": 101,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
}
GROUPED: dict[str, object] = {**SMALL, "num_key_value_heads": 2, "head_dim": 14}
TIED: dict[str, object] = {"tie_word_embeddings": True}
UNTIED: dict[str, object] = {"tie_word_embeddings": False}
BIASED: dict[str, object] = {"attention_bias": True, "mlp_bias": True}
EXPERTS: dict[str, object] = {
    "moe_intermediate_size": 35,
    "num_experts": 5,
    "num_experts_per_tok": 2,
}
SMALL_GPT2: dict[str, object] = {
    "vocab_size": 77,
    "n_embd": 60,
    "n_layer": 3,
    "n_head": 6,
    "n_positions": 31,
}
SMALL_T5: dict[str, object] = {
    "vocab_size": 77,
    "d_model": 60,
    "d_kv": 14,
    "d_ff": 101,
    "num_layers": 2,
    "num_heads": 6,
}

# A row of FAMILIES is right when transformers builds the same; an empty config takes every default.
CONFIGS: Mapping[str, list[Mapping[str, object]]] = {
    "llama": [
        {},
        SMALL | TIED,
        GROUPED | BIASED,
        SMALL | {"num_key_value_heads": None, "head_dim": None, "attention_bias": True},
    ],
    "mistral": [
        {},
        SMALL | BIASED,
        GROUPED | TIED,
        SMALL | {"num_key_value_heads": 3, "head_dim": None},
    ],
    "qwen2": [{}, SMALL | {"num_key_value_heads": 3} | BIASED, GROUPED | TIED],
    "qwen3": [{}, SMALL | BIASED, GROUPED | TIED],
    "gemma": [{}, SMALL | {"num_key_value_heads": 1} | BIASED, GROUPED | UNTIED],
    "gemma2": [{}, SMALL | BIASED, GROUPED | UNTIED],
    "gemma3_text": [{}, SMALL | BIASED, GROUPED | UNTIED],
    "mixtral": [
        {},
        SMALL | {"num_local_experts": 3} | BIASED,
        GROUPED | TIED | {"num_experts": 3, "head_dim": None},
    ],
    "qwen3_moe": [
        {},
        SMALL | EXPERTS | {"num_key_value_heads": 3} | BIASED,
        GROUPED | EXPERTS | TIED | {"mlp_only_layers": [1]},
        GROUPED | EXPERTS | {"num_hidden_layers": 5, "decoder_sparse_step": 2},
        GROUPED | EXPERTS | {"num_experts": 0},
        GROUPED | {"num_local_experts": 4, "mlp_only_layers": [0, 2, 9]},
    ],
    "gpt2": [
        {},
        SMALL_GPT2 | {"n_inner": 101},
        SMALL_GPT2 | UNTIED | {"n_inner": None, "intermediate_size": 7, "head_dim": 14} | BIASED,
        SMALL | {"max_position_embeddings": 31},
    ],
    "qwen2_moe": [
        {},
        SMALL | EXPERTS | {"num_key_value_heads": 3, "shared_expert_intermediate_size": 23},
        GROUPED | EXPERTS | TIED | {"qkv_bias": False, "mlp_only_layers": [1]},
    ],
    "olmo2": [{}, SMALL | BIASED, GROUPED | TIED],
    "phi3": [{}, SMALL | {"pad_token_id": 0} | BIASED, GROUPED | TIED | {"pad_token_id": 0}],
    "gpt_neox": [{}, SMALL | {"attention_bias": False}, SMALL | TIED],
    "falcon": [
        {},
        SMALL | {"bias": True, "ffn_hidden_size": 101},
        SMALL | UNTIED | {"new_decoder_architecture": True, "num_kv_heads": 2},
        SMALL | {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
        SMALL | {"alibi": True, "multi_query": False, "parallel_attn": False, "num_kv_heads": 2},
    ],
    "opt": [
        {},
        SMALL | UNTIED | {"ffn_dim": 101, "word_embed_proj_dim": 7, "enable_bias": False},
        SMALL | {"do_layer_norm_before": False, "max_position_embeddings": 31},
        SMALL | {"layer_norm_elementwise_affine": False},
        SMALL | {"_remove_final_layer_norm": True},
    ],
    "bert": [{}, SMALL | UNTIED | {"type_vocab_size": 3}, SMALL | {"is_decoder": True}],
    "roberta": [{}, SMALL | {"type_vocab_size": 1, "max_position_embeddings": 31}, SMALL | UNTIED],
    "t5": [
        {},
        SMALL_T5 | {"num_decoder_layers": 3, "relative_attention_num_buckets": 8},
        SMALL_T5 | UNTIED | {"feed_forward_proj": "gated-gelu"},
    ],
    "vit": [
        {},
        SMALL | {"qkv_bias": False, "image_size": [32, 48], "patch_size": [8, 16], "head_dim": 9},
        SMALL | {"num_channels": 1, "id2label": {"0": "a", "1": "b", "2": "c"}},
        SMALL | {"num_labels": 0},
    ],
}
SWITCHES = st.fixed_dictionaries(
    {},
    optional={
        switch: st.booleans()
        for switch in sorted({name for family in FAMILIES.values() for name in family.switches})
    },
)


def measure(model: Model) -> dict[str, int]:
    return {
        "params": model.params,
        "largest_param": model.largest_param,
        "tensors": sum(tensor.copies for tensor in model.tensors),
    }


BUILDERS = {
    "bert": "AutoModelForMaskedLM",
    "roberta": "AutoModelForMaskedLM",
    "t5": "AutoModelForSeq2SeqLM",
    "vit": "AutoModelForImageClassification",
}


Shapes = list[tuple[int, ...]]


def list_shapes(model: Model) -> Shapes:
    return [tensor.shape for _, tensor in model.placed()]


def list_shapes_with_transformers(config: Mapping[str, object]) -> Shapes:
    """What transformers builds; `parameters()` gives a tied tensor once."""
    return [tuple(parameter.shape) for parameter in build(config).parameters()]


def in_order(config: Mapping[str, object], built: Shapes, counted: Shapes) -> None:
    """The same tensors; in the same order too, where the blocks of a model are alike."""
    if config["model_type"] == "t5" or config.keys() & {"mlp_only_layers", "decoder_sparse_step"}:
        built, counted = sorted(built), sorted(counted)
    assert built == counted


@pytest.mark.parametrize("name", MEASURED)
def test_a_measured_model_is_counted_exactly(name: str) -> None:
    config = json.loads((MODELS / name / "config.json").read_text())
    expected = json.loads((MODELS / name / "exact.json").read_text())
    assert expected == measure(model_from_config(name, config))


def test_every_family_is_held_against_transformers() -> None:
    assert set(FAMILIES) == set(CONFIGS)


@pytest.mark.parametrize(
    ("family", "keys"),
    [(family, keys) for family, configs in CONFIGS.items() for keys in configs],
)
def test_transformers_builds_what_is_counted(family: str, keys: Mapping[str, object]) -> None:
    config = {"model_type": family, **keys}
    model = model_from_config(family, config)
    shapes = list_shapes(model)
    in_order(config, list_shapes_with_transformers(config), shapes)
    assert model.params == sum(math.prod(shape) for shape in shapes)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=4, deadline=None)
@given(switches=SWITCHES, heads=st.sampled_from([2, 3, 6]), width=st.sampled_from([4, 10]))
def test_transformers_builds_what_is_counted_whatever_is_switched(
    family: str, switches: Mapping[str, bool], heads: int, width: int
) -> None:
    sizes = {
        "hidden_size": heads * width,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "vocab_size": 77,
        "pad_token_id": 0,
    }
    told = {key: value for key, value in switches.items() if key in FAMILIES[family].switches}
    config = {"model_type": family, **sizes, **told}
    if family == "t5":
        config = {"model_type": family, **SMALL_T5, **told}
    if family == "vit":
        config = {key: value for key, value in config.items() if key != "vocab_size"}
    in_order(
        config,
        list_shapes_with_transformers(config),
        list_shapes(model_from_config(family, config)),
    )


def test_a_block_holds_no_embedding() -> None:
    one, two = (
        model_from_config("a", {"model_type": "llama", **GROUPED, "num_hidden_layers": layers})
        for layers in (1, 2)
    )
    assert two.params - one.params == one.layer_params == two.layer_params
    with pytest.raises(UsageError, match="`a` has no parameters"):
        replace(one, params=0)


def build(config: Mapping[str, object]) -> Any:
    """What transformers makes of a config, without memory for it."""
    import torch
    import transformers

    model_type = str(config["model_type"])
    keys = {key: value for key, value in config.items() if key != "model_type"}
    builder = getattr(transformers, BUILDERS.get(model_type, "AutoModelForCausalLM"))
    with torch.device("meta"):
        return builder.from_config(transformers.AutoConfig.for_model(model_type, **keys))


def count_with_peft(config: Mapping[str, object], modules: Sequence[str]) -> int:
    """What peft trains of what transformers builds."""
    import peft

    targets = list(modules) if modules else ALL_LINEAR
    with warnings.catch_warnings():
        # peft 0.21 on transformers 5.23: a name on its way out, and GPT-2's kind of layer.
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(build(config), peft.LoraConfig(r=3, target_modules=targets))
    return sum(p.numel() for p in adapted.parameters() if p.requires_grad)


def list_targets(model: Model) -> list[tuple[str, ...]]:
    """All layers, each alone by all its names or by its last, and the first with the last."""
    targets = list(dict.fromkeys(tensor.targets for tensor in model.tensors if tensor.targets))
    short = [tuple(name.rpartition(".")[2] for name in names) for names in targets]
    return list(dict.fromkeys([(), *targets, *short, targets[0] + targets[-1]]))


@pytest.mark.parametrize(
    ("family", "keys"),
    [(family, keys) for family, configs in CONFIGS.items() for keys in configs if keys],
)
def test_peft_trains_what_is_counted(family: str, keys: Mapping[str, object]) -> None:
    """Of the first config of a family, whatever modules it is told."""
    config = {"model_type": family, **keys}
    model = model_from_config(family, config)
    is_first = keys is next(each for each in CONFIGS[family] if each)
    told = list_targets(model) if is_first else [()]
    counted = {modules: model.lora_params(3, modules) for modules in told}
    assert {modules: count_with_peft(config, modules) for modules in told} == counted


@pytest.mark.parametrize(
    ("config", "modules", "message", "hint"),
    [
        (
            {"model_type": "phi3", **SMALL, "pad_token_id": 0},
            ("qkv_proj", "q_proj"),
            "`$lora_target_modules q_proj`: `a` has no such linear layer",
            "its linear layers: o_proj, qkv_proj, gate_up_proj, down_proj",
        ),
        # Fused experts are adapted by all their names, or not at all.
        (
            {"model_type": "mixtral", **SMALL, "num_key_value_heads": 6},
            *(("q_proj", "w1"), "`$lora_target_modules w1`", ""),
        ),
    ],
)
def test_an_unknown_module_is_refused_with_those_that_there_are(
    config: Mapping[str, object], modules: tuple[str, ...], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as refused:
        model_from_config("a", config).lora_params(8, modules)
    assert refused.value.message.startswith(message)
    assert hint in " ".join(refused.value.hints)


@pytest.mark.parametrize(
    ("family", "keys", "name", "expected"),
    [
        # Only Gemma-2 caps its logits unasked; elsewhere it counts where the family reads it.
        *((family, {}, "logit_softcap", family == "gemma2") for family in FAMILIES),
        ("gemma2", {"final_logit_softcapping": None}, "logit_softcap", False),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, "logit_softcap", True),
        ("llama", {"final_logit_softcapping": 30.0}, "logit_softcap", False),
        # Dropout, under the names of GPT-2.
        ("gpt2", {"attn_pdrop": 0.2}, "dropout_rate", 0.2),
        ("gpt2", {"resid_pdrop": 0}, "residual_dropout_rate", 0.0),
    ],
)
def test_a_key_is_read_where_the_family_reads_it(
    family: str, keys: Mapping[str, object], name: str, expected: object
) -> None:
    architecture = model_from_config("a", {"model_type": family, **keys}).architecture
    assert expected == getattr(architecture, name)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "config.json of `a`: has no `model_type`"),
        ({"model_type": "mamba"}, "config.json of `a`: `mamba` is not known yet"),
        (
            {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}},
            (
                "config.json of `a`: `gemma3` combines a language model with others, which"
                " zerowiz does not support yet"
            ),
        ),
        (
            {"model_type": "gpt2", "add_cross_attention": True},
            (
                "config.json of `a`: `add_cross_attention` adds tensors that zerowiz does not"
                " count yet"
            ),
        ),
        (
            {"model_type": "llama", "num_hidden_layers": 0},
            "config.json of `a`: `num_hidden_layers` is `0`, not a count of at least 1",
        ),
        (
            {"model_type": "gpt2", "n_embd": "768"},
            "config.json of `a`: `n_embd` is `768`, not a count of at least 1",
        ),
        (
            {"model_type": "llama", "vocab_size": True},
            "config.json of `a`: `vocab_size` is `True`, not a count of at least 1",
        ),
        (
            {"model_type": "llama", "hidden_size": None},
            "config.json of `a`: `hidden_size` is missing",
        ),
        (
            {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 16},
            "config.json of `a`: `head_dim` is `0`, not a count of at least 1",
        ),
        (
            {"model_type": "llama", "mlp_bias": "no"},
            "config.json of `a`: `mlp_bias` is `no`, not true or false",
        ),
        (
            {"model_type": "llama", "attention_dropout": "none"},
            "config.json of `a`: `attention_dropout` is `none`, not a number",
        ),
        (
            {"model_type": "qwen3_moe", "mlp_only_layers": 3},
            "config.json of `a`: `mlp_only_layers` is `3`, not a list of layers",
        ),
    ],
)
def test_a_config_that_cannot_be_counted_is_refused_by_its_key(
    config: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        model_from_config("a", config)
    assert message == refused.value.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7b", 7_000_000_000),
        ("1.5B", 1_500_000_000),
        ("10m", 10_000_000),
        (" 1T ", 10**12),
        ("1.1b", 1_100_000_000),
        ("0b", 0),
        ("b", None),
        ("7", None),
        ("-7b", None),
        ("7bn", None),
        ("gpt2", None),
    ],
)
def test_a_size_is_a_number_and_a_unit(text: str, expected: int | None) -> None:
    assert expected == parse_size(text)


@given(exponent=st.floats(min_value=6, max_value=12))
def test_a_told_size_is_kept_and_has_the_proportions_of_a_transformer(exponent: float) -> None:
    params = round(10**exponent)
    model = model_from_size("told", params)
    shaped = sum(tensor.numel * tensor.copies for tensor in model.tensors)
    assert (params, ModelSource.SIZE) == (model.params, model.source)
    assert shaped == pytest.approx(params, rel=0.02)
    a = model.architecture
    assert a.hidden_size == a.query_size == a.kv_size
    assert 1 <= a.intermediate_size / a.hidden_size <= 6
    assert 32 <= a.hidden_size / a.layers <= 208


# Touvron et al. 2023a table 2; OpenLLaMA 3B; Llama 3 8B, 70B; Llama 3.2 1B; Qwen2.5 14B, 32B.
PUBLISHED = {
    "1b": (2048, 16),
    "3b": (3200, 26),
    "7b": (4096, 32),
    "8b": (4096, 32),
    "13b": (5120, 40),
    "14b": (5120, 48),
    "30b": (6656, 60),
    "32b": (5120, 64),
    "65b": (8192, 80),
    "70b": (8192, 80),
}


@pytest.mark.parametrize(("text", "layout"), PUBLISHED.items())
def test_a_told_size_is_shaped_like_a_published_model(text: str, layout: tuple[int, int]) -> None:
    a = model_from_size(text, parse_size(text) or 0).architecture
    assert layout == pytest.approx((a.hidden_size, a.layers), rel=0.25)


def test_7b_is_the_shape_of_llama_7b() -> None:
    a = model_from_size("7b", 7_000_000_000).architecture
    assert (4096, 32, 32, 128) == (a.hidden_size, a.layers, a.heads, a.head_dim)


@pytest.mark.parametrize("text", ["0b", "0.0m", "10k", "1.1t", "99999t"])
def test_a_size_no_language_model_has_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"`{text}`"):
        model_from_size(text, parse_size(text) or 0)


@pytest.mark.parametrize(
    ("model_type", "key"),
    [("llama", "num_hidden_layers"), ("t5", "num_decoder_layers"), ("llama", "vocab_size")],
)
def test_more_than_a_model_can_have_is_refused(model_type: str, key: str) -> None:
    with pytest.raises(UsageError, match=rf"`{key}` is `{10**18}`, not a count of at most"):
        model_from_config("huge", {"model_type": model_type, key: 10**18})
