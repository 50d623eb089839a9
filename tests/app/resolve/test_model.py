"""A model that a script builds of a config in its code is planned as the script builds it."""

import json
from pathlib import Path

import pytest
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


@pytest.fixture
def own_model(folder: Path) -> None:
    """A model in the folder that a script may name."""
    (folder / "own-model").mkdir()
    config = (MODELS / "qwen2.5-0.5b" / "config.json").read_text("utf-8")
    (folder / "own-model" / "config.json").write_text(config, encoding="utf-8")


UNREAD = {
    "its class": "config = LlamaConfig(hidden_size=256, num_hidden_layers=3)",
    "a model type": 'config = AutoConfig.for_model("qwen2", hidden_size=128)',
    "values that are set later": """
config = AutoConfig.from_pretrained("own-model")
config.num_hidden_layers = 2
""",
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
def test_a_model_that_the_script_builds_of_a_config_of_its_own_is_asked_for(
    here: Run, folder: Path, config: str
) -> None:
    text = f"{IMPORTS}{config}\nmodel = LlamaForCausalLM(config)\n{TRAINS}"
    (folder / "own.py").write_text(text, encoding="utf-8")
    result = here(*PLAN, "own.py")
    assert result.code == 3
    assert "Which model?" in result.problem


def test_a_default_length_is_no_longer_than_the_model_was_made_for(here: Run, folder: Path) -> None:
    (folder / "own-model").mkdir()
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 64}
    config = json.dumps({"model_type": "llama", **sizes})
    (folder / "own-model" / "config.json").write_text(config, encoding="utf-8")
    script = 'model = AutoModelForCausalLM.from_pretrained("own-model")'
    (folder / "own.py").write_text(IMPORTS + script + TRAINS, encoding="utf-8")
    result = here(*PLAN[:4], "own.py")
    assert json.loads(result.stdout)["workload"]["sequence_tokens"] == 64
    assert "assumed 64 tokens per sequence, its positions (`--seq-len`)" in result.stderr


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
    result = here("plan", "--machine", "2xA100-40GB-SXM", *words, "train.py").good
    assert f" images, {tokens} tokens each" in result.stdout
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


OWN = """\
import argparse, deepspeed
from model import GPT, GPTConfig
p = deepspeed.add_config_arguments(argparse.ArgumentParser())
p.add_argument("--n_layer", type=int, default=6)
p.add_argument("--lr", type=float, default=1e-4)
args = p.parse_args()
model = GPT(GPTConfig(n_layer=args.n_layer, n_embd=384, vocab_size=50304))
deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
"""


def test_a_model_of_own_classes_is_a_gpt_of_the_sizes_that_the_script_shows(
    here: Run, folder: Path
) -> None:
    (folder / "own.py").write_text(OWN, encoding="utf-8")
    result = here(*PLAN, "own.py", "--n_layer", "3")
    model = json.loads(result.stdout)["model"]
    # Of each layer 12 squares of the width, and embedding and head beside.
    assert 3 * 12 * 384**2 + 2 * 50304 * 384 == pytest.approx(model["params"], rel=1e-3)
    assert (
        "assumed a GPT of the script's own sizes (`--n_layer 3` after the script, " in result.stderr
    )
    named = json.loads(here(*PLAN, "--model", model["name"]).stdout)["model"]
    assert named == model
    other = json.loads(here(*PLAN, "--model", "gpt2", "own.py").stdout)["model"]
    assert "gpt2" == other["name"]


LITERAL = """\
import argparse, deepspeed, torch
from torch import nn
p = deepspeed.add_config_arguments(argparse.ArgumentParser())
p.add_argument("--batch_size", type=int, default=4)
args = p.parse_args()
class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(50257, 256)
        self.wpe = nn.Embedding(128, 256)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
deepspeed.initialize(args=args, model=model, optimizer=optimizer)
"""


@pytest.mark.parametrize(
    ("text", "made", "way", "other"),
    [
        (LITERAL, "`GPT()` in own.py line 11", "`--model 10m`", "save_pretrained"),
        (
            f"{IMPORTS}model = LlamaForCausalLM(LlamaConfig())\n{TRAINS}",
            "`LlamaForCausalLM(LlamaConfig())` in own.py line 5",
            'save_pretrained("my-model")',
            "`--model 10m`",
        ),
    ],
)
def test_the_error_names_the_line_that_makes_the_model_and_the_way_that_fits_it(
    here: Run, folder: Path, text: str, made: str, way: str, other: str
) -> None:
    (folder / "own.py").write_text(text, encoding="utf-8")
    for command in ("plan", "launch --dry-run --yes"):
        result = here(*command.split(), *PLAN[2:], "own.py")
        assert result.code == 3
        assert f"{made} makes the model, and zerowiz does not read its size there" in result.stderr
        assert way in result.stderr
        assert other not in result.stderr


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (LITERAL, "`nn.Embedding(128)` in own.py line 10"),
        (
            f"{IMPORTS}c = LlamaConfig(n_positions=128)\nmodel = LlamaForCausalLM(c)\n{TRAINS}",
            "`LlamaConfig(n_positions=128)` in own.py line 5",
        ),
    ],
)
def test_a_model_that_the_script_builds_has_its_own_positions_whatever_stands_for_it(
    here: Run, folder: Path, text: str, where: str
) -> None:
    (folder / "own.py").write_text(text, encoding="utf-8")
    words = (*PLAN[:4], "--model", "10m", "--micro-batch", "1")
    result = here(*words, "own.py")
    assert 128 == json.loads(result.stdout)["workload"]["sequence_tokens"]
    assert f"128 tokens per sequence, the positions of {where} (`--seq-len`)" in result.stderr
    longer = here(*words, "--seq-len", "256", "own.py")
    assert 256 == json.loads(longer.stdout)["workload"]["sequence_tokens"]
