import types
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import fields

from zerowiz.core.machine.merge import (
    Fleet,
    NodeAnswer,
    NodeFailure,
    Outlier,
    OutlierKind,
    merge_nodes,
)
from zerowiz.core.machine.types import (
    Accelerator,
    Disk,
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
    PcieSlot,
    with_gpus,
)
from zerowiz.core.structs import replace
from zerowiz.errors import PreflightError, UsageError

GB = 10**9

# A node has a hundred fields to draw.
laws = settings(suppress_health_check=[HealthCheck.too_slow])

# Few values of each, so that nodes often agree and often differ.
PLAIN: dict[object, st.SearchStrategy[Any]] = {
    str: st.sampled_from(["535.1", "550.54", "b"]),
    int: st.sampled_from([0, 1, 7, 8, 20 * GB]),
    bool: st.booleans(),
    float: st.sampled_from([6e-8, 2e-7]),
}


@cache
def drawn(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a type: all fields of a Struct, those too that come after this test."""
    inner = get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Struct):
        hints = get_type_hints(hint)
        return st.builds(hint, **{f.name: drawn(hints[f.name]) for f in fields(hint)})
    if get_origin(hint) in (Union, types.UnionType):
        return st.none() | drawn(inner[0])
    if get_origin(hint) is tuple:
        many = inner[-1] is Ellipsis
        items = [drawn(each) for each in inner[:1] if many] or [drawn(each) for each in inner]
        return st.lists(items[0], max_size=1).map(tuple) if many else st.tuples(*items)
    if get_origin(hint) is Mapping:
        return st.dictionaries(PLAIN[str], PLAIN[str], max_size=2)
    return st.sampled_from(hint) if issubclass(hint, StrEnum) else PLAIN[hint]


gpu_values = st.fixed_dictionaries(
    {f.name: drawn(get_type_hints(Gpu)[f.name]) for f in fields(Gpu)}
)


def _gpu(values: dict[str, Any]) -> Gpu:
    """No more of it is free than there is."""
    sizes = values["free_bytes"], values["total_bytes"]
    if None not in sizes:
        values["free_bytes"], values["total_bytes"] = sorted(sizes)
    return Gpu(**values)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """A node: its GPUs are numbered, all else is anything."""
    first = draw(st.integers(0, 1))
    gpus = draw(st.lists(gpu_values.map(_gpu), min_size=1, max_size=2))
    numbered = tuple(replace(g, index=first + i, mig_slice=None) for i, g in enumerate(gpus))
    hints = get_type_hints(Machine)
    others = {f.name: drawn(hints[f.name]) for f in fields(Machine) if f.name != "gpus"}
    values = draw(st.fixed_dictionaries({**others, "nodes": st.just(1)}))
    return Machine(**{**values, "gpus": numbered, "accelerator": Accelerator.CUDA})


FLEETS = st.lists(machines(), min_size=1, max_size=3)


def answers(*nodes: Machine) -> list[NodeAnswer | NodeFailure]:
    return [NodeAnswer(host=f"n{i}", machine=machine) for i, machine in enumerate(nodes)]


def merged(*nodes: Machine) -> Machine:
    return merge_nodes(answers(*nodes)).machine


@laws
@given(machines())
def test_merging_one_node_gives_that_node(machine: Machine) -> None:
    assert Fleet(machine=machine) == merge_nodes(answers(machine))


@laws
@given(machines(), st.integers(2, 4))
def test_equal_nodes_merge_to_that_node_many_times(machine: Machine, nodes: int) -> None:
    fleet = merge_nodes(answers(*[machine] * nodes))
    network = fleet.machine.network
    assert replace(machine, nodes=nodes, network=network) == fleet.machine
    assert machine.network == network or network.kind is NetworkKind.NVLINK
    assert () == fleet.outliers


@laws
@given(FLEETS, st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_never_matters(nodes: list[Machine], random: Any) -> None:
    asked = [*answers(*nodes), NodeFailure(host="down", why="refused")]
    shuffled = random.sample(asked, len(asked))
    assert merge_nodes(asked) == merge_nodes(shuffled)


@laws
@given(FLEETS)
def test_a_merged_machine_counts_the_nodes_and_the_gpus_of_the_smallest(
    nodes: list[Machine],
) -> None:
    machine = merged(*nodes)
    assert len(nodes) == machine.nodes
    assert min(len(node.gpus) for node in nodes) == len(machine.gpus)


def no_more(merged: object, own: object) -> bool:
    """Whether a merged number promises no more than a node's own; unknown promises nothing."""
    return merged is None or (own is not None and merged <= own)  # type: ignore[operator]


LEAST = {
    "host": ("total_bytes", "available_bytes", "cores", "numa_nodes", "shm_bytes", "memlock_bytes"),
    "gpu": ("total_bytes", "free_bytes", "nvlinks"),
    "pcie": [f.name for f in fields(PcieSlot)],
    "machine": ("free_bytes", "total_bytes", "cuda_version"),
}


@laws
@given(FLEETS)
def test_no_number_is_larger_than_on_the_worst_node(nodes: list[Machine]) -> None:
    machine = merged(*nodes)
    pairs: list[tuple[str, object, object]] = []
    for node in nodes:
        pairs += [
            ("host", machine.host, node.host),
            ("machine", machine, _same_size(machine, node)),
        ]
        for gpu, own in zip(machine.gpus, node.gpus, strict=False):
            pairs += [("gpu", gpu, own), ("pcie", gpu.pcie, own.pcie)]
    more = [
        (kind, name)
        for kind, value, own in pairs
        for name in LEAST[kind]
        if not no_more(getattr(value, name), getattr(own, name))
    ]
    assert [] == more


def _same_size(machine: Machine, node: Machine) -> Machine:
    count = len(machine.gpus)
    return node if len(node.gpus) == count else with_gpus(node, count)


@laws
@given(FLEETS)
def test_no_link_is_better_than_on_the_worst_node(nodes: list[Machine]) -> None:
    machine = merged(*nodes)
    for node in (_same_size(machine, node) for node in nodes):
        assert machine.interconnect.is_fast <= node.interconnect.is_fast
        assert no_more(machine.interconnect.bytes_per_s, node.interconnect.bytes_per_s)


@laws
@given(FLEETS)
def test_no_network_is_better_than_the_worst_unless_one_nvlink_domain_joins_all(
    nodes: list[Machine],
) -> None:
    machine = merged(*nodes)
    joined = len(nodes) > 1 and machine.clique is not None
    for node in nodes:
        assert machine.network.is_fast <= (node.network.is_fast or joined)


@laws
@given(FLEETS)
def test_bf16_is_taken_only_where_every_node_takes_it(nodes: list[Machine]) -> None:
    machine = merged(*nodes)
    everywhere = all(_same_size(machine, own).takes_bf16 for own in nodes)
    assert machine.takes_bf16 <= everywhere


@laws
@given(FLEETS)
def test_no_outlier_says_what_is_usual(nodes: list[Machine]) -> None:
    outliers = merge_nodes(answers(*nodes)).outliers
    assert [] == [outlier for outlier in outliers if outlier.value == outlier.usual]


def node(count: int = 8, **changes: Any) -> Machine:
    gpus = tuple(
        Gpu(
            index=index,
            name="NVIDIA H100 80GB HBM3",
            uuid="GPU-1",
            total_bytes=85 * GB,
            free_bytes=84 * GB,
            compute_capability=(9, 0),
        )
        for index in range(count)
    )
    own: dict[str, Any] = {
        "source": MachineSource.NVML,
        "gpus": gpus,
        "interconnect": Interconnect(
            link_class=LinkClass.NVLINK_ALL, bytes_per_s=450 * GB, weakest_pair=(0, 1)
        ),
        "host": Host(total_bytes=2000 * GB, available_bytes=1900 * GB),
        "network": Network(
            kind=NetworkKind.INFINIBAND,
            bytes_per_s=400 * GB,
            nics=(Nic(name="mlx5_0", kind=NetworkKind.INFINIBAND),),
        ),
        "driver_version": "570.86.15",
    }
    return Machine(**{**own, **changes})


def with_gpu(machine: Machine, place: int, **changes: Any) -> Machine:
    gpus = list(machine.gpus)
    gpus[place] = replace(gpus[place], **changes)
    return replace(machine, gpus=tuple(gpus))


LINK = Interconnect(link_class=LinkClass.NVLINK_ALL, bytes_per_s=450 * GB)
PARTIAL = Interconnect(
    link_class=LinkClass.NVLINK_PARTIAL, bytes_per_s=25 * GB, weakest_pair=(2, 3)
)
NETWORK = Network(kind=NetworkKind.INFINIBAND, bytes_per_s=400 * GB)
TCP = Network(kind=NetworkKind.ETHERNET, bytes_per_s=3 * GB)
NAME = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-80GB"

ODD = {
    "fewer GPUs": (node(7), OutlierKind.FEWER_GPUS, 7, 8, None),
    "a GPU of another model": (
        with_gpu(with_gpu(node(), 5, name=A100), 6, name=A100),
        *(OutlierKind.GPU_MODEL, A100, NAME, "5"),
    ),
    "a busy GPU": (
        with_gpu(node(), 3, free_bytes=75 * GB),
        *(OutlierKind.BUSY_GPU, 75 * GB, 84 * GB, "3"),
    ),
    "an older driver": (
        node(driver_version="535.104.05"),
        *(OutlierKind.DRIVER, "535.104.05", "570.86.15", None),
    ),
    "a newer driver": (
        node(driver_version="580.1"),
        *(OutlierKind.DRIVER, "580.1", "570.86.15", None),
    ),
    "a slower link": (
        node(interconnect=PARTIAL),
        *(OutlierKind.SLOWER_LINK, replace(PARTIAL, weakest_pair=None), LINK, None),
    ),
    "unknown link": (
        node(interconnect=Interconnect(link_class=LinkClass.UNKNOWN)),
        *(OutlierKind.SLOWER_LINK, Interconnect(link_class=LinkClass.UNKNOWN), LINK, None),
    ),
    "a slower network": (
        node(network=TCP),
        *(OutlierKind.SLOWER_NETWORK, TCP, NETWORK, None),
    ),
    "less memory": (
        node(host=Host(available_bytes=900 * GB)),
        *(OutlierKind.LESS_HOST_MEMORY, 900 * GB, 1900 * GB, None),
    ),
}


@pytest.mark.parametrize(("odd", "what", "said", "usual", "gpu"), ODD.values(), ids=ODD)
def test_the_odd_node_out_is_named(
    odd: Machine, what: OutlierKind, said: Any, usual: Any, gpu: str | None
) -> None:
    asked = [
        *answers(*[node()] * 3),
        NodeAnswer(host="odd", machine=odd),
    ]
    expected = Outlier(host="odd", kind=what, value=said, usual=usual, gpu=gpu)
    assert (expected,) == merge_nodes(asked).outliers


FINE = {
    "a GPU with a little less free": with_gpu(node(), 3, free_bytes=76 * GB),
    "a faster link": node(interconnect=replace(LINK, bytes_per_s=900 * GB)),
    "a faster network": node(network=replace(NETWORK, bytes_per_s=800 * GB)),
    "another weakest pair": node(interconnect=replace(LINK, weakest_pair=(4, 5))),
    "more GPUs": node(16),
    "a little less memory": node(host=Host(available_bytes=1000 * GB)),
    "a driver nobody knows": node(driver_version=None),
}


@pytest.mark.parametrize("fine", FINE.values(), ids=FINE)
def test_what_is_no_worse_is_not_odd(fine: Machine) -> None:
    assert () == merge_nodes(answers(node(), node(), node(), fine)).outliers


def test_of_two_nodes_the_worse_is_odd() -> None:
    busy = with_gpu(node(4, interconnect=PARTIAL), 0, free_bytes=GB)
    odd = [(outlier.host, outlier.kind) for outlier in merge_nodes(answers(busy, node())).outliers]
    kinds = (OutlierKind.FEWER_GPUS, OutlierKind.BUSY_GPU, OutlierKind.SLOWER_LINK)
    assert [("n0", kind) for kind in kinds] == odd


def test_smaller_gpus_of_another_model_are_not_called_busy() -> None:
    small = node(gpus=tuple(replace(gpu, name=A100, free_bytes=40 * GB) for gpu in node().gpus))
    outliers = merge_nodes(answers(node(), node(), small)).outliers
    assert [OutlierKind.GPU_MODEL] == [outlier.kind for outlier in outliers]


def test_cpu_ranks_are_not_called_busy() -> None:
    """Their memory is the host's, and that is said once."""
    cpu = node(2, accelerator=Accelerator.CPU)
    less = replace(with_gpu(cpu, 0, free_bytes=GB), host=replace(cpu.host, available_bytes=2 * GB))
    outliers = merge_nodes(answers(cpu, cpu, less)).outliers
    assert [OutlierKind.LESS_HOST_MEMORY] == [outlier.kind for outlier in outliers]


def test_a_gpu_that_shares_the_memory_of_its_host_is_not_called_busy() -> None:
    nodes = [
        with_gpu(node(1), 0, shares_host_memory=True, free_bytes=size * GB) for size in (9, 9, 2)
    ]
    assert () == merge_nodes(answers(*nodes)).outliers


def test_one_gpu_has_no_link_that_could_be_slow() -> None:
    alone = node(1, interconnect=Interconnect(link_class=LinkClass.NONE))
    outliers = merge_nodes(answers(node(), node(), alone)).outliers
    assert [OutlierKind.FEWER_GPUS] == [outlier.kind for outlier in outliers]


def test_of_two_drivers_the_newer_is_usual() -> None:
    nodes = [node(driver_version=version) for version in ("570.9.15", "570.20")]
    assert ["570.20"] == [outlier.usual for outlier in merge_nodes(answers(*nodes)).outliers]


def test_outliers_come_node_by_node_in_the_order_of_their_names() -> None:
    asked = [
        NodeAnswer(host="n10", machine=node(7, driver_version="1.0")),
        NodeAnswer(host="n2", machine=node(6)),
        *(NodeAnswer(host=f"m{i}", machine=node()) for i in range(3)),
    ]
    odd = [(outlier.host, outlier.kind) for outlier in merge_nodes(asked).outliers]
    expected = [
        ("n2", OutlierKind.FEWER_GPUS),
        ("n10", OutlierKind.FEWER_GPUS),
        ("n10", OutlierKind.DRIVER),
    ]
    assert expected == odd


def test_a_number_of_any_length_in_a_name_or_a_version_is_sorted() -> None:
    digits = "7" * 5000
    fleet = merge_nodes(
        [
            NodeAnswer(host=f"n{digits}", machine=node(7)),
            *(NodeAnswer(host=f"n{i}", machine=node(driver_version=digits)) for i in (3, 20)),
        ]
    )
    fewer = [each.host for each in fleet.outliers if each.kind is OutlierKind.FEWER_GPUS]
    assert [f"n{digits}"] == fewer


def test_the_worst_of_each_fact_comes_from_any_node() -> None:
    slow = replace(PARTIAL, bytes_per_s=200 * GB)
    pcie = Interconnect(link_class=LinkClass.PCIE, bytes_per_s=60 * GB)
    small = with_gpu(node(interconnect=slow, driver_version="535.1"), 0, free_bytes=2 * GB)
    tight = node(interconnect=pcie, host=Host(available_bytes=GB, available_by="SLURM"))
    rate = node(interconnect=replace(PARTIAL, bytes_per_s=10 * GB))
    machine = merged(small, tight, rate, node())
    assert Interconnect(link_class=LinkClass.PCIE, bytes_per_s=10 * GB) == machine.interconnect
    assert Host(available_bytes=GB, available_by="SLURM") == machine.host
    assert (2 * GB, 84 * GB) == (machine.gpus[0].free_bytes, machine.gpus[1].free_bytes)
    assert "535.1" == machine.driver_version


def test_a_gpu_of_the_merged_machine_has_the_worst_of_its_place() -> None:
    small = node(1)
    own = {"compute_capability": (8, 0), "reserved_bytes": 9, "name": A100}
    worse = with_gpu(small, 0, **own, shares_host_memory=True, mig_mode=True, fabric_ready=False)
    better = with_gpu(small, 0, reserved_bytes=5)
    [gpu] = merged(worse, better, better).gpus
    assert ((8, 0), 9, NAME) == (gpu.compute_capability, gpu.reserved_bytes, gpu.name)
    assert (True, True, False) == (gpu.shares_host_memory, gpu.mig_mode, gpu.fabric_ready)


def test_gpus_are_numbered_as_on_one_node() -> None:
    """Also where another node numbers them otherwise, so that none is listed twice."""
    first = node(3)
    other = node(
        3, gpus=tuple(replace(g, index=i) for g, i in zip(first.gpus, (2, 4, 1), strict=True))
    )
    assert ["0", "1", "2"] == [gpu.label for gpu in merged(other, first).gpus]


def test_the_slowest_network_is_that_of_all() -> None:
    assert TCP == merged(node(), node(network=TCP), node()).network


def test_where_a_number_came_from_stands_where_all_nodes_agree() -> None:
    nodes = [node(sources={"a": "NVML", "b": said}) for said in ("cgroup", "MemAvailable")]
    assert {"a": "NVML"} == merged(*nodes).sources


def test_a_node_that_does_not_tell_makes_the_whole_unknown() -> None:
    silent = node(host=Host(), driver_version=None, network=Network())
    machine = merged(node(), with_gpu(silent, 0, free_bytes=None))
    assert Host() == machine.host
    assert (None, None) == (machine.free_bytes, machine.driver_version)
    assert Network() == machine.network


def test_what_names_one_gpu_of_one_node_is_dropped() -> None:
    other = with_gpu(node(2), 0, uuid="GPU-2", bus_id="1", numa_node=1, name=A100)
    machine = merged(node(2), other, with_gpu(node(2), 0, bus_id="2"))
    assert (
        Gpu(
            index=0,
            name=NAME,
            total_bytes=85 * GB,
            free_bytes=84 * GB,
            compute_capability=(9, 0),
        )
        == machine.gpus[0]
    )


def test_a_matrix_of_links_stands_only_where_all_nodes_have_it() -> None:
    links = (PairLink(pair=(0, 1), nvlinks=18, bytes_per_s=450 * GB),)
    own = node(2, links=links)
    assert links == merged(own, own).links
    assert () == merged(own, node(2, links=(replace(links[0], nvlinks=17),))).links


def test_a_larger_node_is_judged_by_the_gpus_that_the_job_takes() -> None:
    """Its slow pair is not crossed when only the first GPUs are taken."""
    fast = PairLink(pair=(0, 1), nvlinks=4, bytes_per_s=100 * GB)
    slow = [PairLink(pair=(i, 2), nvlinks=0, bytes_per_s=GB) for i in range(2)]
    larger = node(3, links=(fast, *slow), interconnect=PARTIAL)
    smaller = node(2, links=(fast,), interconnect=replace(LINK, bytes_per_s=100 * GB))
    assert LinkClass.NVLINK_ALL == merged(larger, smaller).interconnect.link_class


def test_one_gpu_on_a_node_leaves_no_link_inside() -> None:
    assert (
        Interconnect(link_class=LinkClass.NONE)
        == merged(
            node(), node(1, interconnect=Interconnect(link_class=LinkClass.NONE))
        ).interconnect
    )


def in_clique(name: str | None, *, ready: bool = True) -> Machine:
    gpus = (replace(gpu, clique=name, fabric_ready=ready) for gpu in node(4).gpus)
    return node(4, gpus=tuple(gpus), network=TCP)


@pytest.mark.parametrize(
    ("nodes", "kind"),
    [
        ([in_clique("a"), in_clique("a")], NetworkKind.NVLINK),
        ([in_clique("a"), in_clique("b")], NetworkKind.ETHERNET),
        ([in_clique("a"), in_clique(None)], NetworkKind.ETHERNET),
        ([in_clique(None), in_clique(None)], NetworkKind.ETHERNET),
        ([in_clique("a")], NetworkKind.ETHERNET),
        ([in_clique("a"), in_clique("a", ready=False)], NetworkKind.ETHERNET),
    ],
    ids=["one", "two", "one node outside", "none", "one node", "switches not ready"],
)
def test_nodes_of_one_nvlink_domain_are_joined_by_it(
    nodes: list[Machine], kind: NetworkKind
) -> None:
    assert kind == merged(*nodes).network.kind


def test_two_kinds_of_rdma_do_not_meet() -> None:
    efa = node(network=Network(kind=NetworkKind.EFA, bytes_per_s=400 * GB))
    assert Network() == merged(node(), efa).network


def test_an_old_gpu_is_not_hidden_by_one_of_which_nothing_is_known() -> None:
    """An unknown one is taken to be new."""
    old = with_gpu(node(1), 0, compute_capability=(7, 0))
    silent = with_gpu(node(1), 0, compute_capability=None)
    assert False is merged(old, silent).takes_bf16


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((True, True), True),
        ((True, False), False),
        ((None, False), False),
        ((True, None), None),
    ],
)
def test_a_cpu_that_emulates_bf16_is_hidden_by_no_other(
    values: tuple[bool | None, ...], expected: bool | None
) -> None:
    nodes = [node(host=Host(computes_bf16=each, computes_fp16=each)) for each in values]
    host = merged(*nodes).host
    assert (expected, expected) == (host.computes_bf16, host.computes_fp16)


