"""The ledger against the real runs of tests/measured: peak by peak, and phase by phase."""

from collections.abc import Mapping

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
from measured.trials import measured_phases, predict_phases

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict, evaluate, evaluate_all
from zerowiz.core.decision.job import Job, Uncounted
from zerowiz.core.decision.uncertainty import Assumption
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import (
    Accelerator,
    Gpu,
    Host,
    Interconnect,
    LinkClass,
    Machine,
    MachineSource,
)
from zerowiz.core.memory.activations import activations
from zerowiz.core.memory.allocations import AllocationKind, MemoryKind, Phase, moment_bytes
from zerowiz.core.memory.buffers import (
    DEEPSPEED_DEFAULTS,
    Buffers,
    expands_segments,
    fit_buffers,
    shares_with_sleeping_vllm,
    without_expansion,
)
from zerowiz.core.memory.estimate import Estimate, estimate, rule_of_thumb_estimate
from zerowiz.core.memory.losses import loss_bytes
from zerowiz.core.memory.rank_sizes import StrategyRow, rank_sizes, trainable_params
from zerowiz.core.model.from_name import model_from_size
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
from zerowiz.core.strategy_types import Offload, Part
from zerowiz.core.structs import replace
from zerowiz.core.workload import (
    Accounting,
    Method,
    Optimizer,
    Precision,
    Reference,
    StateDtype,
    Trainer,
    Workload,
)
from zerowiz.errors import UsageError
from zerowiz.probe.package_data import read_gpu_table

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


# The arithmetic as people have been told it; GB is 1e9 bytes.

GB = 10**9
SEVEN = model_from_size("7b", 7 * GB)
ONE = model_from_size("1b", GB)


def by_rule(
    model: Model,
    workload: Workload,
    ranks: int,
    strategy: StrategyRow,
    state_dtype: StateDtype | None = None,
) -> Estimate:
    rank = rank_sizes(model, workload, ranks, strategy, DEEPSPEED_DEFAULTS)
    return rule_of_thumb_estimate(model, rank, state_dtype)


def parts_gb(estimate: Estimate, memory: MemoryKind = MemoryKind.GPU) -> dict[str, float]:
    return {kind: size_bytes / GB for kind, size_bytes, _ in estimate.peaks(memory)[Phase.STEP]}


@pytest.mark.parametrize(
    ("strategy", "ranks", "parameters", "gradients", "optimizer", "total"),
    [
        (DDP, 1, 14, 14, 28, 60),
        (DDP, 4, 14, 14, 28, 60),
        (ZERO1, 4, 14, 14, 7, 39),
        (ZERO2, 4, 14, 3.5, 7, 28.5),
        (ZERO3, 4, 3.5, 3.5, 7, 18),
    ],
)
def test_7b_in_bf16_is_the_table_that_people_know(
    strategy: StrategyRow,
    ranks: int,
    parameters: float,
    gradients: float,
    optimizer: float,
    total: float,
) -> None:
    predicted = by_rule(SEVEN, Workload(), ranks, strategy)
    expected = {
        "parameters": parameters,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": 4,
    }
    assert expected == parts_gb(predicted)
    assert total == predicted.peak_bytes / GB


@pytest.mark.parametrize(
    ("strategy", "verdict"),
    [(DDP, Verdict.DOES_NOT_FIT), (ZERO2, Verdict.FITS), (ZERO3, Verdict.FITS)],
)
def test_7b_on_four_gpus_of_40_gb_is_judged_by_it(strategy: StrategyRow, verdict: Verdict) -> None:
    machine = Machine(
        source=MachineSource.FILE,
        gpus=tuple(Gpu(index=i, name="a", free_bytes=40 * GB) for i in range(4)),
        interconnect=Interconnect(link_class=LinkClass.NVLINK_ALL),
        host=Host(),
    )
    job = Job(machine=machine, model=SEVEN, workload=Workload(), accounting=Accounting.TEXTBOOK)
    assert verdict is evaluate(job, strategy).verdict


def test_1b_in_fp32_saves_9_gb_a_gpu_under_zero2() -> None:
    """12 bytes a parameter of gradients and Adam states, divided by four."""
    fp32 = Workload(precision=Precision.FP32)
    whole, shared = (parts_gb(by_rule(ONE, fp32, 4, s)) for s in (DDP, ZERO2))
    assert 12 == whole["gradients"] + whole["optimizer"]
    assert 3 == shared["gradients"] + shared["optimizer"]


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_fp32_adam_states_are_8_bytes_a_parameter_and_zero1_divides_them(ranks: int) -> None:
    predicted = by_rule(ONE, Workload(), ranks, ZERO1, StateDtype.FP32)
    assert 8 / ranks == parts_gb(predicted)["optimizer"]


