"""The sizes of a model that a script builds of its own classes."""

import pytest

from zerowiz.core.script.bindings import OwnModel
from zerowiz.core.script.settings import resolve_script
from zerowiz.probe.script.read import parse_script

HEAD = "from model import GPT, GPTConfig\n"
OPTIONS = """import argparse, deepspeed
p = argparse.ArgumentParser()
p.add_argument("--n_layer", type=int, default=24)
args = p.parse_args()
"""


def own_model(text: str, *words: str) -> OwnModel | None:
    return resolve_script(parse_script(HEAD + text, "train.py"), words).own_model


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("n_layer = 12\nn_embd = 768\nGPT(GPTConfig(**made))", (), (12, 768, 50257)),
        ("GPT(GPTConfig(n_layer=2, n_embd=64, vocab_size=100))", (), (2, 64, 100)),
        ("made = dict(n_layers=2, dim=64)\nGPT(ModelArgs(**made))", (), (2, 64, 50257)),
        (f"{OPTIONS}GPT(GPTConfig(n_layer=args.n_layer, n_embd=64))", (), (24, 64, 50257)),
        (
            f"{OPTIONS}GPT(GPTConfig(n_layer=args.n_layer, n_embd=64))",
            ("--n_layer", "3"),
            (3, 64, 50257),
        ),
        ("n_layer = 12\nGPT(GPTConfig(n_embd=width()))", (), None),
        ("n_layer = 12\nn_embd = 64\nn_embd = 32", (), None),
        # An LSTM is no GPT.
        ("num_layers = 2\nhidden_size = 64", (), None),
        ("from transformers import GPT2Config\nGPT2Config(n_layer=2, n_embd=64)", (), None),
    ],
)
def test_the_sizes_are_those_that_its_config_gets(
    text: str, words: tuple[str, ...], expected: tuple[int, int, int] | None
) -> None:
    found = own_model(text, *words)
    assert expected == (found and (found.layers, found.hidden_size, found.vocab_size))


def test_a_gpt_of_nanogpts_sizes_has_as_many_parameters_as_it_says() -> None:
    # nanoGPT, README.md: 124M, and GPT-2 of the same shape.
    found = own_model("n_layer = 12\nn_embd = 768\n")
    assert found is not None
    assert 124 == round(found.parameters / 10**6)
    assert "`n_layer = 12` in train.py line 2, `n_embd = 768` in train.py line 3" == found.source
