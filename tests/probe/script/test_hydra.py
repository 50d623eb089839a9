"""Hold what is read of Hydra's files against what hydra 1.3.8 composes of them."""

from pathlib import Path

import pytest

from zerowiz.core.script.config_delivery import deliver
from zerowiz.core.script.facts import read_said
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.workload import Precision
from zerowiz.probe.script.read_script import read_script

SCRIPT = """import hydra
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    args = TrainingArguments("o", per_device_train_batch_size=cfg.train.batch, bf16=cfg.train.bf16,
        learning_rate=cfg.lr, deepspeed=cfg.deepspeed)
    Trainer(model=AutoModelForCausalLM.from_pretrained(cfg.model.name), args=args).train()
main()
"""
FILES = {
    "config.yaml": (
        "defaults:\n  - train: small\n  - extra\n  - optional missing: none\n"
        "  - override hydra/job_logging: default\nlr: 2e-5\ndeepspeed: null\nmodel:\n  name: gpt2\n"
        "copy: ${lr}\n"
    ),
    "other.yaml": "defaults: null\nlr: 1e-3\n",
    "placed.yaml": "defaults:\n  - train: placed\nlr: 1\n",
    "extra.yaml": "lr: 99\nseed: 1\n",
    "train/small.yaml": "defaults:\n  - kind: full\nbatch: 3\nbf16: true\n",
    "train/large.yaml": "defaults:\n  - _self_\n  - /extra\nbatch: 8\nbf16: false\n",
    "train/placed.yaml": "# @package _global_\nlr: 4\n",
    "train/kind/full.yaml": "name: full\n",
}
SMALL = {
    "train.kind.name": "full",
    "train.batch": 3,
    "train.bf16": True,
    "lr": 2e-5,
    "seed": 1,
    "deepspeed": None,
    "model.name": "gpt2",
    "copy": None,
}
"""`copy` is made of another key, and so not known."""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        path = tmp_path / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    Path("train.py").write_text(SCRIPT, encoding="utf-8")
    return Path("train.py")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), SMALL),
        (("train.batch=5", "+lr=3"), {**SMALL, "train.batch": 5, "lr": 3.0}),
        (("train/kind=full",), SMALL),
        (("--config-name", "other"), {"lr": 1e-3}),
        (("-cn=other.yaml",), {"lr": 1e-3}),
        # What is not read: keys that go elsewhere, groups that are added, files that are not there.
        (("--config-name", "placed"), {}),
        (("+train=large",), {}),
        (("~train",), {}),
        (("train@a=large",), {}),
        (("train=unknown",), {}),
        (("--config-path", "elsewhere"), {}),
    ],
)
def test_the_keys_are_those_that_hydra_composes(
    script: Path, words: tuple[str, ...], expected: dict[str, object]
) -> None:
    facts = read_script(script, words)
    values: dict[str, object] = {option.dest: option.default for option in facts.parser.options}
    values |= {key: given.value for key, given in read_said(facts, words).items()}
    assert expected == values
    assert facts.parser.refuses_local_rank(words), "whatever its files say"


def test_a_group_brings_files_into_its_own_package(script: Path) -> None:
    facts = read_script(script, ("train=large",))
    found = {option.dest: option.default for option in facts.parser.options}
    assert (8, False, 1) == (found["train.batch"], found["train.bf16"], found["train.seed"])


def test_a_script_trains_what_the_files_and_the_words_say(script: Path) -> None:
    words = ("train=large", "train.bf16=true")
    run = ScriptRun(read_script(script, words), words)
    settings = run.settings
    assert settings.micro_batch is not None
    assert settings.precision is not None
    assert (8, Precision.BF16) == (settings.micro_batch.value, settings.precision.value)
    assert ("train.batch=7",) == settings.words_for("micro_batch", 7)
    assert (*words, "deepspeed=ds.json") == deliver(run.facts, words, "ds.json").script_args
