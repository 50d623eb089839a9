import json
import time
from collections.abc import Mapping
from itertools import combinations, permutations
from types import EllipsisType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import TESTS
from recorded import play, recording

from zerowiz.core.machine.types import (
    Accelerator,
    Gpu,
    Host,
    Interconnect,
    LinkClass,
    Machine,
    MachineSource,
    Network,
    NetworkKind,
    Nic,
    PairLink,
    PciePath,
    join_nics,
    join_pairs,
    pick_gpus,
    with_gpus,
)
from zerowiz.core.structs import replace
from zerowiz.errors import UsageError

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
    """It is named after one of them."""
    whole = join_pairs(orders[0])
    assert whole == join_pairs(orders[1])
    assert whole.weakest_pair in {link.pair for link in orders[0]}


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


@given(meshes(), st.data(), st.integers(0, 2))
def test_one_more_link_never_makes_it_slower_and_an_unknown_one_is_the_worst(
    mesh: tuple[int, dict[tuple[int, int], int | None]], data: st.DataObject, stands_for: int
) -> None:
    """No GPU sends more than its links."""
    gpus, counts = mesh
    pair = data.draw(st.sampled_from(sorted(counts)))
    more = {**counts, pair: (counts[pair] or 0) + 1}
    known = {pair: stands_for if count is None else count for pair, count in counts.items()}
    joined, with_more, with_known = (
        join_pairs(of_matrix(each), ports(gpus, 18)) for each in (counts, more, known)
    )
    assert joined.is_fast <= with_more.is_fast
    assert joined.is_fast <= with_known.is_fast
    if joined.link_class is not LinkClass.UNKNOWN:
        assert (joined.bytes_per_s or 0) <= (with_more.bytes_per_s or 0)
    if joined.is_fast:
        own = [sum(n or 0 for pair, n in counts.items() if gpu in pair) for gpu in range(gpus)]
        most_bytes_per_s = min(own) * LINK_BYTES_PER_S
        assert (joined.bytes_per_s or 0) <= min(with_known.bytes_per_s or 0, most_bytes_per_s)


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


@pytest.mark.parametrize(
    ("gpus", "links", "own", "lost"),
    [
        # A denser mesh than any that was built.
        *((gpus, 1, gpus - 1, None) for gpus in (8, 16)),
        # A switch, with a GPU that has no links to it.
        *((16, 18, 18, lost) for lost in (None, 0, 7, 15)),
    ],
)
def test_rings_are_found_at_once(gpus: int, links: int, own: int, lost: int | None) -> None:
    """A tenth of a second is for all."""
    counts = {pair: 0 if lost in pair else links for pair in combinations(range(gpus), 2)}
    of_gpus = {index: 0 if index == lost else own for index in range(gpus)}
    start = time.process_time()
    assert (lost is None) is join_pairs(of_matrix(counts), of_gpus).is_fast
    assert time.process_time() - start < 2


SLOW_PCIE = pcie(1, 2, bytes_per_s=GB_PER_S)
NVLINKS = [nvlink(0, 1), nvlink(1, 2), nvlink(2, 3), nvlink(0, 3)]


