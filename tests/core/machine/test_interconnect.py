from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.machine.types import (
    NVLINK_BYTES_PER_S,
    PCIE_PATHS,
    SWITCH,
    Accelerator,
    Gpu,
    Interconnect,
    LinkClass,
    Machine,
    MachineSource,
    Network,
    NetworkKind,
    Nic,
    PairLink,
    PciePath,
    PcieSlot,
    Ports,
    join_pairs,
    lanes_bytes_per_s,
    link_pair,
    other_end,
    slot_bytes_per_s,
    spell_network,
    with_interconnect,
    without_peer_to_peer,
)
from zerowiz.core.structs import replace
from zerowiz.errors import UsageError

PCIE = Interconnect(link_class=LinkClass.PCIE, bytes_per_s=31_504_000_000, weakest_pair=(0, 1))
NICS = (Nic(name="mlx5_0", kind=NetworkKind.ROCE, bytes_per_s=50_000_000_000),)
ROCE = Network(kind=NetworkKind.ROCE, bytes_per_s=50_000_000_000, nics=NICS)

BARE = Machine(
    source=MachineSource.NVML, gpus=tuple(Gpu(index=index, name="mine") for index in range(2))
)
MEASURED = replace(
    BARE,
    interconnect=PCIE,
    links=(PairLink(pair=(0, 1), nvlinks=0, bytes_per_s=PCIE.bytes_per_s),),
    network=ROCE,
)
LONE = replace(BARE, gpus=BARE.gpus[:1])

INSIDE = ["nvlink", "pcie"]
BETWEEN = ["mnnvl", "infiniband", "roce", "efa", "ethernet"]
RATES = ["", ":1Gb/s", ":400Gb/s", ":25GB/s"]

machines = st.sampled_from([BARE, MEASURED])
inside = st.tuples(st.sampled_from(INSIDE), st.sampled_from(RATES)).map("".join)
between = st.tuples(st.sampled_from(BETWEEN), st.sampled_from(RATES)).map("".join)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nvlink", Interconnect(link_class=LinkClass.NVLINK_ALL)),
        ("NVLink", Interconnect(link_class=LinkClass.NVLINK_ALL)),
        (" pcie ", Interconnect(link_class=LinkClass.PCIE)),
        (
            "nvlink:450GB/s",
            Interconnect(link_class=LinkClass.NVLINK_ALL, bytes_per_s=450_000_000_000),
        ),
        ("PCIe:31.504GB", Interconnect(link_class=LinkClass.PCIE, bytes_per_s=31_504_000_000)),
    ],
)
def test_a_link_inside_a_node_is_taken_as_stated(text: str, expected: Interconnect) -> None:
    assert expected == with_interconnect(BARE, text).interconnect


@pytest.mark.parametrize(
    ("text", "kind", "bytes_per_s"),
    [
        ("infiniband", NetworkKind.INFINIBAND, None),
        ("infiniband:400Gb/s", NetworkKind.INFINIBAND, 50_000_000_000),
        ("InfiniBand:400Gbps", NetworkKind.INFINIBAND, 50_000_000_000),
        ("infiniband:400Gb", NetworkKind.INFINIBAND, 50_000_000_000),
        ("roce:25GB/s", NetworkKind.ROCE, 25_000_000_000),
        ("RoCE:25GBps", NetworkKind.ROCE, 25_000_000_000),
        ("roce:2.5Gb/s", NetworkKind.ROCE, 312_500_000),
        ("efa:3200Gb/s", NetworkKind.EFA, 400_000_000_000),
        ("mnnvl:900GB/s", NetworkKind.NVLINK, 900_000_000_000),
        ("mnnvl", NetworkKind.NVLINK, None),
        ("ethernet:0.008Gb/s", NetworkKind.ETHERNET, 1_000_000),
    ],
)
def test_a_network_is_taken_as_stated_and_spelled_as_it_is_read(
    text: str, kind: NetworkKind, bytes_per_s: int | None
) -> None:
    """Gb are bits."""
    network = Network(kind=kind, bytes_per_s=bytes_per_s)
    assert network == with_interconnect(BARE, text).network
    assert network == with_interconnect(BARE, spell_network(network)).network


