"""The machine that is planned for is the machine that was asked for."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli.harness import CONFIG_ARGUMENTS, HF_PARSER, Run

PLAN = ("plan", "--json", "--model", "10m")


def planned(here: Run, *words: str) -> dict[str, Any]:
    machine: dict[str, Any] = here(*PLAN, *words).content["machine"]
    return machine


@pytest.fixture
def node(here: Run, folder: Path) -> Path:
    """A saved machine of 4 GPUs."""
    path = folder / "node.json"
    assert 0 == here("machine", "--machine", "4xA100-40GB", "--save", str(path)).code
    return path


@pytest.mark.parametrize(
    ("words", "indices"),
    [
        pytest.param(("4xA100-40GB", "--gpus", "1,3"), [1, 3], id="chosen of a spec"),
        pytest.param(("node.json", "--gpus", "1,3"), [1, 3], id="chosen of a file"),
        pytest.param(("cpu.json", "--gpus-per-node", "4"), [0, 1, 2, 3], id="ranks of a saved CPU"),
    ],
)
def test_the_gpus_that_are_named_are_planned(
    here: Run, node: Path, words: tuple[str, ...], indices: list[int]
) -> None:
    cpu = str(node.with_name("cpu.json"))
    assert 0 == here("machine", "--accelerator", "cpu", "--save", cpu).code
    machine = planned(here, "--machine", *words)
    assert indices == [gpu["index"] for gpu in machine["gpus"]]
    assert ("file" == machine["source"]) is words[0].endswith(".json")


def test_a_wider_spec_is_the_spec_of_that_width(here: Run) -> None:
    wide = planned(here, "--machine", "1xH100-80GB-SXM", "--gpus-per-node", "8")
    assert planned(here, "--machine", "8xH100-80GB-SXM") == wide


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--machine", "4xA100-40GB", "--accelerator", "cpu"), "`--accelerator cpu` conflicts"),
        (("--accelerator", "cpu", "--gpus", "0"), "the CPU accelerator has none"),
        (("--machine", "4xA100-40GB", "--hostfile", "uneven"), "`a` has 2 slots, others have 4"),
        (("--machine", "4xA100-40GB", "--hostfile", "even", "--nodes", "5"), "which says 2"),
        (
            ("--machine", "4xA100-40GB", "--hostfile", "even", "--gpus-per-node", "2"),
            "`--gpus-per-node 2` conflicts",
        ),
        (("--machine", "node.json", "--gpus", "7"), "there is no usable GPU 7"),
        (("--machine", "node.json", "--gpus-per-node", "8"), "this machine has 4"),
        (
            ("--machine", "4x8xH200", "--nodes", "2"),
            "`--nodes 2` conflicts with `--machine 4x8xH200`, which has 4",
        ),
        (
            (
                *("--machine", "4xA100-40GB", "--micro-batch", "1"),
                *("--global-batch", "64", "--grad-accum", "3"),
            ),
            "`--global-batch 64` needs 16 micro-steps of 1 x 4 ranks, but `--grad-accum 3` says 3",
        ),
    ],
)
@pytest.mark.usefixtures("node")
def test_options_that_contradict_each_other_or_the_machine_are_refused(
    here: Run, folder: Path, words: tuple[str, ...], said: str
) -> None:
    (folder / "uneven").write_text("a slots=2\nb slots=4\n")
    (folder / "even").write_text("a slots=4\nb slots=4\n")
    result = here(*PLAN, *words)
    assert 2 == result.code
    assert said in " ".join(result.stderr.split())


def test_a_hostfile_is_the_planned_world(here: Run, folder: Path) -> None:
    (folder / "even").write_text("a slots=4\nb slots=4\n")
    machine = planned(here, "--machine", "8xA100-40GB", "--hostfile", "even")
    assert (2, 4) == (machine["nodes"], len(machine["gpus"]))


def test_an_own_config_is_weighed_with_the_batch_that_deepspeed_makes_of_it(
    here: Run, folder: Path
) -> None:
    config = {"train_batch_size": 64, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    (folder / "own.json").write_text(json.dumps(config))
    result = here(*PLAN, "--machine", "4xA100-40GB", "--config", "own.json")
    workload = json.loads(result.stdout)["workload"]
    assert (16, 1) == (workload["micro_batch"], workload["accumulation_steps"])


SUPER_OFFLOAD = {"device": "cpu", "super_offload": True}


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        ({"optimizer": {"type": "Lamb"}}, "`optimizer.type`"),
        ({"compile": {"deepcompile": True}}, "`compile.deepcompile`"),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": SUPER_OFFLOAD}},
            "`zero_optimization.offload_optimizer.super_offload`",
        ),
    ],
)
def test_what_the_ledger_does_not_count_of_an_own_config_is_said(
    here: Run, folder: Path, config: dict[str, object], keys: str
) -> None:
    (folder / "own.json").write_text(json.dumps({"zero_optimization": {"stage": 2}} | config))
    result = here(*PLAN, "--machine", "4xA100-40GB", "--config", "own.json")
    assert f"note: `own.json`: {keys} not counted" in result.stderr


def test_adapters_are_not_planned_for_a_script_that_trains_everything(
    here: Run, folder: Path
) -> None:
    (folder / "train.py").write_text(CONFIG_ARGUMENTS)
    base = ("launch", "--dry-run", "--yes", "--machine", "2xH200", "--model", "10m")
    refused = here(*base, "--micro-batch", "1", "--method", "lora", "train.py")
    assert 2 == refused.code
    assert "does not import peft" in refused.stderr
    assert "to train adapters, wrap the model with peft in `" in refused.hints
    (folder / "train.py").write_text("import peft\n" + HF_PARSER)
    assert 0 == here(*base, "--method", "lora", "train.py").code


TIB = 2**40


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("words", "available_bytes"),
    [
        (("4xA100-40GB",), None),
        *(
            ((machine, "--host-memory", "1TiB"), TIB)
            for machine in ("4xA100-40GB", "node.json", "p5.48xlarge")
        ),
    ],
)
def test_the_memory_of_a_host_that_is_not_here_is_what_is_said(
    here: Run, words: tuple[str, ...], available_bytes: int | None
) -> None:
    assert available_bytes == planned(here, "--machine", *words)["host"]["available_bytes"]


def test_what_is_said_of_this_host_is_a_limit(here: Run) -> None:
    cpu = ("--machine", "cpu", "--gpus-per-node", "2")
    limited = planned(here, *cpu, "--host-memory", "4GiB")
    assert 2**32 == limited["host"]["available_bytes"]
    assert [2**31] * 2 == [gpu["free_bytes"] for gpu in limited["gpus"]]
    more = here("plan", "--json", "--model", "10m", *cpu, "--host-memory", "4096TiB")
    assert json.loads(more.stdout)["machine"]["host"]["available_bytes"] < 4096 * TIB
    assert "is more than this host has available" in " ".join(more.stderr.split())


def test_an_instance_has_its_gpus_host_and_network(here: Run) -> None:
    machine = planned(here, "--machine", "2xp4d.24xlarge")
    assert (2, 8) == (machine["nodes"], len(machine["gpus"]))
    assert 1152 * 2**30 == machine["host"]["total_bytes"]
    assert "efa" == machine["network"]["kind"]


def test_some_gpus_of_an_instance_can_be_taken(here: Run) -> None:
    machine = planned(here, "--machine", "p4d.24xlarge", "--gpus-per-node", "4")
    assert (4, 1152 * 2**30) == (len(machine["gpus"]), machine["host"]["total_bytes"])


def test_nodes_that_are_said_twice_and_agree_are_taken(here: Run) -> None:
    assert 4 == planned(here, "--machine", "4x8xH200", "--nodes", "4")["nodes"]