@pytest.mark.parametrize(
    ("links", "expected", "weakest", "bytes_per_s"),
    [
        ([], LinkClass.NONE, None, None),
        ([nvlink(0, 1), nvlink(0, 2), nvlink(1, 2)], LinkClass.NVLINK_ALL, (0, 1), ...),
        ([nvlink(0, 1), nvlink(0, 2, 17), nvlink(1, 2)], LinkClass.NVLINK_ALL, (0, 2), ...),
        # The way over PCIe does not matter where there is NVLink.
        (
            [nvlink(0, 2), replace(nvlink(0, 1), path=PciePath.PIX), nvlink(1, 2)],
            *(LinkClass.NVLINK_ALL, (0, 1), ...),
        ),
        ([*NVLINKS, pcie(0, 2), pcie(1, 3)], LinkClass.NVLINK_RING, (0, 2), ...),
        ([*NVLINKS, unknown(0, 2), unknown(1, 3)], LinkClass.NVLINK_RING, (0, 2), ...),
        (
            [nvlink(0, 1), pcie(0, 2), pcie(1, 2)],
            *(LinkClass.NVLINK_PARTIAL, (0, 2), SLOT_BYTES_PER_S),
        ),
        (
            [nvlink(0, 1), pcie(0, 2), SLOW_PCIE],
            *(LinkClass.NVLINK_PARTIAL, (1, 2), GB_PER_S),
        ),
        ([pcie(0, 1), pcie(0, 2), pcie(1, 2)], LinkClass.PCIE, (0, 1), SLOT_BYTES_PER_S),
        # One of unknown rate could be the slowest.
        ([pcie(0, 1, bytes_per_s=1), pcie(1, 2, bytes_per_s=None)], LinkClass.PCIE, (1, 2), None),
        # A narrow slot is weaker than a far one.
        ([pcie(0, 1, PciePath.SYS), SLOW_PCIE], LinkClass.PCIE, (1, 2), GB_PER_S),
        ([nvlink(0, 1), pcie(0, 2), unknown(1, 2)], LinkClass.UNKNOWN, (1, 2), None),
        ([unknown(0, 2), unknown(0, 1)], LinkClass.UNKNOWN, (0, 1), None),
    ],
)
def test_the_class_is_that_of_the_best_ring_and_the_weakest_pair_is_named(
    links: list[PairLink],
    expected: LinkClass,
    weakest: tuple[int, int] | None,
    bytes_per_s: int | EllipsisType | None,
) -> None:
    """A rate of `...` is any."""
    joined = join_pairs(links)
    assert (expected, weakest) == (joined.link_class, joined.weakest_pair)
    assert bytes_per_s in {..., joined.bytes_per_s}


@pytest.mark.parametrize("place", range(1, len(PciePath)))
def test_of_equal_slots_the_farther_pair_is_the_weaker(place: int) -> None:
    nearer, farther = list(PciePath)[place - 1 : place + 1]
    assert (0, 2) == join_pairs([pcie(0, 1, nearer), pcie(0, 2, farther)]).weakest_pair


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


NICS = st.builds(
    Nic,
    name=st.sampled_from(["mlx5_0", "mlx5_1", "eth0"]),
    kind=st.sampled_from(NetworkKind),
    bytes_per_s=st.none() | st.integers(1, 10**12),
    unusable=st.none() | st.just("port 1 is DOWN"),
)
LISTS = st.lists(NICS, max_size=6)


def infiniband(bytes_per_s: int | None = 50_000_000_000) -> Nic:
    return Nic(name="mlx5_0", kind=NetworkKind.INFINIBAND, bytes_per_s=bytes_per_s)


def ethernet(bytes_per_s: int | None) -> Nic:
    return Nic(name="eth0", kind=NetworkKind.ETHERNET, bytes_per_s=bytes_per_s)


@pytest.mark.parametrize(
    ("nics", "kind", "bytes_per_s"),
    [
        ([], NetworkKind.UNKNOWN, None),
        # RDMA adapters carry a job together, sockets use the fastest interface alone.
        (
            [infiniband(), infiniband(), ethernet(10**12)],
            *(NetworkKind.INFINIBAND, 100_000_000_000),
        ),
        (
            [ethernet(1_250_000_000), ethernet(125_000_000), ethernet(None)],
            *(NetworkKind.ETHERNET, 1_250_000_000),
        ),
    ],
)
def test_adapters_make_a_network(
    nics: list[Nic], kind: NetworkKind, bytes_per_s: int | None
) -> None:
    network = join_nics(nics)
    assert (kind, bytes_per_s) == (network.kind, network.bytes_per_s)


@given(LISTS)
def test_neither_an_unusable_adapter_nor_the_order_changes_a_network(nics: list[Nic]) -> None:
    network = join_nics(nics)
    assert tuple(nics) == network.nics
    shuffled = sorted(nics, key=lambda nic: (nic.kind, nic.bytes_per_s or 0, nic.name))
    for others in ([nic for nic in nics if nic.unusable is None], shuffled):
        other = join_nics(others)
        assert (other.kind, other.bytes_per_s) == (network.kind, network.bytes_per_s)


@given(LISTS, NICS)
def test_one_more_adapter_never_makes_the_network_slower(nics: list[Nic], more: Nic) -> None:
    before, after = join_nics(nics), join_nics([*nics, more])
    assert list(NetworkKind).index(after.kind) <= list(NetworkKind).index(before.kind)
    if before.kind is after.kind:
        assert (before.bytes_per_s or 0) <= (after.bytes_per_s or 0)


