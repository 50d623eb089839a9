import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.visible import GpuId, choose_gpus, parse_gpus, visible_gpus
from zerowiz.errors import UsageError

UUIDS = (
    "GPU-3cdd0e37-383d-657b-e82e-6388c475e419",
    "GPU-182dd796-462b-b296-a9bc-56e2cbd7d9bd",
    "GPU-18aa0000-0000-0000-0000-000000000000",
    "GPU-9f000000-0000-0000-0000-000000000000",
)
FOUR = tuple(GpuId(index=index, uuid=uuid) for index, uuid in enumerate(UUIDS))


def seen(text: str | None) -> list[int]:
    return [gpu.index for gpu in visible_gpus(text, FOUR)]


def chosen(asked: str | None, visible: str | None = None) -> list[int]:
    return [gpu.index for gpu in choose_gpus(FOUR, visible=visible, asked=asked)]


# Each answer is what `torch.cuda.device_count()` of torch 2.13 gives for that value.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,0", [2, 0]),
        ("0,1,-1,2", [0, 1]),
        ("0,8,1", [0]),
        ("8", []),
        ("0,0", []),
        ("1,2,1", []),
        ("1gpu2,2x", [1, 2]),
        ("+3", [3]),
        (" 1 , 2 ", [1, 2]),
        ("0,,1", [0]),
        ("0,GPU-3c", [0]),
        ("GPU-3c", [0]),
        (UUIDS[3], [3]),
        ("GPU-9f,GPU-3cdd", [3, 0]),
        ("GPU-18", []),
        ("GPU-9f,GPU-18", [3]),
        ("GPU-9f,GPU-9f0", []),
        ("GPU-9f,0", [3]),
        ("GPU-3CDD", []),
        ("GPU-3c, GPU-9f", [0]),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    text: str | None, expected: list[int]
) -> None:
    assert expected == seen(text)


def test_ordinals_count_the_usable_gpus() -> None:
    without_the_first = FOUR[1:]
    assert [FOUR[2]] == list(visible_gpus("1", without_the_first))


def test_a_gpu_without_a_uuid_is_found_by_none() -> None:
    assert () == visible_gpus("GPU-", (GpuId(index=0),))


@given(st.text(alphabet="0123,-+ GPU9f", max_size=12))
def test_no_value_shows_a_gpu_twice(text: str) -> None:
    indices = seen(text)
    assert len(set(indices)) == len(indices)


@pytest.mark.parametrize("text", ["MIG-1234", "MIG-GPU-1234/1/0"])
def test_mig_slices_are_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(UsageError, match="MIG slice") as caught:
        seen(text)
    assert any("--gpus" in hint for hint in caught.value.hints)


@given(st.lists(st.integers(0, 99), min_size=1, unique=True))
def test_gpus_written_out_are_read_back_in_order(indices: list[int]) -> None:
    assert tuple(indices) == parse_gpus(", ".join(map(str, indices)))


@pytest.mark.parametrize("text", ["", "0,", "a", "-1", "0;1", "0-3", "1.0", "\N{SUPERSCRIPT TWO}"])
def test_a_list_that_is_no_list_of_indices_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no GPU index"):
        parse_gpus(text)


def test_a_gpu_asked_for_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="names GPU 2 twice"):
        parse_gpus("2,0,2")


def test_gpus_is_taken_in_its_order() -> None:
    assert [3, 1] == chosen("3,1")


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="no usable GPU 4") as caught:
        chosen("0,4")
    assert ("usable here are 0, 1, 2, 3",) == caught.value.hints


def test_gpus_within_the_visible_ones_is_taken() -> None:
    assert [2] == chosen("2", visible="3,2")


def test_gpus_outside_the_visible_ones_is_refused_naming_both() -> None:
    with pytest.raises(UsageError) as caught:
        chosen("0,2", visible="2,3")
    assert "`--gpus 0,2`" in caught.value.message
    assert "`CUDA_VISIBLE_DEVICES=2,3`" in caught.value.message
