"""What a GPU holds while it evaluates, beside what training keeps from step to step."""

import hypothesis.strategies as st
import pytest
from hypothesis import given
from measured.rows import read_model

from zerowiz.core.memory.allocations import AllocationKind, MemoryKind, Phase
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.memory.estimate import Estimate, estimate
from zerowiz.core.memory.rank_sizes import StrategyRow, rank_sizes
from zerowiz.core.strategies import STRATEGIES, ZERO1, ZERO2, ZERO3
from zerowiz.core.structs import replace
from zerowiz.core.workload import Attention, Loss, Method, Trainer, Workload
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
    assert Phase.EVALUATE not in predict(evaluating(STEP, 1)).phase_bytes(MemoryKind.HOST)


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
