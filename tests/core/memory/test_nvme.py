"""Offload to NVMe: what is locked and written, held against ranks that did it, and laws."""

from dataclasses import dataclass

import pytest

from zerowiz.core.memory.allocations import AllocationKind
from zerowiz.core.memory.buffers import Buffers
from zerowiz.core.memory.host import AIO, NvmeOffload, fit_sub_group, offload_to_nvme
from zerowiz.core.memory.rank_sizes import StrategyRow, rank_sizes
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.model.types import Model, ModelSource, Tensor
from zerowiz.core.strategies import ZERO3_OFFLOAD, ZERO3_OFFLOAD_OPTIMIZER
from zerowiz.core.structs import replace
from zerowiz.core.workload import Method, Workload

SEVEN = model_from_size("7b", 7 * 10**9)


def llama(width: int, words: int) -> Model:
    """A Llama of two layers with one head, untied."""
    return Model(
        name="llama",
        source=ModelSource.CONFIG,
        params=2 * words * width + 14 * width * width + 5 * width,
        architecture=replace(SEVEN.architecture, layers=2, hidden_size=width, vocab_size=words),
        tensors=(
            Tensor(name="embed", shape=(words, width), in_block=False),
            Tensor(name="head", shape=(words, width), in_block=False),
            Tensor(name="linear", shape=(width, width), copies=14, linear=True),
            Tensor(name="norm", shape=(width,), copies=5),
        ),
    )


def offload(
    model: Model,
    ranks: int,
    sub_group_size: int,
    strategy: StrategyRow = ZERO3_OFFLOAD_OPTIMIZER,
    workload: Workload | None = None,
) -> NvmeOffload:
    buffers = Buffers(sub_group_size=sub_group_size)
    rank = rank_sizes(model, workload or Workload(), ranks, strategy, buffers)
    return offload_to_nvme(model, rank)


