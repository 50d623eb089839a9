import re
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.units import (
    keep_batch,
    parse_budget,
    parse_host_memory,
    solve_accumulation,
)
from zerowiz.errors import UsageError

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30GiB", 30 * GIB),
        ("30gib", 30 * GIB),
        (" 30 GiB ", 30 * GIB),
        ("24GB", 24 * 10**9),
        ("24g", 24 * 10**9),
        ("1.5TiB", 3 * 2**39),
        ("512Mi", 512 * 2**20),
        ("100k", 100_000),
        ("1b", 1),
        ("25769803776", 25769803776),
        ("1", 80 * GIB),
        ("0.5", 40 * GIB),
        ("0.25", 20 * GIB),
    ],
)
def test_a_budget_is_bytes_an_amount_or_a_fraction(text: str, expected: int) -> None:
    assert expected == parse_budget(text, 80 * GIB)


@pytest.mark.parametrize(
    ("text", "expected"), [("1TiB", 2**40), ("512GB", 512 * 10**9), (" 1.5 tib", 3 * 2**39)]
)
def test_the_memory_of_a_host_is_an_amount(text: str, expected: int) -> None:
    assert expected == parse_host_memory(text) == parse_budget(text, None)


NO_AMOUNT = (*("", "0", "0.0GiB", "-1GiB", "30 gigs", "GiB", "1e9", "30GiB free", "nan"), "9" * 400)


@pytest.mark.parametrize(
    ("parse", "text", "error"),
    [
        *((partial(parse_budget, total_bytes=80 * GIB), t, "is not an amount") for t in NO_AMOUNT),
        (partial(parse_budget, total_bytes=None), "0.5", "total memory is unknown"),
        # The memory of a host has a unit.
        *(
            (parse_host_memory, text, "is not an amount of memory")
            for text in ("", "0GiB", "512", "0.5", "lots", "1TiB free")
        ),
    ],
)
def test_what_is_no_amount_is_refused(parse: Callable[[str], int], text: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        parse(text)


@given(size=st.integers(2**20, 2**53))
def test_bytes_come_back_as_they_were_typed(size: int) -> None:
    assert size == parse_budget(str(size), None)


@given(micro_batch=st.integers(1, 64), ranks=st.integers(1, 64), steps=st.integers(1, 64))
def test_the_accumulation_makes_up_the_global_batch(
    micro_batch: int, ranks: int, steps: int
) -> None:
    assert steps == solve_accumulation(micro_batch * ranks * steps, micro_batch, ranks)


@pytest.mark.parametrize(
    ("global_batch", "nearest"),
    [
        (30, "one of the nearest multiples: 24 or 32"),
        (7, "the nearest multiple: 8"),
        (1, "the nearest multiple: 8"),
        (63, "one of the nearest multiples: 56 or 64"),
    ],
)
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_that_do(
    global_batch: int, nearest: str
) -> None:
    with pytest.raises(UsageError) as caught:
        solve_accumulation(global_batch, micro_batch=2, ranks=4)
    assert (
        f"`$global_batch {global_batch}` is not a multiple of 2 x 4 ranks = 8"
    ) == caught.value.message
    assert f"use {nearest}" == caught.value.hints[0]


@pytest.mark.parametrize(
    ("global_batch", "micro_batch", "is_own", "nearest"),
    [
        (100, 3, True, ("`$micro_batch 1`", "`$micro_batch 5`")),
        (96, 5, True, ("`$micro_batch 4`", "`$micro_batch 6`")),
        (8, 16, True, ("`$micro_batch 2`",)),
        (30, 2, True, ()),
        # One that nobody can change is not offered.
        (100, 3, False, ()),
    ],
)
def test_the_micro_batches_that_divide_it_are_offered_too(
    global_batch: int, micro_batch: int, is_own: bool, nearest: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        solve_accumulation(global_batch, micro_batch, ranks=4, is_own=is_own)
    _, *offered = caught.value.hints
    assert ([f"or use {' or '.join(nearest)}"] if nearest else []) == offered


@given(part=st.integers(1, 64), micro_batch=st.integers(1, 64))
def test_a_micro_batch_that_divides_the_scripts_batch_keeps_it(part: int, micro_batch: int) -> None:
    if part % micro_batch == 0:
        assert part == keep_batch(part, micro_batch) * micro_batch
        return
    with pytest.raises(UsageError, match=f"{part} sequences") as caught:
        keep_batch(part, micro_batch)
    offered = [int(word) for word in re.findall(r"micro_batch (\d+)", caught.value.hints[0])]
    assert all(part % size == 0 for size in offered)
    assert micro_batch > part or offered[0] < micro_batch < offered[1]


@pytest.mark.parametrize("text", ["2", "30", "1048575"])
def test_a_bare_number_that_lost_its_unit_is_told(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_budget(text, None)
    assert (f"did you mean `{text}GiB`?",) == caught.value.hints
