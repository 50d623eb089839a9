import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import TESTS

from zerowiz.core.machine.job_gpus import choose_gpus, parse_gpus, visible_gpus
from zerowiz.core.machine.types import Gpu
from zerowiz.errors import UsageError

RECORDED: dict[str, Any] = json.loads(
    (TESTS / "machines/cuda-visible-devices.json").read_text(encoding="utf-8")
)
ROWS: list[dict[str, Any]] = RECORDED["rows"]
H200S = tuple(
    Gpu(index=index, ordinal=index, name="NVIDIA H200", uuid=uuid)
    for index, uuid in enumerate(RECORDED["uuids"])
)

UUIDS = (
    "GPU-3cdd0e37-383d-657b-e82e-6388c475e419",
    "GPU-182dd796-462b-b296-a9bc-56e2cbd7d9bd",
    "GPU-18aa0000-0000-0000-0000-000000000000",
    "GPU-9f000000-0000-0000-0000-000000000000",
)
FOUR = tuple(Gpu(index=index, name="mine", uuid=uuid) for index, uuid in enumerate(UUIDS))


def mig_slice(index: int, place: int) -> Gpu:
    uuid = f"MIG-{index}{place}000000-0000-0000-0000-000000000000"
    return Gpu(index=index, ordinal=index, name="mine MIG 3g.20gb", uuid=uuid, mig_slice=place)


# GPU 0 whole, GPU 1 as three slices, GPU 2 whole.
SPLIT = (FOUR[0], *(mig_slice(1, place) for place in range(3)), FOUR[2])
# GPU 1 cannot be opened: NVML lists it, CUDA does not count it.
WITH_A_GAP = tuple(
    Gpu(index=index, ordinal=ordinal, name="mine", uuid=UUIDS[index])
    for ordinal, index in enumerate((0, 2, 3))
)


def seen(text: str | None, gpus: tuple[Gpu, ...] = FOUR) -> list[str]:
    return [gpu.label for gpu in visible_gpus(text, gpus)]


def chosen(
    asked: str | None, visible: str | None = None, gpus: tuple[Gpu, ...] = FOUR
) -> list[str]:
    return [gpu.label for gpu in choose_gpus(gpus, visible=visible, asked=asked)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: repr(row["visible"]))
def test_cuda_visible_devices_is_read_as_cuda_reads_it(row: dict[str, Any]) -> None:
    assert row["cuda"] == [gpu.index for gpu in visible_gpus(row["visible"], H200S)]


# Two GPUs of these begin alike, which those of the recording do not. Each answer is what
# `torch.cuda.device_count()` of torch 2.13 gives for that value.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,8,1", ["0"]),
        ("1gpu2,2x", ["1", "2"]),
        ("1,2,1", []),
        (UUIDS[3], ["3"]),
        ("GPU-9f,GPU-3cdd", ["3", "0"]),
        ("GPU-18", []),
        ("GPU-182,GPU-18a", ["1", "2"]),
        ("GPU-9f,GPU-18", ["3"]),
        ("GPU-9f,GPU-9f0", []),
        ("GPU-3c, GPU-9f", ["0"]),
    ],
)
def test_a_beginning_of_a_uuid_counts_when_it_is_of_one_gpu(text: str, expected: list[str]) -> None:
    assert expected == seen(text)


# C, strtoul: what does not fit is the largest number, whatever its sign; cut to an int it is -1.
@pytest.mark.parametrize("text", ["-18446744073709551616", "-99999999999999999999", "9" * 5000])
def test_a_number_that_c_cannot_hold_is_no_ordinal(text: str) -> None:
    assert [] == seen(text)


TEXTS = st.text(alphabet="0123,-+ GPU9fMI", max_size=14) | st.lists(
    st.sampled_from(["0", "1", "2", "7", "-1", "", "x", *UUIDS, "GPU-18", "MIG-10", "MIG-11"])
).map(",".join)
MACHINES = st.sampled_from([FOUR, SPLIT, WITH_A_GAP, H200S, SPLIT[1:4]])


@given(TEXTS, MACHINES)
def test_no_value_shows_a_gpu_twice_or_one_that_is_not_there(
    text: str, gpus: tuple[Gpu, ...]
) -> None:
    shown = visible_gpus(text, gpus)
    assert len({gpu.label for gpu in shown}) == len(shown)
    assert set(shown) <= set(gpus)


@given(TEXTS, MACHINES)
def test_no_value_shows_more_gpus_than_it_has_entries(text: str, gpus: tuple[Gpu, ...]) -> None:
    assert len(visible_gpus(text, gpus)) <= len(text.split(","))


@given(TEXTS, MACHINES)
def test_no_value_shows_a_slice_beside_anything(text: str, gpus: tuple[Gpu, ...]) -> None:
    shown = visible_gpus(text, gpus)
    assert len(shown) == 1 or all(gpu.mig_slice is None for gpu in shown)


@given(st.integers(1, 8), st.sets(st.integers(0, 7)))
def test_without_the_variable_every_whole_gpu_is_there(count: int, split: set[int]) -> None:
    gpus = tuple(mig_slice(i, 0) if i in split else H200S[0] for i in range(count))
    whole = tuple(gpu for gpu in gpus if gpu.mig_slice is None)
    assert (whole or gpus[:1]) == visible_gpus(None, gpus)


