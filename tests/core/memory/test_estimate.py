"""The ledger against the real runs of tests/measured: peak by peak, and phase by phase."""

from collections.abc import Iterable, Mapping

import pytest
from measured.rows import (
    Row,
    engine_rows,
    host_base_bytes,
    predict,
    read_every_row,
    read_model,
    strategy_of,
)
from measured.trials import measured_phases, predict_phases

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict, evaluate, evaluate_all
from zerowiz.core.decision.job import Job
from zerowiz.core.decision.uncertainty import Assumption
from zerowiz.core.machine.names import parse_spec
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
from zerowiz.core.memory.allocations import AllocationKind, Phase, moment_bytes
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
    Uncounted,
    Workload,
)
from zerowiz.errors import UsageError
from zerowiz.probe.files import read_gpu_table

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


def sizes(estimate: Estimate, phase: Phase) -> dict[str, int]:
    return {allocation.kind: allocation.size_bytes for allocation in estimate.peaks()[phase]}


def on_host(estimate: Estimate) -> dict[str, int]:
    return {kind: size_bytes for kind, size_bytes, _ in estimate.host if size_bytes}


def stepping(optimizer: Optimizer) -> Workload:
    return Workload(optimizer=optimizer)


def test_the_measured_runs_cover_every_strategy() -> None:
    seen = {strategy_of(row).name for row in MEASURED}
    assert {"ddp", "zero1", "zero2", "zero3", "zero2-offload"} == seen
    on_host = {strategy_of(row).name for row in OFFLOADED}
    assert {"zero2-offload", "zero3-offload-optimizer", "zero3-offload"} == on_host


def test_the_predicted_peak_is_within_a_tenth_of_a_percent_on_average() -> None:
    errors = [abs(predict(row).peak_bytes / row["peak_bytes"] - 1) for row in MEASURED]
    assert sum(errors) / len(errors) < 0.001


# The step of d4-008 (stage 1, 4 micro-steps) held 0.96 GB more than is explained; those of six newer
# runs (k1-014, j2-009 …) did not.
UNEXPLAINED = {("d4-008", "steady_step"): 0.021}


@pytest.mark.parametrize("row", MEASURED, ids=name)
def test_the_predicted_peak_and_every_phase_are_within_1_percent_of_the_measured_ones(
    row: Row,
) -> None:
    """Where two phases are within the band of each other, either may be blamed for the peak."""
    predicted, phases = predict(row), measured_phases(row)
    blamed = predicted.peak_phase.value
    peaked = phases[blamed] if blamed in phases else phases[f"steady_{blamed}"]
    assert row["peak_bytes"] == pytest.approx(predicted.peak_bytes, rel=PEAK_BAND)
    assert row["peak_bytes"] == pytest.approx(peaked, rel=PEAK_BAND)
    for phase, measured in phases.items():
        band = UNEXPLAINED.get((row["id"], phase), PHASE_BANDS.get(phase, 0.01))
        assert measured == pytest.approx(predict_phases(predicted)[phase], rel=band), phase


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


def test_no_measured_first_iteration_is_larger_than_the_steady_one() -> None:
    """Beyond 0.001 %: so the peak is that of the steady state.

    Where the parameters are on the host it may be 0.2 % larger (k1-030, k1-032, k1-035).
    """

    def is_larger(row: Row) -> bool:
        phases = measured_phases(row)
        first, steady = (
            max(phases[f"{iteration}_{phase}"] or 0 for phase in ("forward", "backward", "step"))
            for iteration in ("first", "steady")
        )
        slack = 1.002 if strategy_of(row).offload is Offload.ALL else 1.00001
        return first > slack * steady

    assert len(RECORDED) > 600
    assert [] == [name(row) for row in RECORDED if is_larger(row)]


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


OFFLOADED = [row for row in read_every_row() if row["ok"] and host_base_bytes(row) is not None]


