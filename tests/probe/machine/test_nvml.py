import os
import signal
import time
from collections.abc import Callable
from types import ModuleType

import pynvml
import pytest
from recorded import (
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_SUPPORTED,
    FileAnswers,
    Install,
    RecordedFiles,
    Recording,
    Replay,
    library,
    play,
    recording,
    without,
)

from zerowiz.core.machine.interconnect import without_peer_to_peer
from zerowiz.core.machine.types import GpuProcess, LinkClass, MachineSource, PcieSlot
from zerowiz.core.machine.warnings import find_warnings
from zerowiz.core.settings import OTHER_SETTINGS
from zerowiz.core.structs import replace
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.host_files import CALL_TIMEOUT_S, World
from zerowiz.probe.machine import nvml_calls
from zerowiz.probe.machine.nvml_calls import Unavailable
from zerowiz.probe.machine.nvml_child import Announce, DriverFailedError, read_in_child

# The process that reads the driver gets its time for each call, and nobody waits for its end.

FILES = RecordedFiles(answers=FileAnswers())
HERE = World(files=FILES, environ={}, call_timeout_s=1)


def test_the_time_is_that_of_one_call() -> None:
    def read(_world: World, announce: Announce) -> int:
        for gpu in range(3):
            announce(f"nvmlDeviceGetName(gpu{gpu})")
            time.sleep(0.6)
            announce("")
        return 7

    assert 7 == read_in_child(HERE, read)


def test_nobody_waits_for_a_process_that_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = []

    def read(_world: World, announce: Announce) -> None:
        announce("nvmlDeviceGetName(gpu0)")
        time.sleep(60)

    # As a process that sleeps in the kernel takes it.
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda pid, _signal: killed.append(pid))
        began = time.monotonic()
        with pytest.raises(DriverFailedError, match="GPU 0 did not answer: `nvmlDeviceGetName`"):
            read_in_child(HERE, read)
        assert time.monotonic() - began < 10
    [pid] = killed
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_time_that_a_call_has_is_that_of_the_help() -> None:
    assert OTHER_SETTINGS["probe_timeout"].default == f"{CALL_TIMEOUT_S:g}"
    assert 30 == World(files=FILES, environ={}).call_timeout_s


GEN5_X16_BYTES_PER_S = 63_008_000_000
NVSWITCH_H200_BYTES_PER_S = 450_000_000_000

UNKNOWN_ERROR = 999
UNSEEN_ULONGLONG = 2**64 - 1


def answer(content: Recording, call: str, value: object) -> Recording:
    """The recording in which this call gives this value."""
    content["nvml"][call] = {"ok": value}
    return content


def refuse(content: Recording, call: str, code: int) -> Recording:
    """The recording in which this call fails."""
    content["nvml"][call] = {"err": code}
    return content


def unplug_nvlink(content: Recording, *indices: int) -> Recording:
    for index in indices:
        refuse(content, f"nvmlDeviceGetFieldValues(gpu{index}, 91, 0)", NOT_SUPPORTED)
    return content


def wire_directly(content: Recording, wires: dict[tuple[int, int], int]) -> Recording:
    """Replace all NVLinks by straight ones, so many for each pair."""
    nvml = content["nvml"]
    count = nvml["nvmlDeviceGetCount_v2()"]["ok"]
    buses = [nvml[f"nvmlDeviceGetPciInfo_v3(gpu{index})"]["ok"]["busId"] for index in range(count)]
    ends: dict[int, list[str]] = {index: [] for index in range(count)}
    for (one, other), links in wires.items():
        ends[one] += [buses[other]] * links
        ends[other] += [buses[one]] * links
    for index, remotes in ends.items():
        for link in range(18):
            bus_id = remotes[link] if link < len(remotes) else ""
            answer(content, f"nvmlDeviceGetFieldValues(gpu{index}, 165, {link})", int(bool(bus_id)))
            answer(content, f"nvmlDeviceGetNvLinkRemoteDeviceType(gpu{index}, {link})", 0)
            call = f"nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu{index}, {link})"
            answer(content, call, {"busId": bus_id})
    return content


