"""A model that a script builds of a config in its code is planned as the script builds it."""

import json
import runpy
from pathlib import Path

import pytest
import torch
from cli.harness import Run
from core.model.test_from_name import AS_PUBLISHED
from paths import MODELS

import zerowiz

IMPORTS = """\
from transformers import (
    AutoConfig, AutoModelForCausalLM, BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel,
    LlamaConfig, LlamaForCausalLM, PreTrainedConfig, Trainer, TrainingArguments,
)
"""
TRAINS = """
args = TrainingArguments("out", per_device_train_batch_size=1, bf16=True)
Trainer(model=model, args=args).train()
"""
PLAN = ("plan", "--json", "--machine", "2xH100-80GB-SXM", "--seq-len", "128")

BUILT = {
    "its class": """
HIDDEN = 256
config = LlamaConfig(hidden_size=HIDDEN, intermediate_size=3 * HIDDEN, num_hidden_layers=3,
                     num_attention_heads=4, num_key_value_heads=2, vocab_size=1000, use_cache=False)
model = LlamaForCausalLM(config)
""",
    "a dict": """
SHAPE = {"n_embd": 128, "n_layer": 2, "n_head": 4}
model = GPT2LMHeadModel(GPT2Config(**SHAPE, vocab_size=500))
""",
    "another name": """
model = GPT2LMHeadModel(config=GPT2Config(hidden_size=128, num_hidden_layers=2, n_head=4))
""",
    "a model type": """
config = AutoConfig.for_model("qwen2", hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
                              num_key_value_heads=4, intermediate_size=512)
model = AutoModelForCausalLM.from_config(config, dtype="bfloat16")
""",
    "values that are set later": """
config = BertConfig()
config.num_hidden_layers = 2
config.pad_token_id = args_of_nobody
model = BertForMaskedLM(config)
""",
    "the config of a model": """
config = AutoConfig.from_pretrained("own-model", num_hidden_layers=2, hidden_size=512)
config.num_attention_heads = 8
model = AutoModelForCausalLM.from_config(config)
""",
    "a function": """
def build(layers):
    config = LlamaConfig(hidden_size=256, num_hidden_layers=layers, num_attention_heads=4)
    return LlamaForCausalLM(config)
model = build(2)
""",
}


def _params(folder: Path, script: str) -> int:
    """As transformers builds it, without memory."""
    (folder / "build.py").write_text(IMPORTS + script, encoding="utf-8")
    with torch.device("meta"):
        names = runpy.run_path(str(folder / "build.py"), {"args_of_nobody": 0})
    return sum(each.numel() for each in names["model"].parameters())


@pytest.fixture
def own_model(folder: Path) -> None:
    """A model in the folder that a script may name."""
    (folder / "own-model").mkdir()
    config = (MODELS / "qwen2.5-0.5b" / "config.json").read_text("utf-8")
    (folder / "own-model" / "config.json").write_text(config, encoding="utf-8")


@pytest.mark.usefixtures("own_model")
@pytest.mark.parametrize("script", BUILT.values(), ids=BUILT)
def test_a_plan_counts_the_model_as_transformers_builds_it(
    here: Run, folder: Path, script: str
) -> None:
    (folder / "own.py").write_text(IMPORTS + script + TRAINS, encoding="utf-8")
    result = here(*PLAN, "own.py")
    assert result.code == 0, result.stderr
    assert json.loads(result.stdout)["model"]["params"] == _params(folder, script)
    assert "note: the script builds its model with new weights, by `" in result.stderr
    assert "` in own.py line " in result.stderr
    assert "Unseen" not in here("launch", "--dry-run", "--yes", *PLAN[2:], "own.py").stdout


def test_a_model_of_an_unknown_family_is_traced_as_it_is_built(here: Run, folder: Path) -> None:
    script = """
from transformers import StableLmConfig, StableLmForCausalLM
config = StableLmConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                        num_attention_heads=4, num_key_value_heads=4, vocab_size=len(tokenizer),
                        pad_token_id=pad)
model = StableLmForCausalLM(config)
"""
    (folder / "own.py").write_text(IMPORTS + script + TRAINS, encoding="utf-8")
    result = here(*PLAN, "own.py")
    assert result.code == 0, result.stderr
    whole = script.replace("len(tokenizer)", "50304").replace("pad_token_id=pad", "")
    assert json.loads(result.stdout)["model"]["params"] == _params(folder, whole)
    assert "by `StableLmConfig(...)` in own.py line 7; assumed the default of `vocab_size`" in (
        result.stderr
    )