@pytest.mark.parametrize("row", OFFLOADED, ids=name)
def test_the_host_memory_of_an_offload_run_is_within_1_percent(row: Row) -> None:
    """Beyond what a process takes at stage 0: the interpreter with its libraries and kernels.

    Those alone differ by tens of MB between runs (k1-030 to k1-035: 36 to 55 MB more).
    """
    measured = row["host_peak_rss_bytes"] - host_base_bytes(row)
    assert measured == pytest.approx(moment_bytes(predict(row).host), rel=0.01, abs=64 * 2**20)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_the_peak_is_a_sum_of_allocations_that_can_be_opened(strategy: StrategyRow) -> None:
    predicted = llama_7b(strategy)
    peaks = [allocation for moment in predicted.peaks().values() for allocation in moment]
    assert [] == [each for each in peaks if each.size_bytes <= 0 or not each.formula]
    assert predicted.peak_bytes == sum(sizes(predicted, predicted.peak_phase).values()) > 0
    moved = strategy.offload is not Offload.NONE
    assert moved is (moment_bytes(predicted.host) > 0)


P = LLAMA_7B.params
ADAPTERS = LLAMA_7B.lora_params(8)
LORA = Workload(method=Method.LORA, lora_rank=8)
IN_BF16 = Workload(optimizer_state_dtype=StateDtype.BF16)
LEDGER: dict[str, tuple[StrategyRow, Workload, Phase, Mapping[str, int]]] = {
    "ddp": (DDP, Workload(), Phase.STEP, {"optimizer states": 8 * P}),
    "zero1": (ZERO1, Workload(), Phase.STEP, {"optimizer states": 8 * P // 4}),
    "zero2": (ZERO2, Workload(), Phase.STEP, {"optimizer states": 8 * P // 4}),
    "zero3": (ZERO3, Workload(), Phase.FORWARD, {"parameters, sharded": 2 * P // 4}),
    "all offloaded": (ZERO3_OFFLOAD, Workload(), Phase.STEP, {"parameters, sharded": 0}),
    # A flat vector has nothing to factor.
    "adafactor": (ZERO2, stepping(Optimizer.ADAFACTOR), Phase.STEP, {"optimizer states": P}),
    "lion": (ZERO2, stepping(Optimizer.LION), Phase.STEP, {"optimizer states": P}),
    "sgd": (ZERO2, stepping(Optimizer.SGD), Phase.STEP, {"optimizer states": 0}),
    # Two fp32 scales for 256 parameters of one flat vector, as ZeRO hands it over.
    "8 bits": (
        *(ZERO2, stepping(Optimizer.ADAMW_8BIT), Phase.STEP),
        {"optimizer states": 2 * (P // 4) + 2 * 4 * (P // 4) // 256},
    ),
    "bf16 states": (
        *(ZERO2, IN_BF16, Phase.STEP),
        {"master weights": 2 * P // 4, "optimizer states": 4 * P // 4},
    ),
    "no bf16 states without ZeRO": (DDP, IN_BF16, Phase.STEP, {"optimizer states": 8 * P}),
    # A replicated model needs no master weights.
    "fp32": (DDP, Workload(precision=Precision.FP32), Phase.STEP, {"master weights": 0}),
    "adapters": (
        *(DDP, LORA, Phase.STEP),
        {"frozen parameters": 2 * P, "optimizer states": 8 * ADAPTERS},
    ),
    # In fp32 where zero.Init built the model: their shards, and those below the threshold whole
    # (f3-006).
    "adapters at init": (
        *(ZERO3, LORA, Phase.INIT),
        {"parameters, sharded": 4 * ADAPTERS // 4, "gradients, sharded": 2 * ADAPTERS // 4},
    ),
    "adapters gathered": (ZERO3, LORA, Phase.FORWARD, {"small adapters, whole": 4 * ADAPTERS}),
    "adapters that the engine shards": (
        *(ZERO3, replace(LORA, zero_init=False), Phase.FORWARD),
        {"parameters, sharded": 2 * ADAPTERS // 4},
    ),
}
"""What a rank of four holds of a 7B in a phase."""


@pytest.mark.parametrize(
    ("strategy", "workload", "phase", "expected"), LEDGER.values(), ids=LEDGER.keys()
)
def test_a_rank_holds_in_a_phase(
    strategy: StrategyRow, workload: Workload, phase: Phase, expected: Mapping[str, int]
) -> None:
    held = sizes(llama_7b(strategy, workload), phase)
    assert expected == {kind: held.get(kind, 0) for kind in expected}


def test_the_tensors_on_the_borders_of_a_share_are_held_whole() -> None:
    """The first quarter of a 7B: the embedding, seven blocks, and what the border is in."""
    down_proj, blocks = 4096 * 11008, 7 * LLAMA_7B.layer_params
    attention = 4 * 4096 * 4096
    held = sizes(on_ranks(4, ZERO2), Phase.STEP)["gradients of the share"]
    assert 0 == held % 2
    assert LLAMA_7B.params // 4 <= held // 2 <= LLAMA_7B.params // 4 + down_proj
    assert 32000 * 4096 + blocks + attention + 3 * down_proj >= held // 2


def test_zero3_gathers_up_to_its_limit() -> None:
    """DeepSpeed asks for one more while there is room, so it goes over by less than a tensor."""
    gathered = sizes(llama_7b(ZERO3), Phase.FORWARD)["gathered parameters"]
    over = gathered - 2 * DEEPSPEED_DEFAULTS.stage3_max_live_parameters
    assert 0 < over < 2 * LLAMA_7B.largest_param


def test_a_head_that_no_bucket_takes_is_reduced_before_the_blocks_run_backward() -> None:
    """stage3.py, reduce_independent_p_g_buckets_and_remove_grads: as the next gradient comes."""

    def in_blocks(reduce_bucket_size: int) -> int:
        buffers = Buffers(reduce_bucket_size=reduce_bucket_size)
        moments = llama_7b(ZERO3_OFFLOAD, buffers=buffers).moments[Phase.BACKWARD]
        held = [{part: size for part, size, _ in moment} for moment in moments]
        kinds = AllocationKind.ONE_BLOCK, AllocationKind.SLICE_IN_DOUBLE
        return max(parts[kinds[1]] for parts in held if parts.keys() >= {*kinds})

    down_proj, head = 4096 * 11008, 32000 * 4096
    assert (8 * down_proj // 4, 8 * head // 4) == (in_blocks(head - 1), in_blocks(head))


def test_overlapping_communication_costs_a_second_bucket() -> None:
    once, twice = (
        sizes(llama_7b(ZERO2, buffers=Buffers(overlap_comm=overlap)), Phase.BACKWARD)
        for overlap in (False, True)
    )
    assert 2 * once["reduce bucket"] == twice["reduce bucket"]


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


def test_pinned_host_memory_comes_in_powers_of_two() -> None:
    host = on_host(llama_7b(ZERO2_OFFLOAD))
    assert {1} == {size.bit_count() for part, size in host.items() if part.endswith(", pinned")}
    everything = on_host(llama_7b(ZERO3_OFFLOAD))
    assert 2 * P // 4 <= everything["parameters, pinned"]


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


BF16_STEP, FP32_STEP = Workload(), Workload(precision=Precision.FP32)


@pytest.mark.parametrize(
    ("model", "step", "ranks", "strategy", "state_dtype", "expected"),
    [
        # The table that people know, of 7B in bf16; the last is what stays on the GPU.
        (SEVEN, BF16_STEP, 1, DDP, None, (14, 14, 28, 60)),
        (SEVEN, BF16_STEP, 4, DDP, None, (14, 14, 28, 60)),
        (SEVEN, BF16_STEP, 4, ZERO1, None, (14, 14, 7, 39)),
        (SEVEN, BF16_STEP, 4, ZERO2, None, (14, 3.5, 7, 28.5)),
        (SEVEN, BF16_STEP, 4, ZERO3, None, (3.5, 3.5, 7, 18)),
        (SEVEN, BF16_STEP, 4, ZERO2_OFFLOAD, None, (14, 3.5, 7, 21.5)),
        (SEVEN, BF16_STEP, 4, ZERO3_OFFLOAD, None, (3.5, 3.5, 7, 7.5)),
        # Gradients and Adam's states in fp32 are 12 bytes a parameter.
        (ONE, FP32_STEP, 4, DDP, None, (4, 4, 8, 20)),
        (ONE, FP32_STEP, 4, ZERO2, None, (4, 1, 2, 11)),
        # The moments are in the model's precision, unless somebody said.
        (ONE, BF16_STEP, 1, DDP, StateDtype.BF16, (2, 2, 4, 12)),
        (ONE, BF16_STEP, 1, DDP, StateDtype.FP32, (2, 2, 8, 16)),
        (ONE, BF16_STEP, 8, ZERO1, StateDtype.FP32, (2, 2, 1, 9)),
    ],
)
def test_the_rule_of_thumb_counts_gigabytes_as_people_do(
    model: Model,
    step: Workload,
    ranks: int,
    strategy: StrategyRow,
    state_dtype: StateDtype | None,
    expected: tuple[float, ...],
) -> None:
    rank = rank_sizes(model, step, ranks, strategy, DEEPSPEED_DEFAULTS)
    predicted = rule_of_thumb_estimate(model, rank, state_dtype)
    held = {**sizes(predicted, Phase.STEP), **on_host(predicted)}
    parts = ("parameters", "gradients", "optimizer")
    assert 4 * GB == held["activations"]
    assert expected == (
        *(held[part] / GB for part in parts),
        predicted.peak_bytes / GB,
    )


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


# What TRL's trainers hold beside the model that trains, and in place of a loss over all logits.

LLAMA = read_model("llama-3.2-1b")
PHI = read_model("phi-3-mini")
SFT = Workload(micro_batch=2, sequence_tokens=1024)
GENERATING = [trainer for trainer in Trainer if trainer.row.generates]


def training(trainer: Trainer, **said: object) -> Workload:
    return replace(SFT, trainer=trainer, completion_tokens=256, **said)  # type: ignore[arg-type]


def predict_trainers(workload: Workload, strategy: StrategyRow = ZERO2, ranks: int = 2) -> Estimate:
    return on_ranks(ranks, strategy, model=LLAMA, workload=workload)


@pytest.mark.parametrize("trainer", Trainer)
def test_a_pair_is_two_sequences(trainer: Trainer) -> None:
    pairs = trainer in {Trainer.DPO, Trainer.REWARD}
    assert (4 if pairs else 2) * 1024 == training(trainer).tokens


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if Part.PARAMETERS not in s.sharded])
@pytest.mark.parametrize("trainer", [Trainer.DPO, Trainer.KTO, Trainer.RLOO])
def test_below_stage_3_the_reference_is_whole_on_every_gpu(
    trainer: Trainer, strategy: StrategyRow
) -> None:
    for phase in (Phase.INIT, Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
        copy = sizes(predict_trainers(training(trainer), strategy, 8), phase)[
            AllocationKind.REFERENCE
        ]
        assert 2 * LLAMA.params == copy


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if Part.PARAMETERS in s.sharded])
def test_at_stage_3_it_is_in_shards_on_the_host_where_parameters_are(strategy: StrategyRow) -> None:
    predicted = predict_trainers(training(Trainer.DPO), strategy, 8)
    on_gpu = sizes(predicted, Phase.STEP).get(AllocationKind.REFERENCE_SHARDED, 0)
    pinned = on_host(predicted).get(AllocationKind.REFERENCE_PINNED, 0)
    moved = predicted.strategy.offload is Offload.ALL
    share = 2 * LLAMA.params // 8
    assert ((0, share) if moved else (share, 0)) == (on_gpu, pinned)


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


@pytest.mark.parametrize(
    ("trainers", "said", "error"),
    [
        ((Trainer.SFT, Trainer.REWARD), {"reference": Reference.MODEL}, "has no reference"),
        (GENERATING, {"reference": Reference.PRECOMPUTED}, "cannot precompute its reference"),
        ((Trainer.GRPO,), {"vllm_sleeps": True}, "needs a vLLM"),
        ({*Trainer} - {Trainer.GRPO, Trainer.RLOO}, {"vllm_memory_fraction": 0.3}, "vLLM"),
        ((Trainer.GRPO,), {"vllm_memory_fraction": -0.1}, "is not a fraction"),
        ((Trainer.GRPO,), {"vllm_memory_fraction": 1.5}, "is not a fraction"),
    ],
)
def test_what_a_trainer_does_not_have_is_refused(
    trainers: Iterable[Trainer], said: Mapping[str, object], error: str
) -> None:
    for trainer in trainers:
        with pytest.raises(UsageError, match=error):
            training(trainer, **said)


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
    # Of what is generated only completions are scored: 256 of 1024 tokens.
    scored = loss_bytes(a, training(Trainer.GRPO, trl_version=(1, 14)), tokens)
    assert old.kept_bytes // 4 == scored.kept_bytes


@pytest.mark.parametrize(
    ("model", "trainer", "more"),
    [
        (LLAMA, Trainer.REWARD, 2048),
        # A head of its own goes.
        (PHI, Trainer.REWARD, 3072 - 32064 * 3072),
        # A model of values trains beside it.
        (LLAMA, Trainer.PPO, LLAMA.params),
    ],
)
def test_a_trainer_trains_more_or_less_than_the_model(
    model: Model, trainer: Trainer, more: int
) -> None:
    trained = trainable_params(model, training(trainer))
    assert trainable_params(model, SFT) + more == trained
    sizes = rank_sizes(model, training(trainer), 4, ZERO2, DEEPSPEED_DEFAULTS)
    assert (trained, -(-trained // 4)) == (sizes.trainable, sizes.share)


@pytest.mark.parametrize("trainer", Trainer)
def test_only_those_that_sample_have_a_phase_for_it(trainer: Trainer) -> None:
    assert trainer.row.generates is (
        Phase.GENERATE in predict_trainers(training(trainer)).phase_bytes()
    )


GENERATED = replace(training(Trainer.GRPO, generation_batch=64), completion_tokens=1000)
KV_BYTES = 2 * 2 * LLAMA.architecture.kv_size * LLAMA.architecture.layers * 64 * 1024


@pytest.mark.parametrize(
    ("workload", "strategy", "ranks", "phase", "kind", "expected"),
    [
        # Keys and values of all sequences, as generation ends.
        (GENERATED, ZERO2, 2, Phase.GENERATE, AllocationKind.KV_CACHE, KV_BYTES),
        (
            *(replace(GENERATED, vllm_memory_fraction=0.3), ZERO2, 2),
            *(Phase.GENERATE, AllocationKind.KV_CACHE, 0),
        ),
        (GENERATED, ZERO3, 1, Phase.GENERATE, AllocationKind.GATHERED_PARAMETERS, 0),
        (
            *(GENERATED, ZERO3, 8),
            *(Phase.GENERATE, AllocationKind.GATHERED_PARAMETERS, 2 * LLAMA.params),
        ),
        # PPO compares with a model and a model of values.
        (
            *(training(Trainer.PPO), DDP, 2),
            *(Phase.STEP, AllocationKind.REFERENCE, 2 * 2 * LLAMA.params),
        ),
    ],
)
def test_a_trainer_holds_in_a_phase(
    workload: Workload,
    strategy: StrategyRow,
    ranks: int,
    phase: Phase,
    kind: AllocationKind,
    expected: int,
) -> None:
    predicted = predict_trainers(workload, strategy, ranks)
    assert expected == sizes(predicted, phase).get(kind, 0)


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
    """One on GPUs of its own has the fraction 0."""
    total_bytes = JOB.machine.total_bytes
    assert total_bytes is not None
    elsewhere, beside = with_vllm(0.0), with_vllm(0.4)
    assert int(0.4 * total_bytes) == beside.device_bytes - elsewhere.device_bytes
    assert (None, Verdict.FITS) == (elsewhere.vllm, elsewhere.verdict)
    assert Verdict.DOES_NOT_FIT is with_vllm(0.9).verdict


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.6])
@pytest.mark.parametrize("sleeps", [True, False])
def test_a_share_of_vllm_never_fits(fraction: float, *, sleeps: bool) -> None:
    step = replace(GRPO, vllm_memory_fraction=fraction, vllm_sleeps=sleeps)
    for evaluated in evaluate_all(replace(JOB, workload=step)):
        assert evaluated.verdict in {Verdict.UNCERTAIN, Verdict.DOES_NOT_FIT}
        assert evaluated.interval is not None
        assert Uncounted.VLLM in evaluated.interval.uncounted


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