@pytest.mark.parametrize(
    ("kind", "bytes_per_s", "expected"),
    [
        (NetworkKind.NVLINK, None, True),
        (NetworkKind.INFINIBAND, None, True),
        (NetworkKind.EFA, 12_500_000_000, True),
        (NetworkKind.ROCE, 12_500_000_000, True),
        (NetworkKind.ROCE, 12_499_999_999, False),
        (NetworkKind.ROCE, None, False),
        (NetworkKind.ETHERNET, 50_000_000_000, False),
        (NetworkKind.UNKNOWN, None, False),
    ],
)
def test_infiniband_or_better_is_fast(
    kind: NetworkKind, bytes_per_s: int | None, *, expected: bool
) -> None:
    assert expected is Network(kind=kind, bytes_per_s=bytes_per_s).is_fast


@given(st.builds(Network, kind=st.sampled_from(NetworkKind), bytes_per_s=st.integers(1, 10**12)))
def test_an_unknown_rate_never_looks_faster_than_a_known_one(network: Network) -> None:
    assert network.is_fast or not replace(network, bytes_per_s=None).is_fast


NVLINK = Interconnect(link_class=LinkClass.NVLINK_ALL, bytes_per_s=450_000_000_000)
INFINIBAND = Network(kind=NetworkKind.INFINIBAND)
ETHERNET = Network(kind=NetworkKind.ETHERNET, bytes_per_s=1_250_000_000)
SLOW_ROCE = Network(kind=NetworkKind.ROCE, bytes_per_s=3_125_000_000)


def gpu(index: int, **facts: object) -> Gpu:
    return replace(Gpu(index=index, name="mine"), **facts)  # type: ignore[arg-type]


def machine(*gpus: Gpu, **facts: object) -> Machine:
    return replace(
        Machine(source=MachineSource.NVML, gpus=gpus, interconnect=NVLINK),
        **facts,  # type: ignore[arg-type]
    )


def islands() -> Machine:
    """Two bridged pairs of cards."""
    links = tuple(
        PairLink(
            pair=pair,
            nvlinks=4 if pair in {(0, 1), (2, 3)} else 0,
            bytes_per_s=56_250_000_000 if pair in {(0, 1), (2, 3)} else 31_504_000_000,
            path=PciePath.SYS,
        )
        for pair in combinations(range(4), 2)
    )
    gpus = tuple(gpu(index) for index in range(4))
    return machine(*gpus, links=links, interconnect=join_pairs(links))


@pytest.mark.parametrize(
    ("gpus", "nodes", "error"),
    [
        ((), 1, "at least one GPU"),
        ((gpu(0),), 0, "at least one node, not 0"),
        ((gpu(0), gpu(0)), 1, "listed twice"),
    ],
)
def test_a_machine_nobody_can_train_on_is_refused(
    gpus: tuple[Gpu, ...], nodes: int, error: str
) -> None:
    with pytest.raises(UsageError, match=error):
        machine(*gpus, nodes=nodes)


@pytest.mark.parametrize(
    ("facts", "label", "ordinal"),
    [
        ({}, "3", 3),
        ({"mig_slice": 1}, "3:1", 3),
        # Where somebody counted.
        ({"ordinal": 2}, "3", 2),
        ({"ordinal": 0}, "3", 0),
    ],
)
def test_a_gpu_has_the_name_of_a_command_line_and_the_number_of_cuda(
    facts: dict[str, object], label: str, ordinal: int
) -> None:
    named = gpu(3, **facts)
    assert (label, ordinal) == (named.label, named.cuda_ordinal)


@given(st.lists(st.none() | st.integers(0, 2**40), min_size=1, max_size=6))
def test_the_tightest_gpu_counts_and_an_unknown_one_could_be_it(sizes: list[int | None]) -> None:
    whole = machine(
        *(gpu(i, free_bytes=size, total_bytes=size) for i, size in enumerate(sizes)),
    )
    known = [size for size in sizes if size is not None]
    expected = None if None in sizes else min(known)
    assert (expected, expected) == (whole.free_bytes, whole.total_bytes)


