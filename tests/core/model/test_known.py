"""The models that people name, and what each name becomes."""

import json
from collections import Counter

import pytest
from paths import MODELS

from zerowiz.core.model.from_name import KnownModel, close_known, find_known
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.probe.package_data import read_known_models

TABLE = read_known_models()
ROWS = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.id)

LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B"
QWEN_7B, MISTRAL = "Qwen/Qwen2.5-7B", "mistralai/Mistral-7B-v0.3"
# What people write, and the model that it means.
WRITTEN = {
    "llama-3.1-8b": LLAMA_8B,
    "Llama 3.1 8B": LLAMA_8B,
    "llama3.1-8b": LLAMA_8B,
    "llama_3.1_8b": LLAMA_8B,
    "llama-3-8b": LLAMA_8B,
    "meta-llama-3-8b-instruct": LLAMA_8B,
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA_8B,
    "meta-llama/Meta-Llama-3-8B": LLAMA_8B,
    "NousResearch/Meta-Llama-3.1-8B": LLAMA_8B,
    "deepseek-r1-distill-llama-8b": LLAMA_8B,
    "llama-3.1-70b": LLAMA_70B,
    "llama-3.3-70b": LLAMA_70B,
    "llama3-70b": LLAMA_70B,
    "LLAMA-3.1-405B": "meta-llama/Llama-3.1-405B",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "llama2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-2-13b-chat": "meta-llama/Llama-2-13b-hf",
    "codellama-34b": "codellama/CodeLlama-34b-hf",
    "qwen2.5-7b": QWEN_7B,
    "Qwen2.5-7B-Instruct": QWEN_7B,
    "qwen-2.5-7b": QWEN_7B,
    "qwen2.5-coder-7b": QWEN_7B,
    "Qwen/Qwen2.5-Math-7B": QWEN_7B,
    "qwq-32b": "Qwen/Qwen2.5-32B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3-4b-instruct": "Qwen/Qwen3-4B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-235b": "Qwen/Qwen3-235B-A22B",
    "mistral-7b": MISTRAL,
    "mistral-7b-instruct": MISTRAL,
    "mistral-7b-v0.1": "mistralai/Mistral-7B-v0.1",
    "Mistral-7B-Instruct-v0.2": "mistralai/Mistral-7B-Instruct-v0.2",
    "8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "mixtral-8x7b-instruct": "mistralai/Mixtral-8x7B-v0.1",
    "mixtral-8x22b": "mistralai/Mixtral-8x22B-Instruct-v0.1",
    "gemma-2-9b-it": "google/gemma-2-9b",
    "gemma2-27b": "google/gemma-2-27b",
    "gemma-3-1b": "google/gemma-3-1b-pt",
    "gemma-7b": "google/gemma-7b",
    "phi-4": "microsoft/phi-4",
    "phi4-mini": "microsoft/Phi-4-mini-instruct",
    "phi-3-mini": "microsoft/Phi-3.5-mini-instruct",
    "phi-3.5-mini": "microsoft/Phi-3.5-mini-instruct",
    "tinyllama": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "tinyllama-1.1b": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M",
    "falcon-40b": "tiiuae/falcon-40b",
    "falcon3-10b": "tiiuae/Falcon3-10B-Base",
    "olmo-2-7b": "allenai/OLMo-2-1124-7B",
    "pythia-1.4b-deduped": "EleutherAI/pythia-1.4b",
    "gpt-neox-20b": "EleutherAI/gpt-neox-20b",
    "opt-1.3b": "facebook/opt-1.3b",
    "gpt2": "openai-community/gpt2",
    "gpt-2-xl": "openai-community/gpt2-xl",
}
# The rows whose config.json lies in this tree as its publisher wrote it.
AS_PUBLISHED = {
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-3.1-8b": LLAMA_8B,
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B",
    "qwen2.5-14b": "Qwen/Qwen2.5-14B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "gemma-2-2b": "google/gemma-2-2b",
    "gemma-3-1b": "google/gemma-3-1b-pt",
    "olmo-2-7b": "allenai/OLMo-2-1124-7B",
    "mistral-7b": "mistralai/Mistral-7B-v0.1",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "phi-3-mini": "microsoft/Phi-3-mini-4k-instruct",
    "falcon-7b": "tiiuae/falcon-7b",
    "falcon-40b": "tiiuae/falcon-40b",
    "gpt-neox-20b": "EleutherAI/gpt-neox-20b",
    "pythia-1.4b": "EleutherAI/pythia-1.4b",
    "opt-1.3b": "facebook/opt-1.3b",
    "gpt2-medium": "openai-community/gpt2-medium",
}


def known(text: str) -> KnownModel:
    row = find_known(text, TABLE)
    assert row is not None
    return row


@pytest.mark.parametrize("text", WRITTEN)
def test_what_people_write_is_a_model(text: str) -> None:
    assert WRITTEN[text] == known(text).id
    if "/" not in text:
        for words in (text.upper(), text.replace("-", "_"), f" {text} "):
            assert WRITTEN[text] == known(words).id


@pytest.mark.parametrize(
    "text",
    ["", "llama", "llama-8b", "8b", "gpt", "bert-base", "org/llama-3.1-8b-mine", "3.1", "it"],
)
def test_what_could_be_several_or_none_is_no_model(text: str) -> None:
    assert find_known(text, TABLE) is None


@pytest.mark.parametrize("folder", AS_PUBLISHED)
def test_a_row_is_the_model_of_its_config_file(folder: str) -> None:
    config = json.loads((MODELS / folder / "config.json").read_text())
    read, row = model_from_config(folder, config), known(AS_PUBLISHED[folder])
    exact = json.loads((MODELS / folder / "exact.json").read_text())
    assert exact["params"] == row.params == read.params
    assert read.tensors == row.build().tensors


@ROWS
def test_each_name_of_a_row_is_that_row(row: KnownModel) -> None:
    for name in (row.id, *row.aliases, row.name.lower()):
        assert row.id == known(name).id


@ROWS
def test_each_row_says_where_it_is_from(row: KnownModel) -> None:
    assert {"config", "params"} == row.source.keys()
    assert row.source["config"].startswith("https://")
    assert row.source["params"].startswith(("https://", "[?] no published total was found"))


@ROWS
def test_transformers_builds_each_row_with_as_many_parameters(row: KnownModel) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = dict(row.config)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert row.params == sum(each.numel() for each in model.parameters())
    assert row.params == row.build().params


def test_there_are_enough_of_them_and_none_is_there_twice() -> None:
    names = Counter(name.lower() for row in TABLE for name in (row.id, *row.aliases))
    assert {1} == set(names.values())
    assert 60 <= len(TABLE)


@pytest.mark.parametrize(
    ("text", "close"),
    [
        ("llama-3.1-9b", "Llama-3.1-8B"),
        ("lama-3.1-8b", "Llama-3.1-8B"),
        ("qwen-7b", "Qwen3-8B"),
        ("Qwen/Qwen2.5-8B", "Qwen2.5-7B"),
        ("mistrl-7b", "Mistral-7B-v0.3"),
        ("mixtral-8x8b", "Mixtral-8x7B-v0.1"),
        ("gemma-2-8b", "gemma-2-9b"),
        ("pythia-1.5b", "pythia-1.4b"),
        ("gpt3", "gpt2"),
    ],
)
def test_each_close_name_is_a_model(text: str, close: str) -> None:
    names = close_known(text, TABLE)
    assert close in names
    for name in names:
        assert name == known(name).name
