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


def test_a_clean_machine_has_none() -> None:
    assert () == find_warnings(CLEAN)


def test_a_lone_clean_gpu_has_none() -> None:
    assert () == find_warnings(machine(gpu(0)))


def test_a_machine_of_which_little_is_known_has_none() -> None:
    gpus = tuple(Gpu(index=index, name="mine") for index in range(2))
    assert () == find_warnings(Machine(source=MachineSource.FILE, gpus=gpus))


def test_a_gpu_that_is_left_out_is_named_with_the_reason() -> None:
    lost = replace(CLEAN, left_out=(LeftOutGpu(index=3, why="the driver has lost it"),))
    assert ("zerowiz does not use GPU 3: the driver has lost it",) == find_warnings(lost)


def test_a_gpu_unlike_most_is_named() -> None:
    odd = with_gpu(replace(gpu(1), name="NVIDIA H100"))
    expected = (
        "GPU 1 is not like the others (`NVIDIA H100`, not `NVIDIA H200`): the plan uses the GPU with the"
        " least memory"
    )
    assert (expected,) == find_warnings(odd)


def test_a_busy_gpu_is_named_with_who_holds_it() -> None:
    held = (GpuProcess(pid=464, name="python3"), GpuProcess(pid=7))
    expected = (
        "GPU 2 is in use by python3 (464); a process (7): the plan uses the memory that is free now"
    )
    assert (expected,) == find_warnings(with_gpu(replace(gpu(2), processes=held)))


def test_memory_shared_with_the_host_is_one_budget() -> None:
    [warning] = find_warnings(machine(replace(gpu(0), shares_host_memory=True)))
    assert warning.startswith("the GPU and the host share their memory")


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_slice_is_one_rank_of_a_node(nodes: int) -> None:
    sliced = replace(machine(replace(gpu(1), mig_slice=0)), nodes=nodes)
    expected = "GPU 1:0 is a MIG slice: a process can use only one, so a node has one rank"
    assert expected in find_warnings(sliced)


def test_slices_have_no_links() -> None:
    sliced = machine(*(replace(gpu(1), mig_slice=place, nvlinks=None) for place in range(2)))
    assert ("MIG slices have no links, and exchange data through the host",) == find_warnings(
        replace(sliced, links=())
    )


def test_switches_that_nobody_trained_are_named_with_what_trains_them() -> None:
    [warning] = find_warnings(with_gpu(replace(gpu(1), fabric_ready=False)))
    assert warning.startswith("Fabric Manager is not ready for GPU 1: NVSwitch does not work")


def test_a_lone_gpu_needs_no_switch() -> None:
    assert () == find_warnings(machine(replace(gpu(0), fabric_ready=False, nvlinks=0)))


@pytest.mark.parametrize("expected_nvlinks", [18, None])
def test_a_gpu_with_fewer_nvlinks_than_its_kind_is_named(expected_nvlinks: int | None) -> None:
    gpus = [replace(gpu(index), expected_nvlinks=expected_nvlinks) for index in range(3)]
    weak = machine(gpus[0], replace(gpus[1], nvlinks=16), replace(gpus[2], nvlinks=16))
    assert ("16 of 18 NVLinks are active on GPU 1, 2",) == find_warnings(weak)


def test_a_switch_that_is_down_for_all_shows_against_the_table() -> None:
    weak = machine(*(replace(gpu(index), nvlinks=16) for index in range(2)))
    assert ("16 of 18 NVLinks are active on GPU 0, 1",) == find_warnings(weak)


def test_nvlinks_that_nvml_could_not_count_are_not_missed() -> None:
    assert () == find_warnings(with_gpu(replace(gpu(1), nvlinks=None)))


@pytest.mark.parametrize(
    ("word", "why"),
    [("CNS", "the chipset does not support it"), ("GNS", "the GPUs do not support it")],
)
def test_pairs_without_peer_to_peer_are_counted_with_the_reason(word: str, why: str) -> None:
    expected = (
        f"3 of 3 pairs of GPUs cannot reach each other's memory ({word}: {why}):"
        " NCCL copies through the host"
    )
    assert (expected,) == find_warnings(machine(*CLEAN.gpus, nvlinks=0, p2p=word))


@pytest.mark.parametrize(("nvlinks", "p2p"), [(18, "NS"), (0, None), (0, "OK")])
def test_nothing_is_said_of_pairs_that_reach_each_other_or_of_which_nvml_is_silent(
    nvlinks: int, p2p: str | None
) -> None:
    assert () == find_warnings(machine(*CLEAN.gpus, nvlinks=nvlinks, p2p=p2p))


def test_lanes_that_were_not_negotiated_are_counted() -> None:
    narrow = with_gpu(replace(gpu(1), pcie=replace(SLOT, current_lanes=8)))
    assert ("GPU 1 uses 8 of its 16 PCIe lanes",) == find_warnings(narrow)


def test_a_bridge_narrower_than_the_slot_is_named() -> None:
    behind = with_gpu(replace(gpu(1), pcie=replace(SLOT, upstream_bytes_per_s=7_880_000_000)))
    expected = "GPU 1 is behind a PCIe bridge that is narrower than its slot"
    assert (expected,) == find_warnings(behind)


def test_a_plan_for_fewer_gpus_than_the_scheduler_gave_is_named() -> None:
    bound = replace(CLEAN, allocation=JobAllocation(scheduler="SLURM", gpus_per_node=8))
    assert ("SLURM gave the job 8 GPUs per node, but this plan is for 3",) == find_warnings(bound)


def test_a_scheduler_that_tells_no_gpus_says_nothing() -> None:
    assert () == find_warnings(replace(CLEAN, allocation=JobAllocation(scheduler="SLURM")))


def test_an_adapter_that_is_left_out_matters_between_nodes_alone() -> None:
    expected = "zerowiz does not use network adapter `mlx5_1`: port 1 is DOWN"
    assert (expected,) == find_warnings(replace(CLEAN, nodes=2))


def test_what_two_warnings_say_alike_is_said_once() -> None:
    twice = replace(CLEAN, nodes=2, network=Network(nics=(DOWN, DOWN)))
    assert 1 == len(find_warnings(twice))


def test_a_machine_that_carries_its_warnings_does_not_repeat_them() -> None:
    odd = replace(with_gpu(replace(gpu(1), fabric_ready=False)), nodes=2)
    once = odd.with_notes(*find_warnings(odd))
    assert 2 == len(once.notes)
    assert once == once.with_notes(*find_warnings(once))