def buffer_bytes(offloaded: NvmeOffload) -> int:
    """Of one of the buffers that groups are swapped through."""
    held = {kind: size_bytes for kind, size_bytes, _ in offloaded.host_allocations}
    return held[AllocationKind.SWAP_BUFFERS_LOCKED] // int(
        offloaded.offload_optimizer["buffer_count"]
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What two CPU ranks of DeepSpeed 0.19.8 locked (VmLck of one) and wrote (both) after 3 steps.

    A Llama of 2 layers in bf16, AdamW of the config, offload_optimizer to NVMe.
    """

    width: int
    words: int
    sub_group_size: int = 10**9
    buffers: int
    """`buffer_count`: with pipelines three groups of four, without one."""
    locked_bytes: int
    written_bytes: int


ALIKE = (
    Seen(width=256, words=1000, buffers=4, locked_bytes=11452416, written_bytes=17172480),
    Seen(
        width=256,
        words=1000,
        sub_group_size=300_000,
        buffers=12,
        locked_bytes=18776064,
        written_bytes=17172480,
    ),
    Seen(
        width=512,
        words=2000,
        sub_group_size=300_000,
        buffers=12,
        locked_bytes=37208064,
        written_bytes=76838912,
    ),
    Seen(width=1024, words=2048, buffers=4, locked_bytes=151044096, written_bytes=302051328),
)


@pytest.mark.parametrize("seen", ALIKE, ids=str)
def test_what_is_written_is_what_two_ranks_wrote(seen: Seen) -> None:
    counted = offload(llama(seen.width, seen.words), 2, seen.sub_group_size)
    # Files are whole KiB.
    assert seen.written_bytes == pytest.approx(counted.node_bytes(2), rel=0.001)


@pytest.mark.parametrize("seen", ALIKE, ids=str)
def test_a_buffer_is_never_larger_than_counted(seen: Seen) -> None:
    counted = offload(llama(seen.width, seen.words), 2, seen.sub_group_size)
    assert seen.locked_bytes // seen.buffers <= buffer_bytes(counted)


@pytest.mark.parametrize("seen", [ALIKE[0], ALIKE[3]], ids=str)
def test_a_buffer_holds_the_share_where_that_is_one_group(seen: Seen) -> None:
    counted = offload(llama(seen.width, seen.words), 2, seen.sub_group_size)
    assert seen.locked_bytes // seen.buffers == buffer_bytes(counted)


def locked_bytes(offloaded: NvmeOffload) -> int:
    return sum(size for part, size, _ in offloaded.host_allocations if part.endswith("locked"))


def test_all_that_is_locked_is_what_a_rank_locked() -> None:
    # Width 1024, sub_group_size 1 M, 12 buffers of groups and 8 of parameters: VmLck 71409664.
    # The largest group had 1050112 elements; the border that is counted here is a head.
    counted = offload(llama(1024, 2048), 2, 1050112 - 1048576, ZERO3_OFFLOAD)
    assert 71409664 == locked_bytes(counted)


def test_parameters_on_nvme_are_a_file_each_of_at_least_a_mebibyte() -> None:
    model = llama(1024, 2048)
    more = offload(model, 2, 10**9, ZERO3_OFFLOAD).written_bytes
    # 14 linear layers and two ends, of each of two CPU ranks: 339800064 - 302051328 on both.
    assert 18874368 == more - offload(model, 2, 10**9).written_bytes


def test_the_buffer_of_a_parameter_takes_this_ranks_part_of_the_largest() -> None:
    section = offload(llama(1024, 2048), 2, 10**9, ZERO3_OFFLOAD).offload_param
    assert section is not None
    # "More elements 1048576 than buffer size 1000000", said two CPU ranks.
    assert 1048576 == section["buffer_size"]


def test_parameters_leave_host_memory_and_their_buffers() -> None:
    offloaded = offload(SEVEN, 8, 10**9, ZERO3_OFFLOAD)
    assert offloaded.offload_param is not None
    assert 0 == offloaded.offload_param["max_in_cpu"]
    assert {"stage3_max_reuse_distance": 0} == offloaded.zero_optimization


def test_an_offloaded_optimizer_alone_leaves_the_parameters_where_they_are() -> None:
    offloaded = offload(SEVEN, 8, 10**9)
    assert offloaded.offload_param is None
    assert {} == offloaded.zero_optimization


def test_pipelines_have_buffers_for_three_groups_of_adam() -> None:
    section = offload(SEVEN, 8, 10**9).offload_optimizer
    # Master, two moments and gradients; with 8 buffers, three groups run out of them.
    assert 12 == section["buffer_count"]


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
@pytest.mark.parametrize("strategy", [ZERO3_OFFLOAD, ZERO3_OFFLOAD_OPTIMIZER])
def test_a_smaller_group_locks_less_and_writes_as_much(ranks: int, strategy: StrategyRow) -> None:
    large = offload(SEVEN, ranks, 10**9, strategy)
    small = offload(SEVEN, ranks, 10**7, strategy)
    assert buffer_bytes(small) < buffer_bytes(large)
    assert small.written_bytes == large.written_bytes


def test_more_ranks_write_no_more_together() -> None:
    few, many = offload(SEVEN, 2, 10**8), offload(SEVEN, 16, 10**8)
    assert many.node_bytes(16) <= few.node_bytes(2)


def test_adapters_write_little() -> None:
    lora = Workload(method=Method.LORA)
    adapters = offload(SEVEN, 2, 10**8, workload=lora)
    assert adapters.written_bytes < offload(SEVEN, 2, 10**8).written_bytes // 50


def test_the_group_is_capped_for_nvme() -> None:
    assert 100_000_000 == fit_sub_group(10**9, 8)
    assert 15_625_000 == fit_sub_group(10**9, 64)
    assert 5 == fit_sub_group(5, 8)


def test_aio_asks_for_no_direct_storage() -> None:
    assert {
        "block_size",
        "queue_depth",
        "intra_op_parallelism",
        "single_submit",
        "overlap_events",
    } == set(AIO)
