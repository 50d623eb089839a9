"""What forward keeps, against the runs without DeepSpeed and optimizer of tests/measured."""

from dataclasses import replace

import pytest
from measured.rows import Row, read_config, read_model, read_rows, workload_of

from zerowiz.core.activations import activations, block_saved_bytes
from zerowiz.core.workload import Attention, Precision, Workload

MIB = 2**20
# One cuBLAS workspace a thread, see memory.py.
CUBLAS_BYTES = 64 * MIB
# torch/c10/cuda CUDACachingAllocator: tensors of 1 to 10 MiB are cut from segments of 20 MiB, and
# up to 1 MiB that is left of one counts as allocated. A micro-step of 1024 tokens has such tensors.
SMALL_STEP_TOKENS, SMALL_STEP_BAND, BAND = 1024, 0.02, 0.01

ALL = [row for row in read_rows() if row["kind"] == "forward_backward"]


def slides(row: Row) -> bool:
    """Whether a window of attention ends inside the sequence.

    transformers then passes a mask, and with it each such layer keeps the mask and repeated keys
    and values, which an Architecture does not tell.
    """
    config = read_config(row["model"])
    inside = row["sequence_tokens"] >= (config.get("sliding_window") or row["sequence_tokens"] + 1)
    return inside and "sliding_attention" in config.get("layer_types", ())


ROWS = [row for row in ALL if not slides(row)]


def name(row: Row) -> str:
    checkpointed = "-checkpointed" if row["gradient_checkpointing"] else ""
    return f"{row['id']}-{row['model']}{checkpointed}"


def kept_bytes(row: Row) -> int:
    """Weights and activations as forward ends."""
    a = activations(read_model(row["model"]).architecture, workload_of(row))
    weights_bytes: int = row["phases"]["model"]["allocated_bytes"]
    return weights_bytes + a.saved_bytes + a.head_bytes + CUBLAS_BYTES


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_what_forward_keeps_is_within_1_percent_of_what_was_measured(row: Row) -> None:
    small = row["micro_batch"] * row["sequence_tokens"] <= SMALL_STEP_TOKENS
    measured = row["phases"]["steady_forward"]["allocated_bytes"]
    band = SMALL_STEP_BAND if small else BAND
    assert measured == pytest.approx(kept_bytes(row), rel=band)


def test_only_attention_through_a_sliding_window_is_left_out() -> None:
    assert {"gemma-2-2b"} == {row["model"] for row in ALL if row not in ROWS}
    assert {4096} == {row["sequence_tokens"] for row in ALL if row not in ROWS}


@pytest.mark.parametrize("row", [row for row in ALL if slides(row)], ids=name)
def test_a_sliding_window_keeps_more_than_is_predicted_but_not_3_percent(row: Row) -> None:
    measured = row["phases"]["steady_forward"]["allocated_bytes"]
    assert kept_bytes(row) <= measured <= 1.03 * kept_bytes(row)


def test_a_llama_block_keeps_what_its_modelling_code_saves() -> None:
    """Norms, attention and MLP of Llama-3.2-1B in bf16, added up by hand, per token."""
    hidden, query, kv, wide, heads = 2048, 2048, 512, 8192, 32
    norms = 2 * (4 + 2 + 2) * hidden + 2 * 4
    attention = 2 * (2 * query + 2 * kv) + 4 * heads
    expected = norms + attention + 4 * 2 * wide
    assert expected == block_saved_bytes(read_model("llama-3.2-1b").architecture, Workload())


def test_checkpointing_keeps_one_hidden_state_a_block() -> None:
    architecture = read_model("llama-2-7b").architecture
    workload = Workload(gradient_checkpointing=True)
    expected = 32 * 4096 * 2 * workload.tokens
    assert expected == activations(architecture, workload).saved_bytes


def test_checkpointing_recomputes_a_block_that_it_did_not_keep() -> None:
    architecture = read_model("llama-2-7b").architecture
    kept, recomputed = (
        activations(architecture, Workload(gradient_checkpointing=on)) for on in (False, True)
    )
    expected = kept.saved_bytes // architecture.layers
    assert expected == recomputed.block_bytes - kept.block_bytes


def test_activations_grow_with_the_batch_as_with_the_sequence_under_fused_attention() -> None:
    architecture = read_model("qwen3-32b").architecture
    wide, long = Workload(micro_batch=4), Workload(sequence_tokens=4 * 2048)
    assert activations(architecture, wide) == activations(architecture, long)


def test_eager_attention_keeps_scores_that_grow_with_the_square_of_the_sequence() -> None:
    architecture = read_model("llama-3.2-1b").architecture
    eager = Workload(attention=Attention.EAGER)
    shorter, longer = (
        block_saved_bytes(architecture, replace(eager, sequence_tokens=tokens))
        for tokens in (2048, 4096)
    )
    assert (2 + 4) * 2048 * 32 == longer - shorter


def test_fp32_with_as_many_keys_as_queries_still_has_a_fused_kernel() -> None:
    architecture = read_model("llama-2-7b").architecture
    fp32 = Workload(precision=Precision.FP32)
    longer = replace(fp32, sequence_tokens=2 * fp32.sequence_tokens)
    assert block_saved_bytes(architecture, fp32) == block_saved_bytes(architecture, longer)


def test_a_softcap_keeps_the_logits_once_more() -> None:
    architecture = read_model("gemma-2-2b").architecture
    plain = replace(architecture, logit_softcap=False)
    capped, uncapped = (activations(a, Workload()).head_bytes for a in (architecture, plain))
    assert 2 * 256_000 * 2048 == capped - uncapped
