"""A model of an unknown family: what is guessed, and how far that is from the truth."""

import json
from collections.abc import Mapping
from functools import cache
from statistics import median
from typing import Any

import pytest
from paths import MODELS

from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.model.from_name import Stored, StoredTensor, guess_model, is_unknown, settle_guess
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.strategies import ZERO2
from zerowiz.core.workload import Workload
from zerowiz.errors import UsageError
from zerowiz.probe.package_data import read_gpu_table

H200S = parse_spec("4xH200", read_gpu_table())
# Said to be no Llama: an encoder-decoder and a model of images.
REFUSED = {"t5", "vit"}
SIZES: dict[str, object] = {
    "model_type": "unheard_of",
    "hidden_size": 60,
    "intermediate_size": 101,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 77,
    "tie_word_embeddings": False,
}
# The same in the words of GPT-2's relatives.
IN_OTHER_WORDS: dict[str, object] = {
    "model_type": "unheard_of",
    "n_embd": 60,
    "ffn_hidden_size": 101,
    "n_layer": 3,
    "n_head": 6,
    "num_kv_heads": 2,
    "vocab_size": 77,
    "tie_word_embeddings": False,
}


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((MODELS / name / "config.json").read_text())
    return content


NAMES = sorted(
    folder.name for folder in MODELS.iterdir() if read(folder.name)["model_type"] not in REFUSED
)


@cache
def both(name: str) -> tuple[Model, Model]:
    """The model as it is, and as it is guessed when nobody knows its family."""
    config = read(name)
    guessed = guess_model(name, {**config, "model_type": "unheard_of"})
    return model_from_config(name, config), guessed


def peak_bytes(model: Model, micro_batch: int) -> int:
    # Since 5.21 transformers runs Gemma 2 with eager attention, which no guess foresees.
    workload = Workload(micro_batch=micro_batch, sequence_tokens=512, transformers_version=(5, 20))
    return evaluate(
        PlanInput(machine=H200S, model=model, workload=workload), ZERO2
    ).estimate.peak_bytes


def peak_error(name: str, micro_batch: int) -> float:
    true, guessed = both(name)
    return peak_bytes(guessed, micro_batch) / peak_bytes(true, micro_batch) - 1


def params_error(name: str) -> float:
    true, guessed = both(name)
    return guessed.params / true.params - 1


@pytest.mark.parametrize("name", NAMES)
def test_a_guess_says_that_it_is_one(name: str) -> None:
    assert ModelSource.GUESS is both(name)[1].source


@pytest.mark.parametrize("name", NAMES)
def test_guessed_parameters_are_near_the_true_ones(name: str) -> None:
    # Worst is OPT-350M, whose embedding is narrower than its blocks: +6.7 %.
    assert 0 == pytest.approx(params_error(name), abs=0.07)


@pytest.mark.parametrize("name", NAMES)
def test_a_guessed_peak_of_model_states_is_near_the_true_one(name: str) -> None:
    # Worst are the encoders, which cast no logits to fp32: RoBERTa +19.1 %.
    assert -0.06 < peak_error(name, micro_batch=1) < 0.20


@pytest.mark.parametrize("name", NAMES)
def test_a_guessed_peak_of_activations_is_further_off(name: str) -> None:
    # RoBERTa +50.7 %; Falcon 7B, whose one key head each query head repeats, -18.8 %.
    assert -0.20 < peak_error(name, micro_batch=8) < 0.51


def test_most_models_are_llamas() -> None:
    assert median(abs(params_error(name)) for name in NAMES) < 0.001
    assert median(abs(peak_error(name, micro_batch=1)) for name in NAMES) < 0.002
    # Qwen3-32B -5.2 %; Phi-3 and GPT-NeoX, whose attention keeps a copy, lie around it.
    assert median(abs(peak_error(name, micro_batch=8)) for name in NAMES) < 0.06


def test_the_sizes_are_read_however_they_are_spelled() -> None:
    as_llama = model_from_config("a", {**SIZES, "model_type": "llama"})
    for config in (SIZES, IN_OTHER_WORDS, {"model_type": "wrapper", "text_config": SIZES}):
        guessed = guess_model("a", config)
        assert as_llama.tensors == guessed.tensors
        assert as_llama.params == guessed.params


