import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.machine.links import Interconnect, LinkClass, PairLink, PciePath, join_pairs
from zerowiz.core.values import replace

GB_PER_S = 1_000_000_000
SLOT_BYTES_PER_S = 31_504_000_000


def nvlink(one: int, other: int, count: int = 18) -> PairLink:
    return PairLink(
        pair=(one, other),
        nvlinks=count,
        bytes_per_s=count * 25 * GB_PER_S,
        path=PciePath.SYS,
    )


def pcie(
    one: int, other: int, path: PciePath | None = None, bytes_per_s: int | None = SLOT_BYTES_PER_S
) -> PairLink:
    return PairLink(pair=(one, other), nvlinks=0, bytes_per_s=bytes_per_s, path=path)


def unknown(one: int, other: int) -> PairLink:
    return PairLink(pair=(one, other), nvlinks=None, bytes_per_s=SLOT_BYTES_PER_S)


pairs = st.lists(
    st.builds(
        PairLink,
        pair=st.tuples(st.integers(0, 7), st.integers(0, 7)),
        nvlinks=st.none() | st.integers(0, 18),
        bytes_per_s=st.none() | st.integers(1, 9).map(lambda n: n * GB_PER_S),
        path=st.none() | st.sampled_from(PciePath),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda link: link.pair,
)


@given(pairs.flatmap(lambda links: st.tuples(st.just(links), st.permutations(links))))
def test_the_order_of_pairs_never_changes_the_whole(
    orders: tuple[list[PairLink], list[PairLink]],
) -> None:
    assert join_pairs(orders[0]) == join_pairs(orders[1])


@given(pairs)
def test_the_whole_is_named_after_one_of_its_pairs(links: list[PairLink]) -> None:
    assert join_pairs(links).weakest_pair in {link.pair for link in links}


@given(pairs)
def test_only_nvlink_in_every_pair_is_fast(links: list[PairLink]) -> None:
    assert all(link.nvlinks for link in links) is join_pairs(links).is_fast


@given(pairs)
def test_fewer_pairs_are_never_slower(links: list[PairLink]) -> None:
    whole, fewer = join_pairs(links), join_pairs(links[1:])
    assert len(links) == 1 or whole.is_fast <= fewer.is_fast


def test_no_pairs_are_no_link() -> None:
    assert Interconnect(link_class=LinkClass.NONE) == join_pairs([])


@pytest.mark.parametrize(
    ("links", "expected", "weakest"),
    [
        ([nvlink(0, 1), nvlink(0, 2), nvlink(1, 2)], LinkClass.NVLINK_ALL, (0, 1)),
        ([nvlink(0, 1), nvlink(0, 2, 17), nvlink(1, 2)], LinkClass.NVLINK_ALL, (0, 2)),
        ([nvlink(0, 1), pcie(0, 2), pcie(1, 2)], LinkClass.NVLINK_PARTIAL, (0, 2)),
        ([pcie(0, 1), pcie(0, 2), pcie(1, 2)], LinkClass.PCIE, (0, 1)),
        ([nvlink(0, 1), pcie(0, 2), unknown(1, 2)], LinkClass.UNKNOWN, (1, 2)),
        ([unknown(0, 2), unknown(0, 1)], LinkClass.UNKNOWN, (0, 1)),
    ],
)
def test_the_class_is_that_of_the_weakest_pair(
    links: list[PairLink], expected: LinkClass, weakest: tuple[int, int]
) -> None:
    joined = join_pairs(links)
    assert (expected, weakest) == (joined.link_class, joined.weakest_pair)


def test_the_rate_is_that_of_the_weakest_pair() -> None:
    assert 250 * GB_PER_S == join_pairs([nvlink(0, 1, 12), nvlink(0, 2, 10)]).bytes_per_s
    slow = pcie(1, 2, bytes_per_s=GB_PER_S)
    assert GB_PER_S == join_pairs([nvlink(0, 1), pcie(0, 2), slow]).bytes_per_s


def test_an_unknown_pair_leaves_the_rate_unknown() -> None:
    assert join_pairs([nvlink(0, 1), unknown(0, 2)]).bytes_per_s is None


def test_a_pair_of_unknown_rate_could_be_the_slowest() -> None:
    joined = join_pairs([pcie(0, 1, bytes_per_s=1), pcie(1, 2, bytes_per_s=None)])
    assert Interconnect(link_class=LinkClass.PCIE, weakest_pair=(1, 2)) == joined


@pytest.mark.parametrize("place", range(1, len(PciePath)))
def test_of_equal_slots_the_farther_pair_is_the_weaker(place: int) -> None:
    nearer, farther = list(PciePath)[place - 1 : place + 1]
    assert (0, 2) == join_pairs([pcie(0, 1, nearer), pcie(0, 2, farther)]).weakest_pair


def test_a_narrow_slot_is_weaker_than_a_far_one() -> None:
    near = pcie(0, 2, PciePath.PIX, bytes_per_s=GB_PER_S)
    assert (0, 2) == join_pairs([pcie(0, 1, PciePath.SYS), near]).weakest_pair


def test_the_way_over_pcie_does_not_matter_where_there_is_nvlink() -> None:
    near = replace(nvlink(0, 1), path=PciePath.PIX)
    assert (0, 1) == join_pairs([nvlink(0, 2), near]).weakest_pair


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (nvlink(0, 1, 12), "NV12"),
        (pcie(0, 1, PciePath.SAME_BOARD), "PSB"),
        (pcie(0, 1, PciePath.SYS), "SYS"),
        (pcie(0, 1), "?"),
        (unknown(0, 1), "?"),
    ],
)
def test_a_pair_has_the_word_of_nvidia_smi(link: PairLink, expected: str) -> None:
    assert expected == link.word
