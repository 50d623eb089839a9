from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest
from fake_nvml import GPU_IS_LOST, FakeNvmlLib, Recording, read_recording

from zerowiz.core.links import LinkClass
from zerowiz.core.machine import Machine, MachineSource
from zerowiz.errors import ExitCode, PreflightError, UsageError
from zerowiz.probe.nvml import read_machine

Install = Callable[[FakeNvmlLib], FakeNvmlLib]

GEN5_X16_BYTES_PER_S = 63_008_000_000
NVSWITCH_H200_BYTES_PER_S = 450_000_000_000


@pytest.fixture
def read(fake_nvml: Install, tmp_path: Path) -> Callable[..., Machine]:
    """Read a machine over a fake library, on a host of which nothing is known."""

    def run(lib: FakeNvmlLib, gpus: str | None = None, **environ: str) -> Machine:
        fake_nvml(lib)
        return read_machine(environ, gpus=gpus, root=tmp_path)

    return run


Read = Callable[..., Machine]


def recorded(name: str) -> FakeNvmlLib:
    return FakeNvmlLib(read_recording(name))


def unplug_nvlink(recording: Recording, *indices: int) -> Recording:
    for index in indices:
        recording["devices"][index]["fields"]["ok"]["LINK_COUNT"] = {"ret": 3, "type": 1}
    return recording


def wire_directly(recording: Recording, wires: dict[tuple[int, int], int]) -> Recording:
    """Replace all NVLinks by straight ones, so many for each pair."""
    devices = recording["devices"]
    ends: dict[int, list[str]] = {index: [] for index in range(len(devices))}
    for (one, other), count in wires.items():
        ends[one] += [devices[other]["PciInfo"]["ok"]["busId"]] * count
        ends[other] += [devices[one]["PciInfo"]["ok"]["busId"]] * count
    for index, device in enumerate(devices):
        for link, bus_id in zip(device["nvlink"], ends[index] + [""] * 36, strict=False):
            link["f"]["ok"]["GET_STATE"] = {"ret": 0, "type": 1, "val": int(bool(bus_id))}
            link["RemoteDeviceType"] = {"ok": 0}
            link["RemotePciInfo"] = {"ok": {"busId": bus_id}}
    return recording


def test_pynvml_still_has_the_two_private_names_that_the_fake_leans_on() -> None:
    assert hasattr(pynvml, "nvmlLib")
    assert dict is type(pynvml._nvmlGetFunctionPointer_cache)


@pytest.mark.parametrize(("name", "count"), [("h200-x2", 2), ("h200-x4", 4)])
def test_h200_behind_nvswitches_are_nvlinked_all_to_all(read: Read, name: str, count: int) -> None:
    machine = read(recorded(name))
    assert list(range(count)) == [gpu.index for gpu in machine.gpus]
    assert LinkClass.NVLINK_ALL is machine.interconnect.link_class
    assert NVSWITCH_H200_BYTES_PER_S == machine.interconnect.bytes_per_s
    assert () == machine.notes


def test_a_lone_gpu_has_no_link_and_all_its_facts(read: Read) -> None:
    machine = read(recorded("h200-x1"))
    [gpu] = machine.gpus
    assert MachineSource.NVML is machine.source
    assert LinkClass.NONE is machine.interconnect.link_class
    assert "NVIDIA H200" == gpu.name
    assert "GPU-182dd796-462b-b296-a9bc-56e2cbd7d9bd" == gpu.uuid
    assert (9, 0) == gpu.compute_capability
    assert (150754820096, 150109880320) == (gpu.total_bytes, gpu.free_bytes)


def test_what_another_process_holds_is_not_free(read: Read) -> None:
    idle, busy = read(recorded("h200-x1")), read(recorded("h200-x1-busy"))
    assert idle.total_bytes == busy.total_bytes
    assert 128082640896 == busy.free_bytes


def test_a_driver_without_memory_v2_answers_the_same_from_v1(read: Read) -> None:
    old = FakeNvmlLib(read_recording("h200-x1"), missing=frozenset({"nvmlDeviceGetMemoryInfo_v2"}))
    assert read(recorded("h200-x1")) == read(old)


