"""The config classes of transformers, and configs with other values."""

from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.hf_config import change_config, family_of_class, may_decide_size, sizes

# GPT-SW3 has the class of GPT-2, and its tensors.
SHARED = {"gpt-sw3"}


def test_every_config_class_of_transformers_has_its_own_family_or_none() -> None:
    known = {name: family_of_class(CONFIG_MAPPING[name].__name__) for name in FAMILIES}
    assert known == {name: name for name in FAMILIES}
    others = CONFIG_MAPPING_NAMES.keys() - FAMILIES.keys() - SHARED
    assert {family_of_class(CONFIG_MAPPING_NAMES[name]) for name in others} == {None}
    assert family_of_class("llama") is None
    assert family_of_class("DeepseekV3Config", ["deepseek_v2", "deepseek_v3"]) == "deepseek_v3"


def test_a_size_goes_by_each_name_that_transformers_maps_to_it() -> None:
    for name in FAMILIES:
        aliases = CONFIG_MAPPING[name].attribute_map
        assert {old for old, new in aliases.items() if new in sizes(name)} <= sizes(name), name
    assert {"n_embd", "hidden_size"} <= sizes("gpt2")
    assert "n_embd" not in sizes("llama")
    assert "n_embd" in sizes(None)
    assert not {"use_cache", "bos_token_id"} & sizes(None)
    assert may_decide_size(None, "hidden_size")
    assert not may_decide_size("llama", "state_size")
    assert may_decide_size("mamba", "state_size")
    assert not may_decide_size("mamba", "pad_token_id")


def test_a_value_replaces_the_same_one_under_another_name() -> None:
    config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12}
    assert change_config(config, {"hidden_size": 512}) == {
        "model_type": "gpt2",
        "hidden_size": 512,
        "n_layer": 12,
    }
    unknown = {"model_type": "rwkv", "hidden_size": 1}
    assert change_config(unknown, {"hidden_size": 2}) == {**unknown, "hidden_size": 2}
