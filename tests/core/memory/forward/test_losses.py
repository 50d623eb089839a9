"""What the head and the loss hold, by the way the loss is computed."""

import pytest
from measured.rows import read_model

from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.memory.activations import activations, block_saved_bytes
from zerowiz.core.memory.losses import loss_bytes
from zerowiz.core.structs import replace
from zerowiz.core.workload import Loss, Method, Precision, Workload
from zerowiz.errors import UsageError
from zerowiz.probe.package_data import read_gpu_table

LLAMA = read_model("llama-3.2-1b").architecture
VOCABULARY, HIDDEN, WIDE = LLAMA.vocab_size, LLAMA.hidden_size, LLAMA.intermediate_size
H200S = parse_spec("2xH200", read_gpu_table())


def test_transformers_keeps_the_logits_in_fp32_and_opens_backward_with_two_gradients() -> None:
    loss = loss_bytes(LLAMA, Workload(), 1000)
    assert 4 * VOCABULARY * 1000 == loss.kept_bytes
    assert (2 + 4) * VOCABULARY * 1000 == loss.forward_bytes
    assert 2 * 4 * VOCABULARY * 1000 == loss.backward_bytes


def test_an_fp32_model_makes_no_fp32_copy_of_its_logits() -> None:
    loss = loss_bytes(LLAMA, Workload(precision=Precision.FP32), 1000)
    assert 4 * VOCABULARY * 1000 == loss.forward_bytes


def test_a_chunked_loss_holds_one_chunk_and_the_gradient_of_the_head() -> None:
    """As h1-011 and h1-010 were measured: 10 and 18 bytes a logit of the chunk."""
    loss = loss_bytes(LLAMA, Workload(loss=Loss.CHUNKED), 4096)
    chunk = VOCABULARY * 256
    assert 0 == loss.kept_bytes
    assert 10 * chunk == loss.forward_bytes
    assert 18 * chunk + 2 * VOCABULARY * HIDDEN == loss.backward_bytes


def test_a_chunk_is_never_longer_than_the_row() -> None:
    loss = loss_bytes(LLAMA, Workload(loss=Loss.CHUNKED), 100)
    assert 10 * VOCABULARY * 100 == loss.forward_bytes


def test_liger_keeps_the_gradient_of_the_head_and_no_logits() -> None:
    """4096 tokens: 63 times as many logits as hidden states, so 128 tokens at a time."""
    loss = loss_bytes(LLAMA, Workload(loss=Loss.LIGER), 4096)
    assert 2 * VOCABULARY * HIDDEN == loss.kept_bytes
    assert 2 * VOCABULARY * 128 == loss.forward_bytes
    assert 0 == loss.backward_bytes


@pytest.mark.parametrize("loss", [Loss.CHUNKED, Loss.LIGER])
def test_a_frozen_head_has_no_gradient(loss: Loss) -> None:
    trained, frozen = (
        loss_bytes(LLAMA, Workload(loss=loss, method=method), 4096)
        for method in (Method.FULL, Method.LORA)
    )
    head_bytes = 2 * VOCABULARY * HIDDEN
    freed = trained.kept_bytes + trained.backward_bytes - frozen.kept_bytes - frozen.backward_bytes
    assert head_bytes == freed


def test_liger_keeps_neither_a_norms_copy_nor_an_activation() -> None:
    """Two norms in fp32 with their copies, and the MLP's activation, of every block."""
    plain, liger = (
        activations(LLAMA, Workload(loss=loss)).saved_bytes for loss in (Loss.PLAIN, Loss.LIGER)
    )
    saved = 2 * 4 * HIDDEN + 2 * WIDE
    assert saved * Workload().tokens * LLAMA.layers == plain - liger


def test_liger_recomputes_a_block_of_its_own_kernels() -> None:
    kept, recomputed = (
        activations(LLAMA, Workload(loss=Loss.LIGER, gradient_checkpointing=on))
        for on in (False, True)
    )
    assert kept.saved_bytes // LLAMA.layers == recomputed.block_bytes - kept.block_bytes
    plain = block_saved_bytes(LLAMA, Workload()) * Workload().tokens
    assert recomputed.block_bytes - kept.block_bytes < plain


@pytest.mark.parametrize("loss", Loss)
def test_all_losses_keep_the_same_blocks_but_ligers(loss: Loss) -> None:
    said = activations(LLAMA, Workload(loss=loss)).saved_bytes
    plain = activations(LLAMA, Workload()).saved_bytes
    assert (loss is not Loss.LIGER) is (said == plain)


@pytest.mark.parametrize(
    ("model", "change", "words"),
    [
        ("gpt2-medium", {"loss": Loss.LIGER}, 'loss="liger"'),
        ("mixtral-8x7b", {"loss": Loss.LIGER}, 'loss="liger"'),
        ("t5-base", {"loss": Loss.CHUNKED}, 'loss="chunked"'),
        ("bert-base", {"loss": Loss.CHUNKED}, 'loss="chunked"'),
        ("vit-base", {"packing": True}, "packing"),
        ("opt-1.3b", {"packing": True}, "packing"),
    ],
)
def test_a_step_that_is_not_counted_for_a_family_is_refused(
    model: str, change: dict[str, object], words: str
) -> None:
    workload = replace(Workload(sequence_tokens=128), **change)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"`{words}` cannot be predicted for `{model}`"):
        PlanInput(machine=H200S, model=read_model(model), workload=workload)