@pytest.mark.parametrize(
    ("others", "accelerator", "computes_bf16", "expected"),
    [
        ((7, 5), Accelerator.CUDA, None, ((7, 5), False)),
        ((9, 0), Accelerator.CUDA, False, ((9, 0), True)),
        (None, Accelerator.CUDA, None, (None, True)),
        ((9, 0), Accelerator.CPU, True, ((9, 0), True)),
        ((9, 0), Accelerator.CPU, False, ((9, 0), False)),
        ((9, 0), Accelerator.CPU, None, ((9, 0), True)),
    ],
)
def test_the_oldest_gpu_or_the_cpu_that_computes_for_ranks_keeps_a_machine_from_bf16(
    others: tuple[int, int] | None,
    accelerator: Accelerator,
    computes_bf16: bool | None,
    expected: tuple[tuple[int, int] | None, bool],
) -> None:
    gpus = (gpu(0, compute_capability=(9, 0)), gpu(1, compute_capability=others))
    host = Host(computes_bf16=computes_bf16)
    whole = machine(*gpus, accelerator=accelerator, host=host)
    assert expected == (whole.compute_capability, whole.takes_bf16)


@pytest.mark.parametrize(
    ("gpus", "nodes", "link", "network", "expected"),
    [
        (1, 1, LinkClass.NONE, INFINIBAND, False),
        (4, 1, LinkClass.NVLINK_ALL, Network(), True),
        (4, 1, LinkClass.NVLINK_ALL, ETHERNET, True),
        (4, 1, LinkClass.NVLINK_PARTIAL, INFINIBAND, False),
        (4, 1, LinkClass.PCIE, INFINIBAND, False),
        (4, 1, LinkClass.UNKNOWN, INFINIBAND, False),
        (4, 2, LinkClass.NVLINK_ALL, INFINIBAND, True),
        (4, 2, LinkClass.NVLINK_ALL, Network(kind=NetworkKind.NVLINK), True),
        (4, 2, LinkClass.NVLINK_ALL, Network(), False),
        (4, 2, LinkClass.NVLINK_ALL, ETHERNET, False),
        (4, 2, LinkClass.NVLINK_ALL, SLOW_ROCE, False),
        (4, 2, LinkClass.PCIE, INFINIBAND, False),
        (1, 2, LinkClass.NONE, INFINIBAND, True),
        (1, 2, LinkClass.NONE, ETHERNET, False),
    ],
)
def test_a_machine_is_fast_when_every_link_that_it_crosses_is(
    gpus: int, nodes: int, link: LinkClass, network: Network, *, expected: bool
) -> None:
    whole = machine(
        *(gpu(index) for index in range(gpus)),
        nodes=nodes,
        interconnect=Interconnect(link_class=link),
        network=network,
    )
    assert expected is whole.is_fast


def test_a_note_is_said_once_and_in_its_place() -> None:
    noted = machine(gpu(0)).with_notes("a", "b", "a").with_notes("c", "b")
    assert ("a", "b", "c") == noted.notes


@pytest.mark.parametrize(
    ("cliques", "expected"),
    [
        (("x.1", "x.1"), "x.1"),
        (("x.1", "x.2"), None),
        (("x.1", None), None),
        ((None, None), None),
    ],
)
def test_an_nvlink_domain_is_named_when_all_gpus_share_it(
    cliques: tuple[str | None, ...], expected: str | None
) -> None:
    assert expected == machine(*(gpu(i, clique=each) for i, each in enumerate(cliques))).clique


def test_memory_is_the_hosts_for_cpu_ranks_and_gpus_without_their_own() -> None:
    assert machine(gpu(0), accelerator=Accelerator.CPU).lives_on_host
    assert machine(gpu(0, shares_host_memory=True)).lives_on_host
    assert not machine(gpu(0)).lives_on_host


SLICED = machine(gpu(0), gpu(1, mig_slice=0), gpu(1, mig_slice=1))


