from itertools import combinations

import pytest

from zerowiz.core.machine.job_gpus import select_gpus
from zerowiz.core.machine.types import Gpu, LinkClass, Machine, MachineSource, PairLink, join_pairs
from zerowiz.errors import PreflightError, UsageError

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
