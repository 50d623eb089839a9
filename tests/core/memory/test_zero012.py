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
from zerowiz.core.workload import Method, Optimizer, Precision, StateDtype, Trainer, Workload

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


@pytest.mark.parametrize(
    ("name", "elements"), [("llama-2-7b", 500_000_000), ("qwen2.5-0.5b", 494_032_768)]
)
def test_replicas_reduce_half_a_billion_gradients_at_a_time(name: str, elements: int) -> None:
    assert {2 * elements} == sizes_of("all-reduce bucket", place(read_model(name), DDP))


def test_the_first_blocks_gradients_come_last() -> None:
    """Until then they are not there, nor those of an embedding that is no head."""
    untied = UNTIED.params - UNTIED.layer_params - embedding(UNTIED)
    assert {2 * untied, 2 * UNTIED.params} == sizes_of("gradients", place(UNTIED, DDP))
    tied = TIED.params - TIED.layer_params
    assert {2 * tied, 2 * TIED.params} == sizes_of("gradients", place(TIED, DDP))


@each_strategy
def test_a_gradient_is_in_flight_wherever_a_block_runs_backward(strategy: StrategyRow) -> None:
    running = [moment for moment in moments(place(UNTIED, strategy)) if "one block" in moment]
    assert running
    assert {2 * block_largest(UNTIED)} == {moment["gradient in flight"] for moment in running}


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


def test_an_embedding_may_be_narrower_than_the_blocks() -> None:
    """OPTDecoder embeds in `word_embed_proj_dim`, 512 in OPT-350M, whose blocks have 1024."""
    narrow = read_model("opt-350m")
    for strategy in (DDP, ZERO2, ZERO3):
        assert 2 * 50272 * 512 == max(sizes_of("head gradient", place(narrow, strategy)))


AUTOCAST = replace(FP32, torch_autocast=Precision.BF16)


@pytest.mark.parametrize(
    ("model", "workload", "expected_bytes"),
    [
        (UNTIED, Workload(), 2 * embedding(UNTIED)),
        (TIED, Workload(), 3 * 2 * embedding(TIED)),
        (TIED, FP32, 3 * 4 * embedding(TIED)),
        (TIED, AUTOCAST, 2 * 4 * embedding(TIED)),
    ],
    ids=["untied", "tied", "tied in fp32", "tied with autocast"],
)
def test_a_tied_weight_has_two_gradients_and_their_sum(
    model: Model, workload: Workload, expected_bytes: int
) -> None:
    """Autocast adds the one into the other."""
    rank = place(model, ZERO2, workload)
    assert expected_bytes == max(sizes_of("embedding gradient", rank))


@pytest.mark.parametrize("fused", [True, False])
def test_a_replicas_optimizer_steps_once_at_init(fused: bool) -> None:
    rank = place(UNTIED, DDP, Workload(optimizer_fused=fused))
    expected = {0 if fused else 4 * UNTIED.params}
    assert expected == sizes_of("optimizer temporaries", rank, Phase.INIT)
    assert expected == sizes_of("optimizer temporaries", rank, Phase.STEP)


def test_adafactor_squares_its_gradient_and_makes_an_update_of_the_same_size() -> None:
    adafactor = Workload(optimizer=Optimizer.ADAFACTOR)
    for strategy, params in ((DDP, TIED.params), (ZERO2, TIED.params // RANKS)):
        rank = place(TIED, strategy, adafactor)
        assert {8 * params} == sizes_of("optimizer temporaries", rank, Phase.STEP)


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_param"),
    [
        (Optimizer.ADAMW, 4),
        (Optimizer.ADAFACTOR, 2),
        (Optimizer.LION, 2),
        (Optimizer.SGD, 0),
    ],
)
def test_states_in_bf16_are_half_as_large(optimizer: Optimizer, bytes_per_param: int) -> None:
    workload = Workload(optimizer=optimizer, optimizer_state_dtype=StateDtype.BF16)
    rank = place(TIED, ZERO1, workload)
    expected = {bytes_per_param * TIED.params // RANKS}
    assert expected == sizes_of("optimizer states", rank, Phase.STEP)


@pytest.mark.parametrize("optimizer", Optimizer)
@pytest.mark.parametrize("strategy", [ZERO2_OFFLOAD, ZERO3_OFFLOAD], ids=lambda s: s.name)
def test_on_the_host_deepspeeds_own_adam_steps_whatever_was_asked_for(
    strategy: StrategyRow, optimizer: Optimizer
) -> None:
    """DeepSpeed's CPU Lion makes a second moment too, though it never reads it."""
    assert 8 == place(TIED, strategy, Workload(optimizer=optimizer)).state_bytes


def test_zero3_shards_the_frozen_base_below_adapters() -> None:
    rank = place(TIED, ZERO3, Workload(method=Method.LORA))
    expected = {2 * TIED.params // RANKS}
    assert expected == sizes_of("frozen parameters, sharded", rank, Phase.STEP)


def test_adapters_leave_no_gradient_of_the_frozen_embedding() -> None:
    rank = place(TIED, ZERO2, Workload(method=Method.LORA))
    assert {0} == sizes_of("embedding gradient", rank)


def test_when_a_bucket_is_full_the_blocks_behind_it_are_done() -> None:
    """Half of the model is through its backward: its activations are gone, its weights let go."""
    workload, bucket = Workload(), TIED.params // 2
    rank = place(TIED, ZERO3, workload, Buffers(reduce_bucket_size=bucket))
    midway, *_ = (m for m in moments(rank) if "reduce-scatter copy" in m and "activations" in m)
    saved_bytes = activations(TIED.architecture, workload).saved_bytes
    assert 2 * bucket == midway["reduce-scatter copy"]
    block_bytes = 2 * TIED.params / TIED.architecture.layers
    assert 2 * bucket == pytest.approx(midway["gathered parameters"], abs=block_bytes)
    assert saved_bytes / 2 == pytest.approx(midway["activations"], rel=1e-6)


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


def test_a_bucket_with_gradients_of_several_ranks_is_copied() -> None:
    """All of a small model's are in one bucket."""
    small = read_model("qwen2.5-0.5b")
    for strategy in (ZERO1, ZERO2, ZERO2_OFFLOAD):
        assert {2 * small.params} == sizes_of("flattening copy", place(small, strategy))


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
