"""What every recording of tests/machines must show: one row each, and its special facts."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations

import pytest
from recorded import names, play, recording

from zerowiz.core.machine.types import Gpu, LinkClass, Machine
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


def sizes(gpu: Gpu) -> tuple[int | None, int | None]:
    return gpu.total_bytes, gpu.free_bytes


def test_every_recording_has_its_row() -> None:
    assert set(names()) == set(ROWS)


@each_row
def test_each_pair_has_the_word_of_the_matrix(name: str) -> None:
    machine, row = machine_of(name), ROWS[name]
    pairs = list(combinations([gpu.index for gpu in machine.gpus], 2))
    expected = {pair: row.words.get(pair, row.rest) for pair in pairs}
    assert expected == {link.pair: link.word for link in machine.links}


@each_row
def test_the_interconnect_is_that_of_the_best_rings(name: str) -> None:
    link, row = machine_of(name).interconnect, ROWS[name]
    assert (row.link_class, row.bytes_per_s, row.weakest) == (
        link.link_class,
        link.bytes_per_s,
        link.weakest_pair,
    )


@each_row
def test_pairs_are_peer_to_peer_as_the_driver_says(name: str) -> None:
    machine = machine_of(name)
    assert ROWS[name].p2p == Counter(link.p2p for link in machine.links)


@each_row
def test_what_is_odd_is_said_and_nothing_else(name: str) -> None:
    machine, begins = machine_of(name), ROWS[name].notes
    said = (*machine.notes, *find_warnings(machine))
    assert begins == tuple(note[: len(begin)] for note, begin in zip(said, begins, strict=True))


@pytest.mark.parametrize("name", ["h200-x1", "h200-x2", "h200-x4"])
def test_an_idle_h200_has_all_but_the_drivers_reserve(name: str) -> None:
    for gpu in machine_of(name).gpus:
        assert (150754820096, 150109880320) == sizes(gpu)
        assert 644939776 == gpu.reserved_bytes


@pytest.mark.parametrize(
    ("name", "busy", "pid"), [("h200-x1-busy", 0, 464), ("h200-x4-busy", 2, 1271)]
)
def test_a_busy_gpu_names_its_process_and_is_the_budget(name: str, busy: int, pid: int) -> None:
    machine = machine_of(name)
    [process] = machine.gpus[busy].processes
    assert (pid, "python3", 20998 * MIB) == (process.pid, process.name, process.used_bytes)
    assert 128082640896 == machine.gpus[busy].free_bytes == machine.free_bytes
    idle = [gpu.free_bytes for gpu in machine.gpus if not gpu.processes]
    assert [150109880320] * (len(machine.gpus) - 1) == idle


def test_two_bridged_pairs_of_3090s() -> None:
    machine = machine_of("synthetic/rtx3090-x4-bridged")
    assert ("595.71.05", (13, 2)) == (machine.driver_version, machine.cuda_version)
    assert [(1, 3)] * 4 == [
        (gpu.pcie.current_generation, gpu.pcie.max_generation) for gpu in machine.gpus
    ]
    assert [(None, 0), (None, 0), (None, 1), (None, 1)] == [
        (gpu.ecc, gpu.numa_node) for gpu in machine.gpus
    ]
    pair = machine_of("synthetic/rtx3090-x4-bridged", gpus="2,3").interconnect
    assert (ALL, 4 * 14_062_500_000) == (pair.link_class, pair.bytes_per_s)


def test_a_cube_of_v100s_has_six_links_each() -> None:
    machine = machine_of("synthetic/dgx1v-cube")
    assert [6] * 8 == [gpu.nvlinks for gpu in machine.gpus]
    assert [(7, 0)] * 8 == [gpu.compute_capability for gpu in machine.gpus]
    assert [3] * 8 == [gpu.pcie.max_generation for gpu in machine.gpus]
    assert {"TNS"} == {link.p2p for link in machine.links if not link.nvlinks}
    quad = machine_of("synthetic/dgx1v-cube", gpus="0,1,2,3").interconnect
    assert (ALL, 100_000_000_000, (0, 1)) == (quad.link_class, quad.bytes_per_s, quad.weakest_pair)


def test_a100s_behind_two_pcie_switches() -> None:
    machine = machine_of("synthetic/a100-pcie-x4")
    slots = [(gpu.pcie.max_generation, gpu.pcie.current_lanes) for gpu in machine.gpus]
    assert [(4, 16)] * 4 == slots
    assert [0, 0, 1, 1] == [gpu.numa_node for gpu in machine.gpus]
    near = machine_of("synthetic/a100-pcie-x4", gpus="0,1")
    assert (PCIE, ["PXB"]) == (near.interconnect.link_class, [link.word for link in near.links])


def test_l40s_have_the_memory_that_ecc_leaves() -> None:
    machine = machine_of("synthetic/l40s-x8")
    assert [46068 * MIB] * 8 == [gpu.total_bytes for gpu in machine.gpus]
    assert [0] * 8 == [gpu.nvlinks for gpu in machine.gpus]


def test_beside_slices_a_whole_gpu_is_what_a_job_gets() -> None:
    machine = machine_of("synthetic/a100-mig")
    [gpu] = machine.gpus
    assert "0" == gpu.label
    processes = [(process.pid, process.used_bytes) for process in gpu.processes]
    assert [(29185, 10233 * MIB), (33724, 12247 * MIB)] == processes


def test_slices_are_chosen_by_name_and_have_no_links() -> None:
    expected = {"1:0": 5602, "1:1": 10088, "1:2": 19955}
    for label, free_mib in expected.items():
        machine = machine_of("synthetic/a100-mig", gpus=label)
        [part] = machine.gpus
        assert (label, (19968 * MIB, free_mib * MIB)) == (part.label, sizes(part))
        assert (NONE, 1) == (machine.interconnect.link_class, machine.world_size)
        assert "MIG" in part.name
    two = machine_of("synthetic/a100-mig", gpus="1:0,1:1")
    assert (LinkClass.UNKNOWN, 2) == (two.interconnect.link_class, two.world_size)
    assert 5602 * MIB == two.free_bytes
    held, note = find_warnings(two)
    assert held.startswith("others hold 49 to 72 % of the memory of every GPU")
    assert note.startswith("MIG slices have no links")


def test_a_gpu_in_slices_is_no_gpu_to_choose() -> None:
    with pytest.raises(UsageError, match=r"(?m)there is no usable GPU 1$"):
        machine_of("synthetic/a100-mig", gpus="1")


def test_a_container_of_one_slice_gets_it_though_the_gpu_is_shut() -> None:
    content = recording("synthetic/a100-mig-container")
    assert {"err": 4} == content["nvml"]["nvmlDeviceGetMemoryInfo_v2(gpu0)"]
    machine = play(content)
    [part] = machine.gpus
    assert ("0:0", (40192 * MIB, 40155 * MIB)) == (part.label, sizes(part))
    assert (1, ()) == (machine.world_size, machine.left_out)


def test_a_gb10_has_what_its_host_has_available() -> None:
    machine = machine_of("synthetic/gb10")
    [gpu] = machine.gpus
    assert gpu.shares_host_memory
    assert (127600748 * 1024, 118566368 * 1024) == sizes(gpu)
    assert ((12, 1), None) == (gpu.compute_capability, gpu.ecc)
    assert "host, MemAvailable" == gpu.memory_source


def test_after_a_lost_gpu_the_ordinals_of_cuda_move_up() -> None:
    machine = machine_of("synthetic/a100-x8-lost-gpu")
    assert [3] == [gpu.index for gpu in machine.left_out]
    assert [(0, 0), (1, 1), (2, 2), (4, 3), (5, 4), (6, 5), (7, 6)] == [
        (gpu.index, gpu.ordinal) for gpu in machine.gpus
    ]
    content = recording("synthetic/a100-x8-lost-gpu")
    seen = play(content, environ={"CUDA_VISIBLE_DEVICES": "3,6"})
    assert [4, 7] == [gpu.index for gpu in seen.gpus]
    with pytest.raises(UsageError, match="no usable GPU 3"):
        play(content, gpus="3")


def test_a_switch_that_is_down_takes_links_from_every_gpu() -> None:
    machine = machine_of("synthetic/a100-x8-switch-down")
    assert [(10, 12)] * 8 == [(gpu.nvlinks, gpu.expected_nvlinks) for gpu in machine.gpus]


def test_a_driver_of_2020_tells_memory_without_the_reserve() -> None:
    machine = machine_of("synthetic/a100-r450")
    assert (11, 0) == machine.cuda_version
    for gpu in machine.gpus:
        assert (40537 * MIB, None) == (gpu.total_bytes, gpu.reserved_bytes)
        assert "nvmlDeviceGetMemoryInfo" == gpu.memory_source
        assert (12, None) == (gpu.nvlinks, gpu.clique)


def test_an_idle_slot_counts_at_its_best_generation_and_with_the_lanes_it_has() -> None:
    machine = machine_of("synthetic/rtx4090-x2-idle-gen1")
    slots = [gpu.pcie for gpu in machine.gpus]
    assert [(1, 4), (1, 4)] == [(slot.current_generation, slot.max_generation) for slot in slots]
    assert [(16, 16), (8, 16)] == [(slot.current_lanes, slot.max_lanes) for slot in slots]
    assert [False, False] == [gpu.ecc for gpu in machine.gpus]


def test_links_to_switches_that_nobody_trained_carry_nothing() -> None:
    machine = machine_of("synthetic/h100-x8-fabric-not-ready")
    assert [(False, 18)] * 8 == [(gpu.fabric_ready, gpu.nvlinks) for gpu in machine.gpus]


def test_without_the_odd_gpu_the_rest_is_all_nvlink() -> None:
    machine = machine_of("synthetic/b200-x8-odd-gpu", gpus="0,1,3,4,5,6,7")
    assert (ALL, 900_000_000_000) == (
        machine.interconnect.link_class,
        machine.interconnect.bytes_per_s,
    )
    assert () == find_warnings(machine)
