"""What a trace stands for: the activations of another micro-step, and the model it was made of."""

import pytest

from zerowiz.core.memory.activations import Activations
from zerowiz.core.memory.allocations import AllocationKind
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.memory.estimate import Estimate, estimate
from zerowiz.core.memory.forward import Traced, TracedRun, TracedTensor
from zerowiz.core.memory.rank_sizes import StrategyRow, rank_sizes
from zerowiz.core.model.types import ModelSource
from zerowiz.core.strategies import STRATEGIES, ZERO3
from zerowiz.core.structs import replace
from zerowiz.core.workload import Attention, Precision, Workload

ACTIVATIONS = Activations(
    saved_bytes=64_000,
    saved_formula="saved",
    head_bytes=16_000,
    head_formula="head",
    loss_forward_bytes=8_000,
    loss_backward_bytes=4_000,
    block_bytes=2_000,
)
RUN = TracedRun(
    micro_batch=2,
    sequence_tokens=512,
    precision=Precision.BF16,
    attention=Attention.SDPA,
    gradient_checkpointing=False,
    activations=ACTIVATIONS,
)
CHECKPOINTED = replace(
    RUN, gradient_checkpointing=True, activations=replace(ACTIVATIONS, saved_bytes=1_000)
)
TENSORS = (
    TracedTensor(name="embed.weight", shape=(1000, 64), in_block=False),
    TracedTensor(name="layers.*.proj.weight", shape=(64, 64), copies=3, linear=True),
    TracedTensor(name="layers.*.mlp.experts.up", shape=(8, 128, 64), copies=3),
    TracedTensor(name="layers.*.mlp.experts.down", shape=(8, 64, 128), copies=3),
)
TRACED = Traced(
    family="never-seen",
    built="NeverSeenForCausalLM",
    layers=3,
    hidden_size=64,
    embedding=(1000, 64),
    tied_embeddings=True,
    tensors=TENSORS,
    runs=(RUN, CHECKPOINTED),
    took_milliseconds=5,
)
ASKED = Workload(micro_batch=2, sequence_tokens=512)


def predicted(strategy: StrategyRow, traced: Traced = TRACED) -> Estimate:
    model = TRACED.model("a")
    return estimate(model, rank_sizes(model, ASKED, 2, strategy, DEEPSPEED_DEFAULTS, traced))


def test_the_micro_step_that_was_traced_holds_what_was_traced() -> None:
    assert ACTIVATIONS == TRACED.activations(ASKED)


@pytest.mark.parametrize(
    ("asked", "times"),
    [
        (replace(ASKED, micro_batch=6), 3),
        (replace(ASKED, sequence_tokens=1024), 2),
        (replace(ASKED, precision=Precision.FP32), 2),
    ],
    ids=["micro-batch", "sequence", "precision"],
)
def test_every_part_of_a_trace_grows_with_the_bytes_of_a_micro_step(
    asked: Workload, times: int
) -> None:
    grown = TRACED.activations(asked)
    parts = ("saved", "head", "loss_forward", "loss_backward", "block")
    expected = [times * getattr(ACTIVATIONS, f"{part}_bytes") for part in parts]
    assert expected == [getattr(grown, f"{part}_bytes") for part in parts]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_a_model_without_blocks_has_a_prediction(strategy: StrategyRow) -> None:
    """`find_blocks` may find none; the trace then counts the model as one block."""
    tensors = tuple(replace(tensor, in_block=False) for tensor in TENSORS)
    model = replace(TRACED, layers=1, tensors=tensors).model("a")
    rank = rank_sizes(model, ASKED, 2, strategy, DEEPSPEED_DEFAULTS, TRACED)
    assert model.params < estimate(model, rank).peak_bytes


def test_checkpointing_takes_the_run_that_was_checkpointed() -> None:
    asked = replace(ASKED, gradient_checkpointing=True)
    assert CHECKPOINTED.activations == TRACED.activations(asked)


def test_without_a_run_like_the_asked_one_the_first_stands_for_it() -> None:
    asked = replace(ASKED, gradient_checkpointing=True)
    assert ACTIVATIONS == replace(TRACED, runs=(RUN,)).activations(asked)


def test_a_traced_model_is_its_tensors_with_every_copy() -> None:
    model = TRACED.model("a")
    in_blocks = 3 * (64 * 64 + 2 * 8 * 128 * 64)
    assert (ModelSource.TRACE, 1000 * 64 + in_blocks) == (model.source, model.params)
    assert in_blocks // 3 == model.layer_params
    assert 10 == sum(tensor.copies for tensor in model.tensors)


def test_the_embedding_of_an_unknown_family_is_the_one_that_was_traced() -> None:
    architecture = TRACED.model("a").architecture
    assert (1000, 64, True) == (
        architecture.vocab_size,
        architecture.hidden_size,
        architecture.tied_embeddings,
    )
    without = replace(TRACED, embedding=()).model("a").architecture
    assert (0, 64) == (without.vocab_size, without.embedding_size)


def test_the_experts_of_a_traced_layer_are_built_as_one_module() -> None:
    peaks = predicted(ZERO3).peaks().values()
    built = {kind: size_bytes for moment in peaks for kind, size_bytes, _ in moment}
    assert 2 * 2 * 8 * 128 * 64 == built[AllocationKind.LARGEST_MODULE]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_what_a_trace_saw_is_in_the_peak(strategy: StrategyRow) -> None:
    more = replace(ACTIVATIONS, saved_bytes=10**12)
    larger = replace(TRACED, runs=(replace(RUN, activations=more),))
    peaks = [predicted(strategy, traced).peak_bytes for traced in (TRACED, larger)]
    assert peaks[0] < 10**12 < peaks[1]
