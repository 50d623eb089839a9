from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.links import Interconnect, LinkClass, PairLink, join_pairs
from zerowiz.core.topology import NVLINK_BYTES_PER_S, NvLink, Ports, RemoteType, link_pair

SWITCH = NvLink(remote_type=RemoteType.SWITCH)
GEN4_X16_BYTES_PER_S = 31_504_000_000


def bus_id(index: int) -> str:
    return f"00000000:{index:02X}:00.0"


def on_switch(
    index: int, links: int = 18, capability: tuple[int, int] = (9, 0), *, ready: bool = True
) -> Ports:
    return Ports(
        index=index,
        bus_id=bus_id(index),
        compute_capability=capability,
        nvlinks=(SWITCH,) * links,
        fabric_ready=ready,
        pcie_generation=4,
        pcie_lanes=16,
    )


def bridged(index: int, *peers: int) -> Ports:
    links = tuple(NvLink(remote_type=RemoteType.GPU, remote_bus_id=bus_id(peer)) for peer in peers)
    return Ports(
        index=index,
        bus_id=bus_id(index),
        compute_capability=(8, 6),
        nvlinks=links,
        pcie_generation=4,
        pcie_lanes=16,
    )


def join(*ports: Ports) -> Interconnect:
    return join_pairs(
        link_pair(one, other, nvlink_p2p=None) for one, other in combinations(ports, 2)
    )


ports = st.builds(
    Ports,
    index=st.integers(0, 99),
    bus_id=st.none() | st.integers(0, 3).map(bus_id),
    compute_capability=st.none() | st.sampled_from(sorted(NVLINK_BYTES_PER_S)),
    nvlinks=st.none()
    | st.lists(
        st.builds(
            NvLink,
            remote_type=st.none() | st.sampled_from(RemoteType),
            remote_bus_id=st.none() | st.integers(0, 3).map(bus_id),
        ),
        max_size=4,
    ).map(tuple),
    fabric_ready=st.booleans(),
    pcie_generation=st.none() | st.integers(1, 7),
    pcie_lanes=st.none() | st.sampled_from((0, 4, 8, 16)),
)
machines = st.lists(ports, min_size=1, max_size=5, unique_by=lambda port: port.index)


@given(machines.flatmap(lambda machine: st.tuples(st.just(machine), st.permutations(machine))))
def test_the_order_of_gpus_never_changes_the_link(orders: tuple[list[Ports], list[Ports]]) -> None:
    assert join(*orders[0]) == join(*orders[1])


@given(machines, ports)
def test_one_more_gpu_never_makes_the_link_fast(machine: list[Ports], newcomer: Ports) -> None:
    indices = {port.index for port in machine}
    if len(machine) > 1 and newcomer.index not in indices:
        assert join(*machine).is_fast >= join(*machine, newcomer).is_fast


@given(machines, st.integers(0, 4))
def test_forgetting_a_gpus_links_never_makes_the_link_fast(
    machine: list[Ports], position: int
) -> None:
    whole = join(*machine)
    port = machine[position % len(machine)]
    forgotten = Ports(index=port.index, bus_id=port.bus_id)
    rest = [other for other in machine if other is not port]
    assert whole.is_fast >= join(*rest, forgotten).is_fast


def test_one_gpu_has_no_link() -> None:
    assert Interconnect(link_class=LinkClass.NONE) == join(on_switch(0))


def test_switches_join_every_pair_at_the_fewest_links() -> None:
    expected = Interconnect(
        link_class=LinkClass.NVLINK_ALL, bytes_per_s=425_000_000_000, weakest_pair=(0, 2)
    )
    assert expected == join(on_switch(0), on_switch(1), on_switch(2, links=17))


def test_two_generations_of_nvlink_meet_at_the_slower_rate() -> None:
    link = join(on_switch(0, capability=(10, 0)), on_switch(1, capability=(9, 0)))
    assert 450_000_000_000 == link.bytes_per_s


def test_nvlink_of_an_unlisted_gpu_is_nvlink_of_an_unknown_rate() -> None:
    link = join(on_switch(0, capability=(13, 0)), on_switch(1, capability=(13, 0)))
    assert (LinkClass.NVLINK_ALL, None) == (link.link_class, link.bytes_per_s)


def test_a_bridge_joins_its_two_cards() -> None:
    link = join(bridged(0, 1, 1, 1, 1), bridged(1, 0, 0, 0, 0))
    assert (LinkClass.NVLINK_ALL, 56_250_000_000) == (link.link_class, link.bytes_per_s)


def test_a_bridge_counts_the_links_that_both_cards_see() -> None:
    half_dead, whole = bridged(0, 1, 1), bridged(1, 0, 0, 0, 0)
    assert (
        28_125_000_000 == join(half_dead, whole).bytes_per_s == join(whole, half_dead).bytes_per_s
    )
    assert 28_125_000_000 == join(bridged(0, 1, 1, 1, 1), bridged(1, 0, 0)).bytes_per_s


def test_two_bridged_islands_meet_over_pcie() -> None:
    expected = Interconnect(
        link_class=LinkClass.NVLINK_PARTIAL,
        bytes_per_s=GEN4_X16_BYTES_PER_S,
        weakest_pair=(0, 2),
    )
    assert expected == join(bridged(0, 1), bridged(1, 0), bridged(2, 3), bridged(3, 2))


def test_cards_without_nvlink_meet_over_pcie() -> None:
    link = join(bridged(0), bridged(1))
    assert (LinkClass.PCIE, GEN4_X16_BYTES_PER_S) == (link.link_class, link.bytes_per_s)


def test_an_unreadable_slot_is_pcie_of_an_unknown_rate_and_the_weakest() -> None:
    blind = Ports(index=7, bus_id=bus_id(7), nvlinks=())
    link = join(bridged(0), bridged(1), blind)
    assert Interconnect(link_class=LinkClass.PCIE, weakest_pair=(0, 7)) == link


def test_a_gpu_whose_links_nobody_knows_makes_the_whole_unknown() -> None:
    link = join(on_switch(0), on_switch(1), Ports(index=2, bus_id=bus_id(2)))
    assert Interconnect(link_class=LinkClass.UNKNOWN, weakest_pair=(0, 2)) == link


def test_an_untrained_fabric_joins_nobody() -> None:
    assert LinkClass.PCIE is join(on_switch(0), on_switch(1, ready=False)).link_class


def test_a_pair_without_nvlink_p2p_is_not_joined_by_the_switch() -> None:
    expected = PairLink(pair=(0, 1), nvlinks=0, bytes_per_s=GEN4_X16_BYTES_PER_S)
    assert expected == link_pair(on_switch(1), on_switch(0), nvlink_p2p=False)


def test_the_other_end_that_cannot_be_read_is_a_switch() -> None:
    ends = ["FFFFFFFF:FF:FF.0", "ffffffff:ff:ff.0", "", None]
    assert all(NvLink(remote_bus_id=end).to_switch for end in ends)
    assert not NvLink(remote_type=RemoteType.GPU, remote_bus_id=bus_id(1)).to_switch
