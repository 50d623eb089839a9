"""What the ranks of a node hold of its memory, from their start to their checkpoints."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import pytest
from measured.rows import host_at_stage_3, read_every_row, read_model
from paths import TESTS

from zerowiz.core.memory.allocations import AllocationKind
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS, Buffers, NvmeBuffers
from zerowiz.core.memory.estimate import estimate
from zerowiz.core.memory.host import (
    HostNeed,
    HostPhase,
    HostUse,
    Saving,
    fit_nvme,
    fit_sub_group,
    nvme_written_bytes,
    predict_host,
    zero3_host_allocations,
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
    held = estimate(SEVEN, rank).host
    of = partial(predict_host, SEVEN, rank, held, RANKS, use or HostUse())
    return of(on_cuda=on_cuda, gathers=gathers)


def part_bytes(held: HostNeed, phase: HostPhase, kind: AllocationKind) -> int:
    return sum(each.size_bytes for each in held.phases[phase] if each.kind is kind)


def test_the_host_memory_of_a_run_at_stage_3_is_that_of_its_init_or_of_its_steps() -> None:
    found = {row["id"]: said for row in read_every_row() if (said := host_at_stage_3(row))}
    assert len(found) > 150
    predicted = {id_: each for id_, (each, _) in found.items()}
    measured = {id_: each for id_, (_, each) in found.items()}
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
def test_what_a_rank_collects_and_writes_is_what_was_measured(row: dict[str, Any]) -> None:
    """Of what is collected by the first rank alone, others hold nothing."""
    is_first, stage = row["rank"] == 0, row["stage"]
    for saving, phase, kind, by_all in (
        (Saving.TRAINER, "save_model", AllocationKind.WEIGHTS_COLLECTED, stage != ZERO3.stage),
        (Saving.ENGINE, "save_checkpoint", AllocationKind.STORAGE_WRITTEN, stage != DDP.stage),
    ):
        predicted = part_bytes(saving_rank(row, saving), HostPhase.SAVING, kind)
        expected = predicted if is_first or by_all else 0
        assert grown_bytes(row, phase) == pytest.approx(expected, rel=0.002, abs=2 * MIB), phase


@each_saved_run
def test_a_process_takes_what_was_measured(row: dict[str, Any]) -> None:
    """Its own memory, and the libraries that all processes share; a model is mapped."""
    trained = row["phases"]["train"]
    taken = trained["peak_bytes"] + trained["mapped_peak_bytes"]
    held = saving_rank(row, Saving.PORTABLE)
    assert taken == pytest.approx(held.phase_bytes[HostPhase.TRAINING], abs=250 * MIB)
    # zero.Init brings code of its own.
    allowed_bytes = 150 * MIB if row["stage"] == ZERO3.stage else 10 * MIB
    assert grown_bytes(row, "load") < allowed_bytes < 2 * row["params"] // 5


def test_a_worker_takes_less_than_is_counted() -> None:
    private = [size for row in saved_runs() for size in row["worker_private_bytes"]]
    assert private
    assert all(size < 13_000_000 for size in private)


ENGINE = HostUse(saving=Saving.ENGINE)
BUILDING = HostUse(saving=Saving.PORTABLE, builds_on_host=True)
INIT, LOAD, SAVING = HostPhase.INIT, HostPhase.LOAD, HostPhase.SAVING
MOVED, COLLECTED = AllocationKind.SHARES_MOVED, AllocationKind.WEIGHTS_COLLECTED
WRITTEN, BUILT = AllocationKind.STORAGE_WRITTEN, AllocationKind.MODEL_BUILT
WORKERS = AllocationKind.LOADER_WORKERS


@pytest.mark.parametrize(
    ("held", "phase", "kind", "expected"),
    [
        # At stage 3 the shares of all ranks are the weights once; nothing else passes there.
        *((need(s), INIT, MOVED, WEIGHTS_BYTES) for s in (ZERO3, ZERO3_OFFLOAD_OPTIMIZER)),
        *((need(s), INIT, MOVED, 0) for s in (DDP, ZERO1, ZERO2, ZERO2_OFFLOAD, ZERO3_OFFLOAD)),
        # Below it every rank of the Trainer collects the weights, there the first alone, or none.
        *(
            (need(s), SAVING, COLLECTED, RANKS * WEIGHTS_BYTES)
            for s in (DDP, ZERO1, ZERO2, ZERO2_OFFLOAD)
        ),
        (need(ZERO3), SAVING, COLLECTED, WEIGHTS_BYTES),
        (need(ZERO3, gathers=False), SAVING, COLLECTED, 0),
        # Each rank writes its states by storages.
        (need(DDP, ENGINE), SAVING, WRITTEN, 4 * SEVEN.largest_param),
        (need(ZERO2, ENGINE), SAVING, WRITTEN, 2 * WEIGHTS_BYTES),
        (need(ZERO2_OFFLOAD, ENGINE), SAVING, WRITTEN, 0),
        # New weights are built by every rank, unless they are sharded.
        (need(ZERO2, BUILDING), LOAD, BUILT, RANKS * WEIGHTS_BYTES),
        (need(ZERO3, BUILDING), LOAD, BUILT, 0),
        (need(ZERO2, HostUse(workers=8)), HostPhase.TRAINING, WORKERS, RANKS * 8 * 13_000_000),
    ],
)
def test_a_node_holds_in_a_phase(
    held: HostNeed, phase: HostPhase, kind: AllocationKind, expected: int
) -> None:
    assert expected == pytest.approx(part_bytes(held, phase, kind), rel=1e-6)


def test_a_rank_at_stage_3_writes_a_sub_group() -> None:
    group = part_bytes(need(ZERO3, ENGINE), SAVING, WRITTEN)
    assert group == pytest.approx(RANKS * 4 * SMALL_GROUPS.sub_group_size, rel=0.1)


def test_adapters_are_collected_with_their_base_below_stage_3_alone() -> None:
    lora = Workload(method=Method.LORA)
    below, sharded = (part_bytes(need(s, workload=lora), SAVING, COLLECTED) for s in (ZERO2, ZERO3))
    assert below > RANKS * WEIGHTS_BYTES
    assert sharded < WEIGHTS_BYTES // 20


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_who_saves_by_parts_holds_no_more_than_who_trains(strategy: StrategyRow) -> None:
    portable = need(strategy, HostUse(saving=Saving.PORTABLE))
    assert portable.phase_bytes[HostPhase.TRAINING] == portable.phase_bytes[SAVING]
    assert portable.peak_bytes <= need(strategy, ENGINE).peak_bytes <= need(strategy).peak_bytes


def test_a_job_can_run_without_saving() -> None:
    held = need(ZERO2)
    assert held.peak_phase is SAVING is not held.running_phase
    assert held.running_bytes < held.peak_bytes
    assert LOAD is need(ZERO2, BUILDING).peak_phase


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


class OnNvme(NamedTuple):
    """What one rank has of NVMe."""

    buffers: NvmeBuffers
    held: Mapping[AllocationKind, int]
    """In host memory, in bytes."""
    written_bytes: int

    @property
    def buffer_bytes(self) -> int:
        """Of one of the buffers that groups are swapped through."""
        return self.held[AllocationKind.SWAP_BUFFERS_LOCKED] // self.buffers.optimizer_count


def offload(
    model: Model,
    ranks: int,
    sub_group_size: int,
    strategy: StrategyRow = ZERO3_OFFLOAD_OPTIMIZER,
    workload: Workload | None = None,
) -> OnNvme:
    buffers = Buffers(sub_group_size=sub_group_size, on_nvme=True)
    rank = rank_sizes(model, workload or Workload(), ranks, strategy, buffers)
    held = {kind: size_bytes for kind, size_bytes, _ in zero3_host_allocations(model, rank)}
    return OnNvme(fit_nvme(model, rank), held, nvme_written_bytes(model, rank))


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
def test_two_ranks_wrote_what_is_counted_and_locked_no_more(seen: Seen) -> None:
    """A buffer holds the share where that is one group."""
    counted = offload(llama(seen.width, seen.words), 2, seen.sub_group_size)
    # Files are whole KiB.
    assert seen.written_bytes == pytest.approx(2 * counted.written_bytes, rel=0.001)
    locked, most = seen.locked_bytes // seen.buffers, counted.buffer_bytes
    assert locked == most if seen.sub_group_size == 10**9 else locked <= most


def test_all_that_is_locked_is_what_a_rank_locked() -> None:
    # Width 1024, sub_group_size 1 M, 12 buffers of groups and 8 of parameters: VmLck 71409664.
    # The largest group had 1050112 elements; the border that is counted here is a head.
    counted = offload(llama(1024, 2048), 2, 1050112 - 1048576, ZERO3_OFFLOAD)
    assert 71409664 == sum(size for kind, size in counted.held.items() if kind.endswith("locked"))


def own_bytes(
    model: Model, nvme: NvmeBuffers, strategy: StrategyRow, **buffers: Any
) -> dict[AllocationKind, int]:
    """What one of two ranks holds there by a config with buffers of its own, by kind."""
    own = Buffers(on_nvme=True, nvme=nvme, **buffers)
    rank = rank_sizes(model, Workload(), 2, strategy, own)
    return {kind: held for kind, held, _ in zero3_host_allocations(model, rank) if held}


PINNED, LOCKED = AllocationKind.PARAMETERS_PINNED, AllocationKind.SWAP_BUFFERS_LOCKED
IN_FLIGHT = AllocationKind.PARAMETERS_IN_FLIGHT_LOCKED
STEPPED = AllocationKind.STEPPED_PARAMETERS_LOCKED


@pytest.mark.parametrize("seen", [each for each in ALIKE if each.buffers == 4], ids=str)
def test_a_config_of_its_own_buffers_locks_what_ranks_locked(seen: Seen) -> None:
    """With DeepSpeed's four, none pipelined."""
    model = llama(seen.width, seen.words)
    held = own_bytes(model, NvmeBuffers(param_count=0), ZERO3_OFFLOAD_OPTIMIZER)
    assert seen.locked_bytes == held[LOCKED]


