"""What no measured run is large in: activation functions, masks, biases and temporaries."""

import pytest
from measured.rows import read_model
from saved_tensors import measure_saved_bytes

from zerowiz.core.memory.activations import activations, block_saved_bytes
from zerowiz.core.model.hf_config import read_architecture
from zerowiz.core.structs import replace
from zerowiz.core.workload import Attention, Precision, Workload

SMALL_GPT2: dict[str, object] = {
    "model_type": "gpt2",
    "vocab_size": 100,
    "n_embd": 64,
    "n_head": 4,
    "n_positions": 64,
}
SMALL_LLAMA: dict[str, object] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
}
SHORT = Workload(micro_batch=2, sequence_tokens=48)
FUNCTIONS = (
    "relu",
    "tanh",
    "sigmoid",
    "silu",
    "gelu",
    "gelu_pytorch_tanh",
    "quick_gelu",
    "gelu_10",
)
WRITTEN_IN_PYTHON = ("gelu_python", "gelu_new", "gelu_accurate", "gelu_fast")


def blocks_bytes(config: dict[str, object], key: str, workload: Workload) -> tuple[int, int]:
    """What two blocks more save, and what is said that they do."""
    configs = [{**config, key: layers} for layers in (2, 4)]
    fewer, more = (measure_saved_bytes(c, workload) for c in configs)
    said = [activations(read_architecture("a", c), workload).saved_bytes for c in configs]
    return more - fewer, said[1] - said[0]


@pytest.mark.parametrize("function", [*FUNCTIONS, *WRITTEN_IN_PYTHON])
def test_an_mlp_keeps_what_its_activation_function_saves(function: str) -> None:
    config = {**SMALL_GPT2, "activation_function": function}
    saved, said = blocks_bytes(config, "n_layer", SHORT)
    assert saved == pytest.approx(said, rel=0.0005)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_gated_mlp_keeps_what_its_activation_function_saves(function: str) -> None:
    config = {**SMALL_LLAMA, "hidden_act": function}
    saved, said = blocks_bytes(config, "num_hidden_layers", SHORT)
    assert saved == pytest.approx(said, rel=0.0005)


def test_in_fp32_dropout_keeps_the_softmax_beside_what_it_leaves_of_it() -> None:
    """Where weights are not fp32 the copy that it drops from is there anyway."""
    workload = Workload(attention=Attention.EAGER, precision=Precision.FP32)
    config = {**SMALL_LLAMA, "num_hidden_layers": 1}
    plain, dropped = (
        block_saved_bytes(read_architecture("a", {**config, "attention_dropout": rate}), workload)
        for rate in (0.0, 0.1)
    )
    scores, mask = 4 * workload.sequence_tokens, 1
    assert (4 + mask) * scores == dropped - plain


def test_a_checkpoint_keeps_both_masks_where_only_some_layers_slide() -> None:
    architecture = read_model("gemma-2-2b").architecture
    workload = Workload(
        sequence_tokens=4096, attention=Attention.EAGER, gradient_checkpointing=True
    )
    # A window that ends inside the sequence, and one that does not.
    inside, outside = (
        activations(replace(architecture, sliding_window_tokens=tokens), workload).head_bytes
        for tokens in (4096, 4097)
    )
    assert 2 * 4096 * 4096 == inside - outside


def test_a_block_in_backward_makes_three_gradients_of_its_mlp_and_two_of_its_residual() -> None:
    architecture, workload = read_model("llama-3.2-1b").architecture, Workload()
    hidden, wide = 2048, 8192
    expected = 2 * (3 * wide + 2 * hidden) * workload.tokens
    assert expected == activations(architecture, workload).block_bytes


def test_scores_without_a_kernel_have_three_gradients_when_the_mlp_is_done() -> None:
    """Of a Falcon with a single key, at a length where they dwarf the MLP's."""
    architecture = read_model("falcon-7b").architecture
    shorter, longer = (
        activations(architecture, Workload(sequence_tokens=tokens)).block_bytes // tokens
        for tokens in (8192, 16384)
    )
    assert 3 * 4 * 71 * 8192 == longer - shorter


def test_a_checkpointed_t5_hands_on_three_position_biases() -> None:
    """Those of both stacks and the empty one; without checkpoints one, and 64-bit buckets."""
    architecture = read_model("t5-base").architecture
    workload = Workload(sequence_tokens=512)
    plain, checkpointed = (
        activations(architecture, replace(workload, gradient_checkpointing=on)).head_bytes
        for on in (False, True)
    )
    scores, heads = 512 * 512, 12
    assert (3 - 1) * 2 * heads * scores - 2 * 8 * scores == checkpointed - plain
