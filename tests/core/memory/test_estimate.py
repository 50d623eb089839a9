"""The ledger against the real runs of tests/measured: peak by peak, and phase by phase."""

import pytest
from measured.rows import (
    Row,
    engine_rows,
    host_base_bytes,
    predict,
    read_every_row,
    read_model,
    read_rows,
    strategy_of,
)

from zerowiz.core.measured_row import measured_phases, predict_phases
from zerowiz.core.memory.allocations import AllocationKind, MemoryKind, Phase, moment_bytes
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS, Buffers, fit_buffers
from zerowiz.core.memory.estimate import Estimate, estimate
from zerowiz.core.memory.rank_sizes import StrategyRow, rank_sizes
from zerowiz.core.model.types import Model
from zerowiz.core.strategies import (
    DDP,
    STRATEGIES,
    ZERO1,
    ZERO2,
    ZERO2_OFFLOAD,
    ZERO3,
    ZERO3_OFFLOAD,
)
from zerowiz.core.strategy import Offload
from zerowiz.core.workload import Method, Optimizer, Precision, StateDtype, Workload

MEASURED = [row for row in engine_rows() if row["peak_bytes"] is not None]
PEAK_BAND = 0.01

# Where a phase is not the peak it matters less: under ZeRO-3 many small blocks stand while the
# model is built (b4-026), ZeRO-2 on one rank keeps one more embedding gradient (acts-048), and a
# ZeRO-1 that accumulates takes its first step a little lighter (d4-008).
PHASE_BANDS = {
    "model": 0.05,
    "steady_backward": 0.025,
    "first_backward": 0.045,
    "first_step": 0.03,
}
LLAMA_7B = read_model("llama-2-7b")


def name(row: Row) -> str:
    return f"{row['id']}-{row['model']}-{strategy_of(row).name}"


def llama_7b(
    strategy: StrategyRow, workload: Workload | None = None, buffers: Buffers = DEEPSPEED_DEFAULTS
) -> Estimate:
    return on_ranks(4, strategy, buffers, workload=workload)


def on_ranks(
    ranks: int,
    strategy: StrategyRow,
    buffers: Buffers = DEEPSPEED_DEFAULTS,
    model: Model = LLAMA_7B,
    workload: Workload | None = None,
) -> Estimate:
    return estimate(model, rank_sizes(model, workload or Workload(), ranks, strategy, buffers))


def sizes(estimate: Estimate, phase: Phase, memory: MemoryKind = MemoryKind.GPU) -> dict[str, int]:
    return {allocation.kind: allocation.size_bytes for allocation in estimate.peaks(memory)[phase]}


def test_the_measured_runs_cover_every_stage_and_an_offload() -> None:
    seen = {strategy_of(row).name for row in MEASURED}
    assert {"ddp", "zero1", "zero2", "zero3", "zero2-offload"} == seen


@pytest.mark.parametrize("row", MEASURED, ids=name)
def test_the_predicted_peak_is_within_1_percent_of_the_measured_one(row: Row) -> None:
    assert row["peak_bytes"] == pytest.approx(predict(row).peak_bytes, rel=PEAK_BAND)


def test_the_predicted_peak_is_within_a_tenth_of_a_percent_on_average() -> None:
    errors = [abs(predict(row).peak_bytes / row["peak_bytes"] - 1) for row in MEASURED]
    assert sum(errors) / len(errors) < 0.001


# The step of d4-008 (stage 1, 4 micro-steps) held 0.96 GB more than is explained; those of six newer
# runs (k1-014, j2-009 …) did not.
UNEXPLAINED = {("d4-008", "steady_step"): 0.021}


@pytest.mark.parametrize("row", MEASURED, ids=name)
def test_every_phase_is_predicted_and_not_only_the_largest(row: Row) -> None:
    predicted = predict_phases(predict(row))
    for phase, measured in measured_phases(row).items():
        band = UNEXPLAINED.get((row["id"], phase), PHASE_BANDS.get(phase, 0.01))
        assert measured == pytest.approx(predicted[phase], rel=band), phase


@pytest.mark.parametrize("row", MEASURED, ids=name)
def test_the_phase_that_is_blamed_is_one_that_peaked(row: Row) -> None:
    """Where two phases are within the band of each other, either may be named."""
    blamed = predict(row).peak_phase.value
    phases = measured_phases(row)
    measured = phases[blamed] if blamed in phases else phases[f"steady_{blamed}"]
    assert row["peak_bytes"] == pytest.approx(measured, rel=PEAK_BAND)


