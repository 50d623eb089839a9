import json
import re
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


OLD_SLICES = tuple(
    Gpu(index=0, name="mine", uuid=f"MIG-{UUIDS[0]}/{place + 1}/0", mig_slice=place)
    for place in range(2)
)


@pytest.mark.parametrize(
    ("gpus", "text", "expected"),
    [
        # Two GPUs of these begin alike, which those of the recording do not. Each answer is what
        # `torch.cuda.device_count()` of torch 2.13 gives for that value.
        *(
            (FOUR, text, expected)
            for text, expected in (
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
                ("9" * 5000, []),
            )
        ),
        # Ordinals skip a GPU that cannot be opened; where nobody counted them they are indices.
        (WITH_A_GAP, "1", ["2"]),
        (WITH_A_GAP, "0,1,2,3", ["0", "2", "3"]),
        (FOUR[1:], "2", ["2"]),
        ((Gpu(index=0, name="mine"),), "GPU-", []),
        # A process gets one slice, and no whole GPU beside it.
        *(
            (SPLIT, text, expected)
            for text, expected in (
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
            )
        ),
        (SPLIT[1:4], None, ["1:0"]),
        # Slices of an old driver have the GPU in their UUID.
        (OLD_SLICES, f"MIG-{UUIDS[0]}/2/0", ["0:1"]),
    ],
)
def test_a_value_shows_what_cuda_would_use(
    gpus: tuple[Gpu, ...], text: str | None, expected: list[str]
) -> None:
    assert expected == seen(text, gpus)


TEXTS = st.text(alphabet="0123,-+ GPU9fMI", max_size=14) | st.lists(
    st.sampled_from(["0", "1", "2", "7", "-1", "", "x", *UUIDS, "GPU-18", "MIG-10", "MIG-11"])
).map(",".join)
MACHINES = st.sampled_from([FOUR, SPLIT, WITH_A_GAP, H200S, SPLIT[1:4]])


@given(TEXTS, MACHINES)
def test_no_value_shows_a_gpu_twice_or_a_slice_beside_anything(
    text: str, gpus: tuple[Gpu, ...]
) -> None:
    shown = visible_gpus(text, gpus)
    assert len({gpu.label for gpu in shown}) == len(shown) <= len(text.split(","))
    assert set(shown) <= set(gpus)
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


