"""What the ranks of a node hold of its memory, from their start to their checkpoints."""

import json
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
from measured.rows import Row, host_at_stage_3, read_every_row, read_model
from paths import TESTS

from zerowiz.core.memory.allocations import AllocationKind
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS, Buffers
from zerowiz.core.memory.estimate import estimate
from zerowiz.core.memory.host import (
    AIO,
    HostNeed,
    HostPhase,
    HostUse,
    NvmeOffload,
    Saving,
    fit_sub_group,
    offload_to_nvme,
    predict_host,
)
from zerowiz.core.memory.rank_sizes import StrategyRow, rank_sizes
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.model.types import Model, ModelSource, Tensor
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
from zerowiz.core.workload import Method, Workload

RANKS = 4
SEVEN = model_from_size("7b", 7_000_000_000)
WEIGHTS_BYTES = 2 * SEVEN.params
MIB = 2**20
SMALL_GROUPS = replace(DEEPSPEED_DEFAULTS, sub_group_size=10**8)


def need(
    strategy: StrategyRow,
    use: HostUse | None = None,
    workload: Workload | None = None,
    *,
    on_cuda: bool = True,
    gathers: bool = True,
) -> HostNeed:
    """Of a node of four."""
    rank = rank_sizes(SEVEN, workload or Workload(), RANKS, strategy, SMALL_GROUPS)
    held = estimate(SEVEN, rank).host_peak
    of = partial(predict_host, SEVEN, rank, held, RANKS, use or HostUse())
    return of(on_cuda=on_cuda, gathers=gathers)


def part_bytes(held: HostNeed, phase: HostPhase, kind: AllocationKind) -> int:
    return sum(each.size_bytes for each in held.phases[phase] if each.kind is kind)


STARTED_WITH_STAGE_3 = [row for row in read_every_row() if host_at_stage_3(row)]


@pytest.mark.parametrize("row", STARTED_WITH_STAGE_3, ids=lambda row: row["id"])
def test_the_host_memory_of_a_run_at_stage_3_is_that_of_its_init_or_of_its_steps(row: Row) -> None:
    predicted, measured = host_at_stage_3(row) or (0, 0)
    assert measured == pytest.approx(predicted, rel=0.03, abs=200 * MIB)


@cache
def saved_runs() -> list[dict[str, Any]]:
    """Every rank of runs of the Trainer on two GPUs, by phase: the memory that is its own."""
    path = TESTS / "measured" / "2026-11-host.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return rows


each_saved_run = pytest.mark.parametrize(
    "row", saved_runs(), ids=lambda row: f"{row['case']}-{row['rank']}"
)


def saving_rank(row: dict[str, Any], saving: Saving) -> HostNeed:
    """One of its ranks alone."""
    model = read_model(row["model"])
    strategy = {0: DDP, 2: ZERO2, 3: ZERO3}[row["stage"]]
    rank = rank_sizes(model, Workload(), row["gpus"], strategy, DEEPSPEED_DEFAULTS)
    return predict_host(model, rank, (), 1, HostUse(saving=saving), on_cuda=True)


def grown_bytes(row: dict[str, Any], phase: str) -> int:
    reading = row["phases"][phase]
    grown: int = reading["peak_bytes"] - reading["begin_bytes"]
    return grown


@each_saved_run
def test_what_a_rank_of_the_trainer_collects_is_what_was_measured(row: dict[str, Any]) -> None:
    held = saving_rank(row, Saving.TRAINER)
    predicted = part_bytes(held, HostPhase.SAVING, AllocationKind.WEIGHTS_COLLECTED)
    is_first = row["rank"] == 0
    expected = predicted if is_first or row["stage"] != ZERO3.stage else 0
    assert grown_bytes(row, "save_model") == pytest.approx(expected, rel=0.002, abs=2 * MIB)


@each_saved_run
def test_what_a_rank_writes_is_what_was_measured(row: dict[str, Any]) -> None:
    held = saving_rank(row, Saving.ENGINE)
    predicted = part_bytes(held, HostPhase.SAVING, AllocationKind.STORAGE_WRITTEN)
    expected = 0 if row["stage"] == DDP.stage and row["rank"] > 0 else predicted
    assert grown_bytes(row, "save_checkpoint") == pytest.approx(expected, rel=0.002, abs=2 * MIB)