def test_both_places_can_be_stated_in_any_order() -> None:
    stated = with_interconnect(BARE, "nvlink,infiniband:400Gb/s")
    assert LinkClass.NVLINK_ALL is stated.interconnect.link_class
    assert NetworkKind.INFINIBAND is stated.network.kind
    assert stated == with_interconnect(BARE, "infiniband:400Gb/s, nvlink")


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "wifi",
        "none",
        "nvlink:",
        "nvlink:fast",
        "infiniband:400",
        "infiniband:400gb/s",
        "infiniband:400GiB/s",
        "infiniband:-1Gb/s",
        "infiniband:0Gb/s",
        "infiniband 400Gb/s",
        "infiniband:400Gb/s:2",
    ],
)
def test_what_is_no_link_is_refused_with_those_that_are(entry: str) -> None:
    with pytest.raises(UsageError) as caught:
        with_interconnect(BARE, f"{entry},pcie")
    assert f"`$interconnect {entry},pcie`: `{entry}` is not a link" == caught.value.message
    assert any("infiniband:400Gb/s" in hint for hint in caught.value.hints)
    assert all(any(word in hint for hint in caught.value.hints) for word in (*INSIDE, *BETWEEN))


@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        ("infinband", "did you mean `infiniband`?"),
        ("Rocee", "did you mean `roce`?"),
        # What is like no link has no guess.
        *(
            (entry, "inside a node")
            for entry in ("wifi", "ib", "ethernet:100", "infiniband:0Gb/s", "infiniband:fast")
        ),
    ],
)
def test_what_was_meant_is_the_first_hint(entry: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        with_interconnect(BARE, entry)
    assert caught.value.hints[0].startswith(hint)


ON_CPU = replace(BARE, accelerator=Accelerator.CPU)


@pytest.mark.parametrize(
    ("machine", "text", "error"),
    [
        *(
            (BARE, text, "gives two links for the same place")
            for text in ("nvlink,pcie", "pcie,pcie", "roce,efa", "nvlink,roce,pcie")
        ),
        (LONE, "nvlink,infiniband", "a single GPU has no link inside its node"),
        (ON_CPU, "nvlink", "CPU ranks on one node have no link"),
    ],
)
def test_a_link_that_is_not_there_is_refused(machine: Machine, text: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        with_interconnect(machine, text)


def test_a_lone_gpu_has_a_network() -> None:
    assert NetworkKind.INFINIBAND is with_interconnect(LONE, "infiniband").network.kind


def test_a_stated_link_replaces_the_pairs_that_were_measured() -> None:
    stated = with_interconnect(MEASURED, "nvlink")
    assert ((), (0, 1)) == (stated.links, stated.interconnect.weakest_pair)


@pytest.mark.parametrize("text", ["pcie", "roce", "pcie,roce", "PCIe:31.504GB/s,roce:400Gb/s"])
def test_stating_what_is_known_changes_nothing(text: str) -> None:
    assert MEASURED == with_interconnect(MEASURED, text)


@given(machines, inside)
def test_a_link_inside_says_nothing_of_the_network(machine: Machine, text: str) -> None:
    stated = with_interconnect(machine, text)
    assert machine == replace(stated, interconnect=machine.interconnect, links=machine.links)


@given(machines, between)
def test_a_network_says_nothing_of_the_link_inside(machine: Machine, text: str) -> None:
    stated = with_interconnect(machine, text)
    assert machine == replace(stated, network=machine.network)
    assert machine.network.nics == stated.network.nics


@given(machines, inside, between)
def test_saying_it_twice_says_no_more(machine: Machine, one: str, other: str) -> None:
    stated = with_interconnect(machine, f"{one},{other}")
    assert stated == with_interconnect(stated, f"{one},{other}")


GEN4_X16 = PcieSlot(max_generation=4, max_lanes=16)
GEN4_X16_BYTES_PER_S = 31_504_000_000
GEN4_X4 = replace(GEN4_X16, current_lanes=4)
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
        nvlinks=(None,) * links,
        raw_bytes_per_s=raw_bytes_per_s,
    )


def bridged(index: int, *peers: int) -> Ports:
    return Ports(gpu=gpu(index, (8, 6)), nvlinks=tuple(map(bus_id, peers)))


def blind(index: int) -> Ports:
    """A GPU of which NVML told nothing but where it is."""
    return Ports(gpu=Gpu(index=index, name="mine", bus_id=bus_id(index)))


def join(*ports: Ports) -> Interconnect:
    return join_pairs(link_pair(*pair) for pair in combinations(ports, 2))


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
    nvlinks=st.none() | st.lists(st.none() | st.integers(0, 3).map(bus_id), max_size=4).map(tuple),
    raw_bytes_per_s=st.none() | st.just(RAW_BYTES_PER_S),
)
answers = st.none() | st.booleans()
machines_topology = st.lists(ports, min_size=1, max_size=5, unique_by=lambda port: port.gpu.index)


@given(
    machines_topology.flatmap(lambda machine: st.tuples(st.just(machine), st.permutations(machine)))
)
def test_the_order_of_gpus_never_changes_the_link(orders: tuple[list[Ports], list[Ports]]) -> None:
    assert join(*orders[0]) == join(*orders[1])


