"""Traffic counted by hand, and its laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.memory.rank_sizes import StrategyRow, rank_sizes
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.model.types import Model
from zerowiz.core.speed.step_time import wire_bytes_per_step
from zerowiz.core.strategies import (
    DDP,
    STRATEGIES,
    ZERO1,
    ZERO2,
    ZERO2_OFFLOAD,
    ZERO3,
    ZERO3_OFFLOAD,
    ZERO3_OFFLOAD_OPTIMIZER,
)
from zerowiz.core.workload import Method, Precision, Workload

SMALL = model_from_size("100m", 100_000_000)
LARGE = model_from_size("7b", 7_000_000_000)

models = st.sampled_from([SMALL, LARGE, model_from_config("gpt2", {"model_type": "gpt2"})])
worlds = st.integers(min_value=1, max_value=4096)
workloads = st.builds(
    Workload,
    accumulation_steps=st.integers(min_value=1, max_value=256),
    precision=st.sampled_from(Precision),
    method=st.sampled_from(Method),
    lora_rank=st.integers(min_value=1, max_value=64),
)


def sent(model: Model, workload: Workload, ranks: int, strategy: StrategyRow) -> int:
    return wire_bytes_per_step(rank_sizes(model, workload, ranks, strategy, DEEPSPEED_DEFAULTS))


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (DDP, 2 * 200_000_000),
        (ZERO1, 3 * 200_000_000),
        (ZERO2, (2 * 4 + 1) * 200_000_000),
        # Every weight is gathered once per micro-step: all of them stay live until backward.
        (ZERO3, 4 * (1 + 1) * 200_000_000),
    ],
)
def test_half_of_the_ring_is_sent_by_each_of_two_ranks(
    strategy: StrategyRow, expected: int
) -> None:
    workload = Workload(accumulation_steps=4)
    assert expected // 2 == sent(SMALL, workload, 2, strategy)


def test_a_model_beyond_the_live_limit_is_gathered_again_for_backward() -> None:
    forward, backward, scattered = 14_000_000_000, 12_000_000_000, 14_000_000_000
    expected = (forward + backward + scattered) * 3 // 4
    assert expected == sent(LARGE, Workload(), 4, ZERO3)


def test_fp32_sends_twice_as_much_as_bf16() -> None:
    bf16, fp32 = (Workload(precision=precision) for precision in (Precision.BF16, Precision.FP32))
    expected = 2 * sent(LARGE, bf16, 8, ZERO2)
    assert expected == sent(LARGE, fp32, 8, ZERO2)


def test_lora_reduces_its_adapters_alone() -> None:
    workload = Workload(method=Method.LORA, lora_rank=16)
    expected = 3 * 2 * LARGE.lora_params(16) // 2
    assert expected == sent(LARGE, workload, 2, ZERO1)


def test_lora_still_gathers_every_frozen_weight_under_zero3() -> None:
    workload = Workload(method=Method.LORA)
    gathered_once = 2 * LARGE.params // 2
    assert gathered_once < sent(LARGE, workload, 2, ZERO3)


@given(model=models, workload=workloads, strategy=st.sampled_from(STRATEGIES))
def test_a_lone_rank_sends_nothing(model: Model, workload: Workload, strategy: StrategyRow) -> None:
    assert sent(model, workload, 1, strategy) == 0


@given(model=models, workload=workloads, ranks=worlds)
def test_zero1_never_sends_more_than_zero2(model: Model, workload: Workload, ranks: int) -> None:
    zero1, zero2 = (sent(model, workload, ranks, s) for s in (ZERO1, ZERO2))
    assert zero1 <= zero2


@given(model=models, ranks=worlds, micro_steps=st.integers(min_value=1, max_value=255))
@pytest.mark.parametrize("strategy", [ZERO2, ZERO3])
def test_a_stage_that_shards_gradients_sends_more_with_every_micro_step(
    strategy: StrategyRow, model: Model, ranks: int, micro_steps: int
) -> None:
    fewer, more = (
        sent(model, Workload(accumulation_steps=steps), ranks, strategy)
        for steps in (micro_steps, micro_steps + 1)
    )
    assert fewer < more or ranks == 1


@given(model=models, workload=workloads, ranks=worlds)
@pytest.mark.parametrize("strategy", [DDP, ZERO1])
def test_a_stage_that_keeps_its_gradients_sends_them_once(
    strategy: StrategyRow, model: Model, workload: Workload, ranks: int
) -> None:
    once = Workload(
        precision=workload.precision, method=workload.method, lora_rank=workload.lora_rank
    )
    expected = sent(model, once, ranks, strategy)
    assert expected == sent(model, workload, ranks, strategy)


@given(model=models, workload=workloads, ranks=worlds, strategy=st.sampled_from(STRATEGIES))
def test_more_ranks_never_send_less_each(
    model: Model, workload: Workload, ranks: int, strategy: StrategyRow
) -> None:
    fewer, more = (sent(model, workload, count, strategy) for count in (ranks, ranks + 1))
    assert fewer <= more


@given(model=models, workload=workloads, ranks=worlds)
@pytest.mark.parametrize(
    ("strategy", "offloaded"),
    [(ZERO2, ZERO2_OFFLOAD), (ZERO3, ZERO3_OFFLOAD), (ZERO3, ZERO3_OFFLOAD_OPTIMIZER)],
)
def test_offload_changes_nothing_on_the_wire(
    strategy: StrategyRow, offloaded: StrategyRow, model: Model, workload: Workload, ranks: int
) -> None:
    on_gpu = sent(model, workload, ranks, strategy)
    assert on_gpu == sent(model, workload, ranks, offloaded)