@each_saved_run
def test_a_process_takes_what_was_measured(row: dict[str, Any]) -> None:
    """Its own memory, and the libraries that all processes share."""
    trained = row["phases"]["train"]
    taken = trained["peak_bytes"] + trained["mapped_peak_bytes"]
    held = saving_rank(row, Saving.PORTABLE)
    assert taken == pytest.approx(held.phase_bytes[HostPhase.TRAINING], abs=250 * MIB)


@each_saved_run
def test_a_model_that_from_pretrained_maps_is_no_memory_of_the_process(row: dict[str, Any]) -> None:
    # zero.Init brings code of its own.
    allowed_bytes = 150 * MIB if row["stage"] == ZERO3.stage else 10 * MIB
    assert grown_bytes(row, "load") < allowed_bytes < 2 * row["params"] // 5


def test_a_worker_takes_less_than_is_counted() -> None:
    private = [size for row in saved_runs() for size in row["worker_private_bytes"]]
    assert private
    assert all(size < 13_000_000 for size in private)


@pytest.mark.parametrize("strategy", [ZERO3, ZERO3_OFFLOAD_OPTIMIZER])
def test_at_stage_3_the_shares_of_all_ranks_are_the_weights_once(strategy: StrategyRow) -> None:
    moved = part_bytes(need(strategy), HostPhase.INIT, AllocationKind.SHARES_MOVED)
    assert moved == pytest.approx(WEIGHTS_BYTES, rel=1e-6)


@pytest.mark.parametrize("strategy", [DDP, ZERO1, ZERO2, ZERO2_OFFLOAD, ZERO3_OFFLOAD])
def test_nothing_else_passes_through_the_host_at_init(strategy: StrategyRow) -> None:
    assert 0 == part_bytes(need(strategy), HostPhase.INIT, AllocationKind.SHARES_MOVED)


@pytest.mark.parametrize("strategy", [DDP, ZERO1, ZERO2, ZERO2_OFFLOAD])
def test_below_stage_3_every_rank_of_the_trainer_collects_the_weights(
    strategy: StrategyRow,
) -> None:
    collected = part_bytes(need(strategy), HostPhase.SAVING, AllocationKind.WEIGHTS_COLLECTED)
    assert RANKS * WEIGHTS_BYTES == collected


def test_at_stage_3_the_first_rank_alone_collects_them_or_none() -> None:
    held = need(ZERO3)
    assert held.gathers
    collected = part_bytes(held, HostPhase.SAVING, AllocationKind.WEIGHTS_COLLECTED)
    assert WEIGHTS_BYTES == collected
    lean = need(ZERO3, gathers=False)
    assert not lean.gathers
    assert 0 == part_bytes(lean, HostPhase.SAVING, AllocationKind.WEIGHTS_COLLECTED)


def test_each_rank_writes_its_states_by_storages() -> None:
    engine = HostUse(saving=Saving.ENGINE)
    written = [
        part_bytes(need(strategy, engine), HostPhase.SAVING, AllocationKind.STORAGE_WRITTEN)
        for strategy in (DDP, ZERO2, ZERO2_OFFLOAD)
    ]
    assert [4 * SEVEN.largest_param, 2 * WEIGHTS_BYTES, 0] == written
    sharded = need(ZERO3, engine)
    group = part_bytes(sharded, HostPhase.SAVING, AllocationKind.STORAGE_WRITTEN)
    assert group == pytest.approx(RANKS * 4 * SMALL_GROUPS.sub_group_size, rel=0.1)


def test_adapters_are_collected_with_their_base_below_stage_3_alone() -> None:
    lora = Workload(method=Method.LORA)
    below, sharded = (
        part_bytes(need(s, workload=lora), HostPhase.SAVING, AllocationKind.WEIGHTS_COLLECTED)
        for s in (ZERO2, ZERO3)
    )
    assert below > RANKS * WEIGHTS_BYTES
    assert sharded < WEIGHTS_BYTES // 20


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_who_saves_by_parts_holds_no_more_than_who_trains(strategy: StrategyRow) -> None:
    portable = need(strategy, HostUse(saving=Saving.PORTABLE))
    assert portable.phase_bytes[HostPhase.TRAINING] == portable.phase_bytes[HostPhase.SAVING]
    engine = need(strategy, HostUse(saving=Saving.ENGINE)).peak_bytes
    assert portable.peak_bytes <= engine <= need(strategy).peak_bytes


