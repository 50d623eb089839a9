"""What the ranks of a node hold of its memory, from their start to their checkpoints."""

import json
from functools import cache, partial
from typing import Any

import pytest
from measured.rows import Row, host_at_stage_3, read_every_row, read_model
from paths import TESTS

from zerowiz.core.memory.allocations import AllocationKind
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.memory.estimate import estimate
from zerowiz.core.memory.host import HostNeed, HostPhase, HostUse, Saving, predict_host
from zerowiz.core.memory.rank_sizes import StrategyRow, rank_sizes
from zerowiz.core.model.from_name import model_from_size
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