@pytest.mark.parametrize(
    ("text", "error"),
    [
        *(
            (text, "is not a GPU index")
            for text in ("", "0,", "a", "-1", "0;1", "0-3", "1.0", "1:", ":1", "1:0:0", "all")
        ),
        ("\N{SUPERSCRIPT TWO}", "is not a GPU index"),
        ("2,0,2", "names GPU 2 twice"),
        # A number with a leading zero is that number.
        ("1:0,1:00", "names GPU 1:0 twice"),
        ("0,00", "names GPU 0 twice"),
    ],
)
def test_a_list_that_is_no_list_of_gpus_is_refused(text: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        parse_gpus(text)


@pytest.mark.parametrize(
    ("gpus", "visible", "asked", "expected"),
    [
        (FOUR, None, "3,1", ["3", "1"]),
        (FOUR, "3,1", None, ["3", "1"]),
        (FOUR, "3,2", "2", ["2"]),
        # By index where ordinals differ, and by its place where it is a slice.
        (WITH_A_GAP, None, "2", ["2"]),
        (WITH_A_GAP, "1", "2", ["2"]),
        (SPLIT, None, "1:0", ["1:0"]),
        (SPLIT, None, "1:2,1:0", ["1:2", "1:0"]),
    ],
)
def test_a_job_gets_the_gpus_that_were_asked_for_else_the_visible_ones(
    gpus: tuple[Gpu, ...], visible: str | None, asked: str | None, expected: list[str]
) -> None:
    assert expected == chosen(asked, visible, gpus)


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


SLICED = Machine(
    source=MachineSource.NVML,
    gpus=(
        Gpu(index=0, name=A100, uuid="GPU-0"),
        Gpu(index=1, name=f"{A100} MIG 3g.20gb", uuid="MIG-1", mig_slice=0),
    ),
)


def test_a_job_gets_its_gpus_with_the_link_between_them() -> None:
    assert LinkClass.NVLINK_ALL is select_gpus(ALIKE, visible("1,0"), None).interconnect.link_class


@pytest.mark.parametrize("text", ["", "-1", "NoDevFiles", "9", "GPU-f", "0,0", "x\ny"])
def test_no_gpu_left_is_said_with_the_value_that_leaves_none(text: str) -> None:
    with pytest.raises(PreflightError) as caught:
        select_gpus(ALIKE, visible(text), None)
    shown = text.replace("\n", "?")
    assert f"`CUDA_VISIBLE_DEVICES={shown}` hides all 4 usable GPUs" == caught.value.message
    twice = "CUDA uses no GPU if one is listed twice" in caught.value.hints
    assert twice is (text == "0,0")


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
    ("whole", "environ", "asked", "taken", "noted"),
    [
        (ALIKE, {}, "3,0,2", ["3", "0", "2"], None),
        (ALIKE, visible("3,0,2"), "2,3", ["2", "3"], None),
        (ALIKE, visible("0,1"), None, ["0", "1"], None),
        # Where a GPU can be told it is taken without a word.
        (ALIKE, {**visible("1"), **FASTEST_FIRST}, None, ["1"], None),
        (UNLIKE, {**visible("1"), **BUS_ORDER}, None, ["1"], None),
        (UNLIKE, {**visible("GPU-1"), **BUS_ORDER}, None, ["1"], None),
        (UNLIKE, visible("GPU-1"), None, ["1"], None),
        (UNLIKE, {}, "0,1", ["0", "1"], None),
        (SLICED, visible("GPU-0"), None, ["0"], None),
        (SLICED, visible("MIG-1"), None, ["1:0"], None),
        # Numbers among unlike GPUs are noted, even where those left are alike.
        *(
            (
                UNLIKE,
                visible(text),
                None,
                text.split(","),
                f"DEVICES={text}` is read in PCI bus order",
            )
            for text in ("0,1", "1,3", "1")
        ),
        # An entry that ends the list is noted.
        (ALIKE, visible("0,9,1"), None, ["0"], "CUDA stops at `9`, which is not a GPU here"),
        (ALIKE, visible("1,x"), None, ["1"], "CUDA stops at `x`"),
        (ALIKE, visible("GPU-0,GPU-zz"), None, ["0"], "CUDA stops at `GPU-zz`"),
    ],
)
def test_what_is_taken_is_noted_where_it_may_not_be_what_was_meant(
    whole: Machine,
    environ: dict[str, str],
    asked: str | None,
    taken: list[str],
    noted: str | None,
) -> None:
    selected = select_gpus(whole, environ, asked)
    assert taken == labels(selected)
    notes = " ".join(selected.notes)
    assert "" == notes if noted is None else noted in notes


@pytest.mark.parametrize(
    ("asked", "visible", "said", "hint"),
    [
        # A split GPU is no whole one.
        ("1", None, "GPU 1 is split", "choose one slice: `--gpus 1:0` or `--gpus 1:1` or"),
        # Of a GPU that is split or hidden nothing is offered.
        ("9", None, "there is no usable GPU 9", "use one of 0, 2"),
        ("9", "2", "there is no usable GPU 9", "use one of 2"),
        ("0", "2", "which `CUDA_VISIBLE_DEVICES=2` hides", "choose from its GPUs: 2"),
    ],
)
def test_a_hint_names_gpus_that_the_job_can_get(
    asked: str, visible: str | None, said: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        choose_gpus(SPLIT, visible=visible, asked=asked)
    assert hint in caught.value.hints[0].replace("$gpus", "--gpus")


def test_a_slice_beside_a_whole_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match="MIG slice"):
        select_gpus(SLICED, {}, "0,1:0")
    [note] = select_gpus(SLICED, {}, None).notes
    assert note.startswith("GPU 1 is split into MIG slices and not used")
