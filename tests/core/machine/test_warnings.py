from itertools import combinations

import pytest

from zerowiz.core.machine.types import (
    Gpu,
    GpuProcess,
    JobAllocation,
    LeftOutGpu,
    Machine,
    MachineSource,
    Network,
    NetworkKind,
    Nic,
    PairLink,
    PcieSlot,
    join_pairs,
)
from zerowiz.core.machine.warnings import find_warnings
from zerowiz.core.structs import replace

SLOT = PcieSlot(
    max_generation=4,
    current_generation=1,
    max_lanes=16,
    current_lanes=16,
    upstream_bytes_per_s=31_504_000_000,
)
H200 = "NVIDIA H200"
DOWN = Nic(name="mlx5_1", kind=NetworkKind.INFINIBAND, unusable="port 1 is DOWN")
NICS = (Nic(name="mlx5_0", kind=NetworkKind.INFINIBAND), DOWN)


def gpu(index: int) -> Gpu:
    return Gpu(
        index=index,
        name=H200,
        pcie=SLOT,
        nvlinks=18,
        expected_nvlinks=18,
    )


def machine(*gpus: Gpu, nvlinks: int | None = 18, p2p: str | None = "OK") -> Machine:
    links = tuple(
        PairLink(pair=(one.index, other.index), nvlinks=nvlinks, bytes_per_s=1, p2p=p2p)
        for one, other in combinations(gpus, 2)
    )
    return Machine(
        source=MachineSource.NVML,
        gpus=gpus,
        links=links,
        interconnect=join_pairs(links),
        allocation=JobAllocation(scheduler="SLURM", nodes=1, gpus_per_node=len(gpus)),
        network=Network(kind=NetworkKind.INFINIBAND, nics=NICS),
    )