@pytest.mark.parametrize("state_dtype", [None, *StateDtype])
def test_the_moments_are_in_the_models_precision_unless_somebody_said(
    state_dtype: StateDtype | None,
) -> None:
    states = parts_gb(by_rule(ONE, Workload(), 1, DDP, state_dtype))
    assert {None: 4, StateDtype.BF16: 4, StateDtype.FP32: 8}[state_dtype] == states["optimizer"]


@pytest.mark.parametrize(
    ("strategy", "on_host"),
    [
        (ZERO2, {}),
        (ZERO2_OFFLOAD, {"optimizer": 7}),
        (ZERO3_OFFLOAD, {"optimizer": 7, "parameters": 3.5}),
    ],
)
def test_what_is_offloaded_moves_to_the_host(
    strategy: StrategyRow, on_host: dict[str, float]
) -> None:
    assert on_host == parts_gb(by_rule(SEVEN, Workload(), 4, strategy), MemoryKind.HOST)


# What TRL's trainers hold beside the model that trains, and in place of a loss over all logits.

LLAMA = read_model("llama-3.2-1b")
PHI = read_model("phi-3-mini")
SFT = Workload(micro_batch=2, sequence_tokens=1024)
COMPARING = [trainer for trainer in Trainer if trainer.row.compares]
GENERATING = [trainer for trainer in Trainer if trainer.row.generates]


def training(trainer: Trainer, **said: object) -> Workload:
    return replace(SFT, trainer=trainer, completion_tokens=256, **said)  # type: ignore[arg-type]


def predict_trainers(workload: Workload, strategy: StrategyRow = ZERO2, ranks: int = 2) -> Estimate:
    sizes = rank_sizes(LLAMA, workload, ranks, strategy, DEEPSPEED_DEFAULTS)
    return estimate(LLAMA, sizes)


def held(predicted: Estimate, phase: Phase) -> Mapping[AllocationKind, int]:
    return {each.kind: each.size_bytes for each in predicted.peaks()[phase]}


@pytest.mark.parametrize("trainer", [Trainer.DPO, Trainer.REWARD])
def test_a_pair_is_two_sequences(trainer: Trainer) -> None:
    pairs = activations(LLAMA.architecture, training(trainer))
    assert activations(LLAMA.architecture, replace(SFT, micro_batch=4)).saved_bytes == (
        pairs.saved_bytes
    )
    assert 4 * 1024 == training(trainer).tokens


@pytest.mark.parametrize("trainer", [Trainer.KTO, *GENERATING])
def test_others_have_one_sequence(trainer: Trainer) -> None:
    assert SFT.tokens == training(trainer).tokens


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if Part.PARAMETERS not in s.sharded])
@pytest.mark.parametrize("trainer", [Trainer.DPO, Trainer.KTO, Trainer.RLOO])
def test_below_stage_3_the_reference_is_whole_on_every_gpu(
    trainer: Trainer, strategy: StrategyRow
) -> None:
    for phase in (Phase.INIT, Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
        copy = held(predict_trainers(training(trainer), strategy, 8), phase)[
            AllocationKind.REFERENCE
        ]
        assert 2 * LLAMA.params == copy


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if Part.PARAMETERS in s.sharded])
def test_at_stage_3_it_is_in_shards_on_the_host_where_parameters_are(strategy: StrategyRow) -> None:
    predicted = predict_trainers(training(Trainer.DPO), strategy, 8)
    on_gpu = held(predicted, Phase.STEP).get(AllocationKind.REFERENCE_SHARDED, 0)
    host = {each.kind: each.size_bytes for each in predicted.peaks(MemoryKind.HOST)[Phase.STEP]}
    on_host = host.get(AllocationKind.REFERENCE_PINNED, 0)
    moved = predicted.strategy.offload is Offload.ALL
    share = 2 * LLAMA.params // 8
    assert ((0, share) if moved else (share, 0)) == (on_gpu, on_host)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