def test_a_config_with_the_buffers_that_zerowiz_fits_holds_as_much() -> None:
    model, group = llama(1024, 2048), 1050112 - 1048576
    fitted = NvmeBuffers(optimizer_count=12, param_count=8, param_size=1048576, max_in_cpu=0)
    held = own_bytes(model, fitted, ZERO3_OFFLOAD, sub_group_size=group)
    assert 71409664 == sum(held[kind] for kind in (LOCKED, IN_FLIGHT, STEPPED))


@pytest.mark.parametrize(
    ("nvme", "group", "locked"),
    [
        # buffer_size 2 M, and else the defaults: all parameters stay in host memory too.
        (NvmeBuffers(param_size=2_000_000), 10**9, 171048960),
        # The parameters alone, and the optimizer alone.
        (NvmeBuffers(optimizer_count=0, param_size=2_000_000), 10**9, 20004864),
        (NvmeBuffers(param_count=0), 10**9, 151044096),
        # sub_group_size 3 M; the largest group had 3147264 elements.
        (
            NvmeBuffers(optimizer_count=6, param_count=12, param_size=2_000_000, max_in_cpu=0),
            3147264 - 1048576,
            136146944,
        ),
    ],
)
def test_what_a_config_puts_on_nvme_locks_what_a_rank_locked(
    nvme: NvmeBuffers, group: int, locked: int
) -> None:
    """VmLck of one of two CPU ranks, DeepSpeed 0.19.8, Llama of 2 layers of width 1024."""
    held = own_bytes(llama(1024, 2048), nvme, ZERO3_OFFLOAD, sub_group_size=group)
    assert locked == sum(held.get(kind, 0) for kind in (LOCKED, IN_FLIGHT, STEPPED))


