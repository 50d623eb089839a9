"""What people call a choice, and the choice that it is."""

import pytest

from zerowiz.app.options import STAGES, Options, choices_of, kind_of, rows, with_plain
from zerowiz.core.command_words import SYNONYMS, canonical_choice
from zerowiz.core.workload import Precision
from zerowiz.errors import UsageError

PRECISIONS = tuple(Precision)


@pytest.mark.parametrize(
    ("key", "choices", "said", "expected"),
    [
        *(("stage", STAGES, f"{word}3", "3") for word in ("zero", "ZeRO-", "stage ", "zero_", "")),
        ("stage", STAGES, "ddp", "0"),
        ("stage", STAGES, "AUTO", "auto"),
        ("stage", STAGES, "zero4", "zero4"),
        ("precision", PRECISIONS, "bfloat16", "bf16"),
        ("precision", PRECISIONS, "torch.bfloat16", "bf16"),
        ("precision", PRECISIONS, "BF16", "bf16"),
        ("precision", PRECISIONS, "float32", "fp32"),
        ("precision", PRECISIONS, "half", "fp16"),
        ("precision", PRECISIONS, "fp8", "fp8"),
    ],
)
def test_a_word_is_the_choice_that_it_means(
    key: str, choices: tuple[str, ...], said: str, expected: str
) -> None:
    assert expected == canonical_choice(key, said, choices)


def test_each_synonym_is_one_of_a_choice_that_is_there() -> None:
    by_key = {row.key: (name, row) for name, row in rows().items()}
    for key, words in SYNONYMS.items():
        name, row = by_key[key]
        hint = Options.__annotations__[name].__args__[0]
        choices = choices_of(kind_of(hint), row)
        assert set(words.values()) <= set(choices)
        assert all(word == word.lower() and word.isalnum() for word in words)


def test_the_python_api_takes_the_same_words() -> None:
    options = with_plain(Options(), {"stage": "zero3", "precision": "bfloat16"})
    assert ("3", Precision.BF16) == (options.stage, options.precision)
    with pytest.raises(UsageError, match="fp8"):
        with_plain(Options(), {"precision": "fp8"})
