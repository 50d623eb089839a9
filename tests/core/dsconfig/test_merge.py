"""What a config keeps of a person's: of a base, and of edits."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.dsconfig.merge import (
    BATCH_KEYS,
    PRECISION_SECTIONS,
    REPLACED,
    ZERO,
    build_on,
    find_edits,
    removed_keys,
    with_edits,
)

BASE = {
    "train_batch_size": 32,
    "gradient_clipping": 0.5,
    "optimizer": {"type": "AdamW", "params": {"lr": 6e-4, "betas": [0.9, 0.95]}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 200}},
    "bf16": {"enabled": True},
    ZERO: {
        "stage": 3,
        "stage3_max_live_parameters": 5,
        "round_robin_gradients": True,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "none"},
    },
    "wandb": {"enabled": True},
}
WRITTEN: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "fp16": {"enabled": True},
    ZERO: {"stage": 2, "reduce_bucket_size": 9},
    "optimizer": {"type": "AdamW", "params": {"lr": 5e-5}},
    "zero_allow_untested_optimizer": True,
}


def test_a_base_keeps_all_but_zero_and_the_batch_in_its_order() -> None:
    built = build_on(BASE, WRITTEN)
    assert [
        *("gradient_clipping", "optimizer", "scheduler", "bf16", ZERO, "wandb"),
        *("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        "zero_allow_untested_optimizer",
    ] == list(built)
    for key in ("gradient_clipping", "optimizer", "scheduler", "bf16", "wandb"):
        assert BASE[key] == built[key]
    assert WRITTEN[ZERO] == built[ZERO]


@pytest.mark.parametrize(
    ("section", "is_open"),
    [
        ({}, True),
        ({"bf16": {"enabled": False}}, True),
        ({"fp16": {"enabled": "auto"}}, False),
        ({"bfloat16": {"enabled": "yes"}}, False),
        ({"torch_autocast": {"enabled": True}}, False),
    ],
)
def test_the_plan_decides_the_precision_of_a_base_that_names_none(
    section: dict[str, Any], *, is_open: bool
) -> None:
    built = build_on({**section, "gradient_clipping": 0.1}, WRITTEN)
    now = {key: value for key, value in built.items() if key in PRECISION_SECTIONS}
    assert ({"fp16": {"enabled": True}} if is_open else section) == now


def test_no_clipping_comes_to_a_base_without() -> None:
    assert "gradient_clipping" not in build_on({"optimizer": {}}, WRITTEN)


def test_what_leaves_a_base_is_named_with_its_reason() -> None:
    removed = {each.key: each for each in removed_keys(BASE, build_on(BASE, WRITTEN))}
    assert {
        "train_batch_size": False,
        f"{ZERO}.stage3_max_live_parameters": True,
        f"{ZERO}.round_robin_gradients": False,
        f"{ZERO}.offload_optimizer.device": True,
        f"{ZERO}.offload_optimizer.pin_memory": True,
        f"{ZERO}.offload_param.device": False,
    } == {key: each.is_lost for key, each in removed.items()}
    assert "only stage 3 has it" == removed[f"{ZERO}.stage3_max_live_parameters"].why
    assert "the plan does not offload it" == removed[f"{ZERO}.offload_optimizer.device"].why


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["auto", "x"]),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "enabled"]), inner, max_size=3),
    max_leaves=6,
)
CONFIGS = st.dictionaries(
    st.sampled_from(["optimizer", "scheduler", "zoo", "bf16", ZERO, *BATCH_KEYS]), VALUES
)


@given(base=CONFIGS, written=CONFIGS)
def test_what_is_neither_zero_nor_batch_nor_precision_is_equal_before_and_after(
    base: dict[str, Any], written: dict[str, Any]
) -> None:
    built = build_on(base, written)
    for key, value in base.items():
        if key not in REPLACED and key not in PRECISION_SECTIONS:
            assert json.dumps(value) == json.dumps(built[key])
    for key in REPLACED:
        assert written.get(key) == built.get(key)


@given(wrote=CONFIGS, there=CONFIGS)
def test_an_edit_survives_or_is_named(wrote: dict[str, Any], there: dict[str, Any]) -> None:
    edits = find_edits(wrote, there)
    merged = with_edits(wrote, edits)
    again = with_edits(wrote, find_edits(wrote, merged.values))
    assert {edit.key for edit in edits} == {e.key for e in (*merged.kept, *merged.conflicts)}
    assert merged.values == again.values
    assert not again.conflicts


EDITED = {
    **WRITTEN,
    "gradient_clipping": 0.3,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "wall_clock_breakdown": True,
}


def test_edits_reach_the_config_of_another_stage() -> None:
    other = {**WRITTEN, ZERO: {"stage": 3}}
    merged = with_edits(other, find_edits(WRITTEN, EDITED))
    assert {**EDITED, ZERO: {"stage": 3}} == merged.values
    assert () == merged.conflicts


@pytest.mark.parametrize(
    ("key", "edited"),
    [
        ("train_micro_batch_size_per_gpu", {"train_micro_batch_size_per_gpu": 8}),
        (f"{ZERO}.reduce_bucket_size", {ZERO: {"stage": 2, "reduce_bucket_size": 7}}),
        (f"{ZERO}.offload_param.device", {ZERO: {**WRITTEN[ZERO], "offload_param": {"device": 1}}}),
        ("fp16.enabled", {"fp16": {"enabled": False}}),
        ("optimizer.type", {"optimizer": {"type": "Lion", "params": {"lr": 5e-5}}}),
    ],
)
def test_an_edit_of_what_the_plan_decides_is_a_conflict(key: str, edited: dict[str, Any]) -> None:
    merged = with_edits(WRITTEN, find_edits(WRITTEN, {**WRITTEN, **edited}))
    assert [key] == [edit.key for edit in merged.conflicts]
    assert merged.values == WRITTEN


def test_a_key_that_was_taken_out_stays_out() -> None:
    there = {key: value for key, value in WRITTEN.items() if key != "gradient_clipping"}
    merged = with_edits(WRITTEN, find_edits(WRITTEN, there))
    assert there == merged.values
    assert [edit.is_removed for edit in merged.kept] == [True]


def test_a_section_whose_only_key_was_replaced_keeps_the_new_one() -> None:
    there = {**WRITTEN, "optimizer": {"name": "mine"}}
    wrote = {**WRITTEN, "optimizer": {"eps": 1e-8}}
    assert with_edits(wrote, find_edits(wrote, there)).values == there


def test_an_edit_of_a_section_that_is_gone_is_dropped() -> None:
    without = {key: value for key, value in WRITTEN.items() if key != "optimizer"}
    merged = with_edits(without, find_edits(WRITTEN, EDITED))
    assert "optimizer" not in merged.values