@pytest.mark.parametrize("trainer", COMPARING)
def test_a_copy_never_lowers_a_phase_and_what_was_computed_before_never_raises_one(
    trainer: Trainer, strategy: StrategyRow
) -> None:
    computed = () if trainer.row.generates else (Reference.PRECOMPUTED,)
    held = [
        predict_trainers(training(trainer, reference=each), strategy).phase_bytes()
        for each in (*computed, Reference.NONE, Reference.MODEL)
    ]
    for phase in held[-1]:
        sizes = [each[phase] for each in held]
        assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    ("trainer", "method", "expected"),
    [
        (Trainer.SFT, Method.FULL, Reference.NONE),
        (Trainer.REWARD, Method.FULL, Reference.NONE),
        (Trainer.DPO, Method.FULL, Reference.MODEL),
        (Trainer.KTO, Method.FULL, Reference.MODEL),
        (Trainer.RLOO, Method.FULL, Reference.MODEL),
        (Trainer.PPO, Method.FULL, Reference.MODEL),
        (Trainer.GRPO, Method.FULL, Reference.NONE),
        (Trainer.DPO, Method.LORA, Reference.NONE),
        (Trainer.KTO, Method.QLORA, Reference.NONE),
    ],
)
def test_the_reference_is_the_trainers_own_by_default(
    trainer: Trainer, method: Method, expected: Reference
) -> None:
    assert expected is training(trainer, method=method).resolved_reference


@pytest.mark.parametrize("trainer", [Trainer.SFT, Trainer.REWARD])
def test_a_reference_is_refused_where_nothing_is_compared(trainer: Trainer) -> None:
    assert Reference.NONE is training(trainer, reference=Reference.NONE).resolved_reference
    with pytest.raises(UsageError, match="has no reference"):
        training(trainer, reference=Reference.MODEL)


@pytest.mark.parametrize("trainer", [Trainer.GRPO, Trainer.RLOO, Trainer.PPO])
def test_no_reference_is_computed_before_what_it_judges_is_generated(trainer: Trainer) -> None:
    with pytest.raises(UsageError, match="cannot precompute its reference"):
        training(trainer, reference=Reference.PRECOMPUTED)


@pytest.mark.parametrize("trainer", [Trainer.DPO, Trainer.KTO])
def test_a_pass_for_the_reference_is_held_where_one_runs(trainer: Trainer) -> None:
    """A loss without a reference, asked for with `reference none`, runs none."""
    architecture = read_model("llama-2-7b").architecture

    def held_bytes(**said: object) -> int:
        return activations(architecture, training(trainer, **said)).loss_forward_bytes

    compared = held_bytes(reference=Reference.MODEL)
    assert compared == held_bytes(method=Method.LORA)
    assert compared > held_bytes(reference=Reference.NONE)
    assert compared > held_bytes(reference=Reference.PRECOMPUTED)


def test_sleep_mode_needs_a_vllm_that_sleeps() -> None:
    with pytest.raises(UsageError, match="needs a vLLM"):
        training(Trainer.GRPO, vllm_sleeps=True)


@pytest.mark.parametrize("trainer", [t for t in Trainer if t not in {Trainer.GRPO, Trainer.RLOO}])
def test_vllm_is_refused_where_it_generates_nothing(trainer: Trainer) -> None:
    with pytest.raises(UsageError, match="vLLM"):
        training(trainer, vllm_memory_fraction=0.3)


@pytest.mark.parametrize("fraction", [-0.1, 1.5])
def test_a_fraction_is_a_part_of_the_memory(fraction: float) -> None:
    with pytest.raises(UsageError, match="is not a fraction"):
        training(Trainer.GRPO, vllm_memory_fraction=fraction)


def test_since_1_15_no_logits_are_kept_and_before_the_log_softmax_was() -> None:
    a, tokens = LLAMA.architecture, 4 * 1024
    old, new = (
        loss_bytes(a, training(Trainer.DPO, trl_version=release), tokens)
        for release in ((1, 14), (1, 15))
    )
    assert 2 * a.vocab_size * tokens == old.kept_bytes
    assert (2 * a.hidden_size + 32) * tokens == new.kept_bytes
    # A tile of 4096 x 32768, and both gradients in fp32 beside their copies in bf16.
    tile, summed = 2 * 4096 * 32768, 6 * a.hidden_size * (a.vocab_size + tokens)
    assert tile + summed == new.backward_bytes


def test_of_what_is_generated_only_completions_are_scored() -> None:
    half = loss_bytes(LLAMA.architecture, training(Trainer.GRPO, trl_version=(1, 14)), 2048)
    assert 2 * LLAMA.architecture.vocab_size * 2048 * 256 // 1024 == half.kept_bytes


@pytest.mark.parametrize(("model", "heads"), [(LLAMA, 0), (PHI, 32064 * 3072)])
def test_a_reward_model_has_one_value_for_a_head(model: Model, heads: int) -> None:
    params = trainable_params(model, training(Trainer.REWARD))
    whole = trainable_params(model, SFT)
    assert whole - heads + model.architecture.hidden_size == params