def test_words_after_the_script_decide_what_its_options_do(here: Run, folder: Path) -> None:
    script = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--width", type=int)
words = parser.parse_args()
config = LlamaConfig(hidden_size=words.width, num_hidden_layers=words.layers,
                     num_attention_heads=4, vocab_size=1000)
model = LlamaForCausalLM(config)
"""
    (folder / "own.py").write_text(IMPORTS + script + TRAINS, encoding="utf-8")

    def layers(*words: str) -> int:
        params: int = json.loads(here(*PLAN, "own.py", *words).stdout)["model"]["params"]
        return params

    two, four = layers("--width", "256"), layers("--width", "256", "--layers", "4")
    each = 2 * 256 + 4 * 256 * 256 + 3 * 256 * 11008
    assert four - two == 2 * each
    # The width decides the size, and has no default.
    result = here(*PLAN, "own.py")
    assert result.code == 3
    assert "Which model?" in result.problem


@pytest.mark.usefixtures("own_model")
def test_a_base_that_an_option_names_is_changed_too(here: Run, folder: Path) -> None:
    script = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--base")
words = parser.parse_args()
config = AutoConfig.from_pretrained(words.base, num_hidden_layers=2)
model = AutoModelForCausalLM.from_config(config)
"""
    (folder / "own.py").write_text(IMPORTS + script + TRAINS, encoding="utf-8")
    by_word = here(*PLAN, "own.py", "--base", "own-model")
    by_option = here(*PLAN, "--model", "own-model", "own.py")
    two, two_too = (json.loads(each.stdout)["model"]["params"] for each in (by_word, by_option))
    assert two == two_too
    # Of 24 layers, with an embedding of 151936 x 896.
    assert 151936 * 896 < two < 200_000_000
    assert here(*PLAN, "own.py").code == 3


def test_a_vocabulary_of_a_tokenizer_is_assumed(here: Run, folder: Path) -> None:
    script = """
config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=256, num_attention_heads=4)
model = LlamaForCausalLM(config)
"""
    (folder / "own.py").write_text(IMPORTS + script + TRAINS, encoding="utf-8")
    result = here(*PLAN, "own.py")
    said = "assumed `vocab_size` 32000; the script takes it from `LlamaConfig(vocab_size=len(tokenizer))`"
    assert said in result.stderr
    assert result.code == 0


UNREAD = {
    "a size that is worked out": "config = LlamaConfig(hidden_size=find_size())",
    "a dict that is not seen": "config = LlamaConfig(**shape)",
    "one of two": "config = LlamaConfig()\nif big:\n    config = LlamaConfig(hidden_size=8192)",
    "a condition": "config = LlamaConfig()\nif big:\n    config.hidden_size = 8192",
    "set twice": "config = LlamaConfig()\nconfig.hidden_size = 64\nconfig.hidden_size = 128",
    "updated": "config = LlamaConfig()\nconfig.update(shape)",
    "an unknown class": "config = PreTrainedConfig(hidden_size=64)",
    "a changed base": 'config = AutoConfig.from_pretrained("own-model", num_hidden_layers=find())',
}


@pytest.mark.usefixtures("own_model")
@pytest.mark.parametrize("config", UNREAD.values(), ids=UNREAD)
def test_a_model_whose_size_is_not_seen_is_asked_for(here: Run, folder: Path, config: str) -> None:
    text = f"{IMPORTS}{config}\nmodel = LlamaForCausalLM(config)\n{TRAINS}"
    (folder / "own.py").write_text(text, encoding="utf-8")
    result = here(*PLAN, "own.py")
    assert result.code == 3
    assert "Which model?" in result.problem


def test_the_value_that_is_not_seen_is_named(here: Run, folder: Path) -> None:
    config = "config = LlamaConfig(num_hidden_layers=2)\nconfig.hidden_size = find_size()"
    text = f"{IMPORTS}{config}\nmodel = LlamaForCausalLM(config)\n{TRAINS}"
    (folder / "own.py").write_text(text, encoding="utf-8")
    said = (
        "hint: zerowiz cannot read `config.hidden_size = find_size()` in own.py line 6, which"
        " decides the size of the model"
    )
    for command in (("plan",), ("launch", "--dry-run", "--yes")):
        result = here(*command, "--machine", "2xH100-80GB-SXM", "own.py")
        assert said in result.stderr
        assert result.code == 3


