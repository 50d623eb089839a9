"""What a vLLM takes of the GPUs that train: its fraction of the whole, asleep or not."""

import pytest
from measured.rows import read_model

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict, evaluate, evaluate_all
from zerowiz.core.decision.plan_input import PlanInput, Uncounted
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.memory.allocations import AllocationKind, Phase
from zerowiz.core.memory.buffers import (
    expands_segments,
    shares_with_sleeping_vllm,
    without_expansion,
)
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.structs import replace
from zerowiz.core.workload import Reference, Trainer, Workload
from zerowiz.probe.package_data import read_gpu_table

GRPO = Workload(
    micro_batch=4,
    accumulation_steps=4,
    sequence_tokens=1536,
    completion_tokens=1024,
    trainer=Trainer.GRPO,
    reference=Reference.NONE,
    gradient_checkpointing=True,
    vllm_memory_fraction=0.0,
)
JOB = PlanInput(
    machine=parse_spec("8xH100-80GB", read_gpu_table()),
    model=read_model("llama-3.1-8b"),
    workload=GRPO,
)
ZERO2 = next(each for each in STRATEGIES if each.name == "zero2")


def with_vllm(fraction: float | None, *, sleeps: bool = False) -> StrategyEstimate:
    step = replace(GRPO, vllm_memory_fraction=fraction, vllm_sleeps=sleeps)
    return evaluate(replace(JOB, workload=step), ZERO2)


def test_it_takes_its_fraction_of_the_whole_gpu_beside_the_peak() -> None:
    total_bytes = JOB.machine.total_bytes
    assert total_bytes is not None
    alone, beside = with_vllm(0.0), with_vllm(0.4)
    assert int(0.4 * total_bytes) == beside.device_bytes - alone.device_bytes
    assert alone.vllm is None


def test_what_fits_without_it_does_not_beside_it() -> None:
    assert (Verdict.FITS, Verdict.DOES_NOT_FIT) == (with_vllm(0.0).verdict, with_vllm(0.9).verdict)


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.6])
@pytest.mark.parametrize("sleeps", [True, False])
def test_a_share_of_vllm_never_fits(fraction: float, *, sleeps: bool) -> None:
    step = replace(GRPO, vllm_memory_fraction=fraction, vllm_sleeps=sleeps)
    for evaluated in evaluate_all(replace(JOB, workload=step)):
        assert evaluated.verdict in {Verdict.UNCERTAIN, Verdict.DOES_NOT_FIT}
        assert evaluated.interval is not None
        assert Uncounted.VLLM in evaluated.interval.uncounted


def test_a_vllm_on_gpus_of_its_own_takes_nothing_of_these() -> None:
    elsewhere = with_vllm(0.0)
    assert elsewhere.interval is not None
    assert Uncounted.VLLM not in elsewhere.interval.uncounted


def test_one_that_sleeps_stands_beside_what_training_keeps_between_steps() -> None:
    small, large = with_vllm(0.02, sleeps=True), with_vllm(0.6, sleeps=True)
    assert small.vllm is not None
    assert large.vllm is not None
    # A small one holds less than the step needs; then the step decides.
    assert with_vllm(0.0).device_bytes == small.device_bytes
    assert large.device_bytes < with_vllm(0.6).device_bytes
    kinds = {each.kind for each in large.estimate.moments[Phase.FORWARD][0]}
    assert AllocationKind.ACTIVATIONS in kinds
    assert 0 < large.vllm.resting_bytes < large.estimate.peak_bytes


def test_a_cpu_has_no_vllm() -> None:
    machine = replace(JOB.machine, accelerator=Accelerator.CPU)
    step = replace(GRPO, vllm_memory_fraction=0.4)
    assert evaluate(replace(JOB, machine=machine, workload=step), ZERO2).vllm is None


def test_a_sleeping_vllm_is_started_without_segments_that_expand() -> None:
    asleep = replace(GRPO, vllm_memory_fraction=0.4, vllm_sleeps=True)
    assert shares_with_sleeping_vllm(asleep)
    assert not shares_with_sleeping_vllm(replace(asleep, vllm_memory_fraction=0.0))
    assert not shares_with_sleeping_vllm(replace(asleep, vllm_sleeps=False))
    assert not expands_segments(without_expansion({}))
    # What the caller said stays.
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        assert {} == without_expansion({name: "max_split_size_mb:64"})
