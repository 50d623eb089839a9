"""The largest steps that fit: one more does not."""

import pytest
from measured.rows import read_model

from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.decision.search import Limit, find_limits
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.strategies import STRATEGIES, ZERO3, ZERO3_OFFLOAD
from zerowiz.core.structs import replace
from zerowiz.core.workload import Workload
from zerowiz.probe.package_data import read_gpu_table

TABLE = read_gpu_table()


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.2-1b", "gpt2-medium"])
def test_the_limits_fit_and_what_is_larger_does_not(name: str) -> None:
    model = read_model(name)
    positions = model.architecture.positions
    job = PlanInput(
        machine=parse_spec("4xA100-40GB", TABLE),
        model=model,
        workload=Workload(sequence_tokens=1024, accumulation_steps=2),
    )
    limits = find_limits(job)
    assert [s.name for s in STRATEGIES for _ in range(2)] == [e.strategy.name for e in limits]
    for limit in limits:
        step = replace(job.workload, gradient_checkpointing=limit.gradient_checkpointing)

        def runs(workload: Workload, limit: Limit = limit) -> bool:
            return evaluate(replace(job, workload=workload), limit.strategy).is_sure

        if limit.micro_batch:
            assert runs(replace(step, micro_batch=limit.micro_batch))
        assert not runs(replace(step, micro_batch=limit.micro_batch + 1))
        if limit.sequence_tokens:
            assert runs(replace(step, sequence_tokens=limit.sequence_tokens))
        assert limit.sequence_tokens <= positions
        longer = limit.sequence_tokens + 128
        assert limit.by_positions is (longer > positions)
        assert limit.by_positions or not runs(replace(step, sequence_tokens=longer))


def test_positions_of_a_stand_in_or_short_of_the_job_end_no_sequence() -> None:
    machine = parse_spec("8xH200", TABLE)
    by_size = model_from_size("1b", 10**9)
    assert by_size.architecture.positions > 0
    rotary = read_model("llama-2-7b")
    beyond = 2 * rotary.architecture.positions
    for model, tokens in ((by_size, 1024), (rotary, beyond)):
        step = Workload(sequence_tokens=tokens, gradient_checkpointing=True)
        job = PlanInput(machine=machine, model=model, workload=step)
        for limit in find_limits(job):
            assert not limit.by_positions
            if limit.gradient_checkpointing and evaluate(job, limit.strategy).is_sure:
                assert limit.sequence_tokens >= tokens
            if limit.gradient_checkpointing and limit.strategy == ZERO3:
                assert limit.sequence_tokens > model.architecture.positions


def test_checkpointing_makes_every_limit_larger() -> None:
    job = PlanInput(
        machine=parse_spec("8xH100-80GB", TABLE),
        model=read_model("llama-3.2-1b"),
        workload=Workload(),
    )
    limits = find_limits(job)
    for plain, recomputed in zip(limits[::2], limits[1::2], strict=True):
        assert plain.micro_batch <= recomputed.micro_batch
        assert plain.sequence_tokens <= recomputed.sequence_tokens
    # Nobody knows the memory of this host.
    offloaded = next(each for each in limits if each.strategy == ZERO3_OFFLOAD)
    assert (0, 0) == (offloaded.micro_batch, offloaded.sequence_tokens)
