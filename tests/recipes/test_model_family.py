"""The recipe `a model family`: SmolLM3, a Llama whose every fourth layer has no positions."""

import json

import pytest
from recipes.copying import Copy, read_recipes

pytestmark = pytest.mark.slow

TABLE = "zerowiz/core/model/families.py"
COUNTS = "tests/core/model/test_types.py"
PAGE = "docs/concepts/memory.md"
KEPT = "tests/core/memory/forward/test_activations.py"

# transformers 5.23, models/smollm3/configuration_smollm3.py.
ROW = """\
    "smollm3": Family(
        defaults={
            **_LLAMA,
            "vocab_size": 128256,
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "sliding_window": None,
            "layer_types": None,
        },
        switches={**_TIED, **_BIASED, **_SLIDES, "mlp_bias": False},
        tensors=_LLAMA_TENSORS,
    ),
"""
UNMEASURED = "        tensors=_LLAMA_TENSORS,\n        measured=False,\n"
COUNTED = """\
    "smollm3": [
        {},
        SMALL | {"pad_token_id": 0, "num_key_value_heads": 3} | BIASED,
        GROUPED | {"pad_token_id": 0} | UNTIED,
    ],
"""
HELD = """\
    "smollm3": [GROUPED | {"pad_token_id": 0}],
"""


def plan(copied: Copy) -> dict[str, dict[str, object]]:
    """The plan of a model of the family, of which its config says next to nothing."""
    model = copied.root.parent / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text('{"model_type": "smollm3"}', encoding="utf-8")
    done = copied.zerowiz(
        *("plan", "--machine", "8xH200", "--model", str(model), "--no-trace", "--json")
    )
    planned: dict[str, dict[str, object]] = json.loads(done.stdout)
    return planned


def test_a_model_family_touches_the_table_and_is_held_against_transformers(copied: Copy) -> None:
    recipe = read_recipes()["a model family"]
    assert "error" in plan(copied)

    copied.insert(TABLE, ROW, before='    "olmo2": Family(')
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.edit(TABLE, ROW, ROW.replace("        tensors=_LLAMA_TENSORS,\n", UNMEASURED))
    copied.insert(COUNTS, COUNTED, before='    "olmo2": [')
    copied.insert(KEPT, HELD, before='    "olmo2": [')
    copied.make_blocks(PAGE)
    planned = plan(copied)
    # 3.08 B parameters: https://huggingface.co/HuggingFaceTB/SmolLM3-3B.
    assert ("config", 3_075_098_624) == (planned["model"]["source"], planned["model"]["params"])
    assert set() == copied.failed("-k", "smollm3", COUNTS, KEPT)
    assert set() == copied.failed(*recipe.tests)
    copied.check_files(recipe)
