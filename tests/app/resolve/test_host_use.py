"""What a script does with the memory of its nodes is planned with."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli.harness import Run

BUILDS = 'model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("model"))\n'
MAPS = 'model = AutoModelForCausalLM.from_pretrained("model")\n'
ON_DEVICE = f"with torch.device(local_rank):\n    {BUILDS}"
TRAINER = """\
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
{model}args = TrainingArguments("out", per_device_train_batch_size=1, bf16=True{more})
Trainer(model=model, args=args).train()
"""
ENGINE = """\
import deepspeed, torch
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM
{model}engine, *_ = deepspeed.initialize(model=model, config="ds_config.json")
loader = DataLoader(data, batch_size=1{more})
test_loader = DataLoader(data, batch_size=1, num_workers=99)
for batch in loader:
    engine.backward(engine(**batch).loss)
    engine.step()
engine.save_checkpoint("out")
"""
MACHINE = ("--machine", "p4d.24xlarge", "--model", "7b", "--stage", "2", "--seq-len", "128")
WEIGHTS_BYTES = 8 * 2 * 7_000_000_000


def hosted(here: Run, folder: Path, text: str) -> dict[str, dict[str, int]]:
    """Bytes of each part, by phase."""
    (folder / "own.py").write_text(text)
    result = here("plan", "--json", *MACHINE, "own.py")
    strategies: list[dict[str, Any]] = json.loads(result.stdout)["strategies"]
    host = next(each["host"] for each in strategies if each["name"] == "zero2")
    parts: dict[str, dict[str, int]] = {phase: {} for phase in host["phases"]}
    for line in host["lines"]:
        parts[line["phase"]][line["part"]] = line["bytes"]
    return parts


@pytest.mark.parametrize(("model", "is_built"), [(BUILDS, True), (MAPS, False), (ON_DEVICE, False)])
@pytest.mark.parametrize("script", [TRAINER, ENGINE], ids=["trainer", "engine"])
def test_a_model_that_a_script_makes_in_host_memory_is_counted_there(
    here: Run, folder: Path, script: str, model: str, is_built: bool
) -> None:
    parts = hosted(here, folder, script.format(model=model, more=""))
    expected = pytest.approx(WEIGHTS_BYTES, rel=0.05) if is_built else None
    assert expected == parts["load"].get("model as it is built")


@pytest.mark.parametrize(
    ("script", "more", "workers"),
    [
        (TRAINER, "", 0),
        (TRAINER, ", dataloader_num_workers=6", 6),
        (ENGINE, "", 0),
        (ENGINE, ", num_workers=3", 3),
    ],
)
def test_the_workers_of_the_training_loader_are_counted(
    here: Run, folder: Path, script: str, more: str, workers: int
) -> None:
    parts = hosted(here, folder, script.format(model=MAPS, more=more))
    expected = 8 * workers * 13_000_000 or None
    assert expected == parts["training"].get("data loader workers")


def test_a_trainer_collects_its_weights_and_an_engine_writes_them_by_storages(
    here: Run, folder: Path
) -> None:
    trainer, engine = (
        hosted(here, folder, script.format(model=MAPS, more=""))["saving"]
        for script in (TRAINER, ENGINE)
    )
    assert trainer["weights collected to be saved"] == pytest.approx(WEIGHTS_BYTES, rel=0.05)
    assert "weights collected to be saved" not in engine
    assert engine["largest storage that is written"] == pytest.approx(4 * 7e9, rel=0.05)


def test_a_plan_says_when_most_is_held_and_how_much_there_is(here: Run) -> None:
    unknown = here("plan", "--machine", "8xA100-40GB", "--model", "1b", "--stage", "0").stdout
    assert "Host     28.5 GiB on each node, most of it while a checkpoint is saved" in unknown
    assert "set it with `--host-memory`" in " ".join(unknown.split())
    words = ("--machine", "8xA100-40GB", "--model", "1b", "--stage", "0")
    known = here("plan", *words, "--host-memory", "20GiB")
    assert ("20.0 GiB is available, so the kernel may kill the job then") in " ".join(
        known.stdout.split()
    )


def test_a_host_that_is_nearly_full_is_said_to_be(here: Run) -> None:
    """28.5 GiB are predicted; predictions of the host were off by up to 6 %."""
    words = ("plan", "--machine", "8xA100-40GB", "--model", "1b", "--stage", "0", "--host-memory")
    near, roomy = (" ".join(here(*words, size).stdout.split()) for size in ("30GiB", "31GiB"))
    assert "30.0 GiB is available, only 1.5 GiB more: it just fits if no other program" in near
    assert "31.0 GiB is available" in roomy
    assert "only" not in roomy.partition("31.0 GiB is available")[2]


def test_a_host_that_is_too_small_to_start_on_is_named_with_what_it_lacks(here: Run) -> None:
    words = ("--machine", "8xA100-40GB", "--model", "7b", "--stage", "3", "--seq-len", "128")
    result = here("plan", *words, "--host-memory", "16GiB")
    assert 4 == result.code
    assert "lacks 6.4 GiB of host memory while DeepSpeed starts" in " ".join(result.problem.split())
