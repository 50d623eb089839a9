import types
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from operator import attrgetter
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
    NodeNote,
    merge_nodes,
)
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
    assert () == fleet.notes


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
def test_neither_links_nor_bf16_are_better_than_on_the_worst_node(nodes: list[Machine]) -> None:
    """A network may be, where one NVLink domain joins all."""
    machine = merged(*nodes)
    joined = len(nodes) > 1 and machine.clique is not None
    for own in nodes:
        node = _same_size(machine, own)
        assert machine.interconnect.is_fast <= node.interconnect.is_fast
        assert no_more(machine.interconnect.bytes_per_s, node.interconnect.bytes_per_s)
        assert machine.network.is_fast <= (own.network.is_fast or joined)
        assert machine.takes_bf16 <= node.takes_bf16


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
TCP = Network(kind=NetworkKind.ETHERNET, bytes_per_s=3 * GB)
NAME = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-80GB"

ODD = {
    "fewer GPUs": (node(7), "GPUs: 7; most nodes have 8"),
    "more GPUs": (node(16), "GPUs: 16; most nodes have 8"),
    "GPUs of another model": (
        with_gpu(with_gpu(node(), 5, name=A100), 6, name=A100),
        f"GPU model: {A100} + {NAME}; most nodes have {NAME}",
    ),
    "an older driver": (
        node(driver_version="535.104.05"),
        "driver: 535.104.05; most nodes have 570.86.15",
    ),
    "another link": (
        node(interconnect=PARTIAL),
        "link: nvlink_partial, 25 GB/s; most nodes have nvlink_all, 450 GB/s",
    ),
    "unknown link": (
        node(interconnect=Interconnect(link_class=LinkClass.UNKNOWN)),
        "link: unknown; most nodes have nvlink_all, 450 GB/s",
    ),
    "another network": (
        node(network=TCP),
        "network: ethernet, 3 GB/s; most nodes have infiniband, 400 GB/s",
    ),
}


@pytest.mark.parametrize(("odd", "note"), ODD.values(), ids=ODD)
def test_the_odd_node_out_is_named(odd: Machine, note: str) -> None:
    asked = [*answers(*[node()] * 3), NodeAnswer(host="odd", machine=odd)]
    assert (NodeNote(host="odd", note=note),) == merge_nodes(asked).notes


ALONE = node(1, interconnect=Interconnect(link_class=LinkClass.NONE))
OF_THREE = [node()] * 3
ALIKE: Mapping[str, tuple[list[Machine], list[str]]] = {
    "another weakest pair": (
        [*OF_THREE, node(interconnect=replace(LINK, weakest_pair=(4, 5)))],
        [],
    ),
    "other memory is free": ([*OF_THREE, with_gpu(node(), 3, free_bytes=75 * GB)], []),
    "a driver nobody knows": ([*OF_THREE, node(driver_version=None)], []),
    "one GPU has no link that could differ": ([*OF_THREE, ALONE], ["GPUs"]),
}


@pytest.mark.parametrize(("nodes", "kinds"), ALIKE.values(), ids=ALIKE)
def test_only_what_all_nodes_should_have_is_compared(
    nodes: list[Machine], kinds: list[str]
) -> None:
    notes = merge_nodes(answers(*nodes)).notes
    assert kinds == [note.note.partition(":")[0] for note in notes]


def test_odd_nodes_are_sorted_by_the_numbers_in_their_names() -> None:
    """Also where a number in a name or a version is of any length."""
    digits = "7" * 5000
    asked = [
        NodeAnswer(host=f"n{digits}", machine=node(7)),
        NodeAnswer(host="n10", machine=node(7, driver_version="1.0")),
        NodeAnswer(host="n2", machine=node(6)),
        *(NodeAnswer(host=f"m{i}", machine=node()) for i in range(3)),
        NodeAnswer(host="n1", machine=node(driver_version=digits)),
    ]
    notes = merge_nodes(asked).notes
    odd = [(note.host, note.note.partition(":")[0]) for note in notes]
    expected = [
        *((host, "GPUs") for host in ("n2", "n10", f"n{digits}")),
        *((host, "driver") for host in ("n1", "n10")),
    ]
    assert expected == odd


def test_gpus_are_numbered_as_on_one_node() -> None:
    """Also where another node numbers them otherwise, so that none is listed twice."""
    first = node(3)
    other = node(
        3, gpus=tuple(replace(g, index=i) for g, i in zip(first.gpus, (2, 4, 1), strict=True))
    )
    assert ["0", "1", "2"] == [gpu.label for gpu in merged(other, first).gpus]


def in_clique(name: str | None, *, ready: bool = True) -> Machine:
    gpus = (replace(gpu, clique=name, fabric_ready=ready) for gpu in node(4).gpus)
    return node(4, gpus=tuple(gpus), network=TCP)


def with_host(**facts: Any) -> Machine:
    return node(host=Host(**facts))


