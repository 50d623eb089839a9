"""What a GPU holds while it evaluates, beside what training keeps from step to step."""

import json
from collections.abc import Mapping
from typing import Any

import hypothesis.strategies as st
import pytest
from changed_settings import CHANGED
from hypothesis import given
from measured.rows import Row, buffers_of, is_decay_apart, read_model
from paths import TESTS

from zerowiz.core.memory.allocations import AllocationKind, Moment, Phase, moment_bytes
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.memory.estimate import Estimate, estimate
from zerowiz.core.memory.rank_sizes import StrategyRow, rank_sizes
from zerowiz.core.model.types import Tensor
from zerowiz.core.strategies import STRATEGIES, ZERO1, ZERO2, ZERO2_OFFLOAD, ZERO3
from zerowiz.core.structs import replace
from zerowiz.core.workload import SETTINGS, Attention, Loss, Method, StateDtype, Trainer, Workload
from zerowiz.errors import UsageError

LLAMA = read_model("llama-3.2-1b")
STEP = Workload(micro_batch=2, sequence_tokens=1024, accumulation_steps=4)
TRAINING = {*Phase} - {Phase.EVALUATE, Phase.GENERATE}
ALL = (Trainer.SFT, Trainer.DPO, Trainer.REWARD, Trainer.KTO)
STEPS = st.builds(
    Workload,
    micro_batch=st.integers(1, 4),
    sequence_tokens=st.sampled_from((128, 1024)),
    accumulation_steps=st.integers(1, 2),
    gradient_checkpointing=st.booleans(),
    loss=st.sampled_from(Loss),
    method=st.sampled_from(Method),
    attention=st.sampled_from((Attention.SDPA, Attention.EAGER)),
)


def predict(workload: Workload, strategy: StrategyRow = ZERO2, ranks: int = 2) -> Estimate:
    sizes = rank_sizes(LLAMA, workload, ranks, strategy, DEEPSPEED_DEFAULTS)
    return estimate(LLAMA, sizes)


def evaluating(workload: Workload, sequences: int) -> Workload:
    return replace(workload, eval_batch=sequences)


def test_what_evaluates_nothing_has_no_phase_for_it() -> None:
    assert {*predict(STEP).phase_bytes()} == TRAINING
    assert {*predict(evaluating(STEP, 1)).phase_bytes()} == TRAINING | {Phase.EVALUATE}


@given(step=STEPS, trainer=st.sampled_from(ALL), strategy=st.sampled_from(STRATEGIES))
def test_an_evaluation_never_lowers_a_peak_and_more_sequences_never_do(
    step: Workload, trainer: Trainer, strategy: StrategyRow
) -> None:
    step = replace(step, trainer=trainer, loss=Loss.PLAIN if trainer in ALL[1:] else step.loss)
    peaks = [predict(evaluating(step, n), strategy).peak_bytes for n in (0, 1, 3, 8, 64)]
    assert sorted(peaks) == peaks


@given(step=STEPS, strategy=st.sampled_from(STRATEGIES))
def test_an_evaluation_changes_nothing_that_training_holds(
    step: Workload, strategy: StrategyRow
) -> None:
    before, after = predict(step, strategy), predict(evaluating(step, 8), strategy)
    assert {phase: after.peaks()[phase] for phase in before.peaks()} == before.peaks()
    assert before.host == after.host
    assert before.first_moments == after.first_moments
    assert before.peak_bytes == after.training_peak_bytes


@pytest.mark.parametrize("strategy", [ZERO1, ZERO2, ZERO3])
def test_no_gradient_and_no_activation_is_held(strategy: StrategyRow) -> None:
    for moment in predict(evaluating(STEP, 8), strategy).moments[Phase.EVALUATE]:
        kinds = {each.kind for each in moment if each.size_bytes}
        assert not kinds & {
            AllocationKind.GRADIENTS,
            AllocationKind.ACCUMULATED_GRADIENTS,
            AllocationKind.ACTIVATIONS,
            AllocationKind.LOSS_SAVED,
        }
        assert (AllocationKind.REDUCE_BUCKET in kinds) is (strategy is ZERO3)


def test_ligers_loss_makes_all_logits_where_the_model_does_not_train() -> None:
    def evaluated(loss: Loss) -> int:
        return predict(replace(STEP, loss=loss, eval_batch=8)).phase_bytes()[Phase.EVALUATE]

    assert evaluated(Loss.CHUNKED) < evaluated(Loss.LIGER) == evaluated(Loss.PLAIN)


@pytest.mark.parametrize("strategy", [ZERO1, ZERO2, ZERO3])
def test_the_batch_that_is_named_is_the_largest_below_training(strategy: StrategyRow) -> None:
    below = predict(evaluating(STEP, 64), strategy).eval_batch_below_training
    assert below is not None
    assert predict(evaluating(STEP, below), strategy).peak_phase is not Phase.EVALUATE
    assert predict(evaluating(STEP, below + 1), strategy).peak_phase is Phase.EVALUATE
    assert predict(STEP, strategy).eval_batch_below_training is None


def test_the_evaluation_of_a_trainer_that_generates_is_refused() -> None:
    with pytest.raises(UsageError, match="`eval_batch=8`"):
        replace(STEP, trainer=Trainer.GRPO, eval_batch=8)


# The flat copy of the weights at ZeRO-1 and ZeRO-2, beside ranks that built an engine on full
# GPUs.

FlatteningRow = Mapping[str, Any]
ROWS: list[FlatteningRow] = json.loads((TESTS / "measured" / "2026-11-flattening.json").read_text())
LAYER = Tensor(name="layer", shape=(8192, 8192), copies=40, linear=True)
MODEL = replace(read_model("llama-2-7b"), tensors=(LAYER,), params=LAYER.numel * LAYER.copies)
FLATTENING_STRATEGIES = {(1, "none"): ZERO1, (2, "none"): ZERO2, (2, "cpu"): ZERO2_OFFLOAD}