@given(ports, ports, answers)
def test_the_order_of_a_pair_never_changes_its_link(
    one: Ports, other: Ports, told: bool | None
) -> None:
    other = replace(other, gpu=replace(other.gpu, index=one.gpu.index + 1))
    assert link_pair(one, other, nvlink_p2p=told) == link_pair(other, one, nvlink_p2p=told)


@given(machines_topology, ports)
def test_one_more_gpu_never_makes_the_link_fast(machine: list[Ports], newcomer: Ports) -> None:
    indices = {port.gpu.index for port in machine}
    if len(machine) > 1 and newcomer.gpu.index not in indices:
        assert join(*machine).is_fast >= join(*machine, newcomer).is_fast


@given(machines_topology, st.integers(0, 4))
def test_forgetting_a_gpus_links_never_makes_the_link_fast(
    machine: list[Ports], position: int
) -> None:
    port = machine[position % len(machine)]
    forgotten = Ports(gpu=Gpu(index=port.gpu.index, name="mine", bus_id=port.gpu.bus_id))
    rest = [other for other in machine if other is not port]
    assert join(*machine).is_fast >= join(*rest, forgotten).is_fast


@given(ports, ports, answers)
def test_an_answer_that_nvml_does_not_have_counts_against_nobody(
    one: Ports, other: Ports, told: bool | None
) -> None:
    other = replace(other, gpu=replace(other.gpu, index=one.gpu.index + 1))
    silent = link_pair(one, other)
    assert (silent.nvlinks or 0) >= (link_pair(one, other, nvlink_p2p=told).nvlinks or 0)
    assert silent == link_pair(one, other, nvlink_p2p=True)


def untrained(ports: Ports) -> Ports:
    """The same GPU, whose switches nobody has trained."""
    return replace(ports, gpu=replace(ports.gpu, fabric_ready=False))


def rated(index: int, **facts: object) -> Ports:
    return on_switch(index, links=4, raw_bytes_per_s=RAW_BYTES_PER_S, **facts)  # type: ignore[arg-type]


ALL, PARTIAL, OVER_PCIE = LinkClass.NVLINK_ALL, LinkClass.NVLINK_PARTIAL, LinkClass.PCIE
# POWER9 and Grace have NVLinks to the CPU.
# nvml.h, nvmlIntNvLinkDeviceType_t.
GPU = 0
TO_CPU = "00000004:00:00.0"


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ((on_switch(0),), (LinkClass.NONE, None, None)),
        (
            (on_switch(0), on_switch(1), on_switch(2, links=17)),
            (ALL, 425_000_000_000, (0, 2)),
        ),
        (
            (on_switch(0, capability=(10, 0)), on_switch(1, capability=(9, 0))),
            (ALL, 450_000_000_000, (0, 1)),
        ),
        (
            (on_switch(0, capability=(13, 0)), on_switch(1, capability=(13, 0))),
            (ALL, None, (0, 1)),
        ),
        (
            (rated(0, capability=(13, 0)), rated(1, capability=(13, 0))),
            (ALL, 4 * RAW_BYTES_PER_S, (0, 1)),
        ),
        (
            (rated(0, capability=None), rated(1, capability=None)),
            (ALL, 4 * RAW_BYTES_PER_S, (0, 1)),
        ),
        ((rated(0), rated(1)), (ALL, 100_000_000_000, (0, 1))),
        ((bridged(0, 1, 1, 1, 1), bridged(1, 0, 0, 0, 0)), (ALL, 56_250_000_000, (0, 1))),
        ((bridged(0, 1, 1), bridged(1, 0, 0, 0, 0)), (ALL, 28_125_000_000, (0, 1))),
        ((bridged(0, 1, 1, 1, 1), bridged(1, 0, 0)), (ALL, 28_125_000_000, (0, 1))),
        (
            (bridged(0, 1), bridged(1, 0), bridged(2, 3), bridged(3, 2)),
            (PARTIAL, GEN4_X16_BYTES_PER_S, (0, 2)),
        ),
        ((bridged(0), bridged(1)), (OVER_PCIE, GEN4_X16_BYTES_PER_S, (0, 1))),
        ((bridged(0), bridged(1), replace(blind(7), nvlinks=())), (OVER_PCIE, None, (0, 7))),
        ((on_switch(0), on_switch(1), blind(2)), (LinkClass.UNKNOWN, None, (0, 2))),
        ((on_switch(0), on_switch(1, ready=False)), (OVER_PCIE, GEN4_X16_BYTES_PER_S, (0, 1))),
        ((untrained(bridged(0, 1)), untrained(bridged(1, 0))), (ALL, 14_062_500_000, (0, 1))),
        (
            tuple(Ports(gpu=gpu(index, (7, 0)), nvlinks=(TO_CPU,) * 3) for index in range(2)),
            (OVER_PCIE, GEN4_X16_BYTES_PER_S, (0, 1)),
        ),
        (
            (bridged(0), Ports(gpu=replace(gpu(1), pcie=GEN4_X4), nvlinks=())),
            (OVER_PCIE, 7_876_000_000, (0, 1)),
        ),
    ],
    ids=[
        "one GPU",
        "switches join every pair at the fewest links",
        "two generations",
        "an unlisted generation",
        "its raw rate",
        "the raw rate of no generation",
        "a nominal rate before the raw one",
        "a bridge",
        "a bridge of which the first sees half",
        "a bridge of which the second sees half",
        "two islands",
        "no NVLink",
        "an unreadable slot",
        "links that nobody knows",
        "an untrained fabric",
        "an untrained fabric beside a bridge",
        "links to the CPU",
        "a slower slot",
    ],
)
def test_gpus_meet_over_the_best_that_all_have(
    ports: tuple[Ports, ...], expected: tuple[LinkClass, int | None, tuple[int, int] | None]
) -> None:
    link = join(*ports)
    assert expected == (link.link_class, link.bytes_per_s, link.weakest_pair)