@given(st.permutations(range(4)), st.integers(1, 4))
def test_ordinals_come_out_in_the_order_they_went_in(order: list[int], count: int) -> None:
    asked = [str(index) for index in order[:count]]
    assert asked == seen(",".join(asked))


def test_ordinals_skip_a_gpu_that_cannot_be_opened() -> None:
    assert ["2"] == seen("1", WITH_A_GAP)
    assert ["0", "2", "3"] == seen("0,1,2,3", WITH_A_GAP)


def test_where_nobody_counted_ordinals_an_ordinal_is_the_index() -> None:
    assert ["2"] == seen("2", FOUR[1:])


def test_a_gpu_without_a_uuid_is_found_by_none() -> None:
    assert () == visible_gpus("GPU-", (Gpu(index=0, name="mine"),))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MIG-11", ["1:1"]),
        ("MIG-12000000-0000-0000-0000-000000000000", ["1:2"]),
        ("MIG-11,MIG-10", ["1:1"]),
        ("MIG-1", []),
        ("MIG-11,MIG-11", []),
        ("MIG-11,GPU-3c", ["1:1"]),
        ("GPU-3c,MIG-11", ["0"]),
        ("1", ["1:0"]),
        ("0,1", ["1:0"]),
        ("1,2", ["1:0"]),
        ("0,2", ["0", "2"]),
        ("GPU-3c,GPU-18", ["0", "2"]),
    ],
)
def test_a_process_gets_one_slice_and_no_whole_gpu_beside_it(
    text: str, expected: list[str]
) -> None:
    assert expected == seen(text, SPLIT)


def test_where_all_is_split_a_process_gets_the_first_slice() -> None:
    assert ["1:0"] == seen(None, SPLIT[1:4])


def test_slices_of_an_old_driver_have_the_gpu_in_their_uuid() -> None:
    slices = tuple(
        Gpu(index=0, name="mine", uuid=f"MIG-{UUIDS[0]}/{place + 1}/0", mig_slice=place)
        for place in range(2)
    )
    assert ["0:1"] == seen(f"MIG-{UUIDS[0]}/2/0", slices)


@given(
    st.lists(
        st.integers(0, 99).map(str)
        | st.tuples(st.integers(0, 99), st.integers(0, 6)).map(lambda pair: f"{pair[0]}:{pair[1]}"),
        min_size=1,
        unique=True,
    )
)
def test_gpus_written_out_are_read_back_in_order(labels: list[str]) -> None:
    assert tuple(labels) == parse_gpus(", ".join(labels))


def test_a_number_with_a_leading_zero_is_that_number() -> None:
    assert ("3", "3:1") == parse_gpus("03,3:01")


@pytest.mark.parametrize(
    "text",
    ["", "0,", "a", "-1", "0;1", "0-3", "1.0", "\N{SUPERSCRIPT TWO}", "1:", ":1", "1:0:0", "all"],
)
def test_a_list_that_is_no_list_of_indices_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a GPU index"):
        parse_gpus(text)


@pytest.mark.parametrize(("text", "twice"), [("2,0,2", "2"), ("1:0,1:00", "1:0"), ("0,00", "0")])
def test_a_gpu_asked_for_twice_is_refused(text: str, twice: str) -> None:
    with pytest.raises(UsageError, match=f"names GPU {twice} twice"):
        parse_gpus(text)


def test_gpus_is_taken_in_its_order() -> None:
    assert ["3", "1"] == chosen("3,1")


def test_without_gpus_the_visible_ones_are_taken_in_their_order() -> None:
    assert ["3", "1"] == chosen(None, visible="3,1")


def test_gpus_are_named_by_index_where_ordinals_differ() -> None:
    assert ["2"] == chosen("2", gpus=WITH_A_GAP)
    assert ["2"] == chosen("2", visible="1", gpus=WITH_A_GAP)


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="no usable GPU 4") as caught:
        chosen("0,4")
    assert ("use one of 0, 1, 2, 3",) == caught.value.hints


def test_a_slice_is_named_by_its_gpu_and_its_place() -> None:
    assert ["1:0"] == chosen("1:0", gpus=SPLIT)
    assert ["1:2", "1:0"] == chosen("1:2,1:0", gpus=SPLIT)


def test_a_split_gpu_cannot_be_asked_for_as_a_whole() -> None:
    with pytest.raises(UsageError, match="no usable GPU 1") as caught:
        chosen("1", gpus=SPLIT)
    assert ("use one of 0, 1:0, 1:1, 1:2, 2",) == caught.value.hints


def test_gpus_within_the_visible_ones_is_taken() -> None:
    assert ["2"] == chosen("2", visible="3,2")


def test_gpus_outside_the_visible_ones_is_refused_naming_both() -> None:
    with pytest.raises(UsageError) as caught:
        chosen("0,2", visible="2,3")
    assert "`$gpus 0,2`" in caught.value.message
    assert "`CUDA_VISIBLE_DEVICES=2,3`" in caught.value.message
