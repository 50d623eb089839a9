"""A run goes on under any strategy, from a checkpoint that any other strategy has saved."""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from paths import TEMPLATES
from safetensors.torch import load_file
from templates.jobs import RAW, TRAINER, launch, write_config

HERE = Path(__file__).parent
GO_ON = HERE / "go_on.py"

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]

CPU = {"device": "cpu"}
# Small enough for this model: some of its weights stay gathered, the others make several sub-groups.
STAGE_3 = {
    "stage": 3,
    "stage3_param_persistence_threshold": 500,
    "sub_group_size": 20_000,
    "stage3_prefetch_bucket_size": 5_000,
}
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "ddp": {"stage": 0},
    "zero1": {"stage": 1},
    "zero2": {"stage": 2},
    "zero3": STAGE_3,
    "zero2-offload": {"stage": 2, "offload_optimizer": CPU},
    "zero3-offload-optimizer": {**STAGE_3, "offload_optimizer": CPU},
    "zero3-offload": {**STAGE_3, "offload_optimizer": CPU, "offload_param": CPU},
}
PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    "bf16": {"bf16": {"enabled": True}},
    "fp32": {"bf16": {"enabled": False}},
    "bf16-states": {
        "bf16": {
            "enabled": True,
            "bf16_master_weights_and_grads": True,
            "bf16_optimizer_states": True,
        }
    },
}
# A strategy sums a gradient in its own order, and in the precision of the weights: two steps on, a
# master differs by some 5e-4 of its norm in bf16 (2^-9 is 2e-3), a second moment by 7e-3. Without
# the moments of the checkpoint it differs by more than 1e-2.
TOLERANCE = {"bf16": 2e-3, "fp32": 1e-5, "bf16-states": 1e-2}
LOOSER_MOMENTS = 10
# The first step after a start differs there even when DeepSpeed loads its own checkpoint under the
# same stage: DeepSpeedCPUAdam multiplies its bias correction up, and after a start takes a power.
OFFLOAD = {"zero2-offload", "zero3-offload-optimizer", "zero3-offload"}

Job = Callable[[str, str], Path]
Options = tuple[str | Path, ...]
Tensors = dict[str, dict[str, torch.Tensor]]


def tensors(checkpoint: Path) -> Tensors:
    """By file (weights, masters, each moment) and by the parameter's name."""
    return {path.stem: load_file(path) for path in checkpoint.glob("*.safetensors")}


def counts(checkpoint: Path) -> dict[str, Any]:
    """What the checkpoint counts: steps, learning rates, schedule, loss scale."""
    marker: dict[str, Any] = json.loads((checkpoint / "portable.json").read_text())
    schedule = torch.load(checkpoint / "others.pt", weights_only=True)["schedule"]
    return {**marker, "schedule": schedule, "saved_at_ns": None, "stage": None}


def off_by(there: Mapping[str, torch.Tensor], here: Mapping[str, torch.Tensor]) -> float:
    """The worst relative difference of a tensor."""
    assert there.keys() == here.keys()
    return max(
        float((there[name].double() - here[name].double()).norm() / there[name].double().norm())
        for name in there
        if there[name].any()
    )


def assert_same_bits(there: Tensors, here: Tensors) -> None:
    assert there.keys() == here.keys()
    for kind, by_name in there.items():
        assert by_name.keys() == here[kind].keys()
        for name, tensor in by_name.items():
            assert torch.equal(tensor, here[kind][name]), f"{kind} of {name}"


