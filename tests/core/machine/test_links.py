import time
from collections.abc import Mapping
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.machine.types import Interconnect, LinkClass, PairLink, PciePath, join_pairs
from zerowiz.core.structs import replace

GB_PER_S = 1_000_000_000
SLOT_BYTES_PER_S = 15_760_000_000


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
        pair=st.lists(st.integers(0, 5), min_size=2, max_size=2).map(sorted).map(tuple),
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


LINK_BYTES_PER_S = 25 * GB_PER_S


def of_matrix(counts: Mapping[tuple[int, int], int | None]) -> list[PairLink]:
    """Pairs with so many NVLinks each, and PCIe where there are none."""
    return [
        PairLink(
            pair=pair,
            nvlinks=count,
            bytes_per_s=count * LINK_BYTES_PER_S if count else SLOT_BYTES_PER_S,
        )
        for pair, count in counts.items()
    ]


def ports(gpus: int, count: int) -> dict[int, int]:
    return dict.fromkeys(range(gpus), count)


@st.composite
def meshes(draw: st.DrawFn) -> tuple[int, dict[tuple[int, int], int | None]]:
    """Direct links between up to five GPUs."""
    gpus = draw(st.integers(2, 5))
    counts = st.none() | st.integers(0, 2)
    return gpus, {pair: draw(counts) for pair in combinations(range(gpus), 2)}


def is_ring(order: tuple[int, ...], counts: Mapping[tuple[int, int], int | None]) -> bool:
    hops = zip(order, (*order[1:], order[0]), strict=True)
    return all(counts[min(hop), max(hop)] for hop in hops)


@given(meshes())
def test_a_ring_of_nvlinks_is_fast_and_nothing_else(
    mesh: tuple[int, dict[tuple[int, int], int | None]],
) -> None:
    gpus, counts = mesh
    expected = any(is_ring(order, counts) for order in permutations(range(gpus)))
    assert expected is join_pairs(of_matrix(counts), ports(gpus, 18)).is_fast


@given(meshes(), st.data())
def test_one_more_link_never_makes_it_slower(
    mesh: tuple[int, dict[tuple[int, int], int | None]], data: st.DataObject
) -> None:
    gpus, counts = mesh
    pair = data.draw(st.sampled_from(sorted(counts)))
    more = {**counts, pair: (counts[pair] or 0) + 1}
    fewer, whole = (join_pairs(of_matrix(each), ports(gpus, 18)) for each in (counts, more))
    assert fewer.is_fast <= whole.is_fast
    if fewer.link_class is not LinkClass.UNKNOWN:
        assert (fewer.bytes_per_s or 0) <= (whole.bytes_per_s or 0)


@given(meshes(), st.integers(0, 2))
def test_a_pair_that_is_not_known_never_looks_better_than_any_value_of_it(
    mesh: tuple[int, dict[tuple[int, int], int | None]], stands_for: int
) -> None:
    gpus, counts = mesh
    known = {pair: stands_for if count is None else count for pair, count in counts.items()}
    unsure, sure = (join_pairs(of_matrix(each), ports(gpus, 18)) for each in (counts, known))
    assert unsure.is_fast <= sure.is_fast
    if unsure.is_fast:
        assert (unsure.bytes_per_s or 0) <= (sure.bytes_per_s or 0)


@given(meshes())
def test_no_gpu_sends_more_than_its_links(
    mesh: tuple[int, dict[tuple[int, int], int | None]],
) -> None:
    gpus, counts = mesh
    joined = join_pairs(of_matrix(counts), ports(gpus, 18))
    own = [sum(n or 0 for pair, n in counts.items() if gpu in pair) for gpu in range(gpus)]
    if joined.is_fast:
        assert (joined.bytes_per_s or 0) <= min(own) * LINK_BYTES_PER_S


# As `nvidia-smi topo -m` prints it of a DGX-1 with V100: https://kyumdoctor.tistory.com/74.
DGX1 = """
    X NV1 NV1 NV2 NV2 SYS SYS SYS
    NV1 X NV2 NV1 SYS NV2 SYS SYS
    NV1 NV2 X NV2 SYS SYS NV1 SYS
    NV2 NV1 NV2 X SYS SYS SYS NV1
    NV2 SYS SYS SYS X NV1 NV1 NV2
    SYS NV2 SYS SYS NV1 X NV2 NV1
    SYS SYS NV1 SYS NV1 NV2 X NV2
    SYS SYS SYS NV1 NV2 NV1 NV2 X
"""
BOTH_SOCKETS = "X NV2 SYS SYS / NV2 X SYS SYS / SYS SYS X NV2 / SYS SYS NV2 X"
# NCCL made 6 rings of it: https://github.com/NVIDIA/nccl/issues/713, server A.
FOUR_V100 = "X NV2 NV2 NV2 / NV2 X NV2 NV2 / NV2 NV2 X NV2 / NV2 NV2 NV2 X"
FOUR_A100 = FOUR_V100.replace("NV2", "NV4")
# nccl-tests made 208 GB/s of 2 GPUs and 20 GB/s of 3: .../nccl-tests/issues/178.
BRIDGED = BOTH_SOCKETS.replace("NV2", "NV12").replace("SYS", "NODE")


def read_matrix(text: str, gpus: str) -> tuple[list[PairLink], dict[int, int]]:
    rows = [row.split() for row in text.replace("/", "\n").strip().splitlines()]
    chosen = [int(index) for index in gpus.split()]
    counts = {
        (one, other): int(rows[one][other].removeprefix("NV"))
        if rows[one][other].startswith("NV")
        else 0
        for one, other in combinations(chosen, 2)
    }
    wires = [sum(int(w[2:]) for w in row if w.startswith("NV")) for row in rows]
    return of_matrix(counts), {index: wires[index] for index in chosen}


