"""Liger's loss is a remedy only where its kernels run: they are Triton's, which has no CPU driver."""

from pathlib import Path

import pytest
from cli.harness import HF_PARSER
from recorded import Install, library

from zerowiz.app.decide import plan_options
from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.core.decision.flowchart import OffloadChoice
from zerowiz.core.machine.types import Accelerator, with_host_memory
from zerowiz.core.workload import Precision
from zerowiz.probe.script.read import parse_script


def offers_liger(**said: object) -> bool:
    facts = parse_script(HF_PARSER, "train.py")
    model = {"model": "meta-llama/Llama-3.2-1B", "micro_batch": 1, "gradient_checkpointing": True}
    said = {**model, "sequence_tokens": 65536, "memory_budget": "30GiB", **said}
    options = Options(**said)  # type: ignore[arg-type]
    machine = find_machine(options, {})
    plan = plan_options(options, machine, facts, ())
    assert plan.strategy is None
    return any("loss" in each.change for each in plan.remedies if each.edit is None)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What read_version finds of a library that is installed."""
    (tmp_path / "liger_kernel-0.8.5.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("installed", "folder")
def test_it_is_offered_to_gpus_alone(driver: Install) -> None:
    assert not offers_liger(machine="cpu")
    assert offers_liger(machine="2xH200")
    driver(library("h200-x4"))
    assert offers_liger()


@pytest.mark.usefixtures("folder")
def test_here_it_is_offered_only_where_it_is_installed(driver: Install) -> None:
    driver(library("h200-x4"))
    assert not offers_liger()


def test_without_a_script_cpu_ranks_are_offered_a_loss_in_chunks() -> None:
    options = Options(
        model="llama-3.2-1b",
        sequence_tokens=8192,
        memory_budget="2GiB",
        offload=OffloadChoice.NONE,
        # What is assumed depends on this host's CPU.
        precision=Precision.BF16,
        accelerator=Accelerator.CPU,
        gpus_per_node=2,
    )
    job = find_machine(options, {})
    # As much memory as the remedy asks for, whatever this host has.
    roomy = with_host_memory(job, 64 * 2**30)
    plan = plan_options(options, roomy, None, ())
    assert plan.strategy is None
    losses = {each.change["loss"] for each in plan.remedies if "loss" in each.change}
    assert {"chunked"} == losses
