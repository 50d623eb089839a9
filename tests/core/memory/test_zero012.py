"""What competes for a phase's peak: the moments of each wrapper, those that lose included."""

from collections.abc import Mapping

import pytest
from measured.rows import read_model

from zerowiz.core.memory.activations import activations
from zerowiz.core.memory.allocations import Phase
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS, Buffers
from zerowiz.core.memory.rank_sizes import RankSizes, StrategyRow, rank_sizes
from zerowiz.core.model.types import Model
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
from zerowiz.core.workload import Loss, Method, Optimizer, Precision, StateDtype, Trainer, Workload

Moment = Mapping[str, int]
"""Bytes by part."""

RANKS = 4
SHARE, RUNS = "gradients of the share", "activations"
UNTIED, TIED = read_model("llama-2-7b"), read_model("llama-3.2-1b")
FP32 = Workload(precision=Precision.FP32)
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)


def place(
    model: Model,
    strategy: StrategyRow,
    workload: Workload | None = None,
    buffers: Buffers = DEEPSPEED_DEFAULTS,
) -> RankSizes:
    return rank_sizes(model, workload or Workload(), RANKS, strategy, buffers)


def moments(rank: RankSizes, phase: Phase = Phase.BACKWARD) -> list[Moment]:
    """Every moment of a phase."""
    competing = rank.strategy.moments(rank)[phase]
    return [{part: size_bytes for part, size_bytes, _ in moment} for moment in competing]


def sizes_of(part: str, rank: RankSizes, phase: Phase = Phase.BACKWARD) -> set[int]:
    """What the moments of a phase hold of a part, where they hold it."""
    return {moment[part] for moment in moments(rank, phase) if part in moment}


def embedding(model: Model) -> int:
    return model.architecture.vocab_size * model.architecture.hidden_size


def block_largest(model: Model) -> int:
    return max(tensor.numel for tensor in model.tensors if tensor.in_block)