@pytest.mark.parametrize(
    ("text", "gpus", "link_class", "links"),
    [
        (DGX1, "0 1 2 3 4 5 6 7", LinkClass.NVLINK_RING, 6),
        (DGX1, "0 1 2 3", LinkClass.NVLINK_ALL, 4),
        (DGX1, "0 3", LinkClass.NVLINK_ALL, 2),
        (DGX1, "0 1", LinkClass.NVLINK_ALL, 1),
        (DGX1, "0 1 4 5", LinkClass.NVLINK_RING, 2),
        (DGX1, "0 1 2 3 4", LinkClass.NVLINK_PARTIAL, None),
        (DGX1, "0 1 4", LinkClass.NVLINK_PARTIAL, None),
        (DGX1, "0 5", LinkClass.PCIE, None),
        (FOUR_V100, "0 1 2 3", LinkClass.NVLINK_ALL, 6),
        (FOUR_V100, "0 1 2", LinkClass.NVLINK_ALL, 4),
        (FOUR_A100, "0 1 2 3", LinkClass.NVLINK_ALL, 12),
        (FOUR_V100.replace("NV2", "NV1"), "0 1 2 3", LinkClass.NVLINK_ALL, 3),
        (BOTH_SOCKETS, "0 1 2 3", LinkClass.NVLINK_PARTIAL, None),
        (BRIDGED, "0 1", LinkClass.NVLINK_ALL, 12),
        (BRIDGED, "0 1 2", LinkClass.NVLINK_PARTIAL, None),
    ],
)
def test_the_class_and_rate_are_those_of_the_rings_that_nccl_builds(
    text: str, gpus: str, link_class: LinkClass, links: int | None
) -> None:
    joined = join_pairs(*read_matrix(text, gpus))
    rate = SLOT_BYTES_PER_S if links is None else links * LINK_BYTES_PER_S
    assert (link_class, rate) == (joined.link_class, joined.bytes_per_s)


def test_pairs_behind_a_switch_share_the_links_of_each_gpu() -> None:
    pairs = of_matrix(dict.fromkeys(combinations(range(8), 2), 18))
    for known in ({}, ports(8, 18)):
        assert 450 * GB_PER_S == join_pairs(pairs, known).bytes_per_s
    assert 400 * GB_PER_S == join_pairs(pairs, {**ports(8, 18), 3: 16}).bytes_per_s


@pytest.mark.parametrize("gpus", [8, 16])
def test_rings_are_found_at_once(gpus: int) -> None:
    """A denser mesh than any that was built, and a switch: a tenth of a second is for all."""
    for counts, own in ((1, gpus - 1), (18, 18)):
        pairs = of_matrix(dict.fromkeys(combinations(range(gpus), 2), counts))
        start = time.perf_counter()
        assert join_pairs(pairs, ports(gpus, own)).is_fast
        assert time.perf_counter() - start < 2


@pytest.mark.parametrize("lost", [0, 7, 15])
def test_a_gpu_without_links_behind_a_switch_is_seen_at_once(lost: int) -> None:
    counts = {pair: 0 if lost in pair else 18 for pair in combinations(range(16), 2)}
    start = time.perf_counter()
    joined = join_pairs(of_matrix(counts), {**ports(16, 18), lost: 0})
    assert LinkClass.NVLINK_PARTIAL is joined.link_class
    assert time.perf_counter() - start < 2


def test_no_pairs_are_no_link() -> None:
    assert Interconnect(link_class=LinkClass.NONE) == join_pairs([])


@pytest.mark.parametrize(
    ("links", "expected", "weakest"),
    [
        ([nvlink(0, 1), nvlink(0, 2), nvlink(1, 2)], LinkClass.NVLINK_ALL, (0, 1)),
        ([nvlink(0, 1), nvlink(0, 2, 17), nvlink(1, 2)], LinkClass.NVLINK_ALL, (0, 2)),
        (
            [*(nvlink(*pair) for pair in ((0, 1), (1, 2), (2, 3), (0, 3))), pcie(0, 2), pcie(1, 3)],
            LinkClass.NVLINK_RING,
            (0, 2),
        ),
        (
            [nvlink(0, 1), nvlink(1, 2), nvlink(2, 3), nvlink(0, 3), unknown(0, 2), unknown(1, 3)],
            LinkClass.NVLINK_RING,
            (0, 2),
        ),
        ([nvlink(0, 1), pcie(0, 2), pcie(1, 2)], LinkClass.NVLINK_PARTIAL, (0, 2)),
        ([pcie(0, 1), pcie(0, 2), pcie(1, 2)], LinkClass.PCIE, (0, 1)),
        ([nvlink(0, 1), pcie(0, 2), unknown(1, 2)], LinkClass.UNKNOWN, (1, 2)),
        ([unknown(0, 2), unknown(0, 1)], LinkClass.UNKNOWN, (0, 1)),
    ],
)
def test_the_class_is_that_of_the_best_ring_and_the_weakest_pair_is_named(
    links: list[PairLink], expected: LinkClass, weakest: tuple[int, int]
) -> None:
    joined = join_pairs(links)
    assert (expected, weakest) == (joined.link_class, joined.weakest_pair)


def test_the_rate_over_pcie_is_that_of_the_weakest_pair() -> None:
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
