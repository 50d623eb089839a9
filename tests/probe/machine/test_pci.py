from collections.abc import Mapping
from pathlib import Path

import pytest
from fake_host import build_host

from zerowiz.probe.machine.network import (
    list_bridges,
    parse_bus_id,
    parse_link,
    parse_numa_node,
    read_class,
    read_numa_node,
    read_upstream_bytes_per_s,
)
from zerowiz.probe.recording import FileAnswers, RecordedFiles

# The way to a GPU of an HGX board: a root port, a switch's port up, its port down, the GPU.
GPU_PATH = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0"
ROOT_PORT, SWITCH_UP, SWITCH_DOWN = (GPU_PATH.rsplit("/", depth)[0] for depth in (3, 2, 1))
BUS_ID, SYSFS_NAME = "00000000:18:00.0", "0000:18:00.0"


def build(
    root: Path,
    links: Mapping[str, tuple[str, str]],
    *,
    path: str = GPU_PATH,
    numa_node: str = "0\n",
) -> int | None:
    texts = {f"{path}/numa_node": numa_node}
    for folder, (speed, lanes) in links.items():
        texts |= {f"{folder}/max_link_speed": speed, f"{folder}/current_link_width": lanes}
    name = path.rpartition("/")[2]
    files = build_host(root, texts, {f"sys/bus/pci/devices/{name}": path})
    return read_upstream_bytes_per_s(files, f"0000{name}")


GEN5_X16 = ("32.0 GT/s PCIe\n", "16\n")


def test_the_narrowest_bridge_counts_and_the_gpu_itself_does_not(tmp_path: Path) -> None:
    links = {
        ROOT_PORT: ("16.0 GT/s PCIe\n", "16\n"),
        SWITCH_UP: ("32.0 GT/s PCIe\n", "16\n"),
        SWITCH_DOWN: GEN5_X16,
        GPU_PATH: ("2.5 GT/s PCIe\n", "1\n"),
    }
    assert 16 * 1_969_000_000 == build(tmp_path, links)


def test_a_riser_with_few_lanes_is_found_above_a_switch(tmp_path: Path) -> None:
    links = {
        ROOT_PORT: ("32.0 GT/s PCIe\n", "8\n"),
        SWITCH_UP: ("32.0 GT/s PCIe\n", "8\n"),
        SWITCH_DOWN: GEN5_X16,
    }
    assert 8 * 3_938_000_000 == build(tmp_path, links)


def test_a_bridge_that_tells_nothing_is_passed_over(tmp_path: Path) -> None:
    links = {ROOT_PORT: ("Unknown\n", "0\n"), SWITCH_UP: ("\n", "\n"), SWITCH_DOWN: GEN5_X16}
    assert 16 * 3_938_000_000 == build(tmp_path, links)


def test_a_virtual_machine_has_no_bridges(tmp_path: Path) -> None:
    # Of a KVM guest with an H200: the GPU sits on the root bus.
    path = "sys/devices/pci0000:00/0000:00:06.0"
    assert build(tmp_path, {path: GEN5_X16}, path=path) is None


def test_an_address_in_another_domain_is_found(tmp_path: Path) -> None:
    path = "sys/devices/pci0009:00/0009:00:00.0/0009:01:00.0"
    assert 16 * 3_938_000_000 == build(
        tmp_path, {"sys/devices/pci0009:00/0009:00:00.0": GEN5_X16}, path=path
    )


@pytest.mark.parametrize("bus_id", ["00000000:99:00.0", "", "N/A", "1A:00"])
def test_a_gpu_that_is_not_there_has_no_place(bus_id: str) -> None:
    files = RecordedFiles(answers=FileAnswers())
    assert read_upstream_bytes_per_s(files, bus_id) is None
    assert read_numa_node(files, bus_id) is None


@pytest.mark.parametrize(("text", "expected"), [("1\n", 1), ("0\n", 0), ("-1\n", None)])
def test_the_numa_node_of_a_gpu_is_read_where_there_is_one(
    tmp_path: Path, text: str, expected: int | None
) -> None:
    device = f"sys/bus/pci/devices/{SYSFS_NAME}"
    files = build_host(tmp_path, {f"{GPU_PATH}/numa_node": text}, {device: GPU_PATH})
    assert expected == read_numa_node(files, BUS_ID)


def test_the_class_of_a_device_is_read(tmp_path: Path) -> None:
    files = build_host(tmp_path, {"sys/bus/pci/devices/0000:c7:00.0/class": "0x068000\n"})
    assert "0x068000" == read_class(files, "00000000:C7:00.0")
    assert read_class(files, "00000000:C8:00.0") is None
    assert read_class(files, "N/A") is None


@pytest.mark.parametrize(
    ("bus_id", "expected"),
    [
        ("00000000:1A:00.0", "0000:1a:00.0"),
        ("0000:1a:00.0", "0000:1a:00.0"),
        ("0000000F:01:00.0", "000f:01:00.0"),
        ("00010000:E1:00.0", "10000:e1:00.0"),
        ("pci0000:15", None),
        ("FFFFFFFF:FF:FF.F", None),
    ],
)
def test_an_address_of_nvml_becomes_one_of_sysfs(bus_id: str, expected: str | None) -> None:
    assert expected == parse_bus_id(bus_id)


@pytest.mark.parametrize(
    ("speed", "expected"),
    [
        ("2.5 GT/s PCIe\n", 250_000_000),
        ("5.0 GT/s PCIe\n", 500_000_000),
        ("8 GT/s\n", 985_000_000),
        ("8.0 GT/s PCIe\n", 985_000_000),
        ("16.0 GT/s PCIe\n", 1_969_000_000),
        ("32.0 GT/s PCIe\n", 3_938_000_000),
        ("64.0 GT/s PCIe\n", 7_563_000_000),
        ("128.0 GT/s PCIe\n", None),
        ("Unknown\n", None),
        ("", None),
        (None, None),
    ],
)
def test_a_lane_is_as_fast_as_its_generation(speed: str | None, expected: int | None) -> None:
    assert expected == parse_link(speed, "1\n")


@pytest.mark.parametrize("lanes", ["0\n", "", "x16\n", None])
def test_a_link_without_known_lanes_has_no_rate(lanes: str | None) -> None:
    assert parse_link("32.0 GT/s PCIe\n", lanes) is None


@pytest.mark.parametrize(
    ("text", "expected"), [("-1\n", None), ("7\n", 7), ("\n", None), (None, None), ("x", None)]
)
def test_a_numa_node_is_a_number_or_none(text: str | None, expected: int | None) -> None:
    assert expected == parse_numa_node(text)


def test_the_bridges_are_all_above_the_device_nearest_first() -> None:
    assert [SWITCH_DOWN, SWITCH_UP, ROOT_PORT] == list_bridges(GPU_PATH)
