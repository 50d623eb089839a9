from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.machine.interconnect import (
    NVLINK_BYTES_PER_S,
    PCIE_PATHS,
    NvLink,
    PairAnswers,
    Ports,
    RemoteType,
    lanes_bytes_per_s,
    link_pair,
    slot_bytes_per_s,
    without_nvlink,
)
from zerowiz.core.machine.types import (
    Gpu,
    Interconnect,
    LinkClass,
    PairLink,
    PciePath,
    PcieSlot,
    join_pairs,
)
from zerowiz.core.structs import replace

SWITCH = NvLink(remote_type=RemoteType.SWITCH)
GEN4_X16 = PcieSlot(max_generation=4, max_lanes=16)
GEN4_X16_BYTES_PER_S = 31_504_000_000
RAW_BYTES_PER_S = 106_250_000_000


def bus_id(index: int) -> str:
    return f"00000000:{index:02X}:00.0"


def gpu(index: int, capability: tuple[int, int] | None = None, *, fabric_ready: bool = True) -> Gpu:
    return Gpu(
        index=index,
        name="mine",
        bus_id=bus_id(index),
        compute_capability=capability,
        fabric_ready=fabric_ready,
        pcie=GEN4_X16,
    )


def on_switch(
    index: int,
    links: int = 18,
    capability: tuple[int, int] | None = (9, 0),
    *,
    ready: bool = True,
    raw_bytes_per_s: int | None = None,
) -> Ports:
    return Ports(
        gpu=gpu(index, capability, fabric_ready=ready),
        nvlinks=(SWITCH,) * links,
        raw_bytes_per_s=raw_bytes_per_s,
    )


def bridged(index: int, *peers: int) -> Ports:
    links = tuple(NvLink(remote_type=RemoteType.GPU, remote_bus_id=bus_id(peer)) for peer in peers)
    return Ports(gpu=gpu(index, (8, 6)), nvlinks=links)


def blind(index: int) -> Ports:
    """A GPU of which NVML told nothing but where it is."""
    return Ports(gpu=Gpu(index=index, name="mine", bus_id=bus_id(index)))


def join(*ports: Ports) -> Interconnect:
    return join_pairs(link_pair(*pair, PairAnswers()) for pair in combinations(ports, 2))


ports = st.builds(
    Ports,
    gpu=st.builds(
        Gpu,
        index=st.integers(0, 99),
        name=st.just("mine"),
        bus_id=st.none() | st.integers(0, 3).map(bus_id),
        compute_capability=st.none() | st.sampled_from(sorted(NVLINK_BYTES_PER_S)),
        fabric_ready=st.booleans(),
        pcie=st.builds(
            PcieSlot,
            max_generation=st.none() | st.integers(1, 7),
            max_lanes=st.none() | st.sampled_from((0, 4, 8, 16)),
            current_lanes=st.none() | st.sampled_from((0, 4, 8, 16)),
            upstream_bytes_per_s=st.none() | st.just(985_000_000),
        ),
    ),
    nvlinks=st.none()
    | st.lists(
        st.builds(
            NvLink,
            remote_type=st.none() | st.sampled_from(RemoteType),
            remote_bus_id=st.none() | st.integers(0, 3).map(bus_id),
        ),
        max_size=4,
    ).map(tuple),
    raw_bytes_per_s=st.none() | st.just(RAW_BYTES_PER_S),
)
answers = st.builds(
    PairAnswers,
    nvlink_p2p=st.none() | st.booleans(),
    path=st.none() | st.sampled_from(PciePath),
    p2p=st.none() | st.sampled_from(["OK", "CNS"]),
)
machines = st.lists(ports, min_size=1, max_size=5, unique_by=lambda port: port.gpu.index)


@given(machines.flatmap(lambda machine: st.tuples(st.just(machine), st.permutations(machine))))
def test_the_order_of_gpus_never_changes_the_link(orders: tuple[list[Ports], list[Ports]]) -> None:
    assert join(*orders[0]) == join(*orders[1])


@given(ports, ports, answers)
def test_the_order_of_a_pair_never_changes_its_link(
    one: Ports, other: Ports, told: PairAnswers
) -> None:
    other = replace(other, gpu=replace(other.gpu, index=one.gpu.index + 1))
    assert link_pair(one, other, told) == link_pair(other, one, told)


@given(machines, ports)
def test_one_more_gpu_never_makes_the_link_fast(machine: list[Ports], newcomer: Ports) -> None:
    indices = {port.gpu.index for port in machine}
    if len(machine) > 1 and newcomer.gpu.index not in indices:
        assert join(*machine).is_fast >= join(*machine, newcomer).is_fast


@given(machines, st.integers(0, 4))
def test_forgetting_a_gpus_links_never_makes_the_link_fast(
    machine: list[Ports], position: int
) -> None:
    port = machine[position % len(machine)]
    forgotten = Ports(gpu=Gpu(index=port.gpu.index, name="mine", bus_id=port.gpu.bus_id))
    rest = [other for other in machine if other is not port]
    assert join(*machine).is_fast >= join(*rest, forgotten).is_fast


@given(ports, ports, answers)
def test_an_answer_that_nvml_does_not_have_counts_against_nobody(
    one: Ports, other: Ports, told: PairAnswers
) -> None:
    other = replace(other, gpu=replace(other.gpu, index=one.gpu.index + 1))
    silent = link_pair(one, other, PairAnswers())
    assert (silent.nvlinks or 0) >= (link_pair(one, other, told).nvlinks or 0)
    assert silent == replace(
        link_pair(one, other, replace(told, nvlink_p2p=True)), path=None, p2p=None
    )


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