def test_memory_that_nvml_does_not_tell_is_unknown(read: Read) -> None:
    recording = read_recording("h200-x1")
    for key in ("MemoryInfo", "MemoryInfo_v2"):
        recording["devices"][0][key] = {"err": 3}
    machine = read(FakeNvmlLib(recording))
    assert (None, None) == (machine.total_bytes, machine.free_bytes)


@pytest.mark.parametrize("code", [GPU_IS_LOST, 4, 999])
def test_a_gpu_that_cannot_be_used_is_left_out_and_named(read: Read, code: int) -> None:
    machine = read(FakeNvmlLib(read_recording("h200-x4"), dead={1: code}))
    assert [0, 2, 3] == [gpu.index for gpu in machine.gpus]
    [note] = machine.notes
    assert note.startswith("GPU 1 is left out: ")


def test_a_gpu_lost_after_its_handle_is_left_out_too(read: Read) -> None:
    recording = read_recording("h200-x2")
    for key in ("MemoryInfo", "MemoryInfo_v2"):
        recording["devices"][0][key] = {"err": GPU_IS_LOST}
    assert [1] == [gpu.index for gpu in read(FakeNvmlLib(recording)).gpus]


def test_a_gpu_split_into_mig_slices_is_left_out(read: Read) -> None:
    recording = read_recording("h200-x2")
    recording["devices"][1]["MigMode"] = {"ok": [1, 1]}
    machine = read(FakeNvmlLib(recording))
    assert [0] == [gpu.index for gpu in machine.gpus]
    assert "MIG" in machine.notes[0]


def test_no_usable_gpu_at_all_is_one_error_with_every_reason(read: Read) -> None:
    lib = FakeNvmlLib(read_recording("h200-x2"), dead={0: GPU_IS_LOST, 1: 4})
    with pytest.raises(PreflightError) as caught:
        read(lib)
    assert "there is no usable GPU on this machine" == caught.value.message
    assert "GPU 1 is left out: no permission to open it" in caught.value.hints
    assert 0 == lib.open_sessions


def test_gpus_that_cannot_be_counted_are_an_error(read: Read) -> None:
    missing = frozenset({"nvmlDeviceGetCount_v2"})
    with pytest.raises(PreflightError, match="NVMLError_FunctionNotFound"):
        read(FakeNvmlLib(read_recording("h200-x2"), missing=missing))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (4, "no permission"),
        (9, "not loaded"),
        (12, "no NVIDIA driver"),
        (18, "different versions"),
        (999, "unknown error"),
        (13, "NVML error 13"),
    ],
)
def test_an_init_failure_is_one_line_and_says_how_to_plan_anyway(
    read: Read, code: int, said: str
) -> None:
    with pytest.raises(PreflightError) as caught:
        read(FakeNvmlLib({}, init_code=code))
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert ExitCode.PREFLIGHT == caught.value.exit_code
    assert any("--machine 8xH100-80GB" in hint for hint in caught.value.hints)
    assert any("--accelerator cpu" in hint for hint in caught.value.hints)


