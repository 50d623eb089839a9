import json
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import TESTS

from zerowiz.core.machine.job_gpus import choose_gpus, parse_gpus, select_gpus, visible_gpus
from zerowiz.core.machine.types import Gpu, LinkClass, Machine, MachineSource, PairLink, join_pairs
from zerowiz.errors import PreflightError, UsageError

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


def test_a_number_that_no_gpu_has_is_no_ordinal() -> None:
    assert [] == seen("9" * 5000)


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


A100, RTX3090 = "NVIDIA A100-PCIE-40GB", "NVIDIA GeForce RTX 3090"
BUS_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
FASTEST_FIRST = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}


def visible(text: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": text}


def machine(*names: str) -> Machine:
    """Cards of which the first two have a bridge."""
    links = tuple(
        PairLink(pair=pair, nvlinks=4 if pair == (0, 1) else 0, bytes_per_s=1)
        for pair in combinations(range(len(names)), 2)
    )
    gpus = tuple(
        Gpu(index=index, name=name, uuid=f"GPU-{index}000") for index, name in enumerate(names)
    )
    return Machine(
        source=MachineSource.NVML, gpus=gpus, links=links, interconnect=join_pairs(links)
    )


ALIKE = machine(A100, A100, A100, A100)
UNLIKE = machine(RTX3090, A100, RTX3090, A100)


def labels(selected: Machine) -> list[str]:
    return [gpu.label for gpu in selected.gpus]


@pytest.mark.parametrize("whole", [ALIKE, UNLIKE])
@pytest.mark.parametrize("environ", [{}, BUS_ORDER, FASTEST_FIRST])
def test_where_nothing_is_said_the_machine_stays_as_it_is(
    whole: Machine, environ: dict[str, str]
) -> None:
    assert whole == select_gpus(whole, environ, None)


def test_a_job_gets_the_visible_gpus_with_the_link_between_them() -> None:
    selected = select_gpus(ALIKE, visible("1,0"), None)
    assert ["1", "0"] == labels(selected)
    assert LinkClass.NVLINK_ALL is selected.interconnect.link_class


def test_gpus_are_taken_in_the_order_asked() -> None:
    assert ["3", "0", "2"] == labels(select_gpus(ALIKE, {}, "3,0,2"))
    assert ["2", "3"] == labels(select_gpus(ALIKE, visible("3,0,2"), "2,3"))


@pytest.mark.parametrize("text", ["", "-1", "NoDevFiles", "9", "GPU-f"])
def test_no_gpu_left_is_said_with_the_value_that_leaves_none(text: str) -> None:
    with pytest.raises(PreflightError) as caught:
        select_gpus(ALIKE, visible(text), None)
    expected = f"`CUDA_VISIBLE_DEVICES={text}` hides all 4 usable GPUs"
    assert expected == caught.value.message


@pytest.mark.parametrize(
    ("environ", "asked"),
    [(visible("0,1"), None), ({}, "0,1"), (visible("GPU-0"), "0"), (visible("GPU-0"), None)],
)
def test_numbers_of_unlike_gpus_in_cudas_own_order_are_refused(
    environ: dict[str, str], asked: str | None
) -> None:
    with pytest.raises(UsageError, match="`CUDA_DEVICE_ORDER=FASTEST_FIRST`") as caught:
        select_gpus(UNLIKE, {**environ, **FASTEST_FIRST}, asked)
    assert "`export CUDA_DEVICE_ORDER=PCI_BUS_ID`" in caught.value.hints[0]


@pytest.mark.parametrize(
    ("whole", "environ"),
    [
        (ALIKE, {**visible("1"), **FASTEST_FIRST}),
        (UNLIKE, {**visible("1"), **BUS_ORDER}),
        (UNLIKE, {**visible("GPU-1"), **BUS_ORDER}),
        (UNLIKE, visible("GPU-1")),
    ],
)
def test_where_a_gpu_can_be_told_it_is_taken_without_a_word(
    whole: Machine, environ: dict[str, str]
) -> None:
    selected = select_gpus(whole, environ, None)
    assert (["1"], ()) == (labels(selected), selected.notes)


@pytest.mark.parametrize("text", ["0,1", "1,3", "1"])
def test_numbers_among_unlike_gpus_are_noted_even_where_those_left_are_alike(text: str) -> None:
    [note] = select_gpus(UNLIKE, visible(text), None).notes
    assert note.startswith(f"`CUDA_VISIBLE_DEVICES={text}` is read in PCI bus order")


def test_unlike_gpus_are_all_taken_in_any_order_where_nothing_is_chosen() -> None:
    assert UNLIKE.gpus == select_gpus(UNLIKE, FASTEST_FIRST, None).gpus


def test_gpus_asked_for_by_index_need_no_note() -> None:
    assert () == select_gpus(UNLIKE, {}, "0,1").notes


@pytest.mark.parametrize(("text", "expected"), [("GPU-0", ["0"]), ("MIG-1", ["1:0"])])
def test_uuids_among_unlike_gpus_need_no_note(text: str, expected: list[str]) -> None:
    split = Machine(
        source=MachineSource.NVML,
        gpus=(
            Gpu(index=0, name=A100, uuid="GPU-0"),
            Gpu(index=1, name=f"{A100} MIG 3g.20gb", uuid="MIG-1", mig_slice=0),
        ),
    )
    selected = select_gpus(split, visible(text), None)
    assert (expected, ()) == (labels(selected), selected.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,9,1", "CUDA stops at `9`, which is not a GPU here"),
        ("1,x", "CUDA stops at `x`"),
        ("GPU-0,GPU-zz", "CUDA stops at `GPU-zz`"),
    ],
)
def test_an_entry_that_ends_the_list_is_noted(text: str, said: str) -> None:
    [note] = select_gpus(ALIKE, visible(text), None).notes
    assert f"`CUDA_VISIBLE_DEVICES={text}`" in note
    assert said in note


@pytest.mark.parametrize("text", ["0,1", "3", "GPU-0"])
def test_a_list_that_is_taken_whole_needs_no_note(text: str) -> None:
    assert () == select_gpus(ALIKE, visible(text), None).notes


def test_a_gpu_that_stands_twice_is_the_reason_that_is_given() -> None:
    with pytest.raises(PreflightError) as caught:
        select_gpus(ALIKE, visible("0,0"), None)
    assert "CUDA uses no GPU if one is listed twice" in caught.value.hints


def test_a_value_of_several_lines_is_quoted_on_one() -> None:
    with pytest.raises(PreflightError) as caught:
        select_gpus(ALIKE, visible("x\ny"), None)
    assert "\n" not in caught.value.message


def test_a_slice_beside_a_whole_gpu_is_refused() -> None:
    split = Machine(
        source=MachineSource.NVML,
        gpus=(Gpu(index=0, name=A100), Gpu(index=1, name=A100, mig_slice=0)),
    )
    with pytest.raises(UsageError, match="MIG slice"):
        select_gpus(split, {}, "0,1:0")
    [note] = select_gpus(split, {}, None).notes
    assert note.startswith("GPU 1 is split into MIG slices and not used")
