"""A size: the Llama that stands for it, and the heaviest model that has it."""

import pytest

from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.model.types import ModelSource

# Layers and hidden size in the config.json of each Gemma 3, by its parameters.
GEMMAS = {
    270_000_000: (18, 640),
    1_000_000_000: (26, 1152),
    4_000_000_000: (34, 2560),
    12_000_000_000: (48, 3840),
    27_000_000_000: (62, 5376),
}


@pytest.mark.parametrize("params", [10**6, 10**7, 3 * 10**8, 10**9, 7 * 10**9, 10**11, 10**12])
def test_both_models_of_a_size_have_its_parameters(params: int) -> None:
    model = model_from_size("a", params)
    assert model.heaviest is not None
    for each in (model, model.heaviest):
        assert (params, ModelSource.SIZE) == (each.params, each.source)
        tensors = sum(tensor.numel * tensor.copies for tensor in each.tensors)
        assert params == pytest.approx(tensors, rel=0.02)


@pytest.mark.parametrize("params", [2 * 10**8, 10**9, 7 * 10**9, 10**11])
def test_the_heaviest_of_a_size_has_a_far_larger_vocabulary(params: int) -> None:
    model = model_from_size("a", params)
    assert model.heaviest is not None
    stand_in, heaviest = model.architecture, model.heaviest.architecture
    assert ("llama", 32000) == (stand_in.family, stand_in.vocab_size)
    assert ("gemma3_text", True) == (heaviest.family, heaviest.vocab_size > 6 * 32000)


@pytest.mark.parametrize("params", GEMMAS)
def test_the_heaviest_of_a_size_has_the_proportions_of_a_published_gemma(params: int) -> None:
    heaviest = model_from_size("a", params).heaviest
    assert heaviest is not None
    a, (layers, hidden_size) = heaviest.architecture, GEMMAS[params]
    assert 0.6 < a.hidden_size / hidden_size < 1.4
    assert 0.7 < a.layers * a.hidden_size / (layers * hidden_size) < 1.6
