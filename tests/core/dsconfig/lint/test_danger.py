"""Sizes that hurt are found by what they cost, and their fixes cost less."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.lint.config import ConfigFinding, Context
from zerowiz.core.lint.linter import lint
from zerowiz.probe.package_data import read_ds_schema

GIB = 2**30
OF_DANGER = {"bucket-too-large", "kept-whole", "small-pieces", "nothing-prefetched"}
SIZES = (
    "reduce_bucket_size",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "sub_group_size",
)


def found(
    stage: int, key: str, elements: int, gpu_bytes: int | None = None, version: str | None = None
) -> tuple[ConfigFinding, ...]:
    config = {"train_batch_size": 8, "zero_optimization": {"stage": stage, key: elements}}
    return lint(json.dumps(config), read_ds_schema(version), Context(gpu_bytes=gpu_bytes))


def names(findings: tuple[ConfigFinding, ...]) -> set[str]:
    return {each.rule.name for each in findings if each.rule.name in OF_DANGER}


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("digits", [400, 4300])
def test_a_number_that_torch_cannot_count_is_survived(key: str, digits: int) -> None:
    for stage in (2, 3):
        assert not names(found(stage, key, 10**digits - 1, 8 * GIB))


@pytest.mark.parametrize(
    ("key", "elements", "gpu_gib", "expected"),
    [
        ("stage3_max_live_parameters", 10**9, 8, {"kept-whole"}),
        ("stage3_max_live_parameters", 10**9, 16, set()),
        # Half of the distance is held.
        ("stage3_max_reuse_distance", 10**9, 8, set()),
        ("stage3_max_reuse_distance", 3 * 10**9, 8, {"kept-whole"}),
        ("stage3_prefetch_bucket_size", 10**9, 8, {"kept-whole"}),
        ("stage3_prefetch_bucket_size", 5 * 10**7, 8, set()),
        ("stage3_max_live_parameters", 10**12, None, set()),
        ("stage3_param_persistence_threshold", 10**7, None, set()),
        ("stage3_param_persistence_threshold", 10**7 + 1, None, {"kept-whole"}),
        ("stage3_prefetch_bucket_size", 0, None, {"nothing-prefetched"}),
        ("stage3_max_reuse_distance", 0, 8, set()),
        ("sub_group_size", 999_999, None, {"small-pieces"}),
        ("sub_group_size", 10**6, None, set()),
        ("reduce_bucket_size", 999_999, None, {"small-pieces"}),
    ],
)
def test_a_size_is_weighed(
    key: str, elements: int, gpu_gib: int | None, expected: set[str]
) -> None:
    assert expected == names(found(3, key, elements, gpu_gib and gpu_gib * GIB))


@pytest.mark.parametrize("version", ["0.16.9", "0.17.6", "0.18.9"])
def test_an_older_deepspeed_divides_by_the_bucket(version: str) -> None:
    for stage, expected in ((0, 0), (1, 0), (2, 1), (3, 1)):
        rules = [each.rule.name for each in found(stage, "reduce_bucket_size", 0, version=version)]
        assert expected == rules.count("out-of-range"), stage


def test_a_bucket_of_nothing_is_one_mistake() -> None:
    rules = [each.rule.name for each in found(2, "reduce_bucket_size", 0)]
    assert 1 == rules.count("out-of-range")


sizes = st.sampled_from(SIZES)
elements = st.integers(0, 10**12)
gpus = st.integers(1, 200).map(lambda gib: gib * GIB)


@given(key=sizes, count=elements, gpu_bytes=gpus, more=gpus)
def test_a_larger_gpu_never_makes_a_size_worse(
    key: str, count: int, gpu_bytes: int, more: int
) -> None:
    small, large = sorted((gpu_bytes, more))
    assert names(found(3, key, count, large)) <= names(found(3, key, count, small))


@given(key=sizes, count=elements, gpu_bytes=gpus)
def test_what_a_fix_says_to_write_is_not_found_again(key: str, count: int, gpu_bytes: int) -> None:
    for finding in found(3, key, count, gpu_bytes):
        words = (finding.fix or "").split()
        if finding.rule.name in {"kept-whole", "small-pieces", "nothing-prefetched"}:
            (said,) = [int(word) for word in words if word.isdigit()]
            again = names(found(3, key, said, gpu_bytes))
            assert finding.rule.name not in again, (said, again)


@given(key=sizes, count=elements)
def test_below_stage_3_only_the_bucket_is_weighed(key: str, count: int) -> None:
    assert set() == names(found(2, key, count, GIB)) or key == "reduce_bucket_size"
    assert set() == names(found(0, key, count, GIB))