def lose(content: Recording, index: int, code: int = GPU_IS_LOST) -> Recording:
    return refuse(content, f"nvmlDeviceGetHandleByIndex_v2({index})", code)


@pytest.mark.parametrize(("name", "count"), [("h200-x2", 2), ("h200-x4", 4)])
def test_h200_behind_nvswitches_are_nvlinked_all_to_all(name: str, count: int) -> None:
    machine = play(recording(name))
    assert list(range(count)) == [gpu.index for gpu in machine.gpus]
    assert LinkClass.NVLINK_ALL is machine.interconnect.link_class
    assert NVSWITCH_H200_BYTES_PER_S == machine.interconnect.bytes_per_s
    assert () == find_warnings(machine)


def test_a_lone_gpu_has_no_link_and_all_its_facts() -> None:
    machine = play(recording("h200-x1"))
    [gpu] = machine.gpus
    assert MachineSource.NVML is machine.source
    assert LinkClass.NONE is machine.interconnect.link_class
    assert ("580.159.04", (13, 0)) == (machine.driver_version, machine.cuda_version)
    assert (0, 0, "0") == (gpu.index, gpu.ordinal, gpu.label)
    assert "NVIDIA H200" == gpu.name
    assert "GPU-" == (gpu.uuid or "")[:4]
    assert (9, 0) == gpu.compute_capability
    assert "00000000:00:06.0" == gpu.bus_id
    assert (150754820096, 644939776) == (gpu.total_bytes, gpu.reserved_bytes)
    assert 150109880320 == gpu.free_bytes
    assert "nvmlDeviceGetMemoryInfo_v2" == gpu.memory_source
    slot = PcieSlot(max_generation=5, current_generation=5, max_lanes=16, current_lanes=16)
    assert slot == gpu.pcie
    assert (0, True, False, ()) == (gpu.nvlinks, gpu.ecc, gpu.mig_mode, gpu.processes)
    assert (None, False) == (gpu.clique, gpu.shares_host_memory)


def test_what_another_process_holds_is_not_free() -> None:
    idle, busy = play(recording("h200-x1")), play(recording("h200-x1-busy"))
    assert idle.total_bytes == busy.total_bytes
    assert 128082640896 == busy.free_bytes


def test_a_process_whose_memory_the_driver_does_not_tell_is_named_still() -> None:
    call = "nvmlDeviceGetComputeRunningProcesses_v3(gpu0)"
    wsl = answer(recording("h200-x1-busy"), call, [{"pid": 7, "usedGpuMemory": UNSEEN_ULONGLONG}])
    [process] = play(wsl).gpus[0].processes
    assert (7, None, None) == (process.pid, process.used_bytes, process.name)


def test_a_driver_without_memory_v2_answers_the_same_from_v1() -> None:
    older = without(recording("h200-x1"), "nvmlDeviceGetMemoryInfo_v2")
    sizes = {"total": 150754820096, "free": 150109880320, "used": 644939776}
    answer(older, "nvmlDeviceGetMemoryInfo(gpu0)", sizes)
    [gpu], [newer] = play(older).gpus, play(recording("h200-x1")).gpus
    told = replace(newer, reserved_bytes=None, memory_source="nvmlDeviceGetMemoryInfo")
    assert told == gpu


@pytest.mark.parametrize("of_zero", [False, True])
def test_a_gpu_without_memory_of_its_own_has_what_the_host_has_available(of_zero: bool) -> None:
    content = recording("synthetic/gb10")
    if of_zero:
        answer(content, "nvmlDeviceGetMemoryInfo_v2(gpu0)", {"total": 0})
    machine = play(content)
    [gpu] = machine.gpus
    assert gpu.shares_host_memory
    assert (machine.host.total_bytes, machine.host.available_bytes) == (
        gpu.total_bytes,
        gpu.free_bytes,
    )
    assert "host, MemAvailable" == gpu.memory_source


def test_memory_that_neither_nvml_nor_the_host_tells_is_unknown() -> None:
    content = recording("synthetic/gb10")
    content["files"] = {}
    machine = play(content)
    assert (None, None) == (machine.total_bytes, machine.free_bytes)