def test_a_switch_that_gives_no_access_joins_no_pair() -> None:
    apart = PairLink(pair=(0, 1), nvlinks=0, bytes_per_s=GEN4_X16_BYTES_PER_S)
    assert apart == link_pair(on_switch(1), on_switch(0), nvlink_p2p=False)
    assert "NV18" == link_pair(on_switch(0), on_switch(1), nvlink_p2p=True).word


def test_the_other_end_that_cannot_be_read_is_a_switch() -> None:
    ends = ["FFFFFFFF:FF:FF.0", "ffffffff:ff:ff.0", "", None]
    assert {None} == {other_end(GPU, end, set()) for end in ends}
    assert bus_id(1) == other_end(GPU, bus_id(1), set())


def test_a_driver_that_knows_no_kind_of_device_has_switches_where_no_gpu_is() -> None:
    gpus = {bus_id(0), bus_id(1)}
    assert bus_id(1) == other_end(None, bus_id(1), gpus)
    assert other_end(None, bus_id(2), gpus) is None
    assert other_end(SWITCH, bus_id(1), gpus) is None


@pytest.mark.parametrize(
    ("slot", "upstream_bytes_per_s", "expected"),
    [
        *(
            (slot, None, expected)
            for slot, expected in (
                (GEN4_X16, GEN4_X16_BYTES_PER_S),
                (replace(GEN4_X16, current_generation=1), GEN4_X16_BYTES_PER_S),
                (replace(GEN4_X16, current_lanes=8), 15_752_000_000),
                (replace(GEN4_X16, max_lanes=None, current_lanes=8), 15_752_000_000),
                (replace(GEN4_X16, current_lanes=0), GEN4_X16_BYTES_PER_S),
                (replace(GEN4_X16, max_lanes=None), None),
                (replace(GEN4_X16, max_generation=None), None),
                (replace(GEN4_X16, max_generation=9), None),
                (PcieSlot(current_generation=4, current_lanes=16), None),
            )
        ),
        # The narrowest bridge above it.
        (GEN4_X16, 7_880_000_000, 7_880_000_000),
        (GEN4_X16, 63_008_000_000, GEN4_X16_BYTES_PER_S),
        (PcieSlot(), 7_880_000_000, None),
    ],
)
def test_lanes_run_at_the_best_generation_over_the_lanes_in_use(
    slot: PcieSlot, upstream_bytes_per_s: int | None, expected: int | None
) -> None:
    assert upstream_bytes_per_s is not None or expected == lanes_bytes_per_s(slot)
    below = replace(slot, upstream_bytes_per_s=upstream_bytes_per_s)
    assert expected == slot_bytes_per_s(below)


def test_the_paths_are_told_from_the_nearest_to_the_farthest() -> None:
    assert list(PciePath) == [PCIE_PATHS[level] for level in sorted(PCIE_PATHS)]


def test_a_pair_without_peer_to_peer_meets_over_pcie_also_beside_slices() -> None:
    """A GPU in MIG mode is among the GPUs once for each slice, or not at all without one."""
    sliced = [replace(gpu(1), mig_slice=index) for index in range(3)]
    links = (PairLink(pair=(0, 1), nvlinks=0), PairLink(pair=(0, 2), nvlinks=0))
    whole = Machine(source=MachineSource.NVML, gpus=(gpu(0), *sliced), links=links)
    rates = [link.bytes_per_s for link in without_peer_to_peer(whole).links]
    assert [GEN4_X16_BYTES_PER_S, None] == rates