def test_parameters_that_stay_in_host_memory_are_pinned_beside_the_buffers_to_nvme() -> None:
    """By default: a billion elements stay, and then no group is written after its step."""
    model = llama(1024, 2048)
    by_default = own_bytes(model, NvmeBuffers(), ZERO3_OFFLOAD)
    assert by_default[IN_FLIGHT] == pytest.approx(5 * 2 * 100_000_000, rel=1e-4)
    assert STEPPED not in by_default
    assert 2 * model.params // 2 <= by_default[PINNED] <= 2 * model.params
    few = own_bytes(model, NvmeBuffers(max_in_cpu=1000), ZERO3_OFFLOAD)
    assert few[PINNED] == 2048 < few[STEPPED]


def test_what_a_config_leaves_in_host_memory_is_counted_there() -> None:
    model, alone = llama(1024, 2048), NvmeBuffers(optimizer_count=0)
    moved = own_bytes(model, alone, ZERO3_OFFLOAD)
    assert {AllocationKind.MASTER_WEIGHTS, AllocationKind.OPTIMIZER_STATES, IN_FLIGHT} <= set(moved)
    kept = own_bytes(model, alone, ZERO3_OFFLOAD, keeps_optimizer=True)
    assert {AllocationKind.PARAMETERS_IN_FLIGHT, IN_FLIGHT, PINNED} == set(kept)
    swapped = own_bytes(model, NvmeBuffers(param_count=0), ZERO3_OFFLOAD)
    built = AllocationKind.PARAMETERS_AS_BUILT_PINNED
    assert {LOCKED, AllocationKind.GRADIENTS_PINNED, PINNED, built} == set(swapped)