LORA, SMALL = Workload(method=Method.LORA), read_model("qwen2.5-0.5b")
BACKWARD, STEP, INIT = Phase.BACKWARD, Phase.STEP, Phase.INIT
TEMPORARIES = "optimizer temporaries"
HELD: Mapping[str, tuple[RankSizes, Phase, str, set[int]]] = {
    # Replicas reduce half a billion gradients at a time.
    "a bucket": (place(UNTIED, DDP), BACKWARD, "all-reduce bucket", {2 * 500_000_000}),
    "a bucket of all": (place(SMALL, DDP), BACKWARD, "all-reduce bucket", {2 * 494_032_768}),
    # Until the first block's come they are not there, nor those of an embedding that is no head.
    "gradients": (
        *(place(UNTIED, DDP), BACKWARD, "gradients"),
        {2 * (UNTIED.params - UNTIED.layer_params - embedding(UNTIED)), 2 * UNTIED.params},
    ),
    "gradients with a tied head": (
        *(place(TIED, DDP), BACKWARD, "gradients"),
        {2 * (TIED.params - TIED.layer_params), 2 * TIED.params},
    ),
    "a frozen embedding": (place(TIED, ZERO2, LORA), BACKWARD, "embedding gradient", {0}),
    "a frozen base": (
        *(place(TIED, ZERO3, LORA), STEP, "frozen parameters, sharded"),
        {2 * TIED.params // RANKS},
    ),
    # A replica's optimizer steps once at init.
    **{
        f"{'fused' if fused else 'foreach'} at {phase}": (
            *(place(UNTIED, DDP, Workload(optimizer_fused=fused)), phase, TEMPORARIES),
            {0 if fused else 4 * UNTIED.params},
        )
        for fused in (True, False)
        for phase in (INIT, STEP)
    },
    # It squares its gradient, and makes an update of the same size.
    **{
        f"Adafactor under {strategy.name}": (
            place(TIED, strategy, Workload(optimizer=Optimizer.ADAFACTOR)),
            *(STEP, TEMPORARIES, {8 * params}),
        )
        for strategy, params in ((DDP, TIED.params), (ZERO2, TIED.params // RANKS))
    },
    **{
        f"{optimizer} in bf16": (
            place(
                *(TIED, ZERO1),
                Workload(optimizer=optimizer, optimizer_state_dtype=StateDtype.BF16),
            ),
            *(STEP, "optimizer states", {bytes_per_param * TIED.params // RANKS}),
        )
        for optimizer, bytes_per_param in (
            (Optimizer.ADAMW, 4),
            (Optimizer.ADAFACTOR, 2),
            (Optimizer.LION, 2),
            (Optimizer.SGD, 0),
        )
    },
    # All gradients of a small model are in one bucket, which several ranks have a part in.
    **{
        f"flattened under {strategy.name}": (
            *(place(SMALL, strategy), BACKWARD, "flattening copy"),
            {2 * SMALL.params},
        )
        for strategy in (ZERO1, ZERO2, ZERO2_OFFLOAD)
    },
}


@pytest.mark.parametrize(("rank", "phase", "part", "expected"), HELD.values(), ids=HELD)
def test_the_moments_of_a_phase_hold(
    rank: RankSizes, phase: Phase, part: str, expected: set[int]
) -> None:
    assert expected == sizes_of(part, rank, phase)


@each_strategy
def test_a_gradient_is_in_flight_wherever_a_block_runs_backward(strategy: StrategyRow) -> None:
    running = [moment for moment in moments(place(UNTIED, strategy)) if "one block" in moment]
    in_flight = {moment["gradient in flight"] for moment in running}
    assert 2 * block_largest(UNTIED) == max(in_flight)
    assert all(in_flight)


@each_strategy
def test_the_gradient_of_a_tied_head_waits_for_the_embeddings(strategy: StrategyRow) -> None:
    """Of one that is not tied nothing waits."""
    assert 2 * embedding(TIED) == max(sizes_of("head gradient", place(TIED, strategy)))
    assert {0} == sizes_of("head gradient", place(UNTIED, strategy))


def test_a_reward_has_no_head_whose_gradient_comes_first() -> None:
    """So what leaves for the host while backward runs through the blocks is one of theirs."""
    largest = {block_largest(UNTIED), embedding(UNTIED)}
    reward = place(UNTIED, ZERO3_OFFLOAD, Workload(trainer=Trainer.REWARD))
    assert {2 * each // RANKS for each in largest} == sizes_of("offload staging", reward)
    plain = place(UNTIED, ZERO3_OFFLOAD)
    assert {2 * embedding(UNTIED) // RANKS} == sizes_of("offload staging", plain)


def test_a_formula_has_the_bytes_of_the_masters_it_is_of() -> None:
    for dtype, size_bytes in ((StateDtype.FP32, 4), (StateDtype.BF16, 2)):
        rank = place(TIED, ZERO2, Workload(optimizer_state_dtype=dtype))
        *_, last = rank.strategy.moments(rank)[Phase.STEP]
        formulas = [
            each.formula for each in last if each.kind == "gradients in the master's format"
        ]
        assert [f"{size_bytes} P"] == formulas


# OPTDecoder embeds in `word_embed_proj_dim`, 512 in OPT-350M, whose blocks have 1024.
NARROW = read_model("opt-350m")
AUTOCAST = replace(FP32, torch_autocast=Precision.BF16)


@pytest.mark.parametrize(
    ("model", "strategy", "workload", "part", "expected_bytes"),
    [
        # A tied weight has two gradients and their sum; autocast adds the one into the other.
        *(
            (model, ZERO2, workload, "embedding gradient", expected_bytes)
            for model, workload, expected_bytes in (
                (UNTIED, Workload(), 2 * embedding(UNTIED)),
                (TIED, Workload(), 3 * 2 * embedding(TIED)),
                (TIED, FP32, 3 * 4 * embedding(TIED)),
                (TIED, AUTOCAST, 2 * 4 * embedding(TIED)),
            )
        ),
        *(
            (NARROW, strategy, Workload(), "head gradient", 2 * 50272 * 512)
            for strategy in (DDP, ZERO2, ZERO3)
        ),
    ],
)
def test_at_most_a_gradient_of_an_embedding_takes(
    model: Model, strategy: StrategyRow, workload: Workload, part: str, expected_bytes: int
) -> None:
    assert expected_bytes == max(sizes_of(part, place(model, strategy, workload)))


@pytest.mark.parametrize("optimizer", Optimizer)
@pytest.mark.parametrize("strategy", [ZERO2_OFFLOAD, ZERO3_OFFLOAD], ids=lambda s: s.name)
def test_on_the_host_deepspeeds_own_adam_steps_whatever_was_asked_for(
    strategy: StrategyRow, optimizer: Optimizer
) -> None:
    """DeepSpeed's CPU Lion makes a second moment too, though it never reads it."""
    assert 8 == place(TIED, strategy, Workload(optimizer=optimizer)).state_bytes


# Of a block; norms are below the threshold.
LINEAR = sum(tensor.numel for tensor in TIED.tensors if tensor.in_block and tensor.linear)


def midway(model: Model, workload: Workload, bucket: int) -> Moment:
    """The largest of the moments of ZeRO-3 at which this bucket is full."""
    rank = place(model, ZERO3, workload, Buffers(reduce_bucket_size=bucket))
    return next(m for m in moments(rank) if "reduce-scatter copy" in m and RUNS in m)


def test_when_a_bucket_is_full_the_blocks_behind_it_are_done() -> None:
    """Half of the model is through its backward: its activations are gone, its weights let go."""
    workload, bucket = Workload(), TIED.params // 2
    held = midway(TIED, workload, bucket)
    saved_bytes = activations(TIED.architecture, workload).saved_bytes
    # Ten blocks fill it: there is no room for what the MLP's last layer of the eleventh has.
    assert 10 * LINEAR < bucket < 10 * LINEAR + block_largest(TIED)
    assert 2 * 10 * LINEAR == held["reduce-scatter copy"]
    assert 2 * bucket == pytest.approx(held["gathered parameters"], abs=2 * LINEAR)
    assert saved_bytes * 5 // 16 == held[RUNS]


def test_as_a_later_gradient_finds_the_bucket_full_less_of_the_block_is_left() -> None:
    """liger_kernel/ops/swiglu.py: gradients are written over what was kept.

    The MLP's last layer has read the product; the layer before it also leaves the gradient of the
    product and one of its factors, and makes that of its input (s6-sp2-z3-32k).
    """
    step = Workload(gradient_checkpointing=True, loss=Loss.LIGER)
    wide, hidden, room = 8192, 2048, 8 * LINEAR + block_largest(TIED)
    last, before = (midway(TIED, step, n)["one block"] for n in (room - 1, room))
    assert 2 * step.tokens * (2 * wide - hidden) == last - before


def test_a_gradient_that_is_larger_than_the_bucket_waits_beside_the_next_and_is_not_copied() -> (
    None
):
    """The two of all experts of a block (f3-025)."""
    mixture = read_model("mixtral-8x7b-2l")
    down, gate_up = 8 * 14336 * 4096, 8 * 2 * 14336 * 4096
    held = midway(mixture, Workload(), 200_000_000)
    assert (0, 2 * (down + gate_up)) == (held["reduce-scatter copy"], held["gradient in flight"])


@pytest.mark.parametrize("strategy", [ZERO3, ZERO3_OFFLOAD_OPTIMIZER, ZERO3_OFFLOAD])
def test_the_norm_of_a_gradient_that_leaves_for_the_host_is_taken_in_fp64(
    strategy: StrategyRow,
) -> None:
    """Of this rank's shard: of the blocks' tensors first and of a tied head at the end."""
    in_block = max(tensor.numel for tensor in TIED.tensors if tensor.in_block)
    shards = {8 * in_block // RANKS, 8 * embedding(TIED) // RANKS}
    expected = set() if strategy == ZERO3 else shards
    assert expected == sizes_of("slice in double", place(TIED, strategy)) - {0}


def test_what_is_larger_than_the_bucket_stays_beside_it() -> None:
    """A gradient that fits leaves its own memory as it is copied in; this one does not."""
    small = Buffers(reduce_bucket_size=embedding(UNTIED) - 1)
    large = replace(small, reduce_bucket_size=embedding(UNTIED))
    reduced = [
        max(m["gradients"] for m in moments(place(UNTIED, ZERO1, buffers=b)) if SHARE in m)
        for b in (small, large)
    ]
    assert [2 * UNTIED.params, 2 * (UNTIED.params - embedding(UNTIED))] == reduced


def test_stage_1_holds_all_gradients_unless_communication_overlaps() -> None:
    """With overlap they are reduced as they come, in the last micro-step."""
    overlapping, several = Buffers(overlap_comm=True), Workload(accumulation_steps=2)
    assert 2 * UNTIED.params == max(sizes_of("gradients", place(UNTIED, ZERO1)))
    assert set() == sizes_of("gradients", place(UNTIED, ZERO1, buffers=overlapping))
    kept = sizes_of("gradients", place(UNTIED, ZERO1, several, overlapping))
    assert 2 * UNTIED.params == max(kept)


def test_a_rank_whose_share_ends_the_model_holds_its_gradients_beside_the_activations() -> None:
    rank = place(UNTIED, ZERO2, buffers=Buffers(reduce_bucket_size=25_000_000))
    beside = [
        max(m["activations"] for m in moments(replace(rank, cut=cut)) if SHARE in m and RUNS in m)
        for cut in (rank.cuts[0], rank.cuts[RANKS - 1])
    ]
    saved_bytes = activations(UNTIED.architecture, Workload()).saved_bytes
    assert saved_bytes == beside[1] > 2 * beside[0]


def test_gradients_that_are_not_contiguous_take_no_more_than_there_are() -> None:
    """At stage 1 they stand among the others; at stage 2 they wait, and are flattened."""
    few, loose = Buffers(reduce_bucket_size=1000), Buffers(contiguous_gradients=False)
    for strategy, copies in ((ZERO1, 1), (ZERO2, 2)):
        held = sizes_of("separate gradients", place(TIED, strategy, Workload(), loose))
        assert 2 * 500_000_000 * copies == max(held)
        small = replace(few, contiguous_gradients=False)
        assert 2 * 1000 * copies == max(
            sizes_of("separate gradients", place(TIED, strategy, Workload(), small))
        )
        assert set() == sizes_of("separate gradients", place(TIED, strategy, Workload(), few))


KEEPING = Buffers(keeps_gradients=True)
TWO_STEPS = Workload(accumulation_steps=2)


def test_stage_1_with_offload_keeps_all_gradients_until_backward_is_over() -> None:
    """Two CPU ranks had all between micro-steps, and none behind the last one, as at stage 1."""
    rank = place(UNTIED, ZERO2_OFFLOAD, buffers=KEEPING)
    whole_bytes, share = 2 * UNTIED.params, sizes_of(SHARE, rank)
    assert (whole_bytes, {0}) == (max(sizes_of("gradients", rank)), share)
    accumulating = place(UNTIED, ZERO2_OFFLOAD, TWO_STEPS, KEEPING)
    kept = [sizes_of("gradients", each, Phase.FORWARD) for each in (rank, accumulating)]
    assert [set(), {whole_bytes}] == kept
    assert set() == sizes_of("gradients", accumulating, STEP)


def test_where_communication_overlaps_stage_1_with_offload_is_as_stage_2() -> None:
    """Unless gradients of earlier micro-steps are there."""
    overlapping = replace(KEEPING, overlap_comm=True)
    as_stage_2 = replace(overlapping, keeps_gradients=False)
    one, other = (place(UNTIED, ZERO2_OFFLOAD, buffers=b) for b in (overlapping, as_stage_2))
    assert moments(one) == moments(other)
    assert sizes_of("gradients", place(UNTIED, ZERO2_OFFLOAD, TWO_STEPS, overlapping))


STATES = ("master weights", "optimizer states", "gradients, sharded")


def test_without_an_offloaded_optimizer_stage_3_keeps_its_states_on_the_gpu() -> None:
    """Two CPU ranks had both moments, a master in fp32 and a gradient of half of the parameters."""
    alone = place(UNTIED, ZERO3_OFFLOAD, buffers=Buffers(keeps_optimizer=True))
    plain = place(UNTIED, ZERO3)
    for rank in (alone, plain):
        held = [sizes_of(part, rank, STEP) for part in STATES]
        assert [{4 * rank.share}, {8 * rank.share}, {2 * rank.share}] == held
    weights = [sizes_of("parameters, sharded", rank, STEP) for rank in (alone, plain)]
    assert [{0}, {2 * plain.share}] == weights
    # The host converts one sub-group of masters on their way to the GPU, and has none of its own.
    there = ZERO3_OFFLOAD.host_allocations(UNTIED, alone)
    held_there = {part.value: size for part, size, _ in there}
    assert 4 * alone.sub_group == held_there["parameters on their way"]
    assert held_there.keys().isdisjoint(STATES)
