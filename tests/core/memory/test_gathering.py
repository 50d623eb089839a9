"""What stage 3 gathers, against the real coordinator on two ranks, and by hand."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from paths import TESTS
from ranks.harness import ask_ranks

from zerowiz.core.memory.buffers import Buffers
from zerowiz.core.memory.gathering import Gathered, Gathering, Layout, Limits, lay_out, replay
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.structs import replace
from zerowiz.core.workload import Loss, Method, Workload

_RANKS = TESTS / "ranks" / "gathering.py"
_THRESHOLD = 300

_SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "vocab_size": 4000,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA = {
    **_SMALL,
    "model_type": "llama",
    "intermediate_size": 512,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
_PHI3 = {**_LLAMA, "model_type": "phi3", "tie_word_embeddings": False}
_OPT = {
    **_SMALL,
    "model_type": "opt",
    "ffn_dim": 512,
    "word_embed_proj_dim": 128,
    "layerdrop": 0.0,
}
_QWEN2_MOE = {
    **_LLAMA,
    "model_type": "qwen2_moe",
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 128,
    "num_experts": 12,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "tie_word_embeddings": False,
}
_LIMITS = Limits(prefetch=15_000, live=900_000, reuse=900_000)
_FAR = Limits(prefetch=50_000, live=700_000, reuse=700_000)
CASES: list[tuple[dict[str, object], bool, int, Limits, Loss]] = [
    (_LLAMA, True, 2, _LIMITS, Loss.PLAIN),
    (_LLAMA, True, 2, _LIMITS, Loss.LIGER),
    (_PHI3, True, 2, _LIMITS, Loss.LIGER),
    (_PHI3, False, 3, _LIMITS, Loss.PLAIN),
    (_OPT, True, 2, _LIMITS, Loss.PLAIN),
    (_QWEN2_MOE, False, 1, _FAR, Loss.PLAIN),
]


def _predict(
    config: Mapping[str, object], *, checkpointing: bool, limits: Limits, loss: Loss
) -> Gathering:
    workload = Workload(gradient_checkpointing=checkpointing, loss=loss)
    buffers = Buffers(stage3_param_persistence_threshold=_THRESHOLD)
    layout = lay_out(model_from_config("a", config), workload, buffers)
    # The coordinator does not count what autograd keeps of experts.
    counted = layout._replace(kept=frozenset())
    return replay(counted, limits, alone=False, checkpointing=checkpointing, known=True)


def _zero(limits: Limits) -> dict[str, int]:
    return {
        "reduce_bucket_size": 100_000,
        "stage3_prefetch_bucket_size": limits.prefetch,
        "stage3_max_live_parameters": limits.live,
        "stage3_max_reuse_distance": limits.reuse,
        "stage3_param_persistence_threshold": _THRESHOLD,
    }


@pytest.mark.deepspeed
@pytest.mark.slow
def test_the_replay_gathers_what_the_real_coordinator_does(tmp_path: Path) -> None:
    """As forward ends within 1 %; while blocks run within 2 % in backward and 7 % in forward."""
    asked = [
        {
            "ranks": 2,
            "config": config,
            "checkpointing": checkpointing,
            "accumulation_steps": steps,
            "zero": _zero(limits),
            "fused": loss is Loss.LIGER,
        }
        for config, checkpointing, steps, limits, loss in CASES
    ]
    for case, (seen, _) in zip(CASES, ask_ranks(_RANKS, asked, tmp_path), strict=True):
        assert seen["raised"] is None, seen
        config, checkpointing, _, limits, loss = case
        said = _predict(config, checkpointing=checkpointing, limits=limits, loss=loss)
        family = (config["model_type"], loss)
        assert said.loss.parameters == pytest.approx(seen["loss"], rel=0.01), family
        most = max(each.running.parameters for each in said.backward)
        assert most == pytest.approx(max(seen["backward"]), rel=0.02), family
        most = max(each.running.parameters for each in said.forward)
        assert most == pytest.approx(max(seen["forward"]), rel=0.07), family
        if loss is Loss.LIGER:
            # Its evaluation runs the head, as others do.
            continue
        # zero3.py, left_by_a_pass: never less, and up to a third more.
        whole = model_from_config("a", config).params
        bound = min(whole, most + said.loss.parameters)
        assert bound / 1.34 < max(seen["evaluate"]) < 1.01 * bound, family


def _two_blocks(size: int = 100) -> Layout:
    return Layout(sizes=(size,) * 4, first=((0,),), blocks=(((1,),), ((2,),)), last=((3,),))


def _gather(
    limits: Limits, layout: Layout | None = None, *, alone: bool = False, known: bool = True
) -> Gathering:
    return replay(layout or _two_blocks(), limits, alone=alone, checkpointing=False, known=known)


@pytest.mark.parametrize("known", [True, False])
def test_a_lone_rank_gathers_nothing(known: bool) -> None:
    gathering = _gather(Limits(100, 400, 400), alone=True, known=known)
    assert Gathered() == gathering.loss == gathering.end


def test_before_the_order_is_known_a_module_is_whole_while_it_runs() -> None:
    gathering = _gather(Limits(100, 400, 400), known=False)
    assert [100, 100] == [each.running.parameters for each in gathering.forward]
    assert Gathered() == gathering.loss


_EXPERTS = _two_blocks()._replace(mixtures=frozenset({1}), kept=frozenset({1}))


@pytest.mark.parametrize(
    ("limits", "layout", "kept"),
    [
        # All that the limit allows is kept until its backward.
        (Limits(100, 400, 400), _two_blocks(), 400),
        (Limits(100, 200, 0), _two_blocks(), 200),
        # Slices of experts outlive their release.
        (Limits(0, 100, 0), _two_blocks(), 0),
        (Limits(0, 100, 0), _EXPERTS, 100),
    ],
)
def test_as_forward_ends_so_much_is_kept(limits: Limits, layout: Layout, kept: int) -> None:
    assert kept == _gather(limits, layout).loss.parameters


def test_what_comes_together_is_copied_out_of_one_buffer() -> None:
    """What comes alone waits beside its own shard."""
    alone = _gather(Limits(100, 400, 0)).loss
    assert alone.alone > 0 == alone.copies
    together = _gather(Limits(200, 400, 400)).forward
    assert 200 == max(each.waiting.copies for each in together)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_views_of_4_bit_weights_outlive_their_release_without_a_checkpoint(
    checkpointing: bool,
) -> None:
    model = model_from_config("a", _LLAMA)
    full = Workload(gradient_checkpointing=checkpointing)
    four_bit = replace(full, method=Method.QLORA)
    kept = [
        len(lay_out(model, w, Buffers(stage3_param_persistence_threshold=_THRESHOLD)).kept)
        for w in (full, four_bit)
    ]
    linear = sum(tensor.copies for tensor in model.tensors if tensor.linear and tensor.in_block)
    assert [0, 0 if checkpointing else linear] == kept