JOINED = {"g1-067", "g1-075", "g1-079", "h1-045", "k1-010", "k1-027"}


@pytest.mark.parametrize(
    "row", [row for row in read_every_row() if row["id"] in JOINED], ids=lambda row: row["id"]
)
def test_queries_that_are_joined_of_two_parts_have_their_attention_copied(row: Row) -> None:
    """Phi-3 without checkpointing: w q of each block and token, up to 1.3 % of a phase."""
    assert row["phases"]["steady_forward"]["peak_bytes"] == pytest.approx(
        predict(row).phase_bytes()[Phase.FORWARD], rel=0.0005
    )


RECORDED = [r for r in read_every_row() if r["kind"] == "engine" and r["ok"] and "phases" in r]


@pytest.mark.parametrize("row", RECORDED, ids=name)
def test_no_measured_first_iteration_is_larger_than_the_steady_one(row: Row) -> None:
    """Beyond 0.001 %: so the peak is that of the steady state.

    Where the parameters are on the host it may be 0.2 % larger (k1-030, k1-032, k1-035).
    """
    phases = measured_phases(row)
    first, steady = (
        max(phases[f"{iteration}_{phase}"] or 0 for phase in ("forward", "backward", "step"))
        for iteration in ("first", "steady")
    )
    slack = 1.002 if strategy_of(row).offload is Offload.ALL else 1.00001
    assert first <= slack * steady


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP32])
def test_a_first_iteration_is_predicted_no_larger_than_the_steady_one(
    strategy: StrategyRow, precision: Precision
) -> None:
    predicted = llama_7b(strategy, Workload(precision=precision))
    steady = predicted.phase_bytes()
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.STEP} == set(predicted.first_iteration_bytes)
    larger = [p for p, size in predicted.first_iteration_bytes.items() if size > steady[p]]
    assert [] == larger


def test_adam_has_no_moments_in_the_first_backward_and_all_in_the_first_step() -> None:
    held = {
        phase: {kind for kind, size_bytes, _ in max(moments, key=moment_bytes) if size_bytes}
        for phase, moments in llama_7b(ZERO1).first_moments.items()
    }
    assert AllocationKind.OPTIMIZER_STATES not in held[Phase.BACKWARD]
    assert AllocationKind.OPTIMIZER_STATES in held[Phase.STEP]


def test_without_zero_init_each_gpu_builds_the_whole_model() -> None:
    sharded, whole = (
        llama_7b(ZERO3, Workload(zero_init=zero_init)).phase_bytes() for zero_init in (True, False)
    )
    assert 2 * LLAMA_7B.params == whole[Phase.MODEL]
    assert whole[Phase.INIT] >= whole[Phase.MODEL]
    later = (Phase.FORWARD, Phase.BACKWARD, Phase.STEP)
    assert [sharded[phase] for phase in later] == [whole[phase] for phase in later]


@pytest.mark.parametrize("stage", [2, 3])
def test_the_trainer_peaks_where_a_plain_loop_does(stage: int) -> None:
    row = next(r for r in read_rows() if (r["kind"], r["stage"]) == ("trainer", stage))
    assert row["peak_bytes"] == pytest.approx(predict(row).peak_bytes, rel=PEAK_BAND)


OFFLOADED = [row for row in read_every_row() if row["ok"] and host_base_bytes(row) is not None]


@pytest.mark.parametrize("row", OFFLOADED, ids=name)
def test_the_host_memory_of_an_offload_run_is_within_1_percent(row: Row) -> None:
    """Beyond what a process takes at stage 0: the interpreter with its libraries and kernels.

    Those alone differ by tens of MB between runs (k1-030 to k1-035: 36 to 55 MB more).
    """
    measured = row["host_peak_rss_bytes"] - host_base_bytes(row)
    assert measured == pytest.approx(moment_bytes(predict(row).host_peak), rel=0.01, abs=64 * 2**20)


def test_the_offload_runs_cover_every_offload_strategy() -> None:
    assert {"zero2-offload", "zero3-offload-optimizer", "zero3-offload"} == {
        strategy_of(row).name for row in OFFLOADED
    }


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_an_allocation_of_a_peak_holds_something_and_has_its_formula(
    strategy: StrategyRow,
) -> None:
    predicted = llama_7b(strategy)
    moments = [moment for memory in MemoryKind for moment in predicted.peaks(memory).values()]
    peaks = [allocation for moment in moments for allocation in moment]
    assert peaks
    assert [] == [each for each in peaks if each.size_bytes <= 0 or not each.formula]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_the_peak_is_a_sum_that_can_be_opened(strategy: StrategyRow) -> None:
    predicted = llama_7b(strategy)
    opened = sizes(predicted, predicted.peak_phase)
    assert predicted.peak_bytes == sum(opened.values())