def test_disks_merge_to_one_that_no_node_falls_short_of() -> None:
    fast = Disk(total_bytes=9, free_bytes=3, is_nvme=True)
    small = Disk(total_bytes=5, free_bytes=4, is_nvme=None)
    disks = [node(host=Host(disk=disk)) for disk in (fast, small)]
    assert Disk(total_bytes=5, free_bytes=3) == merged(*disks).host.disk
    assert None is merged(*disks, node()).host.disk


def test_what_all_nodes_note_is_the_machines_and_the_rest_is_theirs() -> None:
    fleet = merge_nodes(answers(node(notes=("x", "y")), node(notes=("y", "z"))))
    assert ("y",) == fleet.machine.notes
    assert [("n0", "x"), ("n1", "z")] == [(note.host, note.note) for note in fleet.notes]


def test_a_node_with_fewer_gpus_than_slots_is_named() -> None:
    fleet = merge_nodes(answers(node(2), node(4)), {"n0": 4, "n1": 4})
    [short] = fleet.short
    assert ("n0", OutlierKind.FEWER_THAN_SLOTS, 2, 4) == (
        *(short.host, short.kind, short.value, short.usual),
    )
    assert () == merge_nodes(answers(node(2), node(4))).short


def test_nodes_that_fail_are_kept_with_their_reason() -> None:
    failures = [NodeFailure(host=f"n{i}", why="refused") for i in (10, 9)]
    fleet = merge_nodes([*failures, *answers(node())])
    assert ((failures[1], failures[0]), 1) == (fleet.failures, fleet.machine.nodes)


def test_no_answer_at_all_is_an_error_with_a_reason() -> None:
    with pytest.raises(PreflightError, match="none of 2 nodes answered") as raised:
        merge_nodes([NodeFailure(host=f"n{i}", why="refused") for i in range(2)])
    assert ("`n0`: refused", "`n1`: refused") == raised.value.hints


def test_gpus_and_cpu_ranks_do_not_make_one_job() -> None:
    cpu = node(2, accelerator=Accelerator.CPU)
    with pytest.raises(UsageError, match="`n1` runs on the CPU, `n0` on GPUs"):
        merge_nodes(answers(node(), cpu))
