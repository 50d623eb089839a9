"""What every recording of tests/machines must show: one row each, and its special facts."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations

import pytest
from recorded import facts_of, names, play, recording

from zerowiz.core.machine.types import GpuProcess, LinkClass, Machine, PcieSlot
from zerowiz.core.machine.warnings import find_warnings
from zerowiz.errors import UsageError

MIB = 2**20

ALL, RING, PARTIAL, PCIE, NONE = (
    LinkClass.NVLINK_ALL,
    LinkClass.NVLINK_RING,
    LinkClass.NVLINK_PARTIAL,
    LinkClass.PCIE,
    LinkClass.NONE,
)

Pair = tuple[int, int]

# What `nvidia-smi topo -m` printed on a DGX-1 with V100: six NVLinks a GPU, twelve pairs with none.
CUBE = "01:1 02:1 03:2 04:2 12:2 13:1 15:2 23:2 26:1 37:1 45:1 46:1 47:2 56:2 57:1 67:2"


@dataclass(frozen=True, kw_only=True)
class Row:
    link_class: LinkClass
    rest: str = ""
    """The word of each pair that `words` does not have."""
    words: dict[Pair, str] = field(default_factory=dict)
    bytes_per_s: int | None = None
    weakest: Pair | None = None
    p2p: dict[str, int] = field(default_factory=dict)
    """How many pairs say so."""
    notes: tuple[str, ...] = ()
    """How each note and each warning begins."""


def among(word: str, *groups: tuple[int, ...]) -> dict[Pair, str]:
    return {pair: word for group in groups for pair in combinations(group, 2)}


LONE = Row(link_class=NONE)

ROWS = {
    "h200-x1": LONE,
    "h200-x1-busy": Row(
        link_class=NONE,
        notes=("GPU 0 is in use by python3 (464)",),
    ),
    "h200-x2": Row(
        link_class=ALL, rest="NV18", bytes_per_s=450_000_000_000, weakest=(0, 1), p2p={"OK": 1}
    ),
    "h200-x4": Row(
        link_class=ALL, rest="NV18", bytes_per_s=450_000_000_000, weakest=(0, 1), p2p={"OK": 6}
    ),
    "h200-x4-busy": Row(
        link_class=ALL,
        rest="NV18",
        bytes_per_s=450_000_000_000,
        weakest=(0, 1),
        p2p={"OK": 6},
        notes=(
            "GPU 2 is in use by python3 (1271)",
            "others hold 15 % of the memory of GPU 2: `$gpus 0,1,3`",
        ),
    ),
    "synthetic/rtx3090-x4-bridged": Row(
        link_class=PARTIAL,
        rest="SYS",
        words={(0, 1): "NV4", (2, 3): "NV4"},
        bytes_per_s=15_760_000_000,
        weakest=(0, 2),
        p2p={"OK": 2, "CNS": 4},
        notes=("4 of 6 pairs of GPUs cannot reach each other's memory (CNS",),
    ),
    "synthetic/dgx1v-cube": Row(
        link_class=RING,
        rest="SYS",
        words={(int(each[0]), int(each[1])): f"NV{each[3]}" for each in CUBE.split()},
        bytes_per_s=150_000_000_000,
        weakest=(0, 5),
        p2p={"OK": 16, "TNS": 12},
        notes=("12 of 28 pairs of GPUs cannot reach each other's memory (TNS",),
    ),
    "synthetic/a100-pcie-x4": Row(
        link_class=PCIE,
        rest="SYS",
        words={(0, 1): "PXB", (2, 3): "PXB"},
        bytes_per_s=31_504_000_000,
        weakest=(0, 2),
        p2p={"OK": 6},
    ),
    "synthetic/l40s-x8": Row(
        link_class=PCIE,
        rest="SYS",
        words=among("NODE", (0, 1, 2, 3), (4, 5, 6, 7))
        | among("PIX", (0, 1), (2, 3), (4, 5), (6, 7)),
        bytes_per_s=31_504_000_000,
        weakest=(0, 4),
        p2p={"OK": 28},
    ),
    "synthetic/a100-mig": Row(
        link_class=NONE,
        notes=(
            "GPU 1 is split into MIG slices and not used; to plan for a slice: `$gpus 1:0`",
            "GPU 0 is in use by a process (29185); a process (33724)",
        ),
    ),
    "synthetic/a100-mig-container": Row(
        link_class=NONE,
        notes=("GPU 0:0 is a MIG slice",),
    ),
    "synthetic/gb10": Row(
        link_class=NONE,
        notes=("the GPU and the host share their memory",),
    ),
    "synthetic/a100-x8-lost-gpu": Row(
        link_class=ALL,
        rest="NV12",
        bytes_per_s=300_000_000_000,
        weakest=(0, 1),
        p2p={"OK": 21},
        notes=(
            "zerowiz does not use GPU 3: the driver has lost it (see `dmesg` for `Xid`)",
            "CUDA numbers only GPUs that it can open: GPU 4 is number 3, GPU 5 is number 4",
        ),
    ),
    "synthetic/a100-x8-switch-down": Row(
        link_class=ALL,
        rest="NV10",
        bytes_per_s=250_000_000_000,
        weakest=(0, 1),
        p2p={"OK": 28},
        notes=("10 of 12 NVLinks are active on GPU 0, 1, 2, 3, 4, 5, 6, 7",),
    ),
    "synthetic/a100-r450": Row(
        link_class=ALL, rest="NV12", bytes_per_s=300_000_000_000, weakest=(0, 1), p2p={"OK": 28}
    ),
    "synthetic/rtx4090-x2-idle-gen1": Row(
        link_class=PCIE,
        rest="PHB",
        bytes_per_s=15_752_000_000,
        weakest=(0, 1),
        p2p={"GNS": 1},
        notes=(
            "1 of 1 pairs of GPUs cannot reach each other's memory (GNS",
            "GPU 1 uses 8 of its 16 PCIe lanes",
        ),
    ),
    "synthetic/h100-x8-fabric-not-ready": Row(
        link_class=PCIE,
        rest="SYS",
        bytes_per_s=63_008_000_000,
        weakest=(0, 1),
        p2p={"OK": 28},
        notes=("Fabric Manager is not ready for GPU 0, 1, 2, 3, 4, 5, 6, 7: NVSwitch",),
    ),
    "synthetic/b200-x8-odd-gpu": Row(
        link_class=PARTIAL,
        rest="NV18",
        words={(0, 2): "NODE", (1, 2): "NODE", (2, 3): "NODE"}
        | {(2, peer): "SYS" for peer in (4, 5, 6, 7)},
        bytes_per_s=63_008_000_000,
        weakest=(2, 4),
        p2p={"OK": 28},
        notes=("0 of 18 NVLinks are active on GPU 2",),
    ),
}

each_row = pytest.mark.parametrize("name", ROWS)


def machine_of(name: str, gpus: str | None = None) -> Machine:
    return play(recording(name), gpus=gpus)


def test_every_recording_has_its_row() -> None:
    assert set(names()) == set(ROWS)


@each_row
def test_links_and_warnings_are_those_of_the_row_and_no_others(name: str) -> None:
    machine, row = machine_of(name), ROWS[name]
    pairs = list(combinations([gpu.index for gpu in machine.gpus], 2))
    expected = {pair: row.words.get(pair, row.rest) for pair in pairs}
    assert expected == {link.pair: link.word for link in machine.links}
    link = machine.interconnect
    assert (row.link_class, row.bytes_per_s, row.weakest) == (
        link.link_class,
        link.bytes_per_s,
        link.weakest_pair,
    )
    assert row.p2p == Counter(link.p2p for link in machine.links)
    said = (*machine.notes, *find_warnings(machine))
    begins = zip(said, row.notes, strict=True)
    assert row.notes == tuple(note[: len(begin)] for note, begin in begins)


H200_TOTAL_BYTES, H200_FREE_BYTES, H200_BUSY_BYTES = 150754820096, 150109880320, 128082640896


def busy(pid: int) -> tuple[GpuProcess, ...]:
    return (GpuProcess(pid=pid, name="python3", used_bytes=20998 * MIB),)


def slots(current: int, most: int, *lanes: int) -> list[PcieSlot]:
    """PCIe generations, and how many of its 16 lanes each GPU uses."""
    return [
        PcieSlot(current_generation=current, max_generation=most, current_lanes=used, max_lanes=16)
        for used in lanes
    ]


# What the rows above do not say: a recording, the GPUs that are chosen, and what is known of them.
FACTS: dict[str, tuple[str, str | None, dict[str, object]]] = {
    "an idle H200 has all but the driver's reserve": (
        "h200-x2",
        None,
        {
            "total_bytes": [H200_TOTAL_BYTES] * 2,
            "free_bytes": [H200_FREE_BYTES] * 2,
            "reserved_bytes": [644939776] * 2,
        },
    ),
    "a busy GPU names its process": (
        "h200-x1-busy",
        None,
        {
            "processes": [busy(464)],
            "total_bytes": [H200_TOTAL_BYTES],
            "free_bytes": [H200_BUSY_BYTES],
        },
    ),
    "a busy GPU of four is the budget": (
        "h200-x4-busy",
        None,
        {
            "processes": [(), (), busy(1271), ()],
            "free_bytes": [H200_FREE_BYTES, H200_FREE_BYTES, H200_BUSY_BYTES, H200_FREE_BYTES],
            "least_free_bytes": H200_BUSY_BYTES,
        },
    ),
    "two bridged pairs of 3090s": (
        "synthetic/rtx3090-x4-bridged",
        None,
        {
            "driver_version": "595.71.05",
            "cuda_version": (13, 2),
            "pcie": slots(1, 3, 16, 16, 16, 16),
            "ecc": [None] * 4,
            "numa_node": [0, 0, 1, 1],
        },
    ),
    "one bridged pair of them": (
        "synthetic/rtx3090-x4-bridged",
        "2,3",
        {"link_class": ALL, "bytes_per_s": 4 * 14_062_500_000},
    ),
    "a cube of V100s has six links each": (
        "synthetic/dgx1v-cube",
        None,
        {"nvlinks": [6] * 8, "compute_capability": [(7, 0)] * 8, "pcie": slots(3, 3, *[16] * 8)},
    ),
    "a quad of the cube": (
        "synthetic/dgx1v-cube",
        "0,1,2,3",
        {"link_class": ALL, "bytes_per_s": 100_000_000_000, "weakest_pair": (0, 1)},
    ),
    "A100s behind two PCIe switches": (
        "synthetic/a100-pcie-x4",
        None,
        {"pcie": slots(4, 4, 16, 16, 16, 16), "numa_node": [0, 0, 1, 1]},
    ),
    "two behind one switch": (
        "synthetic/a100-pcie-x4",
        "0,1",
        {"link_class": PCIE, "words": {"PXB"}},
    ),
    "L40S have the memory that ECC leaves": (
        "synthetic/l40s-x8",
        None,
        {"total_bytes": [46068 * MIB] * 8, "nvlinks": [0] * 8},
    ),
    "beside slices a whole GPU is what a job gets": (
        "synthetic/a100-mig",
        None,
        {
            "label": ["0"],
            "processes": [
                (
                    GpuProcess(pid=29185, used_bytes=10233 * MIB),
                    GpuProcess(pid=33724, used_bytes=12247 * MIB),
                )
            ],
        },
    ),
    **{
        f"slice {label}": (
            "synthetic/a100-mig",
            label,
            {
                "label": [label],
                "total_bytes": [19968 * MIB],
                "free_bytes": [free_mib * MIB],
                "link_class": NONE,
                "world_size": 1,
            },
        )
        for label, free_mib in {"1:0": 5602, "1:1": 10088, "1:2": 19955}.items()
    },
    "two slices": (
        "synthetic/a100-mig",
        "1:0,1:1",
        {
            "link_class": LinkClass.UNKNOWN,
            "world_size": 2,
            "least_free_bytes": 5602 * MIB,
        },
    ),
    "a container of one slice gets it though the GPU is shut": (
        "synthetic/a100-mig-container",
        None,
        {
            "label": ["0:0"],
            "total_bytes": [40192 * MIB],
            "free_bytes": [40155 * MIB],
            "world_size": 1,
            "left_out": [],
        },
    ),
    "a GB10 has what its host has available": (
        "synthetic/gb10",
        None,
        {
            "shares_host_memory": [True],
            "total_bytes": [127600748 * 1024],
            "free_bytes": [118566368 * 1024],
            "compute_capability": [(12, 1)],
            "ecc": [None],
            "memory_source": ["host, MemAvailable"],
        },
    ),
    "after a lost GPU the ordinals of CUDA move up": (
        "synthetic/a100-x8-lost-gpu",
        None,
        {
            "left_out": [3],
            "index": [0, 1, 2, 4, 5, 6, 7],
            "ordinal": [0, 1, 2, 3, 4, 5, 6],
        },
    ),
    "a switch that is down takes links from every GPU": (
        "synthetic/a100-x8-switch-down",
        None,
        {"nvlinks": [10] * 8, "expected_nvlinks": [12] * 8},
    ),
    "a driver of 2020 tells memory without the reserve": (
        "synthetic/a100-r450",
        None,
        {
            "cuda_version": (11, 0),
            "total_bytes": [40537 * MIB] * 8,
            "reserved_bytes": [None] * 8,
            "memory_source": ["nvmlDeviceGetMemoryInfo"] * 8,
            "nvlinks": [12] * 8,
            "clique": [None] * 8,
        },
    ),
    "an idle slot counts at its best generation and with the lanes it has": (
        "synthetic/rtx4090-x2-idle-gen1",
        None,
        {"pcie": slots(1, 4, 16, 8), "ecc": [False, False]},
    ),
    "links to switches that nobody trained carry nothing": (
        "synthetic/h100-x8-fabric-not-ready",
        None,
        {"fabric_ready": [False] * 8, "nvlinks": [18] * 8},
    ),
    "without the odd GPU the rest is all NVLink": (
        "synthetic/b200-x8-odd-gpu",
        "0,1,3,4,5,6,7",
        {"link_class": ALL, "bytes_per_s": 900_000_000_000, "warnings": ()},
    ),
}


@pytest.mark.parametrize(("name", "gpus", "facts"), FACTS.values(), ids=FACTS)
def test_a_recording_tells_its_special_facts(
    name: str, gpus: str | None, facts: dict[str, object]
) -> None:
    known = facts_of(machine_of(name, gpus=gpus))
    assert facts == {fact: known[fact] for fact in facts}


def test_what_slices_lack_is_said() -> None:
    held, links = find_warnings(machine_of("synthetic/a100-mig", gpus="1:0,1:1"))
    assert held.startswith("others hold 49 to 72 % of the memory of every GPU")
    assert links.startswith("MIG slices have no links")


def test_the_ordinals_of_cuda_pass_over_a_lost_gpu() -> None:
    content = recording("synthetic/a100-x8-lost-gpu")
    seen = play(content, environ={"CUDA_VISIBLE_DEVICES": "3,6"})
    assert [4, 7] == [gpu.index for gpu in seen.gpus]


@pytest.mark.parametrize(
    ("name", "gpus", "said"),
    [
        ("synthetic/a100-x8-lost-gpu", "3", "no usable GPU 3"),
        ("synthetic/a100-mig", "1", "GPU 1 is split into MIG slices"),
    ],
)
def test_a_gpu_that_is_lost_or_in_slices_is_no_gpu_to_choose(
    name: str, gpus: str, said: str
) -> None:
    with pytest.raises(UsageError, match=rf"(?m){said}$"):
        machine_of(name, gpus=gpus)