def test_ppo_trains_a_value_model_and_holds_two_copies() -> None:
    ppo = predict_trainers(training(Trainer.PPO), DDP)
    assert 2 * LLAMA.params == ppo.rank.trainable
    assert 2 * 2 * LLAMA.params == held(ppo, Phase.STEP)[AllocationKind.REFERENCE]


@pytest.mark.parametrize("trainer", Trainer)
def test_only_those_that_sample_have_a_phase_for_it(trainer: Trainer) -> None:
    assert trainer.row.generates is (
        Phase.GENERATE in predict_trainers(training(trainer)).phase_bytes()
    )


def test_keys_and_values_of_all_sequences_are_held_at_the_end_of_generation() -> None:
    a = LLAMA.architecture
    workload = replace(training(Trainer.GRPO, generation_batch=64), completion_tokens=1000)
    generating = held(predict_trainers(workload), Phase.GENERATE)
    cached = 2 * 2 * a.kv_size * a.layers * 64 * 1024
    assert cached == generating[AllocationKind.KV_CACHE]


def test_to_generate_stage_3_gathers_the_whole_model() -> None:
    workload = training(Trainer.GRPO, generation_batch=64)
    for ranks, gathered in ((1, None), (8, 2 * LLAMA.params)):
        generating = held(predict_trainers(workload, ZERO3, ranks), Phase.GENERATE)
        assert gathered == generating.get(AllocationKind.GATHERED_PARAMETERS)


def test_with_vllm_no_keys_are_kept_by_torch() -> None:
    workload = training(Trainer.GRPO, generation_batch=64, vllm_memory_fraction=0.3)
    assert AllocationKind.KV_CACHE not in held(predict_trainers(workload), Phase.GENERATE)


def test_adapters_of_trl_have_the_models_format_at_stage_3() -> None:
    adapters = replace(SFT, method=Method.LORA)
    assert 4 == predict_trainers(adapters, ZERO3).rank.trained_bytes
    assert 2 == predict_trainers(replace(adapters, trainer=Trainer.DPO), ZERO3).rank.trained_bytes


@pytest.mark.parametrize(
    ("name", "trainer", "uncounted"),
    [
        ("llama-3.2-1b", Trainer.DPO, ()),
        ("llama-3.2-1b", Trainer.PPO, (Uncounted.PPO_ROLLOUT,)),
        ("bert-base", Trainer.REWARD, (Uncounted.TRAINER_OF_ANOTHER_MODEL,)),
        ("bert-base", Trainer.SFT, ()),
    ],
)
def test_what_no_formula_counts_is_named(
    name: str, trainer: Trainer, uncounted: tuple[Uncounted, ...]
) -> None:
    machine = parse_spec("2xH200", read_gpu_table())
    workload = replace(training(trainer), sequence_tokens=512)
    evaluated = evaluate(Job(machine=machine, model=read_model(name), workload=workload), DDP)
    assert evaluated.interval is not None
    assert uncounted == evaluated.interval.uncounted
    named = Assumption.OTHER_TRAINER in evaluated.interval.assumptions
    assert named is (trainer is not Trainer.SFT)
    never = Assumption.NEW_TRAINER in evaluated.interval.assumptions
    assert never is (trainer is Trainer.PPO)


# What a vLLM takes of the GPUs that train: its fraction of the whole, asleep or not.

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
JOB = Job(
    machine=parse_spec("8xH100-80GB", read_gpu_table()),
    model=read_model("llama-3.1-8b"),
    workload=GRPO,
)
VLLM_ZERO2 = next(each for each in STRATEGIES if each.name == "zero2")


def with_vllm(fraction: float | None, *, sleeps: bool = False) -> StrategyEstimate:
    step = replace(GRPO, vllm_memory_fraction=fraction, vllm_sleeps=sleeps)
    return evaluate(replace(JOB, workload=step), VLLM_ZERO2)


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
    assert evaluate(replace(JOB, machine=machine, workload=step), VLLM_ZERO2).vllm is None


def test_a_sleeping_vllm_is_started_without_segments_that_expand() -> None:
    asleep = replace(GRPO, vllm_memory_fraction=0.4, vllm_sleeps=True)
    assert shares_with_sleeping_vllm(asleep)
    assert not shares_with_sleeping_vllm(replace(asleep, vllm_memory_fraction=0.0))
    assert not shares_with_sleeping_vllm(replace(asleep, vllm_sleeps=False))
    assert not expands_segments(without_expansion({}))
    # What the caller said stays.
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        assert {} == without_expansion({name: "max_split_size_mb:64"})