def predicted(row: FlatteningRow) -> Estimate:
    strategy = FLATTENING_STRATEGIES[row["stage"], row["offload"]]
    rank = rank_sizes(MODEL, Workload(), row["ranks"], strategy, DEEPSPEED_DEFAULTS)
    whole = estimate(MODEL, rank)
    return whole if row["path"] == "cuda" else whole.flattened_on_host


@pytest.mark.parametrize("row", ROWS)
def test_it_is_made_where_the_free_memory_says(row: FlatteningRow) -> None:
    assert (row["free_bytes_before"] >= row["weights_bytes"]) is (row["path"] == "cuda")


def share_copies(row: FlatteningRow) -> set[int]:
    moments = predicted(row).moments[Phase.INIT]
    return {a.size_bytes for m in moments for a in m if a.kind is AllocationKind.SHARE_COPY}


@pytest.mark.parametrize("row", [row for row in ROWS if row["lacked_bytes"] is None])
def test_the_peak_of_init_is_the_measured_one(row: FlatteningRow) -> None:
    """Of SGD, which has no states, and without a loss scale: what an optimizer adds is left out."""
    moments = predicted(row).moments[Phase.INIT]
    assert row["gpu_peak_bytes"] == max(map(moment_bytes, moments))


@pytest.mark.parametrize("row", [row for row in ROWS if row["lacked_bytes"]])
def test_what_ran_out_of_memory_is_the_copy_of_the_share(row: FlatteningRow) -> None:
    """The host meanwhile holds the weights twice, and 1.2 GB of an interpreter."""
    assert row["offload"] != "cpu" or {row["lacked_bytes"]} == share_copies(row)
    held_bytes = row["host_peak_bytes"] - 2 * row["weights_bytes"]
    assert row["path"] != "cpu" or held_bytes == pytest.approx(1.2e9, abs=1e8)


# Hold the prediction to what `zerowiz launch` itself measured on real GPUs: no formula saw these.

# What was recorded is the steady state; of rows with `eval_batch` with the evaluation after it.
OWN_LAUNCHES_STEPS = {Phase.FORWARD, Phase.BACKWARD, Phase.STEP, Phase.EVALUATE}

PATH = TESTS / "measured" / "launches.jsonl"
OWN_LAUNCHES_ROWS: list[Row] = [
    json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()
]


def predict_own_launches(row: Row) -> list[int]:
    """The peaks that are said of the ranks of this launch, with the buffers that its written config had."""
    model = read_model(row["model"])
    workload = Workload(
        micro_batch=row["micro_batch"],
        sequence_tokens=row["sequence_tokens"],
        accumulation_steps=row["accumulation_steps"],
        gradient_checkpointing=row["gradient_checkpointing"],
        optimizer_state_dtype=StateDtype(row["optimizer_state_dtype"]),
        eval_batch=row.get("eval_batch", 0),
    )
    strategy = next(s for s in STRATEGIES if s.name == row["strategy"])
    buffers = buffers_of({**row, "stage": strategy.stage})
    apart = is_decay_apart({"kind": "launch", **row})
    ranks = row["gpus"]
    sizes = rank_sizes(model, workload, ranks, strategy, buffers, decay_apart=apart)
    cuts = sizes.cuts if strategy.cuts_shares else sizes.cuts * ranks
    phases = [estimate(model, replace(sizes, cut=cut)).phase_bytes() for cut in cuts]
    return [
        max(size for phase, size in each.items() if phase in OWN_LAUNCHES_STEPS) for each in phases
    ]


@pytest.mark.parametrize("row", OWN_LAUNCHES_ROWS, ids=lambda r: f"{r['script']}-{r['strategy']}")
def test_each_rank_of_a_launch_peaks_where_its_plan_said(row: Row) -> None:
    assert predict_own_launches(row) == pytest.approx(row["peak_bytes_by_rank"], rel=0.003)


EVALUATED = [row for row in OWN_LAUNCHES_ROWS if "eval_batch" in row]


@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
def test_an_evaluation_peaks_where_its_formula_says(strategy: str) -> None:
    (row,) = (row for row in EVALUATED if row["strategy"] == strategy)
    # Token ids and labels, which nothing counts.
    assert predict_own_launches(row) == pytest.approx(row["peak_bytes_by_rank"], abs=300_000)
    without = predict_own_launches({**row, "eval_batch": 0})
    assert max(without) < 0.95 * min(row["peak_bytes_by_rank"])


# No setting of a training step is there for show: each changes what a rank holds or sends.


def peaks(workload: Workload) -> list[dict[Phase, Moment]]:
    """What two ranks hold at the peak of each phase, under each strategy."""
    ranks = [rank_sizes(LLAMA, workload, 2, each, DEEPSPEED_DEFAULTS) for each in STRATEGIES]
    return [dict(estimate(LLAMA, rank).peaks()) for rank in ranks]


def test_each_setting_has_a_step_that_changes_it_alone() -> None:
    assert [*SETTINGS] == [*CHANGED]
    for name, (before, after) in CHANGED.items():
        differ = [each for each in SETTINGS if getattr(before, each) != getattr(after, each)]
        assert [name] == differ


# When vLLM has its part, which is none of torch's, stands beside the peak (test_vllm.py).
_BESIDE = {"vllm_sleeps"}


@pytest.mark.parametrize("name", sorted(CHANGED.keys() - _BESIDE))
def test_a_setting_changes_what_a_rank_holds(name: str) -> None:
    before, after = CHANGED[name]
    assert peaks(before) != peaks(after)