def test_a_known_language_model_in_an_unknown_one_is_counted_as_itself() -> None:
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}
    guessed = guess_model("a", config)
    assert model_from_config("a", {"model_type": "gemma3_text"}).params == guessed.params
    assert ModelSource.GUESS is guessed.source


def test_embeddings_are_tied_where_nothing_is_said() -> None:
    silent = {key: value for key, value in SIZES.items() if key != "tie_word_embeddings"}
    assert 77 * 60 == guess_model("a", SIZES).params - guess_model("a", silent).params


def test_an_mlp_without_a_gate_has_two_matrices() -> None:
    gated, plain = (
        guess_model("a", {**SIZES, "intermediate_size": 240, "hidden_act": act}).params
        for act in ("silu", "gelu")
    )
    assert 3 * 60 * 240 == gated - plain


def test_experts_are_counted_where_they_are_told() -> None:
    told = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 35}
    a = guess_model("a", {**SIZES, **told}).architecture
    assert (5, 2, 35, 3) == (a.experts, a.experts_per_token, a.intermediate_size, a.expert_layers)
    in_other_words = {"n_routed_experts": 5, "moe_topk": 2, "moe_intermediate_size": 35}
    deepseek = {**SIZES, **in_other_words, "first_k_dense_replace": 1, "n_shared_experts": 2}
    a = guess_model("a", deepseek).architecture
    assert (5, 2, 35, 2) == (a.experts, a.experts_per_token, a.intermediate_size, a.expert_layers)
    assert 70 == a.shared_expert_intermediate_size


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, "`hidden_size` is missing"),
        ({"hidden_size": 8, "num_hidden_layers": 1}, "`num_attention_heads` is missing"),
        (
            {**SIZES, "is_encoder_decoder": True},
            "zerowiz does not estimate unknown encoder-decoders",
        ),
        ({"hidden_size": 8, "image_size": 224}, "zerowiz does not estimate unknown image models"),
        ({"text_config": {"hidden_size": 8}}, "`num_hidden_layers` is missing"),
    ],
)
def test_what_tells_too_little_is_refused_with_the_reason(
    config: Mapping[str, object], why: str
) -> None:
    with pytest.raises(UsageError) as refused:
        guess_model("a", {**config, "model_type": "unheard_of"})
    assert (
        f"config.json of `a`: `unheard_of` is not supported yet, and {why}" == refused.value.message
    )


@pytest.mark.parametrize(
    "junk",
    [
        {"hidden_size": "wide"},
        {"hidden_act": ["gelu"]},
        {"num_experts": [8, 8], "num_experts_per_tok": 2},
        {"intermediate_size": {}},
        {"text_config": {"model_type": ["llama"], "vocab_size": 0}},
    ],
)
def test_junk_is_refused_and_never_a_crash(junk: Mapping[str, object]) -> None:
    with pytest.raises(UsageError, match=r"config\.json of `a`"):
        guess_model("a", {**SIZES, **junk})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "unheard_of"}, True),
        ({"model_type": "llama"}, False),
        ({"model_type": "llama", "text_config": {}}, True),
        ({}, False),
        ({"model_type": ["llama"]}, False),
    ],
)
def test_a_family_without_formulas_is_unknown(
    config: Mapping[str, object], *, expected: bool
) -> None:
    assert expected == is_unknown(config)


def stored(dtype: str) -> Stored:
    return Stored(tensors=(StoredTensor(name="a.weight", dtype=dtype, shape=(100, 90)),))


def test_a_checkpoint_tells_the_true_count() -> None:
    model = settle_guess(guess_model("a", SIZES), stored("BF16"))
    assert (9000, ModelSource.GUESS) == (model.params, model.source)


@pytest.mark.parametrize("held", [None, stored("I32"), Stored(tensors=())])
def test_packed_weights_and_none_tell_nothing(held: Stored | None) -> None:
    model = guess_model("a", SIZES)
    assert model == settle_guess(model, held)
