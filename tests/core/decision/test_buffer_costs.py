"""What the sizes in a config cost, against the config itself and the ledger."""

import pytest
from measured.rows import read_model

from zerowiz.core.decision.evaluate import Cost, buffer_costs, evaluate
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.dsconfig.write import Handover, write_config
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.memory.allocations import AllocationKind, Phase
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.strategies import DDP, STRATEGIES, ZERO2, ZERO3, ZERO3_OFFLOAD
from zerowiz.core.structs import replace
from zerowiz.core.workload import Method, Workload
from zerowiz.probe.package_data import read_gpu_table

JOB = PlanInput(
    machine=parse_spec("4xA100-80GB", read_gpu_table()),
    model=read_model("llama-3.1-8b"),
    workload=Workload(gradient_checkpointing=True),
)
MB = 10**6


def costs(strategy: StrategyRow, job: PlanInput = JOB) -> dict[str, Cost]:
    return {cost.key: cost for cost in buffer_costs(job, evaluate(job, strategy))}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_each_size_that_costs_stands_in_the_config_as_it_is_told(strategy: StrategyRow) -> None:
    config = write_config(JOB, evaluate(JOB, strategy), Handover())
    zero = config["zero_optimization"]
    assert isinstance(zero, dict)
    told = {key: cost.value for key, cost in costs(strategy).items()}
    assert told == {key: zero[key] for key in told}
    assert (strategy != DDP) is bool(told)


def test_a_second_bucket_costs_as_much_again() -> None:
    assert 2 * 2 * 25 * MB == costs(ZERO2)["reduce_bucket_size"].size_bytes
    (line,) = (
        size_bytes
        for kind, size_bytes, _ in evaluate(JOB, ZERO2).estimate.peaks()[Phase.BACKWARD]
        if kind is AllocationKind.REDUCE_BUCKET
    )
    assert line == costs(ZERO2)["reduce_bucket_size"].size_bytes


def test_a_sub_group_costs_its_gradients_in_two_formats_and_nothing_under_offload() -> None:
    assert (2 + 4) * 100 * MB == pytest.approx(costs(ZERO3)["sub_group_size"].size_bytes, rel=0.1)
    assert "sub_group_size" not in costs(ZERO3_OFFLOAD)


def test_no_more_is_kept_than_there_is() -> None:
    small = replace(JOB, model=read_model("qwen2.5-0.5b"))
    live = costs(ZERO3, small)["stage3_max_live_parameters"]
    assert (1000 * MB, 2 * small.model.params) == (live.value, live.size_bytes)


def test_frozen_parameters_are_gathered_too() -> None:
    adapted = replace(JOB, workload=replace(JOB.workload, method=Method.LORA))
    assert 2 * 1000 * MB == costs(ZERO3, adapted)["stage3_max_live_parameters"].size_bytes


def test_a_copy_in_each_node_costs_a_part_of_the_weights() -> None:
    copying = replace(JOB, hpz=True)
    copy = costs(ZERO3, copying)["zero_hpz_partition_size"]
    assert (4, 2 * JOB.model.params // 4) == (copy.value, copy.size_bytes)