def test_parameters_on_nvme_are_a_file_each_of_at_least_a_mebibyte() -> None:
    optimizer, both = (
        offload(llama(1024, 2048), 2, 10**9, each)
        for each in (ZERO3_OFFLOAD_OPTIMIZER, ZERO3_OFFLOAD)
    )
    # 14 linear layers and two ends, of each of two CPU ranks: 339800064 - 302051328 on both.
    assert 18874368 == both.written_bytes - optimizer.written_bytes
    # "More elements 1048576 than buffer size 1000000", said two CPU ranks.
    assert (1048576, 0) == (both.buffers.param_size, both.buffers.max_in_cpu)
    # An offloaded optimizer alone leaves the parameters where they are.
    assert 0 == optimizer.buffers.param_count
    # Pipelines have buffers for three groups: master, two moments and gradients; 8 run out.
    assert 12 == optimizer.buffers.optimizer_count


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
@pytest.mark.parametrize("strategy", [ZERO3_OFFLOAD, ZERO3_OFFLOAD_OPTIMIZER])
def test_a_smaller_group_locks_less_and_writes_as_much(ranks: int, strategy: StrategyRow) -> None:
    large = offload(NVME_SEVEN, ranks, 10**9, strategy)
    small = offload(NVME_SEVEN, ranks, 10**7, strategy)
    assert small.buffer_bytes < large.buffer_bytes
    assert small.written_bytes == large.written_bytes


def test_neither_more_ranks_nor_adapters_write_more() -> None:
    few, many = offload(NVME_SEVEN, 2, 10**8), offload(NVME_SEVEN, 16, 10**8)
    assert 16 * many.written_bytes <= 2 * few.written_bytes
    adapters = offload(NVME_SEVEN, 2, 10**8, workload=Workload(method=Method.LORA))
    assert adapters.written_bytes < few.written_bytes // 50


def test_the_group_is_capped_for_nvme() -> None:
    assert 100_000_000 == fit_sub_group(10**9, 8)
    assert 15_625_000 == fit_sub_group(10**9, 64)
    assert 5 == fit_sub_group(5, 8)