@pytest.mark.parametrize("strategy", [DDP, ZERO1, ZERO2, ZERO3], ids=lambda s: s.name)
def test_what_is_not_offloaded_takes_no_host_memory(strategy: StrategyRow) -> None:
    assert 0 == moment_bytes(llama_7b(strategy).host_peak)


def test_zero1_divides_the_optimizer_and_zero2_the_gradients_too() -> None:
    states = {s: sizes(llama_7b(s), Phase.STEP)["optimizer states"] for s in (DDP, ZERO1, ZERO2)}
    whole = 8 * LLAMA_7B.params
    assert {DDP: whole, ZERO1: whole // 4, ZERO2: whole // 4} == states


def test_the_tensors_on_the_borders_of_a_share_are_held_whole() -> None:
    """The first quarter of a 7B: the embedding, seven blocks, and what the border is in."""
    down_proj, blocks = 4096 * 11008, 7 * LLAMA_7B.layer_params
    attention = 4 * 4096 * 4096
    held = sizes(on_ranks(4, ZERO2), Phase.STEP)["gradients of the share"]
    assert 0 == held % 2
    assert LLAMA_7B.params // 4 <= held // 2 <= LLAMA_7B.params // 4 + down_proj
    assert 32000 * 4096 + blocks + attention + 3 * down_proj >= held // 2


def test_zero3_keeps_a_quarter_of_the_weights_and_gathers_up_to_its_limit() -> None:
    forward = sizes(llama_7b(ZERO3), Phase.FORWARD)
    assert LLAMA_7B.params * 2 // 4 == forward["parameters, sharded"]
    # DeepSpeed asks for one more while there is room, so it goes over by less than a tensor.
    over = forward["gathered parameters"] - 2 * DEEPSPEED_DEFAULTS.stage3_max_live_parameters
    assert 0 < over < 2 * LLAMA_7B.largest_param


def test_a_lone_rank_gathers_nothing() -> None:
    forward = on_ranks(1, ZERO3)
    assert "gathered parameters" not in sizes(forward, Phase.FORWARD)


def test_overlapping_communication_costs_a_second_bucket() -> None:
    once, twice = (
        sizes(llama_7b(ZERO2, buffers=Buffers(overlap_comm=overlap)), Phase.BACKWARD)
        for overlap in (False, True)
    )
    assert 2 * once["reduce bucket"] == twice["reduce bucket"]


def test_lora_trains_its_adapters_and_freezes_the_rest() -> None:
    workload = Workload(method=Method.LORA, lora_rank=8)
    step = sizes(llama_7b(DDP, workload), Phase.STEP)
    assert 2 * LLAMA_7B.params == step["frozen parameters"]
    assert 8 * LLAMA_7B.lora_params(8) == step["optimizer states"]


def test_adapters_stay_in_fp32_where_zero_init_built_the_model() -> None:
    """Their shards, and those below the threshold whole (f3-006)."""
    workload = Workload(method=Method.LORA, lora_rank=8)
    trainable = LLAMA_7B.lora_params(8)
    init, forward = (sizes(llama_7b(ZERO3, workload), p) for p in (Phase.INIT, Phase.FORWARD))
    assert 4 * trainable // 4 == init["parameters, sharded"]
    assert 4 * trainable == forward["small adapters, whole"]
    assert 2 * trainable // 4 == init["gradients, sharded"]


def test_adapters_are_cast_where_the_engine_shards_the_model() -> None:
    workload = Workload(method=Method.LORA, lora_rank=8, zero_init=False)
    forward = sizes(llama_7b(ZERO3, workload), Phase.FORWARD)
    assert 2 * LLAMA_7B.lora_params(8) // 4 == forward["parameters, sharded"]


def test_a_layer_of_4_bits_stands_whole_while_backward_multiplies_with_it() -> None:
    """Its 16-bit weights, and its scales in fp32."""
    workload = Workload(method=Method.QLORA, micro_batch=1, sequence_tokens=64)
    moments = DDP.moments(rank_sizes(LLAMA_7B, workload, 1, DDP, DEEPSPEED_DEFAULTS))
    held = {
        size for moment in moments[Phase.BACKWARD] for part, size, _ in moment if "4 bits" in part
    }
    largest = 4096 * 11008
    assert {2 * largest + 4 * largest // 64} == held


@pytest.mark.parametrize(
    ("name", "base_gb"),
    [("llama-3.1-8b", 5.70), ("gemma-2-2b", 2.22), ("qwen2.5-0.5b", 0.46)]
    + [("qwen3-30b-a3b-12l", 15.86)],
)
def test_qlora_holds_its_linear_weights_in_four_bits_and_the_rest_whole(
    name: str, base_gb: float
) -> None:
    """Counted by hand on transformers' models: embeddings, head and fused experts stay in bf16."""
    model, workload = read_model(name), Workload(method=Method.QLORA)
    buffers, *_ = fit_buffers(model, model.lora_params(16), DDP)
    predicted = on_ranks(4, DDP, buffers, model, workload)
    base_bytes = sizes(predicted, Phase.STEP)["frozen parameters"]
    assert base_gb == pytest.approx(base_bytes / 1e9, abs=0.01)


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_param"),
    [
        (Optimizer.ADAMW, 8),
        (Optimizer.ADAFACTOR, 4),  # a flat vector has nothing to factor
        (Optimizer.LION, 4),
        (Optimizer.SGD, 0),
    ],
)
def test_an_optimizer_is_its_bytes_per_parameter(
    optimizer: Optimizer, bytes_per_param: int
) -> None:
    step = sizes(llama_7b(ZERO2, Workload(optimizer=optimizer)), Phase.STEP)
    assert bytes_per_param * LLAMA_7B.params // 4 == step.get("optimizer states", 0)


def test_adam_of_8_bits_keeps_two_fp32_scales_for_256_parameters() -> None:
    """One flat vector of them, as ZeRO hands it over."""
    step = sizes(llama_7b(ZERO2, Workload(optimizer=Optimizer.ADAMW_8BIT)), Phase.STEP)
    share = LLAMA_7B.params // 4
    assert 2 * share + 2 * 4 * share // 256 == step["optimizer states"]


def test_bf16_states_halve_what_the_optimizer_keeps() -> None:
    half = Workload(optimizer_state_dtype=StateDtype.BF16)
    step = sizes(llama_7b(ZERO2, half), Phase.STEP)
    assert 6 * LLAMA_7B.params // 4 == step["master weights"] + step["optimizer states"]


def test_bf16_states_do_not_exist_without_zero() -> None:
    half = Workload(optimizer_state_dtype=StateDtype.BF16)
    assert llama_7b(DDP).peaks() == llama_7b(DDP, half).peaks()


def test_a_replicated_fp32_model_needs_no_master_weights() -> None:
    step = sizes(llama_7b(DDP, Workload(precision=Precision.FP32)), Phase.STEP)
    assert "master weights" not in step


def test_pinned_host_memory_comes_in_powers_of_two() -> None:
    host = sizes(llama_7b(ZERO2_OFFLOAD), Phase.STEP, MemoryKind.HOST)
    pinned = [size for part, size in host.items() if part.endswith(", pinned")]
    assert [1] * len(pinned) == [size.bit_count() for size in pinned]
    assert pinned


def test_parameters_leave_the_gpu_only_when_all_is_offloaded() -> None:
    parts = sizes(llama_7b(ZERO3_OFFLOAD), Phase.STEP)
    host = sizes(llama_7b(ZERO3_OFFLOAD), Phase.STEP, MemoryKind.HOST)
    assert "parameters, sharded" not in parts
    assert LLAMA_7B.params * 2 // 4 <= host["parameters, pinned"]


def test_fitted_buffers_never_exceed_what_is_reduced() -> None:
    trainable = LLAMA_7B.lora_params(8)
    for strategy in STRATEGIES:
        for buffers in fit_buffers(LLAMA_7B, trainable, strategy):
            bucket = buffers.reduce_bucket_size
            assert 0 == bucket % 2
            assert bucket <= trainable + 1


def test_fitted_buffers_grow_with_the_width_and_stop() -> None:
    sizes = [
        fit_buffers(read_model(name), read_model(name).params, ZERO2)[0].reduce_bucket_size
        for name in ("qwen2.5-0.5b", "llama-3.1-8b", "qwen2.5-14b")
    ]
    assert [25_000_000, 25_000_000, 5120**2] == sizes


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_each_of_the_fitted_buffers_holds_no_more_than_the_one_before(
    strategy: StrategyRow,
) -> None:
    peaks = [
        llama_7b(strategy, buffers=buffers).peak_bytes
        for buffers in fit_buffers(LLAMA_7B, LLAMA_7B.params, strategy)
    ]
    assert sorted(peaks, reverse=True) == peaks
