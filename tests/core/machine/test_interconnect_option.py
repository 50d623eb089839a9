import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.machine.interconnect import (
    interconnect_sources,
    said_with,
    spell_network,
    with_interconnect,
)
from zerowiz.core.machine.types import (
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
        ("ethernet:0.008Gb/s", NetworkKind.ETHERNET, 1_000_000),
    ],
)
def test_a_network_is_taken_as_stated_and_gb_are_bits(
    text: str, kind: NetworkKind, bytes_per_s: int | None
) -> None:
    assert Network(kind=kind, bytes_per_s=bytes_per_s) == with_interconnect(BARE, text).network


@pytest.mark.parametrize(
    "network",
    [
        Network(kind=NetworkKind.INFINIBAND, bytes_per_s=400_000_000_000),
        Network(kind=NetworkKind.NVLINK),
        Network(kind=NetworkKind.ROCE, bytes_per_s=312_500_000),
    ],
)
def test_a_network_is_spelled_as_it_is_read(network: Network) -> None:
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
        ("ib", "did you mean `infiniband`?"),
        ("IB:400Gb/s", "did you mean `infiniband:400Gb/s`?"),
        ("infinband", "did you mean `infiniband`?"),
        ("ethernet:100", "a rate needs its unit, Gb/s or GB/s: `ethernet:100Gb/s`"),
        ("ib:400", "a rate needs its unit, Gb/s or GB/s: `infiniband:400Gb/s`"),
    ],
)
def test_what_was_meant_is_the_first_hint(entry: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        with_interconnect(BARE, entry)
    assert hint == caught.value.hints[0]


@pytest.mark.parametrize("entry", ["wifi", "wifi:100", "infiniband:0Gb/s", "infiniband:fast"])
def test_what_is_like_no_link_has_no_guess(entry: str) -> None:
    with pytest.raises(UsageError) as caught:
        with_interconnect(BARE, entry)
    assert caught.value.hints[0].startswith("inside a node")


@pytest.mark.parametrize("text", ["nvlink,pcie", "pcie,pcie", "roce,efa", "nvlink,roce,pcie"])
def test_two_links_for_one_place_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="gives two links for the same place"):
        with_interconnect(BARE, text)


def test_a_lone_gpu_has_no_link_inside_its_node() -> None:
    with pytest.raises(UsageError, match="a single GPU has no link inside its node"):
        with_interconnect(LONE, "nvlink,infiniband")
    assert NetworkKind.INFINIBAND is with_interconnect(LONE, "infiniband").network.kind


def test_cpu_ranks_have_no_link_inside_their_node() -> None:
    with pytest.raises(UsageError, match="CPU ranks on one node have no link"):
        with_interconnect(replace(BARE, accelerator=Accelerator.CPU), "nvlink")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("infiniband", True),
        ("efa", True),
        ("mnnvl", True),
        ("ethernet:400Gb/s", False),
        ("roce", False),
        ("roce:100Gb/s", True),
        ("roce:25Gb/s", False),
    ],
)
def test_a_stated_network_decides_whether_nodes_are_fast_together(
    text: str, *, expected: bool
) -> None:
    two = replace(BARE, nodes=2, interconnect=Interconnect(link_class=LinkClass.NVLINK_ALL))
    assert not two.is_fast
    assert expected is with_interconnect(two, text).is_fast


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pcie", ["interconnect.class"]),
        ("nvlink:450GB/s", ["interconnect.class", "interconnect.bytes_per_s"]),
        ("roce", ["network"]),
        ("efa:400Gb/s,nvlink", ["network", "interconnect.class"]),
    ],
)
def test_only_what_was_stated_is_told_as_stated(text: str, expected: list[str]) -> None:
    assert dict.fromkeys(expected, said_with("$interconnect")) == interconnect_sources(text)