def write_strategy_config(folder: Path, precision: str, strategy: str) -> Path:
    schedule = {"warmup_min_lr": 1e-4, "warmup_max_lr": 1e-2, "warmup_num_steps": 10}
    return write_config(
        folder,
        STRATEGIES[strategy]["stage"],
        **PRECISIONS[precision],
        zero_optimization={"reduce_bucket_size": 50_000, **STRATEGIES[strategy]},
        scheduler={"type": "WarmupLR", "params": schedule},
    )


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of sizes that no number of ranks divides."""
    config = json.loads((TEMPLATES / "model" / "config.json").read_text())
    config |= {"hidden_size": 36, "intermediate_size": 90, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 12}
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def options(small_model: Path) -> Options:
    return ("--model_config", small_model, "--seq_len", "32", "--steps", "4", "--save_steps", "2")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, options: Options) -> Job:
    """Four steps of a strategy that are not interrupted, saved after two and at the end."""
    base = tmp_path_factory.mktemp("saved")

    def save(precision: str, strategy: str) -> Path:
        folder = base / precision / strategy
        if not folder.exists():
            config = write_strategy_config(folder, precision, strategy)
            words = ("--deepspeed", "--deepspeed_config", config, "--output_dir", folder)
            launch(folder, RAW, *words, *options)
        return folder

    return save


def _matrix() -> list[Any]:
    """Every strategy from every other; the default tests take one pair, two stages apart in kind."""
    everywhere, plain = tuple(STRATEGIES), ("zero1", "zero2", "zero3")
    table = {"bf16": everywhere, "fp32": everywhere, "bf16-states": plain}
    cases = [
        pytest.param(precision, strategy, strategies, marks=pytest.mark.thorough)
        for precision, strategies in table.items()
        for strategy in strategies
    ]
    return [pytest.param("bf16", "zero3", ("zero2",)), *cases]


@pytest.mark.parametrize(("precision", "strategy", "sources"), _matrix())
def test_a_run_goes_on_under_another_strategy_as_if_it_had_never_stopped(
    precision: str,
    strategy: str,
    sources: tuple[str, ...],
    saved: Job,
    options: Options,
    tmp_path: Path,
) -> None:
    others_first = sorted(sources, key=lambda source: source == strategy)
    folders = [saved(precision, source) for source in others_first]
    config = write_strategy_config(tmp_path, precision, strategy)
    env = {"GO_ON_FROM": os.pathsep.join(map(str, folders)), "GO_ON_TO": str(tmp_path)}

    launch(tmp_path, GO_ON, "--deepspeed", "--deepspeed_config", config, *options, env=env)

    for folder in folders:
        unbroken, went_on = folder, tmp_path / folder.name
        # What was loaded is, bit for bit and by name, what was saved.
        again = went_on / "checkpoint-2"
        assert_same_bits(tensors(unbroken / "checkpoint-2"), tensors(again))
        assert counts(unbroken / "checkpoint-2") == counts(again)
        # And two steps later it stands where the run that was not interrupted does.
        there, here = tensors(unbroken / "checkpoint-4"), tensors(went_on / "checkpoint-4")
        assert counts(unbroken / "checkpoint-4") == counts(went_on / "checkpoint-4")
        for kind in there:
            looser = LOOSER_MOMENTS if kind.startswith("exp_avg") else 1
            exact = folder.name == strategy and strategy not in OFFLOAD
            allowed = 0.0 if exact else TOLERANCE[precision] * looser
            assert off_by(there[kind], here[kind]) <= allowed, (
                f"{kind}: {folder.name} to {strategy}"
            )
        if STRATEGIES[strategy]["stage"] > 0:
            assert_deepspeed_sees(went_on / "deepspeed.pt", here)


def assert_deepspeed_sees(path: Path, here: Tensors) -> None:
    """DeepSpeed's own functions read out of its engine what was written."""
    seen = torch.load(path, weights_only=True)
    assert {"master", "exp_avg", "exp_avg_sq"} == seen.keys()
    for kind, by_name in seen.items():
        in_file = here.get(kind, here["model"])
        assert by_name
        assert all(torch.equal(in_file[name].float(), by_name[name]) for name in by_name)