def test_memory_of_an_unknown_error_is_not_the_hosts() -> None:
    content = without(recording("h200-x1"), "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")
    [gpu] = play(content).gpus
    assert (None, None, False) == (gpu.total_bytes, gpu.free_bytes, gpu.shares_host_memory)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (GPU_IS_LOST, "the driver has lost it (see `dmesg` for `Xid`)"),
        (NO_PERMISSION, "no permission to open it"),
        (16, "it has to be reset"),
        (UNKNOWN_ERROR, "NVML returned `NVMLError_Unknown`"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_left_out_and_named(code: int, why: str) -> None:
    machine = play(lose(recording("h200-x4"), 1, code))
    assert [0, 2, 3] == [gpu.index for gpu in machine.gpus]
    assert [0, 1, 2] == [gpu.ordinal for gpu in machine.gpus]
    assert f"zerowiz does not use GPU 1: {why}" == find_warnings(machine)[0]


def test_a_gpu_lost_after_its_handle_is_left_out_too() -> None:
    content = without(recording("h200-x2"), "nvmlDeviceGetMemoryInfo")
    refuse(content, "nvmlDeviceGetMemoryInfo_v2(gpu0)", GPU_IS_LOST)
    refuse(content, "nvmlDeviceGetMemoryInfo(gpu0)", GPU_IS_LOST)
    assert [1] == [gpu.index for gpu in play(content).gpus]


def lost_later(content: Recording, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """GPU 2 answers until the links are read."""
    refuse(content, "nvmlDeviceGetP2PStatus(gpu1, gpu2, 2)", GPU_IS_LOST)
    asked = []

    def memory(nvml: ModuleType, gpu: object) -> object:
        asked.append(gpu)
        if len(asked) == 7:  # four when they are listed, and the third again
            raise pynvml.NVMLError(GPU_IS_LOST)
        return real(nvml, gpu)

    real = nvml_calls.memory_v2
    monkeypatch.setattr(nvml_calls, "memory_v2", memory)
    refuse(content, "nvmlDeviceGetMemoryInfo(gpu2)", GPU_IS_LOST)
    return content


def test_a_gpu_that_is_lost_as_its_links_are_read_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = play(lost_later(recording("h200-x4"), monkeypatch))
    assert [(0, 0), (1, 1), (3, 2)] == [(gpu.index, gpu.ordinal) for gpu in machine.gpus]
    assert [2] == [gpu.index for gpu in machine.left_out]
    assert all(2 not in link.pair for link in machine.links)


def test_a_gpu_with_more_free_memory_than_it_has_is_left_out_and_named() -> None:
    sizes = {"total": 2**30, "free": 2**31, "reserved": 0}
    machine = play(answer(recording("h200-x4"), "nvmlDeviceGetMemoryInfo_v2(gpu1)", sizes))
    assert [(0, 0), (2, 2), (3, 3)] == [(gpu.index, gpu.ordinal) for gpu in machine.gpus]
    [warning, *_] = find_warnings(machine)
    assert "zerowiz does not use GPU 1: NVML returned that 2147483648 of 1073741824" in warning


@pytest.mark.parametrize("of_zero", [False, True])
@pytest.mark.parametrize("name", ["h200-x4", "h200-x1"])
def test_a_board_that_reports_no_memory_does_not_get_the_hosts(name: str, of_zero: bool) -> None:
    content = recording(name)
    v2, v1 = "nvmlDeviceGetMemoryInfo_v2(gpu0)", "nvmlDeviceGetMemoryInfo(gpu0)"
    for call in (v2, v1):
        if of_zero:
            answer(content, call, {"total": 0})
        else:
            refuse(content, call, NOT_SUPPORTED)
    why = "zerowiz does not use GPU 0: NVML does not report how much memory it has"
    if name == "h200-x1":
        with pytest.raises(PreflightError) as caught:
            play(content)
        assert why in caught.value.hints
        return
    machine = play(content)
    assert [1, 2, 3] == [gpu.index for gpu in machine.gpus]
    assert not machine.lives_on_host
    assert why in find_warnings(machine)


def test_a_gpu_in_mig_mode_without_slices_is_left_out() -> None:
    machine = play(answer(recording("h200-x2"), "nvmlDeviceGetMigMode(gpu1)", [1, 1]))
    assert [0] == [gpu.index for gpu in machine.gpus]
    [left_out] = machine.left_out
    assert 1 == left_out.index
    assert "nvidia-smi mig --help" in left_out.why


def test_a_gpu_in_mig_mode_without_slices_keeps_its_ordinal() -> None:
    machine = play(answer(recording("h200-x2"), "nvmlDeviceGetMigMode(gpu0)", [1, 1]))
    assert [(1, 1)] == [(gpu.index, gpu.ordinal) for gpu in machine.gpus]


def test_the_numbers_of_slices_may_have_gaps() -> None:
    content = refuse(
        recording("synthetic/a100-mig"), "nvmlDeviceGetMigDeviceHandleByIndex(gpu1, 1)", 6
    )
    assert ["1:0", "1:2"] == [gpu.label for gpu in play(content, gpus="1:0,1:2").gpus]
    with pytest.raises(UsageError, match="no usable GPU 1:1"):
        play(content, gpus="1:1")


def test_a_driver_without_slice_handles_has_no_slices() -> None:
    content = without(recording("synthetic/a100-mig"), "nvmlDeviceGetMigDeviceHandleByIndex")
    answer(content, "nvmlDeviceGetMaxMigDeviceCount(gpu1)", 2**32 - 1)
    machine = play(content)
    assert [1] == [gpu.index for gpu in machine.left_out]


def test_no_usable_gpu_at_all_is_one_error_with_every_reason() -> None:
    content = lose(lose(recording("h200-x2"), 0), 1, NO_PERMISSION)
    with pytest.raises(PreflightError) as caught:
        play(content)
    assert "this machine has no usable GPU" == caught.value.message
    assert "zerowiz does not use GPU 1: no permission to open it" in caught.value.hints
    assert any("`zerowiz plan --machine 8xH100-80GB`" in hint for hint in caught.value.hints)


def test_gpus_that_cannot_be_counted_are_an_error() -> None:
    with pytest.raises(PreflightError, match="NVMLError_FunctionNotFound"):
        play(without(recording("h200-x2"), "nvmlDeviceGetCount_v2"))


def test_gpus_of_the_flag_come_in_its_order() -> None:
    assert [3, 0] == [gpu.index for gpu in play(recording("h200-x4"), gpus="3,0").gpus]


def test_cuda_visible_devices_hides_gpus() -> None:
    machine = play(recording("h200-x4"), environ={"CUDA_VISIBLE_DEVICES": "2,1"})
    assert [2, 1] == [gpu.index for gpu in machine.gpus]
    assert (1, 2) == machine.interconnect.weakest_pair


@pytest.mark.parametrize("value", ["", "-1", "9", "0,0", "GPU-none"])
def test_cuda_visible_devices_that_hides_every_gpu_is_an_error(value: str) -> None:
    with pytest.raises(PreflightError, match="CUDA_VISIBLE_DEVICES"):
        play(recording("h200-x4"), environ={"CUDA_VISIBLE_DEVICES": value})


def test_ordinals_of_cuda_visible_devices_pass_over_a_lost_gpu() -> None:
    content = lose(recording("h200-x4"), 1)
    machine = play(content, environ={"CUDA_VISIBLE_DEVICES": "1"})
    assert [2] == [gpu.index for gpu in machine.gpus]


def test_one_chosen_gpu_of_many_has_no_link() -> None:
    assert LinkClass.NONE is play(recording("h200-x4"), gpus="2").interconnect.link_class


def test_gpus_without_nvlink_reach_each_other_by_their_pcie_slots() -> None:
    machine = play(unplug_nvlink(recording("h200-x4"), 0, 1, 2, 3))
    assert LinkClass.PCIE is machine.interconnect.link_class
    assert GEN5_X16_BYTES_PER_S == machine.interconnect.bytes_per_s
    assert {"PHB"} == {link.word for link in machine.links}


def test_an_idle_slot_that_clocked_down_still_counts_at_its_best_generation() -> None:
    content = unplug_nvlink(recording("h200-x2"), 0, 1)
    for index in (0, 1):
        answer(content, f"nvmlDeviceGetCurrPcieLinkGeneration(gpu{index})", 1)
    assert GEN5_X16_BYTES_PER_S == play(content).interconnect.bytes_per_s


def test_a_slot_with_fewer_lanes_than_the_gpu_is_slower_and_noted() -> None:
    content = unplug_nvlink(recording("h200-x2"), 0, 1)
    machine = play(answer(content, "nvmlDeviceGetCurrPcieLinkWidth(gpu1)", 4))
    assert GEN5_X16_BYTES_PER_S // 4 == machine.interconnect.bytes_per_s
    assert "GPU 1 uses 4 of its 16 PCIe lanes" in find_warnings(machine)


def test_one_gpu_off_the_nvlink_makes_it_partial_and_is_named() -> None:
    machine = play(unplug_nvlink(recording("h200-x4"), 2))
    assert LinkClass.NVLINK_PARTIAL is machine.interconnect.link_class
    assert GEN5_X16_BYTES_PER_S == machine.interconnect.bytes_per_s
    assert (0, 2) == machine.interconnect.weakest_pair
    assert ("0 of 18 NVLinks are active on GPU 2",) == find_warnings(machine)
    rest = play(unplug_nvlink(recording("h200-x4"), 2), gpus="0,1,3")
    assert LinkClass.NVLINK_ALL is rest.interconnect.link_class


def test_rings_go_around_a_pair_that_the_switch_does_not_join() -> None:
    machine = play(answer(recording("h200-x4"), "nvmlDeviceGetP2PStatus(gpu1, gpu3, 2)", 5))
    assert LinkClass.NVLINK_RING is machine.interconnect.link_class
    assert NVSWITCH_H200_BYTES_PER_S == machine.interconnect.bytes_per_s
    assert (1, 3) == machine.interconnect.weakest_pair


@pytest.mark.parametrize(
    ("environ", "off"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, True),
        ({"NCCL_P2P_DISABLE": "0"}, False),
        ({"NCCL_P2P_LEVEL": "LOC"}, True),
        ({"NCCL_P2P_LEVEL": "0"}, True),
        ({"NCCL_P2P_LEVEL": "NVL"}, False),
        ({"NCCL_P2P_LEVEL": "1"}, False),
    ],
)
def test_peer_to_peer_that_a_person_switched_off_takes_nvlink_along(
    environ: dict[str, str], *, off: bool
) -> None:
    machine = play(recording("h200-x4"), environ=environ, gpus="0,1,2")
    expected = LinkClass.PCIE if off else LinkClass.NVLINK_ALL
    assert expected is machine.interconnect.link_class
    [(name, value)] = environ.items()
    note = f"`{name}={value}` is set: NCCL does not use NVLink, and copies through the host"
    assert ((note,) if off else ()) == machine.notes
    if off:
        assert GEN5_X16_BYTES_PER_S == machine.interconnect.bytes_per_s


def test_a_machine_without_peer_to_peer_is_the_one_that_is_read_so() -> None:
    machine = play(recording("h200-x4"))
    off = play(recording("h200-x4"), environ={"NCCL_P2P_DISABLE": "1"})
    planned = without_peer_to_peer(machine)
    assert (off.links, off.interconnect) == (planned.links, planned.interconnect)


def test_two_bridged_islands_are_partial() -> None:
    machine = play(wire_directly(recording("h200-x4"), {(0, 1): 4, (2, 3): 4}))
    assert LinkClass.NVLINK_PARTIAL is machine.interconnect.link_class
    assert (0, 2) == machine.interconnect.weakest_pair


def test_a_direct_mesh_counts_the_links_that_its_rings_can_use() -> None:
    pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    wires = {pair: 2 if pair == (1, 2) else 4 for pair in pairs}
    machine = play(wire_directly(recording("h200-x4"), wires))
    assert LinkClass.NVLINK_ALL is machine.interconnect.link_class
    # Ten links end at GPU 1 and at GPU 2.
    assert (250_000_000_000, (1, 2)) == (
        machine.interconnect.bytes_per_s,
        machine.interconnect.weakest_pair,
    )


def test_links_that_are_present_but_inactive_do_not_count() -> None:
    content = recording("h200-x2")
    for link in range(4, 10):
        answer(content, f"nvmlDeviceGetFieldValues(gpu0, 165, {link})", 0)
    machine = play(content)
    assert [12, 18] == [gpu.nvlinks for gpu in machine.gpus]
    assert NVSWITCH_H200_BYTES_PER_S * 12 // 18 == machine.interconnect.bytes_per_s


def test_links_that_peers_may_not_use_do_not_count() -> None:
    content = answer(recording("h200-x2"), "nvmlDeviceGetNvLinkCapability(gpu1, 3, 0)", 0)
    assert [18, 17] == [gpu.nvlinks for gpu in play(content).gpus]


@pytest.mark.parametrize("present", [18, 36])
def test_a_link_that_is_not_there_ends_the_walk(present: int) -> None:
    content = answer(recording("h200-x2"), "nvmlDeviceGetFieldValues(gpu0, 91, 0)", present)
    refuse(content, "nvmlDeviceGetFieldValues(gpu0, 165, 18)", INVALID_ARGUMENT)
    refuse(content, "nvmlDeviceGetNvLinkState(gpu0, 18)", INVALID_ARGUMENT)
    assert 18 == play(content).gpus[0].nvlinks


def test_nvlinks_of_a_gpu_of_unknown_generation_go_at_the_raw_rate_of_the_driver() -> None:
    content = without(recording("h200-x2"), "nvmlDeviceGetCudaComputeCapability")
    machine = play(content)
    assert machine.compute_capability is None
    assert (LinkClass.NVLINK_ALL, 18 * 26_562_000_000) == (
        machine.interconnect.link_class,
        machine.interconnect.bytes_per_s,
    )


def test_nvlinks_of_which_nobody_knows_the_rate_have_none() -> None:
    content = without(recording("h200-x2"), "nvmlDeviceGetCudaComputeCapability")
    for index in (0, 1):
        refuse(content, f"nvmlDeviceGetFieldValues(gpu{index}, 164, 0)", NOT_SUPPORTED)
    machine = play(content)
    assert (LinkClass.NVLINK_ALL, None) == (
        machine.interconnect.link_class,
        machine.interconnect.bytes_per_s,
    )


def test_an_older_pynvml_without_the_fabric_struct_reads_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = play(recording("h200-x2"))
    monkeypatch.delattr(pynvml, "c_nvmlGpuFabricInfo_v2_t")
    assert expected == play(recording("h200-x2"))


def test_an_older_pynvml_without_the_mismatch_error_reads_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = play(recording("h200-x2"))
    monkeypatch.delattr(pynvml, "NVMLLibraryMismatchError")
    assert expected == play(recording("h200-x2"))


def test_an_untrained_fabric_carries_nothing_and_is_noted() -> None:
    content = recording("h200-x2")
    for index in (0, 1):
        answer(content, f"nvmlDeviceGetGpuFabricInfoV(gpu{index})", {"state": 2})
    machine = play(content)
    assert LinkClass.PCIE is machine.interconnect.link_class
    assert "nvidia-fabricmanager" in find_warnings(machine)[0]


def test_gpus_of_one_nvlink_domain_share_a_clique() -> None:
    content = recording("h200-x2")
    domain = {"clusterUuid": list(range(16)), "cliqueId": 32766, "state": 3}
    answer(content, "nvmlDeviceGetGpuFabricInfoV(gpu0)", domain)
    machine = play(content)
    cliques = [gpu.clique for gpu in machine.gpus]
    assert ["000102030405060708090a0b0c0d0e0f.32766", None] == cliques
    answer(content, "nvmlDeviceGetGpuFabricInfoV(gpu1)", domain)
    assert cliques[0] == play(content).clique


def test_links_that_nvml_cannot_tell_are_unknown_not_pcie() -> None:
    content = without(recording("h200-x2"), "nvmlDeviceGetFieldValues", "nvmlDeviceGetNvLinkState")
    machine = play(content)
    assert LinkClass.UNKNOWN is machine.interconnect.link_class
    assert machine.interconnect.bytes_per_s is None
    assert [None, None] == [gpu.nvlinks for gpu in machine.gpus]


def test_a_driver_without_field_values_is_asked_link_by_link() -> None:
    content = without(recording("h200-x4"), "nvmlDeviceGetFieldValues")
    for index in range(4):
        for link in range(18):
            answer(content, f"nvmlDeviceGetNvLinkState(gpu{index}, {link})", 1)
        refuse(content, f"nvmlDeviceGetNvLinkState(gpu{index}, 18)", INVALID_ARGUMENT)
    assert NVSWITCH_H200_BYTES_PER_S == play(content).interconnect.bytes_per_s


def test_a_card_without_nvlink_on_such_a_driver_is_pcie_not_unknown() -> None:
    content = without(recording("h200-x2"), "nvmlDeviceGetFieldValues")
    for index in (0, 1):
        for link in range(36):
            refuse(content, f"nvmlDeviceGetNvLinkState(gpu{index}, {link})", NOT_SUPPORTED)
    assert LinkClass.PCIE is play(content).interconnect.link_class


def test_far_ends_of_which_only_the_address_is_told_are_switches_where_they_are_no_gpu() -> None:
    content = without(recording("synthetic/a100-r450"), "nvmlDeviceGetNvLinkRemoteDeviceType")
    assert {"NV12"} == {link.word for link in play(content).links}


def test_a_pair_is_peer_to_peer_when_both_reads_and_writes_are() -> None:
    content = answer(recording("h200-x2"), "nvmlDeviceGetP2PStatus(gpu0, gpu1, 1)", 4)
    assert ["DR"] == [link.p2p for link in play(content).links]
    answer(content, "nvmlDeviceGetP2PStatus(gpu0, gpu1, 1)", 77)
    assert ["U"] == [link.p2p for link in play(content).links]
    refuse(content, "nvmlDeviceGetP2PStatus(gpu0, gpu1, 1)", NOT_SUPPORTED)
    assert [None] == [link.p2p for link in play(content).links]


KEPT_BY_ALL = {
    "nvmlInitWithFlags",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetFieldValues",
}
SYMBOLS = sorted({call.partition("(")[0] for call in recording("h200-x4")["nvml"]} - KEPT_BY_ALL)


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_one_missing_function_never_loses_the_gpus(symbol: str) -> None:
    machine = play(without(recording("h200-x4"), symbol))
    assert 4 == len(machine.gpus)
    assert LinkClass.NVLINK_ALL is machine.interconnect.link_class


def test_a_name_that_is_no_text_does_not_stop_the_reading() -> None:
    text = b"H\xff200".decode("utf-8", "surrogateescape")
    content = answer(recording("h200-x1"), "nvmlDeviceGetName(gpu0)", text)
    assert "unknown GPU" == play(content).gpus[0].name


def test_an_address_that_is_no_text_is_unknown() -> None:
    info = {"busId": b"00\xff".decode("utf-8", "surrogateescape")}
    content = answer(recording("h200-x1"), "nvmlDeviceGetPciInfo_v3(gpu0)", info)
    assert play(content).gpus[0].bus_id is None


def test_mixed_models_behind_ordinals_are_noted() -> None:
    content = recording("h200-x2")
    answer(content, "nvmlDeviceGetName(gpu1)", "NVIDIA A100-SXM4-80GB")
    ordinals = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert "PCI_BUS_ID" in play(content, environ=ordinals).notes[0]
    ordered = {**ordinals, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert () == play(content, environ=ordered).notes


def test_the_gpu_table_says_how_many_nvlinks_there_should_be() -> None:
    assert [18, 18] == [gpu.expected_nvlinks for gpu in play(recording("h200-x2")).gpus]


# NVML's answers become values: each is one, or an Unavailable.

ONE_GPU = {
    "nvmlInitWithFlags(0)": {"ok": None},
    "nvmlDeviceGetHandleByIndex_v2(0)": {"ok": "gpu0"},
}


def ask(read: Callable[..., object], *args: object) -> object:
    """What the driver in place answers for its first GPU."""
    with nvml_calls.open_session(lambda _call: None) as session:
        return session.ask(read, session.ask(nvml_calls.handle, 0), *args)


def test_pynvml_still_has_the_two_private_names_that_a_reading_leans_on() -> None:
    assert hasattr(pynvml, "nvmlLib")
    assert dict is type(pynvml._nvmlGetFunctionPointer_cache)


def test_a_list_of_processes_comes_back(driver: Install) -> None:
    found = [{"pid": 100 + place, "usedGpuMemory": 2**40 + place} for place in range(7)]
    call = "nvmlDeviceGetComputeRunningProcesses_v3(gpu0)"
    driver(Replay({**ONE_GPU, call: {"ok": found}}))
    expected = tuple(GpuProcess(pid=p["pid"], used_bytes=p["usedGpuMemory"]) for p in found)
    assert expected == ask(nvml_calls.processes)


@pytest.mark.parametrize("number", [2**64 - 1, -5])
def test_a_field_value_names_its_member_of_the_union(number: int, driver: Install) -> None:
    driver(Replay({**ONE_GPU, "nvmlDeviceGetFieldValues(gpu0, 91, 4)": {"ok": number}}))
    assert number == ask(nvml_calls.read_field, 91, 4)


def test_a_field_value_has_a_return_code_of_its_own(driver: Install) -> None:
    driver(Replay({**ONE_GPU, "nvmlDeviceGetFieldValues(gpu0, 91, 0)": {"err": NOT_SUPPORTED}}))
    why = Unavailable(code=NOT_SUPPORTED, name="NVMLError_NotSupported")
    assert why == ask(nvml_calls.read_field, 91, 0)


@pytest.mark.parametrize(
    ("read", "call", "value"),
    [
        (nvml_calls.name, "nvmlDeviceGetName(gpu0)", "H\udcff200"),
        (nvml_calls.bus_id, "nvmlDeviceGetPciInfo_v3(gpu0)", {"busId": "00\udcff"}),
    ],
)
def test_bytes_that_are_no_text_are_no_value(
    read: Callable[..., str], call: str, value: object, driver: Install
) -> None:
    driver(Replay({**ONE_GPU, call: {"ok": value}}))
    assert Unavailable(code=None, name="UnicodeDecodeError") == ask(read)


@pytest.mark.parametrize(
    ("read", "symbol", "code"),
    [
        (nvml_calls.uuid, "nvmlDeviceGetUUID", 13),
        (nvml_calls.memory_v2, "nvmlDeviceGetMemoryInfo_v2", 13),
        # pynvml makes an error without a code of it there: NVMLLibraryMismatchError.
        (nvml_calls.processes, "nvmlDeviceGetComputeRunningProcesses_v3", None),
    ],
)
def test_a_function_that_the_driver_lacks_is_not_found(
    read: Callable[..., object], symbol: str, code: int | None, driver: Install
) -> None:
    class Older(Replay):
        """A driver without that C function."""

        def __getattr__(self, asked: str) -> Callable[..., int]:
            """As ctypes would find it."""
            if asked == symbol:
                raise AttributeError(asked)
            return super().__getattr__(asked)

    driver(Older(ONE_GPU))
    answer = ask(read)
    assert isinstance(answer, Unavailable)
    assert code == answer.code


def test_a_session_leaves_pynvml_as_it_was(driver: Install) -> None:
    table = Replay(ONE_GPU)
    driver(table)
    pynvml._nvmlGetFunctionPointer_cache.update(nvmlShutdown="a pointer")
    with nvml_calls.open_session(lambda _call: None) as session:
        assert session.nvml.nvmlLib is not table
    assert table is pynvml.nvmlLib
    assert "nvmlShutdown" in pynvml._nvmlGetFunctionPointer_cache


def test_each_call_is_named_before_it_is_made(driver: Install) -> None:
    driver(library("synthetic/a100-mig"))
    heard: list[str] = []
    with nvml_calls.open_session(heard.append) as session:
        gpu = session.ask(nvml_calls.handle, 1)
        part = session.ask(nvml_calls.slice_handle, gpu, 2)
        session.ask(nvml_calls.memory_v2, part)
    assert [
        "nvmlDeviceGetHandleByIndex_v2(1)",
        "nvmlDeviceGetMigDeviceHandleByIndex(gpu1, 2)",
        "nvmlDeviceGetMemoryInfo_v2(gpu1.mig2)",
    ] == [call for call in heard if call]