@pytest.mark.parametrize(
    ("whole", "taken", "expected", "pairs"),
    [
        (islands(), (0, 1, 2, 3), LinkClass.NVLINK_PARTIAL, [*combinations(range(4), 2)]),
        (islands(), (2, 3), LinkClass.NVLINK_ALL, [(2, 3)]),
        (islands(), (1, 2), LinkClass.PCIE, [(1, 2)]),
        (islands(), (3, 0, 1), LinkClass.NVLINK_PARTIAL, [(0, 1), (0, 3), (1, 3)]),
        (islands(), (0,), LinkClass.NONE, []),
        # Nobody knows a link between slices.
        (SLICED, (1, 2), LinkClass.UNKNOWN, []),
        (SLICED, (0, 1), LinkClass.UNKNOWN, []),
        (SLICED, (1,), LinkClass.NONE, []),
        # Where only the class is known it stands for fewer GPUs.
        (machine(*map(gpu, range(8))), (0, 1, 2, 3), LinkClass.NVLINK_ALL, []),
    ],
)
def test_fewer_gpus_have_the_link_between_them(
    whole: Machine,
    taken: tuple[int, ...],
    expected: LinkClass,
    pairs: list[tuple[int, int]],
) -> None:
    gpus = tuple(whole.gpus[index] for index in taken)
    fewer = pick_gpus(whole, gpus)
    assert gpus == fewer.gpus
    assert expected is fewer.interconnect.link_class
    assert pairs == [link.pair for link in fewer.links]


@given(st.permutations(range(4)), st.integers(1, 4))
def test_fewer_gpus_never_lose_a_fast_link(order: list[int], count: int) -> None:
    whole = islands()
    some = pick_gpus(whole, [whole.gpus[index] for index in order[:count]])
    for fewer in range(2, count):
        assert some.is_fast <= with_gpus(some, fewer).is_fast


def test_the_first_gpus_are_taken_and_no_more_than_there_are() -> None:
    assert [0, 1] == [gpu.index for gpu in with_gpus(islands(), 2).gpus]
    assert 12 == replace(islands(), nodes=3).world_size
    for count in (0, 5):
        with pytest.raises(UsageError, match=f"`gpus_per_node={count}`: this machine has 4"):
            with_gpus(islands(), count)


# The planned class and rate against what NCCL's collectives reached on the same machine.

GIB = 2**30
RUNS = json.loads((TESTS / "measured" / "links.json").read_text())["runs"]
OVER_NVLINK, OVER_HOST, FOUR_OVER_NVLINK, FOUR_OVER_HOST = RUNS
# Of the nominal rate, with messages of 1 GiB: what docs/concepts/links.md says. A gather has half
# the bytes of an all-reduce of that size, and reaches less.
BANDS = {True: (0.55, 0.75), False: (0.35, 0.50)}


def planned(run: dict[str, Any]) -> Machine:
    """The recording is of the same kind of machine."""
    return play(recording("h200-x2"), environ=run["environ"])


def large(run: dict[str, Any]) -> dict[str, int]:
    return {
        row["collective"]: row["busbw_bytes_per_s"]
        for row in run["rows"]
        if row["size_bytes"] == GIB
    }


@pytest.mark.parametrize("run", [OVER_NVLINK, OVER_HOST], ids=["nvlink", "host"])
def test_a_large_collective_reaches_the_stated_part_of_the_planned_rate(
    run: dict[str, Any],
) -> None:
    """NCCL searched rings for less than is nominal, too."""
    link, rings = planned(run).interconnect, run["nccl_rings"]
    assert link.bytes_per_s is not None
    low, high = BANDS[link.is_fast]
    assert {"all_reduce", "all_gather", "reduce_scatter"} == large(run).keys()
    for name, measured in large(run).items():
        assert low <= measured / link.bytes_per_s <= high, name
    assert 0.6 <= rings["searched"] * rings["bytes_per_s_each"] / link.bytes_per_s <= 0.85


def test_fast_was_ten_times_as_fast_as_slow() -> None:
    assert planned(OVER_NVLINK).is_fast
    assert not planned(OVER_HOST).is_fast
    for name, measured in large(OVER_NVLINK).items():
        assert measured > 10 * large(OVER_HOST)[name]


def test_four_gpus_reach_about_as_much_as_two() -> None:
    """Rings through all of an NVSwitch reach more; the host's memory is shared by more."""
    for name, two in large(OVER_NVLINK).items():
        assert 1.05 <= large(FOUR_OVER_NVLINK)[name] / two <= 1.25, name
    for name, two in large(OVER_HOST).items():
        assert 0.8 <= large(FOUR_OVER_HOST)[name] / two <= 1.0, name