@pytest.mark.thorough
def test_adapters_go_on_under_another_stage_on_the_frozen_weights_that_they_had(
    options: Options, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    saved_at = tmp_path / "saved"
    at_2, at_3 = (
        write_strategy_config(tmp_path, "bf16", strategy) for strategy in ("zero2", "zero3")
    )
    words = (*options, "--deepspeed", "--deepspeed_config")
    env = {"GO_ON_ADAPTERS": "1", "GO_ON_TO": str(tmp_path / "went")}
    launch(tmp_path, GO_ON, *words, at_2, "--output_dir", saved_at, env=env)
    env |= {"GO_ON_FROM": str(saved_at)}
    launch(tmp_path, GO_ON, *words, at_3, env=env)

    unbroken, went_on = saved_at, tmp_path / "went" / "saved"
    whole, adapters = (tensors(folder / "checkpoint-2") for folder in (unbroken, went_on))
    frozen = whole["model"].keys() - adapters["model"].keys()
    assert frozen
    assert all("lora_" in name for name in adapters["model"])
    assert not any("lora_" in name for name in frozen)
    # peft's adapters are fp32, and stage 3 leaves them so: there they are their own masters.
    for kind in ("exp_avg", "exp_avg_sq"):
        assert_same_bits({kind: whole[kind]}, {kind: adapters[kind]})
    assert_same_bits({"master": whole["master"]}, {"master": adapters["model"]})
    there, here = (tensors(folder / "checkpoint-4") for folder in (unbroken, went_on))
    assert all(torch.equal(there["model"][name], here["model"][name]) for name in frozen)
    trained = {name: here["model"][name] for name in there["master"]}
    assert off_by(there["master"], trained) <= TOLERANCE["bf16"] * LOOSER_MOMENTS
    assert_deepspeed_sees(went_on / "deepspeed.pt", here)


@pytest.mark.thorough
def test_a_trainer_goes_on_at_a_lower_stage_with_its_schedule_and_its_data(
    small_model: Path, tmp_path: Path
) -> None:
    words = [
        *("--use_cpu", "--bf16", "--lr_scheduler_type", "linear", "--max_steps", "6"),
        *("--per_device_train_batch_size", "2", "--save_steps", "3", "--logging_steps", "1"),
        *("--seq_len", "32", "--output_dir", "out", "--learning_rate", "1e-2"),
    ]

    def train(stage: int, *more: str) -> None:
        config = write_config(
            tmp_path, stage, train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=1
        )
        launch(
            tmp_path, TRAINER, *words, "--model_config", small_model, "--deepspeed", config, *more
        )

    train(3)
    unbroken = tmp_path / "unbroken"
    (tmp_path / "out" / "checkpoint-6").rename(unbroken)
    train(2, "--resume")

    resumed = tmp_path / "out" / "checkpoint-6"
    states = [
        json.loads((folder / "trainer_state.json").read_text()) for folder in (unbroken, resumed)
    ]
    logs = [
        {entry["step"]: entry for entry in state["log_history"] if "loss" in entry}
        for state in states
    ]
    assert list(range(1, 7)) == list(logs[0]) == list(logs[1])
    for step in range(1, 7):
        for key in ("learning_rate", "epoch"):
            assert logs[0][step][key] == logs[1][step][key]
        assert pytest.approx(logs[0][step]["loss"], abs=0.01) == logs[1][step]["loss"]
    assert (6, states[0]["epoch"]) == (states[1]["global_step"], states[1]["epoch"])
    assert counts(unbroken) == counts(resumed)
    there, here = tensors(unbroken), tensors(resumed)
    assert off_by(there["master"], here["master"]) <= TOLERANCE["bf16"]


FILES = ("model", "master", "exp_avg", "exp_avg_sq", "others", "portable", "folder")


def train_and_die_at(file: str, folder: Path, options: Options) -> Options:
    """Kill rank 0 as it sees this file of its second checkpoint onto the disk; the run's words."""
    config = write_strategy_config(folder, "bf16", "zero2")
    words = (*options, "--deepspeed", "--deepspeed_config", config, "--output_dir", "out")
    second_save = len(FILES) + 1  # and the folder that it is put into
    env = {"KILL_AT": str(second_save + FILES.index(file) + 1)}
    killed, _ = launch(folder, HERE / "killed_save.py", *words, env=env, ends_well=False)
    assert "-9" in killed.stdout + killed.stderr
    return words


@pytest.mark.thorough
@pytest.mark.parametrize("file", FILES)
def test_a_save_killed_at_any_file_leaves_the_checkpoint_before_it(
    file: str, options: Options, tmp_path: Path
) -> None:
    train_and_die_at(file, tmp_path, options)
    seen = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert [".checkpoint-4.partial", "checkpoint-2"] == seen


@pytest.mark.thorough
def test_a_run_whose_save_was_killed_goes_on_from_the_checkpoint_before_it(
    options: Options, tmp_path: Path
) -> None:
    words = train_and_die_at("exp_avg", tmp_path, options)
    resumed, _ = launch(tmp_path, RAW, *words, "--resume")
    assert "checkpoint-2, after step 2\nstep 3  loss" in resumed.stdout
    assert "step 2  loss" not in resumed.stdout
    seen = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert ["checkpoint-2", "checkpoint-4"] == seen


# Up to the rename of the new folder, the checkpoint before it is the last whole one.
IN_PLACE, KILLS = 10, 12


@pytest.mark.thorough
def test_a_save_over_a_checkpoint_that_is_killed_anywhere_leaves_a_whole_one_that_loads(
    tmp_path: Path,
) -> None:
    def job(at: int) -> tuple[str, str]:
        words = (HERE / "killed_save_over.py", "out", str(at))
        done, _ = launch(tmp_path, *words, ends_well=at == 0)
        assert ("-9" in done.stdout + done.stderr) == (at > 0)
        found = re.search(r"^loaded (\w+)\nsaves (\w+)$", done.stdout, re.MULTILINE)
        assert found is not None, done.stdout
        return found[1], found[2]

    _, there = job(0)
    for at in range(1, KILLS + 1):
        loaded, saves = job(at)
        assert there == loaded, f"after a kill at call {at - 1}"
        assert loaded != saves
        there = loaded if at <= IN_PLACE else saves
    loaded, _ = job(0)
    assert there == loaded
    assert ["checkpoint-1"] == [path.name for path in (tmp_path / "out").iterdir()]


@pytest.mark.thorough
def test_another_models_checkpoint_is_refused_in_one_line(
    saved: Job, options: Options, tmp_path: Path
) -> None:
    shutil.copytree(saved("bf16", "zero2"), tmp_path / "out")
    config = write_strategy_config(tmp_path, "bf16", "zero2")
    words: Options = ("--deepspeed", "--deepspeed_config", config, "--output_dir", "out")
    model = ("--model_config", TEMPLATES / "model")

    refused, _ = launch(tmp_path, RAW, *options, *words, *model, "--resume", ends_well=False)

    said = refused.stdout + refused.stderr
    assert 1 == said.count("error: out/checkpoint-4 is of another model: ")
    assert "Traceback" not in said


def test_what_cannot_be_saved_is_refused_before_the_first_step(tmp_path: Path) -> None:
    refused, _ = launch(tmp_path, HERE / "not_savable.py", ends_well=False)
    said = refused.stdout + refused.stderr
    assert "NotImplementedError: no portable checkpoint of MoE layers" in said