def test_a_machine_without_the_driver_library_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_such_library(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", no_such_library)
    with pytest.raises(PreflightError, match="no NVIDIA driver found"):
        read_machine({}, root=tmp_path)


def test_nvml_is_shut_down_however_the_reading_ends(read: Read) -> None:
    good, bad = recorded("h200-x2"), recorded("h200-x2")
    read(good)
    with pytest.raises(UsageError):
        read(bad, gpus="7")
    assert (0, 0) == (good.open_sessions, bad.open_sessions)


def test_gpus_of_the_flag_come_in_its_order(read: Read) -> None:
    assert [3, 0] == [gpu.index for gpu in read(recorded("h200-x4"), gpus="3,0").gpus]


def test_cuda_visible_devices_hides_gpus(read: Read) -> None:
    machine = read(recorded("h200-x4"), CUDA_VISIBLE_DEVICES="2,1")
    assert [2, 1] == [gpu.index for gpu in machine.gpus]
    assert (1, 2) == machine.interconnect.weakest_pair


@pytest.mark.parametrize("value", ["", "-1", "9", "0,0", "GPU-none"])
def test_cuda_visible_devices_that_hides_every_gpu_is_an_error(read: Read, value: str) -> None:
    with pytest.raises(PreflightError, match="CUDA_VISIBLE_DEVICES"):
        read(recorded("h200-x4"), CUDA_VISIBLE_DEVICES=value)


def test_one_chosen_gpu_of_many_has_no_link(read: Read) -> None:
    machine = read(recorded("h200-x4"), gpus="2")
    assert LinkClass.NONE is machine.interconnect.link_class


def test_gpus_without_nvlink_reach_each_other_by_their_pcie_slots(read: Read) -> None:
    machine = read(FakeNvmlLib(unplug_nvlink(read_recording("h200-x4"), 0, 1, 2, 3)))
    assert LinkClass.PCIE is machine.interconnect.link_class
    assert GEN5_X16_BYTES_PER_S == machine.interconnect.bytes_per_s


def test_an_idle_slot_that_clocked_down_still_counts_at_its_best_generation(read: Read) -> None:
    recording = unplug_nvlink(read_recording("h200-x2"), 0, 1)
    for device in recording["devices"]:
        device["CurrPcieLinkGeneration"] = {"ok": 1}
    assert GEN5_X16_BYTES_PER_S == read(FakeNvmlLib(recording)).interconnect.bytes_per_s


def test_a_slot_with_fewer_lanes_than_the_gpu_is_slower_and_noted(read: Read) -> None:
    recording = unplug_nvlink(read_recording("h200-x2"), 0, 1)
    recording["devices"][1]["CurrPcieLinkWidth"] = {"ok": 4}
    machine = read(FakeNvmlLib(recording))
    assert GEN5_X16_BYTES_PER_S // 4 == machine.interconnect.bytes_per_s
    assert ("GPU 1 has 4 of its 16 PCIe lanes",) == machine.notes


def test_one_gpu_off_the_nvlink_makes_it_partial_and_is_named(read: Read) -> None:
    machine = read(FakeNvmlLib(unplug_nvlink(read_recording("h200-x4"), 2)))
    assert LinkClass.NVLINK_PARTIAL is machine.interconnect.link_class
    assert GEN5_X16_BYTES_PER_S == machine.interconnect.bytes_per_s
    assert (0, 2) == machine.interconnect.weakest_pair
    rest = read(FakeNvmlLib(unplug_nvlink(read_recording("h200-x4"), 2)), gpus="0,1,3")
    assert LinkClass.NVLINK_ALL is rest.interconnect.link_class


def test_a_pair_that_the_switch_does_not_join_makes_it_partial(read: Read) -> None:
    recording = read_recording("h200-x4")
    for pair in ("1-3", "3-1"):
        recording["pairs"][pair]["nvlink"] = {"ok": 5}
    machine = read(FakeNvmlLib(recording))
    assert LinkClass.NVLINK_PARTIAL is machine.interconnect.link_class
    assert (1, 3) == machine.interconnect.weakest_pair


def test_two_bridged_islands_are_partial(read: Read) -> None:
    recording = wire_directly(read_recording("h200-x4"), {(0, 1): 4, (2, 3): 4})
    machine = read(FakeNvmlLib(recording))
    assert LinkClass.NVLINK_PARTIAL is machine.interconnect.link_class
    assert (0, 2) == machine.interconnect.weakest_pair


def test_a_direct_mesh_counts_the_links_of_its_thinnest_pair(read: Read) -> None:
    pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    wires = {pair: 2 if pair == (1, 2) else 4 for pair in pairs}
    machine = read(FakeNvmlLib(wire_directly(read_recording("h200-x4"), wires)))
    assert LinkClass.NVLINK_ALL is machine.interconnect.link_class
    assert (50_000_000_000, (1, 2)) == (
        machine.interconnect.bytes_per_s,
        machine.interconnect.weakest_pair,
    )


def test_links_that_are_present_but_inactive_do_not_count(read: Read) -> None:
    recording = read_recording("h200-x2")
    for link in recording["devices"][0]["nvlink"][4:10]:
        link["f"]["ok"]["GET_STATE"]["val"] = 0
    assert (
        NVSWITCH_H200_BYTES_PER_S * 12 // 18
        == read(FakeNvmlLib(recording)).interconnect.bytes_per_s
    )


def test_nvlinks_of_a_gpu_of_unknown_generation_have_no_rate(read: Read) -> None:
    missing = frozenset({"nvmlDeviceGetCudaComputeCapability"})
    machine = read(FakeNvmlLib(read_recording("h200-x2"), missing=missing))
    assert machine.compute_capability is None
    assert (LinkClass.NVLINK_ALL, None) == (
        machine.interconnect.link_class,
        machine.interconnect.bytes_per_s,
    )


def test_an_older_pynvml_without_the_fabric_struct_reads_the_same(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = read(recorded("h200-x2"))
    monkeypatch.delattr(pynvml, "c_nvmlGpuFabricInfo_v2_t")
    assert expected == read(recorded("h200-x2"))


def test_an_untrained_fabric_carries_nothing_and_is_noted(read: Read) -> None:
    recording = read_recording("h200-x2")
    for device in recording["devices"]:
        device["FabricV2"]["ok"]["state"] = 2
    machine = read(FakeNvmlLib(recording))
    assert LinkClass.PCIE is machine.interconnect.link_class
    assert "nvidia-fabricmanager" in machine.notes[0]


def test_links_that_nvml_cannot_tell_are_unknown_not_pcie(read: Read) -> None:
    missing = frozenset({"nvmlDeviceGetFieldValues", "nvmlDeviceGetNvLinkState"})
    machine = read(FakeNvmlLib(read_recording("h200-x2"), missing=missing))
    assert LinkClass.UNKNOWN is machine.interconnect.link_class
    assert machine.interconnect.bytes_per_s is None


def test_a_driver_without_field_values_is_asked_link_by_link(read: Read) -> None:
    old = FakeNvmlLib(read_recording("h200-x4"), missing=frozenset({"nvmlDeviceGetFieldValues"}))
    assert NVSWITCH_H200_BYTES_PER_S == read(old).interconnect.bytes_per_s


def test_a_card_without_nvlink_on_such_a_driver_is_pcie_not_unknown(read: Read) -> None:
    recording = read_recording("h200-x2")
    for device in recording["devices"]:
        device["nvlink"] = [{"state": {"err": 3}}] * 36
    old = FakeNvmlLib(recording, missing=frozenset({"nvmlDeviceGetFieldValues"}))
    assert LinkClass.PCIE is read(old).interconnect.link_class


@pytest.mark.parametrize(
    "symbol",
    [
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetP2PStatus",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlDeviceGetNvLinkRemotePciInfo_v2",
        "nvmlDeviceGetMaxPcieLinkGeneration",
        "nvmlDeviceGetCurrPcieLinkWidth",
    ],
)
def test_one_missing_function_never_loses_the_gpus(read: Read, symbol: str) -> None:
    machine = read(FakeNvmlLib(read_recording("h200-x4"), missing=frozenset({symbol})))
    assert 4 == len(machine.gpus)
    assert LinkClass.NVLINK_ALL is machine.interconnect.link_class


def test_a_name_that_is_no_text_does_not_stop_the_reading(read: Read) -> None:
    recording = read_recording("h200-x1")
    recording["devices"][0]["Name"] = {"ok": b"H\xff200".decode("utf-8", "surrogateescape")}
    assert "unknown GPU" == read(FakeNvmlLib(recording)).gpus[0].name


def test_mixed_models_behind_ordinals_are_noted(read: Read) -> None:
    recording = read_recording("h200-x2")
    recording["devices"][1]["Name"] = {"ok": "NVIDIA A100-SXM4-80GB"}
    ordered = {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert "PCI_BUS_ID" in read(FakeNvmlLib(recording), CUDA_VISIBLE_DEVICES="0,1").notes[0]
    assert () == read(FakeNvmlLib(recording), **ordered).notes


def test_the_host_is_read_from_the_same_root(fake_nvml: Install, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 64 kB\nMemAvailable: 32 kB\n")
    fake_nvml(recorded("h200-x1"))
    machine = read_machine({}, root=tmp_path)
    assert (65536, 32768) == (machine.host.total_bytes, machine.host.available_bytes)