SILENT = with_gpu(node(host=Host(), driver_version=None, network=Network()), 0, free_bytes=None)
SMALL = node(1)
WORSE: dict[str, Any] = {
    "compute_capability": (8, 0),
    "reserved_bytes": 9,
    "shares_host_memory": True,
    "mig_mode": True,
    "fabric_ready": False,
}
# What names one GPU of one node is not of the whole.
ANONYMOUS = replace(SMALL.gpus[0], uuid=None)
NVLINKS = (PairLink(pair=(0, 1), nvlinks=18, bytes_per_s=450 * GB),)
BRIDGE = PairLink(pair=(0, 1), nvlinks=4, bytes_per_s=100 * GB)
SLOW_PAIRS = [PairLink(pair=(i, 2), nvlinks=0, bytes_per_s=GB) for i in range(2)]
MERGED: Mapping[str, tuple[list[Machine], Mapping[str, object]]] = {
    "the worst of each fact comes from any node": (
        [
            with_gpu(
                node(interconnect=replace(PARTIAL, bytes_per_s=200 * GB), driver_version="535.1"),
                0,
                free_bytes=2 * GB,
            ),
            node(
                interconnect=Interconnect(link_class=LinkClass.PCIE, bytes_per_s=60 * GB),
                host=Host(available_bytes=GB, available_by="SLURM"),
                network=TCP,
            ),
            node(interconnect=replace(PARTIAL, bytes_per_s=10 * GB)),
            node(),
        ],
        {
            "interconnect": Interconnect(link_class=LinkClass.PCIE, bytes_per_s=10 * GB),
            "host": Host(available_bytes=GB, available_by="SLURM"),
            "free_bytes": 2 * GB,
            "driver_version": "535.1",
            "network": TCP,
        },
    ),
    "the worst of each place": (
        [
            with_gpu(SMALL, 0, **WORSE, name=A100, uuid="GPU-2", bus_id="1", numa_node=1),
            *[with_gpu(SMALL, 0, reserved_bytes=5, bus_id="2")] * 2,
        ],
        {"gpus": (replace(ANONYMOUS, **WORSE),)},
    ),
    "a node that does not tell": (
        [node(), SILENT],
        {"host": Host(), "free_bytes": None, "driver_version": None, "network": Network()},
    ),
    "the same links": ([node(2, links=NVLINKS)] * 2, {"links": NVLINKS}),
    "a link of fewer wires": (
        [node(2, links=NVLINKS), node(2, links=(replace(NVLINKS[0], nvlinks=17),))],
        {"links": ()},
    ),
    # Its slow pair is not crossed when only the first GPUs are taken.
    "a larger node": (
        [
            node(3, links=(BRIDGE, *SLOW_PAIRS), interconnect=PARTIAL),
            node(2, links=(BRIDGE,), interconnect=replace(LINK, bytes_per_s=100 * GB)),
        ],
        {"interconnect.link_class": LinkClass.NVLINK_ALL},
    ),
    "one GPU on a node": (
        [node(), ALONE],
        {"interconnect": Interconnect(link_class=LinkClass.NONE)},
    ),
    "one NVLink domain": ([in_clique("a")] * 2, {"network.kind": NetworkKind.NVLINK}),
    "two domains": ([in_clique("a"), in_clique("b")], {"network.kind": NetworkKind.ETHERNET}),
    "one node outside": (
        [in_clique("a"), in_clique(None)],
        {"network.kind": NetworkKind.ETHERNET},
    ),
    "no domain": ([in_clique(None)] * 2, {"network.kind": NetworkKind.ETHERNET}),
    "one node of a domain": ([in_clique("a")], {"network.kind": NetworkKind.ETHERNET}),
    "switches that are not ready": (
        [in_clique("a"), in_clique("a", ready=False)],
        {"network.kind": NetworkKind.ETHERNET},
    ),
    "two kinds of RDMA do not meet": (
        [node(), node(network=Network(kind=NetworkKind.EFA, bytes_per_s=400 * GB))],
        {"network": Network()},
    ),
    # An unknown GPU is taken to be new.
    "an old GPU beside one of which nothing is known": (
        [with_gpu(SMALL, 0, compute_capability=each) for each in ((7, 0), None)],
        {"takes_bf16": False},
    ),
    **{
        f"CPUs that compute bf16: {values}": (
            [with_host(computes_bf16=each, computes_fp16=each) for each in values],
            {"host.computes_bf16": expected, "host.computes_fp16": expected},
        )
        for values, expected in (
            ((True, True), True),
            ((True, False), False),
            ((None, False), False),
            ((True, None), None),
        )
    },
}


@pytest.mark.parametrize(("nodes", "expected"), MERGED.values(), ids=MERGED)
def test_nodes_merge_to_the_worst_of_every_fact(
    nodes: list[Machine], expected: Mapping[str, object]
) -> None:
    machine = merged(*nodes)
    assert expected == {path: attrgetter(path)(machine) for path in expected}


def test_what_all_nodes_note_is_the_machines_and_the_rest_is_theirs() -> None:
    fleet = merge_nodes(answers(node(notes=("x", "y")), node(notes=("y", "z"))))
    assert ("y",) == fleet.machine.notes
    assert [("n0", "x"), ("n1", "z")] == [(note.host, note.note) for note in fleet.notes]


def test_a_node_with_fewer_gpus_than_slots_is_named() -> None:
    fleet = merge_nodes(answers(node(2), node(4)), {"n0": 4, "n1": 4})
    [short] = fleet.short
    assert ("n0", 2, 4) == (short.host, short.gpus, short.slots)
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