def test_a_model_with_new_weights_is_built_by_every_rank_unless_it_is_sharded() -> None:
    builds = HostUse(saving=Saving.PORTABLE, builds_on_host=True)
    built = part_bytes(need(ZERO2, builds), HostPhase.LOAD, AllocationKind.MODEL_BUILT)
    assert RANKS * WEIGHTS_BYTES == built
    assert HostPhase.LOAD is need(ZERO2, builds).peak_phase
    sharded = need(ZERO3, builds)
    assert 0 == part_bytes(sharded, HostPhase.LOAD, AllocationKind.MODEL_BUILT)


def test_the_workers_of_a_data_loader_are_each_ranks_own() -> None:
    held = need(ZERO2, HostUse(workers=8))
    workers = part_bytes(held, HostPhase.TRAINING, AllocationKind.LOADER_WORKERS)
    assert RANKS * 8 * 13_000_000 == workers


def test_a_job_can_run_without_saving() -> None:
    held = need(ZERO2)
    assert HostPhase.SAVING is held.peak_phase
    assert HostPhase.SAVING is not held.running_phase
    assert held.running_bytes < held.peak_bytes


def test_cpu_ranks_have_their_own_memory_counted_as_the_devices() -> None:
    held = need(ZERO3, on_cuda=False)
    assert 0 == held.phase_bytes[HostPhase.INIT] == held.phase_bytes[HostPhase.LOAD]
    assert WEIGHTS_BYTES == held.phase_bytes[HostPhase.SAVING]


def test_a_tied_head_is_collected_under_both_names() -> None:
    tied = read_model("llama-3.2-1b")
    a = tied.architecture
    rank = rank_sizes(tied, Workload(), RANKS, ZERO2, DEEPSPEED_DEFAULTS)
    held = predict_host(tied, rank, (), RANKS, HostUse(), on_cuda=True)
    collected = part_bytes(held, HostPhase.SAVING, AllocationKind.WEIGHTS_COLLECTED)
    assert RANKS * 2 * (tied.params + a.vocab_size * a.hidden_size) == collected


# Offload to NVMe: what is locked and written, held against ranks that did it, and laws.

NVME_SEVEN = model_from_size("7b", 7 * 10**9)


def llama(width: int, words: int) -> Model:
    """A Llama of two layers with one head, untied."""
    return Model(
        name="llama",
        source=ModelSource.CONFIG,
        params=2 * words * width + 14 * width * width + 5 * width,
        architecture=replace(
            NVME_SEVEN.architecture, layers=2, hidden_size=width, vocab_size=words
        ),
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
    offloaded = offload(NVME_SEVEN, 8, 10**9, ZERO3_OFFLOAD)
    assert offloaded.offload_param is not None
    assert 0 == offloaded.offload_param["max_in_cpu"]
    assert {"stage3_max_reuse_distance": 0} == offloaded.zero_optimization


def test_an_offloaded_optimizer_alone_leaves_the_parameters_where_they_are() -> None:
    offloaded = offload(NVME_SEVEN, 8, 10**9)
    assert offloaded.offload_param is None
    assert {} == offloaded.zero_optimization


def test_pipelines_have_buffers_for_three_groups_of_adam() -> None:
    section = offload(NVME_SEVEN, 8, 10**9).offload_optimizer
    # Master, two moments and gradients; with 8 buffers, three groups run out of them.
    assert 12 == section["buffer_count"]


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
@pytest.mark.parametrize("strategy", [ZERO3_OFFLOAD, ZERO3_OFFLOAD_OPTIMIZER])
def test_a_smaller_group_locks_less_and_writes_as_much(ranks: int, strategy: StrategyRow) -> None:
    large = offload(NVME_SEVEN, ranks, 10**9, strategy)
    small = offload(NVME_SEVEN, ranks, 10**7, strategy)
    assert buffer_bytes(small) < buffer_bytes(large)
    assert small.written_bytes == large.written_bytes


def test_more_ranks_write_no_more_together() -> None:
    few, many = offload(NVME_SEVEN, 2, 10**8), offload(NVME_SEVEN, 16, 10**8)
    assert many.node_bytes(16) <= few.node_bytes(2)


def test_adapters_write_little() -> None:
    lora = Workload(method=Method.LORA)
    adapters = offload(NVME_SEVEN, 2, 10**8, workload=lora)
    assert adapters.written_bytes < offload(NVME_SEVEN, 2, 10**8).written_bytes // 50


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
