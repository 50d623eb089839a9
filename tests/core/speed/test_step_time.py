"""Laws of predicted times, and what they are made of."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_models import models as random_models

from zerowiz.core.machine.names import GpuModel, parse_spec
from zerowiz.core.machine.types import (
    Accelerator,
    Interconnect,
    LinkClass,
    Machine,
    Network,
    NetworkKind,
)
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS, Buffers, fit_buffers
from zerowiz.core.memory.rank_sizes import StrategyRow, rank_sizes, trainable_params
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.model.types import Model
from zerowiz.core.speed.costs import COSTS, StepTime, TermKind, find_rates
from zerowiz.core.speed.step_time import predict_step_time, why_untimed, wire_bytes_per_step
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
from zerowiz.core.structs import replace
from zerowiz.core.workload import Method, Optimizer, Precision, Trainer, Workload
from zerowiz.probe.files import read_gpu_table

# Traffic counted by hand, and its laws.

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


TABLE = read_gpu_table()
H200 = parse_spec("2xH200", TABLE)


def _known_rates() -> GpuModel:
    found = find_rates(H200, TABLE)
    assert found is not None
    return found


RATES = _known_rates()

strategies = st.sampled_from(STRATEGIES)
workloads_step_time = st.builds(
    Workload,
    micro_batch=st.integers(min_value=1, max_value=16),
    sequence_tokens=st.sampled_from([128, 2048]),
    accumulation_steps=st.integers(min_value=1, max_value=8),
    method=st.sampled_from(Method),
    gradient_checkpointing=st.booleans(),
    optimizer=st.sampled_from(Optimizer),
)


def step_time(
    model: Model,
    workload: Workload,
    strategy: StrategyRow,
    machine: Machine = H200,
    rates: GpuModel = RATES,
    *,
    buffers: Buffers | None = None,
    near_limit: bool = False,
) -> StepTime:
    fitted = fit_buffers(model, trainable_params(model, workload), strategy)[0]
    rank = rank_sizes(model, workload, machine.world_size, strategy, buffers or fitted)
    found = predict_step_time(model, rank, machine, rates, near_limit=near_limit)
    assert found is not None
    return found


def seconds(
    model: Model,
    workload: Workload,
    strategy: StrategyRow,
    machine: Machine = H200,
    rates: GpuModel = RATES,
) -> float:
    return step_time(model, workload, strategy, machine, rates).expected_seconds


def linked(link_class: LinkClass, bytes_per_s: int | None) -> Machine:
    return replace(H200, interconnect=Interconnect(link_class=link_class, bytes_per_s=bytes_per_s))


@given(model=random_models(), workload=workloads_step_time, strategy=strategies)
def test_a_step_is_the_sum_of_its_terms_and_lies_within_its_bounds(
    model: Model, workload: Workload, strategy: StrategyRow
) -> None:
    found = step_time(model, workload, strategy)
    assert sum(term.exposed_seconds for term in found.terms) == pytest.approx(
        found.expected_seconds
    )
    assert all(term.exposed_seconds > 0 for term in found.terms)
    assert found.low_seconds < found.expected_seconds < found.high_seconds
    length = model.architecture.image_tokens or workload.sequence_tokens
    assert found.tokens == 2 * workload.accumulation_steps * workload.micro_batch * length
    assert found.tokens_per_s == pytest.approx(found.tokens / found.expected_seconds)


HIGHER_RATES = st.builds(
    lambda name, factor: {name: getattr(RATES, name) * factor},
    st.sampled_from(("bf16_flop_per_s", "memory_bytes_per_s")),
    st.integers(min_value=2, max_value=100),
) | st.just({"pcie_generation": RATES.pcie_generation + 1})


@given(
    model=random_models(),
    workload=workloads_step_time,
    strategy=strategies,
    higher=HIGHER_RATES,
)
def test_a_gpu_with_a_higher_rate_is_never_slower(
    model: Model, workload: Workload, strategy: StrategyRow, higher: dict[str, Any]
) -> None:
    faster = replace(RATES, **higher)
    slow, fast = (seconds(model, workload, strategy, rates=each) for each in (RATES, faster))
    assert fast <= slow * (1 + 1e-9)


@given(
    model=random_models(),
    workload=workloads_step_time,
    strategy=strategies,
    bytes_per_s=st.integers(min_value=10**8, max_value=10**12),
    factor=st.integers(min_value=2, max_value=100),
    link_class=st.sampled_from([LinkClass.NVLINK_ALL, LinkClass.PCIE]),
)
def test_a_slower_link_never_makes_a_step_faster(
    model: Model,
    workload: Workload,
    strategy: StrategyRow,
    bytes_per_s: int,
    factor: int,
    link_class: LinkClass,
) -> None:
    slow, fast = (
        seconds(model, workload, strategy, linked(link_class, rate))
        for rate in (bytes_per_s, bytes_per_s * factor)
    )
    assert fast <= slow * (1 + 1e-9)


@given(model=random_models(), workload=workloads_step_time, strategy=strategies)
def test_checkpointing_is_never_faster_at_the_same_micro_batch(
    model: Model, workload: Workload, strategy: StrategyRow
) -> None:
    checkpointing = replace(workload, gradient_checkpointing=True)
    kept, some, again = (
        seconds(model, each, strategy)
        for each in (
            replace(workload, gradient_checkpointing=False),
            replace(checkpointing, every_n_layers=4),
            checkpointing,
        )
    )
    assert kept <= some * (1 + 1e-9)
    assert some <= again * (1 + 1e-9)


@given(
    model=random_models(),
    workload=workloads_step_time,
    strategy=strategies,
    field=st.sampled_from(["micro_batch", "accumulation_steps", "sequence_tokens"]),
)
def test_more_work_never_takes_less_time(
    model: Model, workload: Workload, strategy: StrategyRow, field: str
) -> None:
    more = replace(workload, **{field: 2 * getattr(workload, field)})
    assert seconds(model, workload, strategy) <= seconds(model, more, strategy) * (1 + 1e-9)


def test_large_products_take_most_of_a_large_step() -> None:
    found = step_time(LARGE, Workload(micro_batch=8), DDP)
    shares = {term.kind: term.exposed_seconds / found.expected_seconds for term in found.terms}
    # 6 N t operations at the nominal rate are a bound from below.
    assert 6 * LARGE.params * 8 * 2048 / 989e12 < found.expected_seconds
    assert shares[TermKind.MATRIX_PRODUCTS] > 0.4


def test_an_optimizer_on_the_host_is_slower_by_its_cores_and_pcie() -> None:
    here, there = (step_time(LARGE, Workload(), each) for each in (ZERO2, ZERO2_OFFLOAD))
    kinds = {term.kind for term in there.terms}
    assert here.expected_seconds * 2 < there.expected_seconds
    assert {TermKind.CPU_OPTIMIZER, TermKind.PCIE} <= kinds


def of_kind(found: StepTime, kind: TermKind) -> float:
    return sum(term.exposed_seconds for term in found.terms if term.kind is kind)


def test_between_micro_steps_stage_2_keeps_gradients_on_the_host() -> None:
    pcie = [
        of_kind(
            step_time(LARGE, Workload(accumulation_steps=steps), ZERO2_OFFLOAD),
            TermKind.PCIE,
        )
        for steps in (1, 2, 3)
    ]
    # Weights in bf16, gradients in fp32; sums in bf16 there once, and there and back once more.
    assert pcie == pytest.approx([pcie[0], pcie[0] / 6 * 12, pcie[0] / 6 * 16])


def test_weights_that_stay_on_the_gpu_are_cast_by_the_host_where_it_steps_them() -> None:
    stays = next(each for each in STRATEGIES if each.name == "zero3-offload-optimizer")
    workload = Workload(micro_batch=64, gradient_checkpointing=True)
    least = 2 * LARGE.params / 2 / COSTS.pageable_bytes_per_s
    assert of_kind(step_time(LARGE, workload, stays), TermKind.PCIE) >= least
    whole = replace(workload, precision=Precision.FP32)
    assert of_kind(step_time(LARGE, whole, stays), TermKind.PCIE) < least


def test_stage_3_gathers_within_each_micro_step() -> None:
    slow = linked(LinkClass.PCIE, 1_000_000_000)
    one, four = (
        seconds(LARGE, Workload(accumulation_steps=steps), ZERO3, slow)
        - seconds(LARGE, Workload(accumulation_steps=steps), ZERO3)
        for steps in (1, 4)
    )
    assert four == pytest.approx(4 * one, rel=0.1)


ETHERNET = Network(kind=NetworkKind.ETHERNET, bytes_per_s=10**8)
TWO_NODES = replace(parse_spec("8xH200", TABLE), nodes=2, network=ETHERNET)


@pytest.mark.parametrize("steps", [1, 4])
def test_copies_on_each_node_save_all_gathers_but_the_first_behind_a_step(steps: int) -> None:
    workload = Workload(accumulation_steps=steps)
    plain = replace(fit_buffers(LARGE, LARGE.params, ZERO3)[0], stage3_max_live_parameters=0)
    without, with_copies = (
        of_kind(step_time(LARGE, workload, ZERO3, TWO_NODES, buffers=buffers), TermKind.GATHERING)
        for buffers in (plain, replace(plain, hpz_partition_size=8))
    )
    # No network brings a rank the weights of all others faster than its nominal rate.
    assert with_copies > 0.9 * 15 / 16 * 2 * LARGE.params / 10**8
    # Once of twice in each micro-step.
    assert with_copies == pytest.approx(without / (2 * steps), rel=0.1)


def test_copies_of_frozen_weights_outlive_a_step() -> None:
    workload = Workload(method=Method.LORA)
    fitted = fit_buffers(LARGE, trainable_params(LARGE, workload), ZERO3)[0]
    buffers = replace(fitted, hpz_partition_size=8)
    found = step_time(LARGE, workload, ZERO3, TWO_NODES, buffers=buffers)
    assert found.expected_seconds < 0.1 * 2 * LARGE.params / 10**8


def test_buckets_that_are_queued_cost_as_little_as_measured() -> None:
    # tests/measured, j1-001 and j1-006: 248 buckets or 3, within 3 ms.
    model, workload = model_from_size("1.24b", 1_240_000_000), Workload(micro_batch=4)
    lean, roomy = (
        step_time(
            *(model, workload, ZERO2),
            buffers=Buffers(reduce_bucket_size=bucket, overlap_comm=False),
        ).expected_seconds
        for bucket in (5_000_000, 500_000_000)
    )
    assert 0 < lean - roomy < 0.003


def test_pcie_without_a_rate_is_that_of_the_gpu() -> None:
    stated = linked(LinkClass.PCIE, RATES.pcie_bytes_per_s)
    unstated = linked(LinkClass.PCIE, None)
    assert seconds(LARGE, Workload(), ZERO2, unstated) == seconds(LARGE, Workload(), ZERO2, stated)
    # What nobody said stays less sure.
    known, unknown = (step_time(LARGE, Workload(), ZERO2, each) for each in (stated, unstated))
    assert known.high_seconds < unknown.high_seconds


def test_nvlink_without_a_rate_is_that_of_the_gpu() -> None:
    stated = linked(LinkClass.NVLINK_ALL, RATES.nvlink_bytes_per_s)
    unstated = linked(LinkClass.NVLINK_ALL, None)
    known, unknown = (step_time(LARGE, Workload(), ZERO2, each) for each in (stated, unstated))
    assert known == unknown


def test_nodes_over_a_slow_network_are_slower_than_one_node() -> None:
    alone, together = (seconds(LARGE, Workload(), ZERO2, replace(H200, nodes=n)) for n in (1, 2))
    assert alone * 2 < together


@pytest.mark.parametrize(
    ("workload", "rates"),
    [(Workload(trainer=Trainer.GRPO), RATES), (Workload(), None)],
    ids=["what nothing counts", "a GPU of no table"],
)
def test_no_time_is_made_up(workload: Workload, rates: GpuModel | None) -> None:
    rank = rank_sizes(LARGE, workload, 2, ZERO2, fit_buffers(LARGE, LARGE.params, ZERO2)[0])
    assert predict_step_time(LARGE, rank, H200, rates) is None


def test_a_step_near_the_limit_of_memory_is_slower_and_less_sure() -> None:
    roomy, tight = (
        step_time(LARGE, Workload(), ZERO2, near_limit=near_limit) for near_limit in (False, True)
    )
    assert roomy.expected_seconds < tight.expected_seconds
    assert TermKind.ALLOCATOR in {term.kind for term in tight.terms}
    assert roomy.high_seconds / roomy.low_seconds < tight.high_seconds / tight.low_seconds


GPU = H200.gpus[0]
OF_NO_TABLE = replace(H200, gpus=(replace(GPU, name="NVIDIA Foo 9000"),))
MIXED = replace(H200, gpus=(GPU, replace(GPU, index=1, name="NVIDIA Foo 9000")))


@pytest.mark.parametrize(
    ("machine", "workload", "why"),
    [
        (
            parse_spec("V100-32GB", TABLE),
            Workload(precision=Precision.BF16),
            "zerowiz has no speed for Tesla V100-SXM2-32GB in bf16",
        ),
        (
            H200,
            Workload(trainer=Trainer.GRPO),
            "zerowiz cannot predict the time to generate completions",
        ),
        (H200, Workload(), "zerowiz cannot predict the time of NVMe offload"),
        (OF_NO_TABLE, Workload(), "NVIDIA Foo 9000 is not in the table of GPUs"),
        (MIXED, Workload(), "the GPUs are of different models"),
        (
            replace(H200, accelerator=Accelerator.CPU),
            Workload(),
            "zerowiz has no speeds for a CPU",
        ),
    ],
)
def test_a_step_without_a_time_has_a_reason(machine: Machine, workload: Workload, why: str) -> None:
    assert why == why_untimed(LARGE, workload, machine, find_rates(machine, TABLE))


def test_fp32_takes_as_much_longer_as_the_gpu_computes_it_slower() -> None:
    """Outside the tensor cores; what a kernel moves is twice as large, but for the loss."""
    bf16, fp32 = (
        step_time(LARGE, Workload(precision=each), ZERO2)
        for each in (Precision.BF16, Precision.FP32)
    )
    slower = of_kind(fp32, TermKind.MATRIX_PRODUCTS) / of_kind(bf16, TermKind.MATRIX_PRODUCTS)
    assert 8 < slower < 989 / 67
    assert 1.5 < of_kind(fp32, TermKind.ELEMENTWISE) / of_kind(bf16, TermKind.ELEMENTWISE) < 2


def test_scores_of_a_single_key_head_are_multiplied_in_fp32() -> None:
    """The rows of falcon-7b-6l in tests/measured/regret/drawn took 0.05 s more than at bf16."""
    sizes = {"model_type": "falcon", "num_hidden_layers": 6}
    workload = Workload(micro_batch=16, sequence_tokens=512)
    one, grouped = (
        step_time(model_from_config("falcon", {**sizes, **switches}), workload, DDP)
        for switches in ({}, {"new_decoder_architecture": True, "num_kv_heads": 71})
    )
    in_fp32 = 3.5 * 4 * 16 * 512 * 512 * 4544 * 6 / (67e12 * COSTS.product_fraction)
    assert of_kind(one, TermKind.ATTENTION) == pytest.approx(in_fp32, rel=0.01)
    assert of_kind(grouped, TermKind.ATTENTION) < in_fp32 / 5