def test_a_model_beside_the_one_that_is_trained_does_not_count(here: Run, folder: Path) -> None:
    script = """
ref_model = LlamaForCausalLM(LlamaConfig(hidden_size=8192))
model = LlamaForCausalLM(LlamaConfig(hidden_size=256, num_hidden_layers=2, num_attention_heads=4))
"""
    (folder / "own.py").write_text(IMPORTS + script + TRAINS, encoding="utf-8")
    params = json.loads(here(*PLAN, "own.py").stdout)["model"]["params"]
    assert params == _params(folder, script)


def test_a_default_length_is_no_longer_than_the_model_was_made_for(here: Run, folder: Path) -> None:
    script = """
config = LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=64)
model = LlamaForCausalLM(config)
"""
    (folder / "own.py").write_text(IMPORTS + script + TRAINS, encoding="utf-8")
    result = here(*PLAN[:4], "own.py")
    assert json.loads(result.stdout)["workload"]["sequence_tokens"] == 64
    assert "assumed 64 tokens per sequence, its positions (`--seq-len`)" in result.stderr
    assert (
        json.loads(here(*PLAN[:4], "--model", "7b", "own.py").stdout)["workload"]["sequence_tokens"]
        == 2048
    )


@pytest.mark.usefixtures("own_model")
def test_a_named_model_is_planned_instead_and_the_plan_says_so(here: Run, folder: Path) -> None:
    (folder / "own.py").write_text(IMPORTS + BUILT["its class"] + TRAINS, encoding="utf-8")
    for model in ("own-model", "7b"):
        result = here(*PLAN, "--model", model, "own.py")
        assert (
            f"the plan is for `--model {model}`, but the script builds another model, by"
            " `LlamaConfig(...)` in own.py line 7" in result.stderr
        )
    (folder / "own.py").write_text(IMPORTS + BUILT["the config of a model"] + TRAINS, "utf-8")
    result = here(*PLAN, "--model", "own-model", "own.py")
    assert "the plan is for" not in result.stderr
    assert json.loads(result.stdout)["model"]["params"] < 100_000_000


def test_weights_in_a_folder_of_the_same_name_are_not_those_of_a_new_model(
    here: Run, folder: Path
) -> None:
    (folder / "llama").mkdir()
    (folder / "llama" / "model.safetensors").write_bytes(b"broken")
    (folder / "own.py").write_text(IMPORTS + BUILT["its class"] + TRAINS, encoding="utf-8")
    assert here(*PLAN, "own.py").code == 0


IMAGES = '{"model_type": "vit", "image_size": 64, "patch_size": 16}'
CLASSIFIES = """\
from transformers import AutoModelForImageClassification, Trainer, TrainingArguments

args = TrainingArguments(per_device_train_batch_size=4, bf16=True)
model = AutoModelForImageClassification.from_pretrained("vit")
Trainer(model=model, args=args).train()
"""


@pytest.mark.parametrize(
    ("words", "tokens"), [((), 17), (("--objective", "fastest"), 17), (("--seq-len", "99"), 99)]
)
def test_a_sequence_of_patches_is_as_long_as_the_images_make_it(
    here: Run, folder: Path, words: tuple[str, ...], tokens: int
) -> None:
    (folder / "vit").mkdir()
    (folder / "vit" / "config.json").write_text(IMAGES)
    (folder / "train.py").write_text(CLASSIFIES)
    result = here("plan", "--machine", "2xA100-40GB-SXM", *words, "train.py")
    assert 0 == result.code, result.stderr
    assert f" x {tokens} tokens per GPU" in result.stdout
    assert ("--seq-len" in result.stderr) is (tokens > 17)


# A model by its name is planned as by its config.json.


# One of each kind of shape; each row is compared in `tests/core/model/test_from_name.py`.
@pytest.mark.parametrize(
    "folder", ["mistral-7b", "mixtral-8x7b", "qwen2.5-14b", "gemma-2-2b", "gpt2-medium"]
)
def test_a_known_name_is_planned_as_its_config_file(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    named, read = (
        zerowiz.plan("8xH200", model=model, sequence_tokens=1024, trace=False).to_dict()
        for model in (AS_PUBLISHED[folder], str(MODELS / folder))
    )
    assert named["strategies"] == read["strategies"]
