import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

import pynvml
import pytest
from machines.make_synthetic import (
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    Answer,
    err,
    ok,
)
from recorded import (
    FileAnswers,
    Install,
    RecordedFiles,
    Replay,
    facts_of,
    library,
    play,
    recording,
    without,
)

from zerowiz.core.machine.types import (
    Gpu,
    GpuProcess,
    LinkClass,
    Machine,
    MachineSource,
    PcieSlot,
    without_peer_to_peer,
)
from zerowiz.core.machine.warnings import find_warnings
from zerowiz.core.settings import OTHER_SETTINGS
from zerowiz.core.structs import replace
from zerowiz.errors import PreflightError, UsageError, ZerowizError
from zerowiz.probe.files import CALL_TIMEOUT_S, World
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
NO_MEMORY = "zerowiz does not use GPU 0: NVML does not report how much memory it has"
DOMAIN = {"clusterUuid": list(range(16)), "cliqueId": 32766, "state": 3}
CLIQUE = "000102030405060708090a0b0c0d0e0f.32766"

Answers = dict[str, Answer]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A recording in which the driver answers otherwise, and what zerowiz makes of it."""

    name: str = "h200-x4"
    answers: Answers = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    """C functions that the driver lacks."""
    gpus: str | None = None
    environ: dict[str, str] | None = None
    facts: dict[str, object] = field(default_factory=dict)
    """Of `facts_of`."""
    says: tuple[str, ...] = ()
    """What some note or warning, or the error and its hints, hold."""
    error: type[ZerowizError] = ZerowizError

    def play(self) -> Machine:
        content = without(recording(self.name), *self.missing)
        content["nvml"] |= self.answers
        return play(content, gpus=self.gpus, environ=self.environ)


def lost(gpu: int, code: int = GPU_IS_LOST) -> Answers:
    return {f"nvmlDeviceGetHandleByIndex_v2({gpu})": err(code)}


def memory(gpu: int, answer: Answer) -> Answers:
    """Both versions of the call answer so."""
    return {f"nvmlDeviceGetMemoryInfo{version}(gpu{gpu})": answer for version in ("", "_v2")}


def unplugged(*gpus: int) -> Answers:
    return {f"nvmlDeviceGetFieldValues(gpu{gpu}, 91, 0)": err(NOT_SUPPORTED) for gpu in gpus}


def wired(wires: dict[tuple[int, int], int]) -> Answers:
    """Straight NVLinks in place of all others, so many for each pair of `h200-x4`."""
    nvml = recording("h200-x4")["nvml"]
    buses = [nvml[f"nvmlDeviceGetPciInfo_v3(gpu{gpu})"]["ok"]["busId"] for gpu in range(4)]
    answers: Answers = {}
    for gpu in range(4):
        ends = [
            buses[sum(pair) - gpu]
            for pair, links in wires.items()
            if gpu in pair
            for _ in range(links)
        ]
        for link, end in enumerate(ends + [""] * (18 - len(ends))):
            answers |= {
                f"nvmlDeviceGetFieldValues(gpu{gpu}, 165, {link})": ok(int(bool(end))),
                f"nvmlDeviceGetNvLinkRemoteDeviceType(gpu{gpu}, {link})": ok(0),
                f"nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu{gpu}, {link})": ok({"busId": end}),
            }
    return answers


def link_states(gpus: int, links: int, answer: Answer) -> Answers:
    """What a driver without field values tells of so many links of each GPU; there are no more."""
    return {
        f"nvmlDeviceGetNvLinkState(gpu{gpu}, {link})": err(INVALID_ARGUMENT)
        if link == links
        else answer
        for gpu in range(gpus)
        for link in range(links + 1)
    }


def visible(value: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": value}


LEFT_OUT = {
    GPU_IS_LOST: "the driver has lost it (see `dmesg` for `Xid`)",
    NO_PERMISSION: "no permission to open it",
    16: "it has to be reset",
    UNKNOWN_ERROR: "NVML returned `NVMLError_Unknown`",
}
# What a person may set, and whether NCCL then copies through the host.
PEER_TO_PEER = {
    "NCCL_P2P_DISABLE=1": True,
    "NCCL_P2P_DISABLE=0": False,
    "NCCL_P2P_LEVEL=LOC": True,
    "NCCL_P2P_LEVEL=0": True,
    "NCCL_P2P_LEVEL=NVL": False,
    "NCCL_P2P_LEVEL=1": False,
}
NO_NVLINK = "`{}` is set: NCCL does not use NVLink, and copies through the host"
ALL, RING, PARTIAL, PCIE = (
    LinkClass.NVLINK_ALL,
    LinkClass.NVLINK_RING,
    LinkClass.NVLINK_PARTIAL,
    LinkClass.PCIE,
)

ROWS = {
    # Memory.
    "a process whose memory is not told is named still": Row(
        name="h200-x1-busy",
        answers={
            "nvmlDeviceGetComputeRunningProcesses_v3(gpu0)": ok(
                [{"pid": 7, "usedGpuMemory": UNSEEN_ULONGLONG}]
            )
        },
        facts={"processes": [(GpuProcess(pid=7),)]},
    ),
    "a driver without memory v2": Row(
        name="h200-x1",
        missing=("nvmlDeviceGetMemoryInfo_v2",),
        answers={
            "nvmlDeviceGetMemoryInfo(gpu0)": ok(
                {"total": 150754820096, "free": 150109880320, "used": 644939776}
            )
        },
        facts={
            "total_bytes": [150754820096],
            "free_bytes": [150109880320],
            "reserved_bytes": [None],
            "memory_source": ["nvmlDeviceGetMemoryInfo"],
        },
    ),
    "a GPU with no memory of its own has what the host has available": Row(
        name="synthetic/gb10",
        answers={"nvmlDeviceGetMemoryInfo_v2(gpu0)": ok({"total": 0})},
        facts={
            "shares_host_memory": [True],
            "total_bytes": [127600748 * 1024],
            "free_bytes": [118566368 * 1024],
            "memory_source": ["host, MemAvailable"],
        },
    ),
    "memory of an unknown error is not the host's": Row(
        name="h200-x1",
        missing=("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"),
        facts={"total_bytes": [None], "free_bytes": [None], "shares_host_memory": [False]},
    ),
    "more is free than there is": Row(
        answers={
            "nvmlDeviceGetMemoryInfo_v2(gpu1)": ok({"total": 2**30, "free": 2**31, "reserved": 0})
        },
        facts={"index": [0, 2, 3], "ordinal": [0, 2, 3]},
        says=("zerowiz does not use GPU 1: NVML returned that 2147483648 of 1073741824",),
    ),
    **{
        f"a board that reports {what}": Row(
            answers=memory(0, answer),
            facts={"index": [1, 2, 3], "lives_on_host": False},
            says=(NO_MEMORY,),
        )
        for what, answer in {"no memory": err(NOT_SUPPORTED), "0 bytes": ok({"total": 0})}.items()
    },
    # GPUs that are left out, and that are chosen.
    **{
        f"left out: {why}": Row(
            answers=lost(1, code),
            facts={"index": [0, 2, 3], "ordinal": [0, 1, 2]},
            says=(f"zerowiz does not use GPU 1: {why}",),
        )
        for code, why in LEFT_OUT.items()
    },
    "lost after its handle": Row(
        name="h200-x2", answers=memory(0, err(GPU_IS_LOST)), facts={"index": [1]}
    ),
    "in MIG mode without slices": Row(
        name="h200-x2",
        answers={"nvmlDeviceGetMigMode(gpu1)": ok([1, 1])},
        facts={"index": [0], "left_out": [1]},
        says=("nvidia-smi mig --help",),
    ),
    "in MIG mode without slices, it keeps its ordinal": Row(
        name="h200-x2",
        answers={"nvmlDeviceGetMigMode(gpu0)": ok([1, 1])},
        facts={"index": [1], "ordinal": [1]},
    ),
    "the numbers of slices may have gaps": Row(
        name="synthetic/a100-mig",
        answers={"nvmlDeviceGetMigDeviceHandleByIndex(gpu1, 1)": err(NOT_FOUND)},
        gpus="1:0,1:2",
        facts={"label": ["1:0", "1:2"]},
    ),
    "a driver without slice handles has no slices": Row(
        name="synthetic/a100-mig",
        missing=("nvmlDeviceGetMigDeviceHandleByIndex",),
        answers={"nvmlDeviceGetMaxMigDeviceCount(gpu1)": ok(2**32 - 1)},
        facts={"left_out": [1]},
    ),
    "chosen GPUs come in their order": Row(gpus="3,0", facts={"index": [3, 0]}),
    "CUDA_VISIBLE_DEVICES hides GPUs": Row(
        environ=visible("2,1"), facts={"index": [2, 1], "weakest_pair": (1, 2)}
    ),
    "ordinals of CUDA_VISIBLE_DEVICES pass over a lost GPU": Row(
        answers=lost(1), environ=visible("1"), facts={"index": [2]}
    ),
    "one chosen GPU of many has no link": Row(gpus="2", facts={"link_class": LinkClass.NONE}),
    "mixed models behind ordinals": Row(
        name="h200-x2",
        answers={"nvmlDeviceGetName(gpu1)": ok("NVIDIA A100-SXM4-80GB")},
        environ=visible("0,1"),
        says=("PCI_BUS_ID",),
    ),
    "mixed models in the order of their buses": Row(
        name="h200-x2",
        answers={"nvmlDeviceGetName(gpu1)": ok("NVIDIA A100-SXM4-80GB")},
        environ={**visible("0,1"), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        facts={"notes": ()},
    ),
    "a name that is no text": Row(
        name="h200-x1",
        answers={"nvmlDeviceGetName(gpu0)": ok("H\udcff200")},
        facts={"name": ["unknown GPU"]},
    ),
    "an address that is no text": Row(
        name="h200-x1",
        answers={"nvmlDeviceGetPciInfo_v3(gpu0)": ok({"busId": "00\udcff"})},
        facts={"bus_id": [None]},
    ),
    # PCIe.
    "without NVLink, by their slots": Row(
        answers=unplugged(0, 1, 2, 3),
        facts={"link_class": PCIE, "bytes_per_s": GEN5_X16_BYTES_PER_S, "words": {"PHB"}},
    ),
    "a slot that clocked down counts at its best generation": Row(
        name="h200-x2",
        answers={
            **unplugged(0, 1),
            "nvmlDeviceGetCurrPcieLinkGeneration(gpu0)": ok(1),
            "nvmlDeviceGetCurrPcieLinkGeneration(gpu1)": ok(1),
        },
        facts={"bytes_per_s": GEN5_X16_BYTES_PER_S},
    ),
    "a slot with fewer lanes is slower": Row(
        name="h200-x2",
        answers={**unplugged(0, 1), "nvmlDeviceGetCurrPcieLinkWidth(gpu1)": ok(4)},
        facts={"bytes_per_s": GEN5_X16_BYTES_PER_S // 4},
        says=("GPU 1 uses 4 of its 16 PCIe lanes",),
    ),
    # NVLink.
    "one GPU off the NVLink": Row(
        answers=unplugged(2),
        facts={
            "link_class": PARTIAL,
            "bytes_per_s": GEN5_X16_BYTES_PER_S,
            "weakest_pair": (0, 2),
            "warnings": ("0 of 18 NVLinks are active on GPU 2",),
        },
    ),
    "the others of one GPU off the NVLink": Row(
        answers=unplugged(2), gpus="0,1,3", facts={"link_class": ALL}
    ),
    "rings go around a pair that the switch does not join": Row(
        answers={"nvmlDeviceGetP2PStatus(gpu1, gpu3, 2)": ok(5)},
        facts={
            "link_class": RING,
            "bytes_per_s": NVSWITCH_H200_BYTES_PER_S,
            "weakest_pair": (1, 3),
        },
    ),
    **{
        setting: Row(
            environ=dict([setting.split("=")]),
            gpus="0,1,2",
            facts={
                "link_class": PCIE if off else ALL,
                "bytes_per_s": GEN5_X16_BYTES_PER_S if off else NVSWITCH_H200_BYTES_PER_S,
                "notes": (NO_NVLINK.format(setting),) if off else (),
            },
        )
        for setting, off in PEER_TO_PEER.items()
    },
    "two bridged islands": Row(
        answers=wired({(0, 1): 4, (2, 3): 4}),
        facts={"link_class": PARTIAL, "weakest_pair": (0, 2)},
    ),
    # Ten links end at GPU 1 and at GPU 2.
    "a mesh counts the links that its rings can use": Row(
        answers=wired({(0, 1): 4, (0, 2): 4, (0, 3): 4, (1, 2): 2, (1, 3): 4, (2, 3): 4}),
        facts={"link_class": ALL, "bytes_per_s": 250_000_000_000, "weakest_pair": (1, 2)},
    ),
    "links that are present but inactive": Row(
        name="h200-x2",
        answers={f"nvmlDeviceGetFieldValues(gpu0, 165, {link})": ok(0) for link in range(4, 10)},
        facts={
            "nvlinks": [12, 18],
            "expected_nvlinks": [18, 18],
            "bytes_per_s": NVSWITCH_H200_BYTES_PER_S * 12 // 18,
        },
    ),
    "a link that peers may not use": Row(
        name="h200-x2",
        answers={"nvmlDeviceGetNvLinkCapability(gpu1, 3, 0)": ok(0)},
        facts={"nvlinks": [18, 17]},
    ),
    **{
        f"a link that is not there ends the walk of {present}": Row(
            name="h200-x2",
            answers={
                "nvmlDeviceGetFieldValues(gpu0, 91, 0)": ok(present),
                "nvmlDeviceGetFieldValues(gpu0, 165, 18)": err(INVALID_ARGUMENT),
                "nvmlDeviceGetNvLinkState(gpu0, 18)": err(INVALID_ARGUMENT),
            },
            facts={"nvlinks": [18, 18]},
        )
        for present in (18, 36)
    },
    "an unknown generation goes at the raw rate of the driver": Row(
        name="h200-x2",
        missing=("nvmlDeviceGetCudaComputeCapability",),
        facts={
            "compute_capability": [None, None],
            "link_class": ALL,
            "bytes_per_s": 18 * 26_562_000_000,
        },
    ),
    "nobody knows the rate": Row(
        name="h200-x2",
        missing=("nvmlDeviceGetCudaComputeCapability",),
        answers={
            f"nvmlDeviceGetFieldValues(gpu{gpu}, 164, 0)": err(NOT_SUPPORTED) for gpu in (0, 1)
        },
        facts={"link_class": ALL, "bytes_per_s": None},
    ),
    "an untrained fabric carries nothing": Row(
        name="h200-x2",
        answers={f"nvmlDeviceGetGpuFabricInfoV(gpu{gpu})": ok({"state": 2}) for gpu in (0, 1)},
        facts={"link_class": PCIE},
        says=("nvidia-fabricmanager",),
    ),
    "one GPU in an NVLink domain": Row(
        name="h200-x2",
        answers={"nvmlDeviceGetGpuFabricInfoV(gpu0)": ok(DOMAIN)},
        facts={"clique": [CLIQUE, None], "same_clique": None},
    ),
    "all GPUs in one NVLink domain": Row(
        name="h200-x2",
        answers={f"nvmlDeviceGetGpuFabricInfoV(gpu{gpu})": ok(DOMAIN) for gpu in (0, 1)},
        facts={"same_clique": CLIQUE},
    ),
    "links that NVML cannot tell are unknown, not PCIe": Row(
        name="h200-x2",
        missing=("nvmlDeviceGetFieldValues", "nvmlDeviceGetNvLinkState"),
        facts={"link_class": LinkClass.UNKNOWN, "bytes_per_s": None, "nvlinks": [None, None]},
    ),
    "a driver without field values is asked link by link": Row(
        missing=("nvmlDeviceGetFieldValues",),
        answers=link_states(4, 18, ok(1)),
        facts={"bytes_per_s": NVSWITCH_H200_BYTES_PER_S},
    ),
    "a card without NVLink on such a driver is PCIe, not unknown": Row(
        name="h200-x2",
        missing=("nvmlDeviceGetFieldValues",),
        answers=link_states(2, 36, err(NOT_SUPPORTED)),
        facts={"link_class": PCIE},
    ),
    "a far end of which only the address is told is a switch if it is no GPU": Row(
        name="synthetic/a100-r450",
        missing=("nvmlDeviceGetNvLinkRemoteDeviceType",),
        facts={"words": {"NV12"}},
    ),
    **{
        f"writes to a peer: {word}": Row(
            name="h200-x2",
            answers={"nvmlDeviceGetP2PStatus(gpu0, gpu1, 1)": answer},
            facts={"p2p": [word]},
        )
        for word, answer in {"DR": ok(4), "U": ok(77), None: err(NOT_SUPPORTED)}.items()
    },
}

ERRORS = {
    "no usable GPU, with every reason": Row(
        name="h200-x2",
        answers=lost(0) | lost(1, NO_PERMISSION),
        error=PreflightError,
        says=(
            "this machine has no usable GPU",
            "zerowiz does not use GPU 1: no permission to open it",
            "`zerowiz plan --machine 8xH100-80GB`",
        ),
    ),
    "GPUs that cannot be counted": Row(
        missing=("nvmlDeviceGetCount_v2",),
        error=PreflightError,
        says=("NVMLError_FunctionNotFound",),
    ),
    "a lone board without memory": Row(
        name="h200-x1",
        answers=memory(0, err(NOT_SUPPORTED)),
        error=PreflightError,
        says=(NO_MEMORY,),
    ),
    "a slice that is not there": Row(
        name="synthetic/a100-mig",
        answers={"nvmlDeviceGetMigDeviceHandleByIndex(gpu1, 1)": err(NOT_FOUND)},
        gpus="1:1",
        error=UsageError,
        says=("no usable GPU 1:1",),
    ),
    **{
        f"CUDA_VISIBLE_DEVICES={value} hides all": Row(
            environ=visible(value), error=PreflightError, says=("CUDA_VISIBLE_DEVICES",)
        )
        for value in ("", "-1", "9", "0,0", "GPU-none")
    },
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_machine_is_what_the_driver_answers(row: Row) -> None:
    machine = row.play()
    facts = facts_of(machine)
    assert row.facts == {name: facts[name] for name in row.facts}
    said = "\n".join((*machine.notes, *find_warnings(machine)))
    assert [] == [text for text in row.says if text not in said]


@pytest.mark.parametrize("row", ERRORS.values(), ids=ERRORS)
def test_what_is_no_machine_is_an_error_that_says_why(row: Row) -> None:
    with pytest.raises(row.error) as caught:
        row.play()
    said = "\n".join((caught.value.message, *caught.value.hints))
    assert [] == [text for text in row.says if text not in said]


def test_a_lone_gpu_has_no_link_and_all_its_facts() -> None:
    machine = play(recording("h200-x1"))
    assert (MachineSource.NVML, "580.159.04", (13, 0), LinkClass.NONE) == (
        machine.source,
        machine.driver_version,
        machine.cuda_version,
        machine.interconnect.link_class,
    )
    [gpu] = machine.gpus
    assert "GPU-" == (gpu.uuid or "")[:4]
    assert replace(gpu, uuid=None) == Gpu(
        index=0,
        ordinal=0,
        name="NVIDIA H200",
        compute_capability=(9, 0),
        bus_id="00000000:00:06.0",
        numa_node=gpu.numa_node,
        total_bytes=150754820096,
        reserved_bytes=644939776,
        free_bytes=150109880320,
        memory_source="nvmlDeviceGetMemoryInfo_v2",
        pcie=PcieSlot(max_generation=5, current_generation=5, max_lanes=16, current_lanes=16),
        nvlinks=0,
        expected_nvlinks=18,
        fabric_ready=False,
        ecc=True,
    )


def test_memory_that_neither_nvml_nor_the_host_tells_is_unknown() -> None:
    machine = play({**recording("synthetic/gb10"), "files": {}})
    assert (None, None) == (machine.total_bytes, machine.free_bytes)


def test_a_gpu_that_is_lost_as_its_links_are_read_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def memory_v2(nvml: ModuleType, gpu: nvml_calls.Handle) -> nvml_calls.GpuMemory:
        asked.append(gpu)
        if len(asked) == 7:  # four when they are listed, and the third again
            raise pynvml.NVMLError(GPU_IS_LOST)
        return real.read(nvml, gpu)

    real = nvml_calls.memory_v2
    monkeypatch.setattr(nvml_calls, "memory_v2", replace(real, read=memory_v2))
    lost_later = {
        "nvmlDeviceGetP2PStatus(gpu1, gpu2, 2)": err(GPU_IS_LOST),
        "nvmlDeviceGetMemoryInfo(gpu2)": err(GPU_IS_LOST),
    }
    machine = Row(answers=lost_later).play()
    assert [(0, 0), (1, 1), (3, 2)] == [(gpu.index, gpu.ordinal) for gpu in machine.gpus]
    assert [2] == [gpu.index for gpu in machine.left_out]
    assert all(2 not in link.pair for link in machine.links)


def test_a_machine_without_peer_to_peer_is_the_one_that_is_read_so() -> None:
    off = Row(environ={"NCCL_P2P_DISABLE": "1"}).play()
    planned = without_peer_to_peer(Row().play())
    assert (off.links, off.interconnect) == (planned.links, planned.interconnect)


@pytest.mark.parametrize("name", ["c_nvmlGpuFabricInfo_v2_t", "NVMLLibraryMismatchError"])
def test_an_older_pynvml_without_a_name_reads_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = play(recording("h200-x2"))
    monkeypatch.delattr(pynvml, name)
    assert expected == play(recording("h200-x2"))


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


# NVML's answers become values: each is one, or an Unavailable.

ONE_GPU = {
    "nvmlInitWithFlags(0)": {"ok": None},
    "nvmlDeviceGetHandleByIndex_v2(0)": {"ok": "gpu0"},
}


def ask(call: nvml_calls.NvmlCall[object], *args: object) -> object:
    """What the driver in place answers for its first GPU."""
    session = nvml_calls.open_session(lambda _call: None)
    return session.ask(call, session.ask(nvml_calls.handle, 0), *args)


def test_pynvml_still_has_the_two_private_names_that_a_recording_leans_on() -> None:
    assert hasattr(pynvml, "nvmlLib")
    assert dict is type(pynvml._nvmlGetFunctionPointer_cache)


FOUND = [{"pid": 100 + place, "usedGpuMemory": 2**40 + place} for place in range(7)]
FIELD = "nvmlDeviceGetFieldValues(gpu0, 91, 4)"


@pytest.mark.parametrize(
    ("read", "args", "call", "answer", "expected"),
    [
        pytest.param(
            nvml_calls.processes,
            (),
            "nvmlDeviceGetComputeRunningProcesses_v3(gpu0)",
            ok(FOUND),
            tuple(GpuProcess(pid=p["pid"], used_bytes=p["usedGpuMemory"]) for p in FOUND),
            id="a list of processes",
        ),
        pytest.param(
            nvml_calls.read_field,
            (91, 4),
            FIELD,
            err(NOT_SUPPORTED),
            Unavailable(code=NOT_SUPPORTED, name="NVMLError_NotSupported"),
            id="a field value has a return code of its own",
        ),
        *(
            pytest.param(nvml_calls.read_field, (91, 4), FIELD, ok(value), value, id=what)
            for what, value in {"unsigned": 2**64 - 1, "signed": -5}.items()
        ),
    ],
)
def test_an_answer_is_a_value_or_unavailable(
    read: nvml_calls.NvmlCall[object],
    args: tuple[int, ...],
    call: str,
    answer: Answer,
    expected: object,
    driver: Install,
) -> None:
    driver(Replay({**ONE_GPU, call: answer}))
    assert expected == ask(read, *args)


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
    read: nvml_calls.NvmlCall[object], symbol: str, code: int | None, driver: Install
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


def test_each_call_is_named_before_it_is_made(driver: Install) -> None:
    driver(library("synthetic/a100-mig"))
    heard: list[str] = []
    session = nvml_calls.open_session(heard.append)
    gpu = session.ask(nvml_calls.handle, 1)
    part = session.ask(nvml_calls.slice_handle, gpu, 2)
    session.ask(nvml_calls.memory_v2, part)
    assert [
        "nvmlDeviceGetHandleByIndex(1)",
        "nvmlDeviceGetMigDeviceHandleByIndex(gpu1, 2)",
        "nvmlDeviceGetMemoryInfo(gpu1.mig2)",
    ] == [call for call in heard if call]
