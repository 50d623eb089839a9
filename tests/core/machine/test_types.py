from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    PairLink,
    PciePath,
    join_pairs,
    pick_gpus,
    with_gpus,
    with_nodes,
)
from zerowiz.core.structs import replace
from zerowiz.errors import UsageError

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


def test_a_machine_nobody_can_train_on_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one GPU"):
        machine()
    with pytest.raises(UsageError, match="at least one node, not 0"):
        machine(gpu(0), nodes=0)
    with pytest.raises(UsageError, match="listed twice"):
        machine(gpu(0), gpu(0))
    with pytest.raises(UsageError, match="cannot be negative: -1"):
        gpu(-1)
    with pytest.raises(UsageError, match="-1 bytes of free memory"):
        gpu(0, free_bytes=-1)


def test_slices_of_one_gpu_are_several_gpus() -> None:
    assert 2 == machine(gpu(1, mig_slice=0), gpu(1, mig_slice=1)).world_size


@pytest.mark.parametrize(("facts", "expected"), [({}, "3"), ({"mig_slice": 1}, "3:1")])
def test_a_gpu_is_named_as_a_command_line_names_it(facts: dict[str, object], expected: str) -> None:
    assert expected == gpu(3, **facts).label


def test_cuda_counts_a_gpu_by_its_ordinal_where_somebody_counted() -> None:
    assert [3, 2, 0] == [
        gpu(3).cuda_ordinal,
        gpu(3, ordinal=2).cuda_ordinal,
        gpu(3, ordinal=0).cuda_ordinal,
    ]


@given(st.lists(st.none() | st.integers(0, 2**40), min_size=1, max_size=6))
def test_the_tightest_gpu_counts_and_an_unknown_one_could_be_it(sizes: list[int | None]) -> None:
    whole = machine(
        *(gpu(i, free_bytes=size, total_bytes=size) for i, size in enumerate(sizes)),
    )
    known = [size for size in sizes if size is not None]
    expected = None if None in sizes else min(known)
    assert (expected, expected) == (whole.free_bytes, whole.total_bytes)


def test_an_oldest_gpu_without_bf16_keeps_the_machine_from_it() -> None:
    old, new, unknown = ({"compute_capability": cc} for cc in ((7, 5), (9, 0), None))
    assert (7, 5) == machine(gpu(0, **new), gpu(1, **old)).compute_capability
    assert not machine(gpu(0, **new), gpu(1, **old)).takes_bf16
    assert machine(gpu(0, **new), gpu(1, **unknown)).compute_capability is None
    assert machine(gpu(0, **new), gpu(1, **unknown)).takes_bf16


@pytest.mark.parametrize(
    ("accelerator", "computes_bf16", "expected"),
    [
        (Accelerator.CPU, True, True),
        (Accelerator.CPU, False, False),
        (Accelerator.CPU, None, True),
        (Accelerator.CUDA, False, True),
    ],
)
def test_the_cpu_keeps_from_bf16_the_ranks_that_it_computes_for(
    accelerator: Accelerator, computes_bf16: bool | None, expected: bool
) -> None:
    whole = replace(
        machine(gpu(0)), accelerator=accelerator, host=Host(computes_bf16=computes_bf16)
    )
    assert expected is whole.takes_bf16


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


def test_an_nvlink_domain_is_named_when_all_gpus_share_it() -> None:
    assert "x.1" == machine(gpu(0, clique="x.1"), gpu(1, clique="x.1")).clique
    assert machine(gpu(0, clique="x.1"), gpu(1, clique="x.2")).clique is None
    assert machine(gpu(0, clique="x.1"), gpu(1)).clique is None
    assert machine(gpu(0), gpu(1)).clique is None


def test_memory_is_the_hosts_for_cpu_ranks_and_gpus_without_their_own() -> None:
    assert machine(gpu(0), accelerator=Accelerator.CPU).lives_on_host
    assert machine(gpu(0, shares_host_memory=True)).lives_on_host
    assert not machine(gpu(0)).lives_on_host


def test_fewer_gpus_have_the_link_between_them() -> None:
    whole = islands()
    assert LinkClass.NVLINK_PARTIAL is whole.interconnect.link_class
    assert (LinkClass.NVLINK_ALL, 56_250_000_000, (2, 3)) == (
        (link := pick_gpus(whole, whole.gpus[2:]).interconnect).link_class,
        link.bytes_per_s,
        link.weakest_pair,
    )
    assert LinkClass.PCIE is pick_gpus(whole, whole.gpus[1:3]).interconnect.link_class


def test_fewer_gpus_keep_the_pairs_between_them_and_the_order_asked() -> None:
    whole = islands()
    fewer = pick_gpus(whole, (whole.gpus[3], whole.gpus[0], whole.gpus[1]))
    assert ["3", "0", "1"] == [gpu.label for gpu in fewer.gpus]
    assert [(0, 1), (0, 3), (1, 3)] == [link.pair for link in fewer.links]


@given(st.permutations(range(4)), st.integers(1, 4))
def test_fewer_gpus_never_lose_a_fast_link(order: list[int], count: int) -> None:
    whole = islands()
    some = pick_gpus(whole, [whole.gpus[index] for index in order[:count]])
    assert {link.pair for link in some.links} <= {link.pair for link in whole.links}
    for fewer in range(2, count):
        assert some.is_fast <= with_gpus(some, fewer).is_fast


def test_one_gpu_crosses_no_link() -> None:
    lone = pick_gpus(islands(), islands().gpus[:1])
    assert ((), Interconnect(link_class=LinkClass.NONE)) == (lone.links, lone.interconnect)


def test_slices_cross_a_link_that_nobody_knows() -> None:
    split = machine(gpu(0), gpu(1, mig_slice=0), gpu(1, mig_slice=1))
    assert LinkClass.UNKNOWN is pick_gpus(split, split.gpus[1:]).interconnect.link_class
    assert LinkClass.UNKNOWN is pick_gpus(split, split.gpus[:2]).interconnect.link_class
    assert LinkClass.NONE is pick_gpus(split, split.gpus[1:2]).interconnect.link_class


def test_where_only_the_class_is_known_it_stands_for_fewer_gpus() -> None:
    told = machine(*(gpu(index) for index in range(8)))
    assert NVLINK == pick_gpus(told, told.gpus[:4]).interconnect


def test_the_first_gpus_are_taken_and_no_more_than_there_are() -> None:
    assert [0, 1] == [gpu.index for gpu in with_gpus(islands(), 2).gpus]
    for count in (0, 5):
        with pytest.raises(UsageError, match=f"`gpus_per_node={count}`: this machine has 4"):
            with_gpus(islands(), count)


def test_nodes_multiply_the_ranks() -> None:
    assert 12 == with_nodes(islands(), 3).world_size