def busy(each: Gpu, free_percent: int) -> Gpu:
    total_bytes = 80 * 2**30
    return replace(each, total_bytes=total_bytes, free_bytes=total_bytes * free_percent // 100)


@pytest.mark.parametrize(
    ("free_percent", "expected"),
    [
        ((99, 99, 99), ()),
        ((99, 11, 99), ("others hold 89 % of the memory of GPU 1: `$gpus 0,2` leaves it out",)),
        (
            (99, 11, 40),
            ("others hold 60 to 89 % of the memory of GPU 1, 2: `$gpus 0` leaves them out",),
        ),
        (
            (11, 20, 11),
            ("others hold 80 to 89 % of the memory of every GPU: the plan uses what is free now",),
        ),
    ],
)
def test_memory_that_others_hold_is_said(
    free_percent: tuple[int, ...], expected: tuple[str, ...]
) -> None:
    gpus = [busy(gpu(index), part) for index, part in enumerate(free_percent)]
    assert expected == find_warnings(machine(*gpus))


CLEAN = machine(gpu(0), gpu(1), gpu(2))


def with_gpu(changed: Gpu) -> Machine:
    """The clean machine with one of its GPUs changed."""
    gpus = tuple(changed if gpu.index == changed.index else gpu for gpu in CLEAN.gpus)
    return replace(CLEAN, gpus=gpus)


def gpus_with(**facts: object) -> Machine:
    """The clean machine, whose GPU 1 has other facts."""
    return with_gpu(replace(gpu(1), **facts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "quiet",
    [
        CLEAN,
        machine(gpu(0)),
        Machine(
            source=MachineSource.FILE,
            gpus=tuple(Gpu(index=index, name="mine") for index in range(2)),
        ),
        machine(replace(gpu(0), fabric_ready=False, nvlinks=0)),
        gpus_with(nvlinks=None),
        machine(*CLEAN.gpus, nvlinks=18, p2p="NS"),
        machine(*CLEAN.gpus, nvlinks=0, p2p=None),
        machine(*CLEAN.gpus, nvlinks=0, p2p="OK"),
        replace(CLEAN, allocation=JobAllocation(scheduler="SLURM")),
    ],
    ids=[
        "clean",
        "lone",
        "little is known",
        "a lone GPU needs no switch",
        "NVLinks that were not counted",
        "pairs with NVLink",
        "NVML is silent of pairs",
        "pairs that reach each other",
        "a scheduler that tells no GPUs",
    ],
)
def test_there_is_nothing_to_say(quiet: Machine) -> None:
    assert () == find_warnings(quiet)


HELD = (GpuProcess(pid=464, name="python3"), GpuProcess(pid=7))
NO_P2P = "3 of 3 pairs of GPUs cannot reach each other's memory"


@pytest.mark.parametrize(
    ("warned", "expected"),
    [
        (
            replace(CLEAN, left_out=(LeftOutGpu(index=3, why="the driver has lost it"),)),
            "zerowiz does not use GPU 3: the driver has lost it",
        ),
        (
            gpus_with(name="NVIDIA H100"),
            (
                "GPU 1 is not like the others (`NVIDIA H100`, not `NVIDIA H200`): the plan uses the "
                "GPU with the least memory"
            ),
        ),
        (
            gpus_with(processes=HELD),
            (
                "GPU 1 is in use by python3 (464); a process (7): the plan uses the memory that is "
                "free now"
            ),
        ),
        (
            machine(replace(gpu(0), shares_host_memory=True)),
            (
                "the GPU and the host share their memory: the budget of both is what the host has "
                "available"
            ),
        ),
        (
            machine(replace(gpu(1), mig_slice=0)),
            "GPU 1:0 is a MIG slice: a process can use only one, so a node has one rank",
        ),
        (
            replace(
                machine(*(replace(gpu(1), mig_slice=place, nvlinks=None) for place in range(2))),
                links=(),
            ),
            "MIG slices have no links, and exchange data through the host",
        ),
        (
            gpus_with(fabric_ready=False),
            (
                "Fabric Manager is not ready for GPU 1: NVSwitch does not work, and CUDA may fail to "
                "start (error 802); see `systemctl status nvidia-fabricmanager`"
            ),
        ),
        (
            machine(gpu(0), *(replace(gpu(index), nvlinks=16) for index in (1, 2))),
            "16 of 18 NVLinks are active on GPU 1, 2",
        ),
        (
            machine(
                replace(gpu(0), expected_nvlinks=None),
                replace(gpu(1), expected_nvlinks=None, nvlinks=16),
            ),
            "16 of 18 NVLinks are active on GPU 1",
        ),
        (
            machine(*(replace(gpu(index), nvlinks=16) for index in range(2))),
            "16 of 18 NVLinks are active on GPU 0, 1",
        ),
        (
            machine(*CLEAN.gpus, nvlinks=0, p2p="CNS"),
            f"{NO_P2P} (CNS: the chipset does not support it): NCCL copies through the host",
        ),
        (
            machine(*CLEAN.gpus, nvlinks=0, p2p="GNS"),
            f"{NO_P2P} (GNS: the GPUs do not support it): NCCL copies through the host",
        ),
        (
            gpus_with(pcie=replace(SLOT, current_lanes=8)),
            "GPU 1 uses 8 of its 16 PCIe lanes",
        ),
        (
            gpus_with(pcie=replace(SLOT, upstream_bytes_per_s=7_880_000_000)),
            "GPU 1 is behind a PCIe bridge that is narrower than its slot",
        ),
        (
            replace(CLEAN, allocation=JobAllocation(scheduler="SLURM", gpus_per_node=8)),
            "SLURM gave the job 8 GPUs per node, but this plan is for 3",
        ),
        (
            replace(CLEAN, nodes=2),
            "zerowiz does not use network adapter `mlx5_1`: port 1 is DOWN",
        ),
        (
            replace(CLEAN, nodes=2, network=Network(nics=(DOWN, DOWN))),
            "zerowiz does not use network adapter `mlx5_1`: port 1 is DOWN",
        ),
    ],
)
def test_what_a_person_should_know_is_one_sentence(warned: Machine, expected: str) -> None:
    assert (expected,) == find_warnings(warned)
    noted = warned.with_notes(expected)
    assert noted == noted.with_notes(*find_warnings(noted))