@pytest.mark.parametrize("capability", [(13, 0), None])
def test_the_raw_rate_stands_in_where_no_nominal_one_is_known(
    capability: tuple[int, int] | None,
) -> None:
    pair = [
        on_switch(index, links=4, capability=capability, raw_bytes_per_s=RAW_BYTES_PER_S)
        for index in range(2)
    ]
    assert 4 * RAW_BYTES_PER_S == join(*pair).bytes_per_s


def test_the_nominal_rate_is_taken_where_both_are_known() -> None:
    pair = [on_switch(index, links=4, raw_bytes_per_s=26_562_000_000) for index in range(2)]
    assert 100_000_000_000 == join(*pair).bytes_per_s


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
    link = join(bridged(0), bridged(1), replace(blind(7), nvlinks=()))
    assert Interconnect(link_class=LinkClass.PCIE, weakest_pair=(0, 7)) == link


def test_a_gpu_whose_links_nobody_knows_makes_the_whole_unknown() -> None:
    link = join(on_switch(0), on_switch(1), blind(2))
    assert Interconnect(link_class=LinkClass.UNKNOWN, weakest_pair=(0, 2)) == link


def test_an_untrained_fabric_joins_nobody() -> None:
    assert LinkClass.PCIE is join(on_switch(0), on_switch(1, ready=False)).link_class


def test_an_untrained_fabric_leaves_straight_links_alone() -> None:
    pair = [
        replace(ports, gpu=replace(ports.gpu, fabric_ready=False))
        for ports in (bridged(0, 1), bridged(1, 0))
    ]
    assert LinkClass.NVLINK_ALL is join(*pair).link_class


def test_a_pair_without_nvlink_p2p_is_not_joined_by_the_switch() -> None:
    expected = PairLink(pair=(0, 1), nvlinks=0, bytes_per_s=GEN4_X16_BYTES_PER_S)
    assert expected == link_pair(on_switch(1), on_switch(0), PairAnswers(nvlink_p2p=False))


def test_a_pair_keeps_what_nvml_says_of_its_way_over_pcie() -> None:
    told = PairAnswers(nvlink_p2p=True, path=PciePath.NODE, p2p="OK")
    link = link_pair(on_switch(0), on_switch(1), told)
    assert ("NV18", PciePath.NODE, "OK") == (link.word, link.path, link.p2p)


def test_the_other_end_that_cannot_be_read_is_a_switch() -> None:
    ends = ["FFFFFFFF:FF:FF.0", "ffffffff:ff:ff.0", "", None]
    assert all(NvLink(remote_bus_id=end).to_switch for end in ends)
    assert not NvLink(remote_type=RemoteType.GPU, remote_bus_id=bus_id(1)).to_switch


def test_a_link_to_neither_a_switch_nor_a_gpu_joins_nobody() -> None:
    """POWER9 and Grace have NVLinks to the CPU."""
    to_cpu = NvLink(remote_type=RemoteType.NPU, remote_bus_id="00000004:00:00.0")
    pair = [Ports(gpu=gpu(index, (7, 0)), nvlinks=(to_cpu,) * 3) for index in range(2)]
    assert LinkClass.PCIE is join(*pair).link_class


@pytest.mark.parametrize(
    ("slot", "expected"),
    [
        (GEN4_X16, GEN4_X16_BYTES_PER_S),
        (replace(GEN4_X16, current_generation=1), GEN4_X16_BYTES_PER_S),
        (replace(GEN4_X16, current_lanes=8), 15_752_000_000),
        (replace(GEN4_X16, max_lanes=None, current_lanes=8), 15_752_000_000),
        (replace(GEN4_X16, current_lanes=0), GEN4_X16_BYTES_PER_S),
        (replace(GEN4_X16, max_lanes=None), None),
        (replace(GEN4_X16, max_generation=None), None),
        (replace(GEN4_X16, max_generation=9), None),
        (PcieSlot(current_generation=4, current_lanes=16), None),
    ],
)
def test_lanes_run_at_the_best_generation_over_the_lanes_in_use(
    slot: PcieSlot, expected: int | None
) -> None:
    assert expected == lanes_bytes_per_s(slot)
    assert expected == slot_bytes_per_s(slot)


@pytest.mark.parametrize(
    ("slot", "upstream_bytes_per_s", "expected"),
    [
        (GEN4_X16, 7_880_000_000, 7_880_000_000),
        (GEN4_X16, 63_008_000_000, GEN4_X16_BYTES_PER_S),
        (PcieSlot(), 7_880_000_000, None),
    ],
)
def test_a_slot_is_as_fast_as_the_narrowest_bridge_above_it(
    slot: PcieSlot, upstream_bytes_per_s: int, expected: int | None
) -> None:
    slot = replace(slot, upstream_bytes_per_s=upstream_bytes_per_s)
    assert expected == slot_bytes_per_s(slot)


def test_a_pair_over_pcie_is_as_fast_as_the_slower_slot() -> None:
    slow = bridged(1)
    slow = replace(slow, gpu=replace(slow.gpu, pcie=replace(GEN4_X16, current_lanes=4)))
    assert 7_876_000_000 == join(bridged(0), slow).bytes_per_s


def test_the_paths_are_told_from_the_nearest_to_the_farthest() -> None:
    assert list(PciePath) == [PCIE_PATHS[level] for level in sorted(PCIE_PATHS)]


def test_a_pair_without_peer_to_peer_meets_over_pcie_also_beside_slices() -> None:
    """A GPU in MIG mode is among the GPUs once for each slice, or not at all without one."""
    sliced = [replace(gpu(1), mig_slice=index) for index in range(3)]
    link = PairLink(pair=(0, 1), nvlinks=0)
    assert GEN4_X16_BYTES_PER_S == without_nvlink(link, [gpu(0), *sliced]).bytes_per_s
    assert without_nvlink(link, [gpu(0)]).bytes_per_s is None
