from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from fake_host import build_host
from recorded import FileAnswers, FilesLog, RecordedFiles

from zerowiz.core.machine.types import Network, NetworkKind, Nic
from zerowiz.probe.machine.network import (
    excludes,
    hide_address,
    list_bridges,
    parse_bus_id,
    parse_link,
    parse_numa_node,
    parse_rate,
    parse_speed,
    read_network,
    read_numa_node,
    read_upstream_bytes_per_s,
)

GBIT = 125_000_000

# What a port's folder holds. NDR, its fallen port and the RoCE rate of a half-wide link: the
# kernel's own forms (rate_show, state_show), as inventories of H100 hosts quote them. EFA:
# linux-rdma/rdma-core pull 884, its link layer, and the 100 Gb/s that the driver reports.
NDR = {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
DOWN = {"state": "1: DOWN", "rate": "10 Gb/sec (4X SDR)", "link_layer": "InfiniBand"}
INIT = {"state": "2: INIT", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
# The GID table of a port with a link-local and an IPv4 address, each in both versions.
ROCE = {
    "state": "4: ACTIVE",
    "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "Ethernet",
    "gid_attrs/types/0": "IB/RoCE v1",
    "gid_attrs/types/1": "RoCE v2",
    "gid_attrs/types/2": "IB/RoCE v1",
    "gid_attrs/types/3": "RoCE v2",
}
# deepseek-ai/DeepEP pull 671: two 200 Gb/s ports bonded; the rate is that of one.
BOND = ROCE | {"rate": "200 Gb/sec (2X NDR)"}
NO_GID = {"state": "4: ACTIVE", "rate": "100 Gb/sec (4X EDR)", "link_layer": "Ethernet"}
EFA = {"state": "4: ACTIVE", "rate": "100 Gb/sec (4X EDR)", "link_layer": "Unknown"}

Ports = Mapping[str, Mapping[str, str]]


class Host:
    """A host whose /sys grows by one adapter at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[str, str | int] = {}
        self.links: dict[str, str] = {}
        self.count = 0

    def add_rdma(
        self,
        name: str,
        ports: Ports,
        *,
        driver: str = "mlx5_core",
        door: bool = True,
        numa: int = 0,
    ) -> None:
        bus, device = f"{0x10 + self.count:02x}", f"sys/class/infiniband/{name}"
        pci = f"sys/devices/pci0000:{bus}/0000:{bus}:00.0"
        for port, attributes in ports.items():
            self.files |= {f"{device}/ports/{port}/{k}": f"{v}\n" for k, v in attributes.items()}
        self.files[f"{device}/node_type"] = "1: CA\n"
        self.files[f"{pci}/numa_node"] = numa
        self.files[f"sys/class/infiniband_verbs/uverbs{self.count}/ibdev"] = f"{name}\n"
        self.links[f"{device}/device"] = pci
        self.links[f"{pci}/driver"] = f"sys/bus/pci/drivers/{driver}"
        if door:
            self.files[f"dev/infiniband/uverbs{self.count}"] = ""
        self.count += 1

    def add_interface(
        self, name: str, *, speed: str = "25000", operstate: str = "up", virtual: bool = False
    ) -> None:
        bus, folder = f"{0x10 + self.count:02x}", f"sys/class/net/{name}"
        pci = f"sys/devices/pci0000:{bus}/0000:{bus}:00.1"
        attributes = {"type": "1", "speed": speed, "operstate": operstate}
        self.files |= {f"{folder}/{key}": f"{value}\n" for key, value in attributes.items()}
        if not virtual:
            self.files[f"{pci}/numa_node"] = -1
            self.links[f"{folder}/device"] = pci
        self.count += 1

    def read(self, environ: Mapping[str, str] | None = None) -> Network:
        """The network, read from the folder and again from what was recorded of it."""
        log = FilesLog(files=build_host(self.root, self.files, self.links))
        network = read_network(log, environ or {})
        assert network == read_network(RecordedFiles(answers=log.answers), environ or {})
        return network


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def only(network: Network) -> Nic:
    [nic] = network.nics
    return nic


def test_a_host_without_adapters_is_unknown(host: Host) -> None:
    assert Network() == host.read()


def test_eight_infiniband_adapters_carry_the_job_together(host: Host) -> None:
    for index in range(8):
        host.add_rdma(f"mlx5_{index}", {"1": NDR}, numa=index // 4)
    host.add_interface("eth0", speed="100000")
    network = host.read()
    assert (NetworkKind.INFINIBAND, 3200 * GBIT) == (network.kind, network.bytes_per_s)
    expected = Nic(name="mlx5_7", kind=NetworkKind.INFINIBAND, bytes_per_s=400 * GBIT, numa_node=1)
    assert expected in network.nics
    assert 9 == len(network.nics)


def test_an_rdma_port_and_its_own_interface_are_both_listed(host: Host) -> None:
    host.add_rdma("mlx5_0", {"1": ROCE})
    host.add_interface("ens1f0np0", speed="400000")
    network = host.read()
    assert [NetworkKind.ROCE, NetworkKind.ETHERNET] == [nic.kind for nic in network.nics]
    assert (NetworkKind.ROCE, 400 * GBIT) == (network.kind, network.bytes_per_s)
    assert network.is_fast


IB, OF_ROCE, UNKNOWN = NetworkKind.INFINIBAND, NetworkKind.ROCE, NetworkKind.UNKNOWN
DISABLED = {"phys_state": "3: Disabled"}


@pytest.mark.parametrize(
    ("ports", "kind", "bytes_per_s", "unusable"),
    [
        pytest.param((DOWN,), IB, None, "port 1 is DOWN", id="a fallen port tells no rate"),
        pytest.param((INIT,), IB, None, "port 1 is INIT", id="not up yet"),
        pytest.param((NO_GID,), OF_ROCE, 100 * GBIT, "port 1 has no RoCE address", id="no address"),
        pytest.param(
            (NDR | {"link_layer": "Unknown"},),
            UNKNOWN,
            400 * GBIT,
            "port 1 has the link layer `Unknown`",
            id="unknown layer",
        ),
        pytest.param((DISABLED,), UNKNOWN, None, "port 1 is of unknown state", id="disabled"),
        pytest.param((NDR, NDR, DOWN), IB, 800 * GBIT, None, id="the active ports are summed"),
        pytest.param(
            (ROCE, NDR | {"rate": "100 Gb/sec (4X EDR)"}),
            IB,
            100 * GBIT,
            None,
            id="of a port of each kind InfiniBand counts",
        ),
        pytest.param(
            (DOWN, ROCE), OF_ROCE, 400 * GBIT, None, id="a fallen InfiniBand port leaves RoCE"
        ),
    ],
)
def test_an_adapter_is_what_its_ports_carry(
    host: Host,
    ports: tuple[Mapping[str, str], ...],
    kind: NetworkKind,
    bytes_per_s: int | None,
    unusable: str | None,
) -> None:
    host.add_rdma("mlx5_0", {str(number): port for number, port in enumerate(ports, 1)})
    nic = only(host.read())
    assert (kind, bytes_per_s, unusable) == (nic.kind, nic.bytes_per_s, nic.unusable)


def test_a_bond_is_one_device(host: Host) -> None:
    host.add_rdma("mlx5_bond_0", {"1": BOND})
    host.add_interface("eth2", speed="200000")
    host.add_interface("eth3", speed="200000")
    host.add_interface("bond0", speed="400000", virtual=True)
    host.files["sys/class/net/bond0/bonding/mode"] = "802.3ad 4\n"
    host.files["sys/class/net/bonding_masters"] = "bond0\n"
    host.links |= {
        f"sys/class/net/{name}/master": "sys/class/net/bond0" for name in ("eth2", "eth3")
    }
    network = host.read()
    assert (NetworkKind.ROCE, 200 * GBIT) == (network.kind, network.bytes_per_s)
    assert {
        "bond0": None,
        "eth2": "part of `bond0`",
        "eth3": "part of `bond0`",
        "mlx5_bond_0": None,
    } == {nic.name: nic.unusable for nic in network.nics}


def test_an_interface_of_a_bridge_is_usable_as_the_bridge_itself_is_not_listed(host: Host) -> None:
    host.add_interface("eno1")
    host.add_interface("br0", virtual=True)
    host.links["sys/class/net/eno1/master"] = "sys/class/net/br0"
    nic = only(host.read())
    assert ("eno1", None) == (nic.name, nic.unusable)


def test_efa_is_known_by_its_driver(host: Host) -> None:
    for name in ("rdmap16s27", "rdmap32s27"):
        host.add_rdma(name, {"1": EFA}, driver="efa")
    network = host.read({"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx5"})
    assert (NetworkKind.EFA, 200 * GBIT) == (network.kind, network.bytes_per_s)


def test_a_device_without_pci_is_no_adapter(host: Host) -> None:
    host.add_rdma("siw0", {"1": ROCE})
    del host.links["sys/class/infiniband/siw0/device"]
    assert "RDMA in software, without a PCI device" == only(host.read()).unusable


def test_an_adapter_that_the_container_was_not_given_is_unusable(host: Host) -> None:
    host.add_rdma("mlx5_0", {"1": NDR}, door=False)
    nic = only(host.read())
    assert "no `/dev/infiniband/uverbs*` for it here" == nic.unusable
    assert 400 * GBIT == nic.bytes_per_s


def test_an_adapter_that_this_user_may_not_open_is_unusable(host: Host) -> None:
    host.add_rdma("mlx5_0", {"1": NDR})
    log = FilesLog(files=build_host(host.root, host.files, host.links))
    read_network(log, {})
    log.answers.opens["dev/infiniband/uverbs0"] = False
    nic = only(read_network(RecordedFiles(answers=log.answers), {}))
    assert "no permission to open `/dev/infiniband/uverbs0`" == nic.unusable


@pytest.mark.parametrize(
    ("environ", "left_out", "unusable"),
    [
        ({}, set(), None),
        ({"NCCL_IB_DISABLE": "0"}, set(), None),
        ({"NCCL_IB_DISABLE": "1"}, {"mlx5_0", "mlx5_1", "mlx5_10"}, "`NCCL_IB_DISABLE=1`"),
        ({"NCCL_NET": "Socket"}, {"mlx5_0", "mlx5_1", "mlx5_10"}, "`NCCL_NET=Socket`"),
        ({"NCCL_IB_HCA": "mlx5"}, set(), None),
        ({"NCCL_IB_HCA": "mlx5_1"}, {"mlx5_0"}, "`NCCL_IB_HCA` excludes it"),
        ({"NCCL_IB_HCA": "=mlx5_1"}, {"mlx5_0", "mlx5_10"}, "`NCCL_IB_HCA` excludes it"),
        ({"NCCL_IB_HCA": "^mlx5_1"}, {"mlx5_1", "mlx5_10"}, "`NCCL_IB_HCA` excludes it"),
        ({"NCCL_IB_HCA": "^=mlx5_1"}, {"mlx5_1"}, "`NCCL_IB_HCA` excludes it"),
        ({"NCCL_IB_HCA": "mlx5_0:1"}, {"mlx5_1", "mlx5_10"}, "`NCCL_IB_HCA` excludes it"),
        ({"NCCL_IB_HCA": "=mlx5_0:1,mlx5_10"}, {"mlx5_1"}, "`NCCL_IB_HCA` excludes it"),
    ],
)
def test_nccl_may_leave_adapters_out(
    host: Host, environ: dict[str, str], left_out: set[str], unusable: str | None
) -> None:
    for name in ("mlx5_0", "mlx5_1", "mlx5_10"):
        host.add_rdma(name, {"1": NDR})
    nics = host.read(environ).nics
    assert left_out == {nic.name for nic in nics if nic.unusable}
    assert {unusable} - {None} == {nic.unusable for nic in nics} - {None}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"eth0", "eth1"}),
        ({"NCCL_SOCKET_IFNAME": "eth1"}, {"eth1"}),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, set()),
        ({"NCCL_SOCKET_IFNAME": "^eth1"}, {"eth0"}),
    ],
)
def test_nccl_may_leave_interfaces_out(
    host: Host, environ: dict[str, str], expected: set[str]
) -> None:
    host.add_interface("eth0")
    host.add_interface("eth1")
    assert expected == {nic.name for nic in host.read(environ).nics if nic.unusable is None}


@pytest.mark.parametrize("name", ["lo", "docker0", "veth12ab", "virbr0", "br-0123"])
def test_an_interface_without_hardware_is_left_out(host: Host, name: str) -> None:
    host.add_interface(name, virtual=True)
    assert () == host.read().nics


def test_a_virtio_interface_has_an_unknown_speed(host: Host) -> None:
    host.add_interface("eth0", speed="-1")
    network = host.read()
    assert (NetworkKind.ETHERNET, None) == (network.kind, network.bytes_per_s)


@pytest.mark.parametrize(
    ("operstate", "unusable"),
    [
        ("up", None),
        ("unknown", None),
        ("down", "it is down"),
        ("lowerlayerdown", "it is lowerlayerdown"),
    ],
)
def test_an_interface_that_is_down_is_unusable(
    host: Host, operstate: str, unusable: str | None
) -> None:
    host.add_interface("eth0", operstate=operstate)
    assert unusable == only(host.read()).unusable


TEXTS: dict[Callable[[str], object], dict[str, object]] = {
    parse_rate: {
        "400 Gb/sec (4X NDR)": 50_000_000_000,
        "100 Gb/sec (4X EDR)": 12_500_000_000,
        "40 Gb/sec (4X)": 5_000_000_000,
        "2.5 Gb/sec (1X SDR)": 312_500_000,
        **dict.fromkeys(("0 Gb/sec", "", "rubbish")),
    },
    parse_speed: {
        "100000\n": 12_500_000_000,
        **dict.fromkeys(("-1\n", "0\n", "4294967295\n", "", "fast")),
    },
    # A name holds no address.
    hide_address: {
        "enx0123456789ab": "enx...",
        "ibx506b4b0300c8e2d6": "ibx...",
        "mlx5_0": "mlx5_0",
        "rdmap16s27": "rdmap16s27",
    },
    # An address of NVML becomes one of /sys.
    parse_bus_id: {
        "00000000:1A:00.0": "0000:1a:00.0",
        "0000:1a:00.0": "0000:1a:00.0",
        "0000000F:01:00.0": "000f:01:00.0",
        "00010000:E1:00.0": "10000:e1:00.0",
        "pci0000:15": None,
        "FFFFFFFF:FF:FF.F": None,
    },
    parse_numa_node: {"-1\n": None, "7\n": 7, "\n": None, "x": None},
}


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [(parse, text, expected) for parse, texts in TEXTS.items() for text, expected in texts.items()],
)
def test_a_text_of_the_kernel_or_of_nvml_is_a_value_or_nothing(
    parse: Callable[[str], object], text: str, expected: object
) -> None:
    assert expected == parse(text)


@pytest.mark.parametrize(
    ("text", "excluded"),
    [("", False), ("^", True), (",,", False), ("mlx5_3,mlx5_0:2", False), ("=mlx5", True)],
)
def test_a_list_of_names_is_read_as_nccl_reads_it(text: str, *, excluded: bool) -> None:
    assert excluded is excludes({"NCCL_IB_HCA": text}, "NCCL_IB_HCA", "mlx5_0")


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


NEAR_X8 = ("32.0 GT/s PCIe\n", "8\n")
ALONE = "sys/devices/pci0000:00/0000:00:06.0"
NINTH = "sys/devices/pci0009:00/0009:00:00.0"


@pytest.mark.parametrize(
    ("links", "path", "expected"),
    [
        pytest.param(
            {
                ROOT_PORT: ("16.0 GT/s PCIe\n", "16\n"),
                SWITCH_UP: GEN5_X16,
                SWITCH_DOWN: GEN5_X16,
                GPU_PATH: ("2.5 GT/s PCIe\n", "1\n"),
            },
            GPU_PATH,
            16 * 1_969_000_000,
            id="the narrowest bridge counts, the GPU itself does not",
        ),
        pytest.param(
            {ROOT_PORT: NEAR_X8, SWITCH_UP: NEAR_X8, SWITCH_DOWN: GEN5_X16},
            GPU_PATH,
            8 * 3_938_000_000,
            id="a riser with few lanes above a switch",
        ),
        pytest.param(
            {ROOT_PORT: ("Unknown\n", "0\n"), SWITCH_UP: ("\n", "\n"), SWITCH_DOWN: GEN5_X16},
            GPU_PATH,
            16 * 3_938_000_000,
            id="a bridge that tells nothing is passed over",
        ),
        # A KVM guest with an H200: the GPU sits on the root bus.
        pytest.param({ALONE: GEN5_X16}, ALONE, None, id="a virtual machine has no bridges"),
        pytest.param(
            {NINTH: GEN5_X16},
            f"{NINTH}/0009:01:00.0",
            16 * 3_938_000_000,
            id="an address in another domain",
        ),
    ],
)
def test_the_way_to_a_gpu_is_as_fast_as_its_slowest_bridge(
    tmp_path: Path, links: Mapping[str, tuple[str, str]], path: str, expected: int | None
) -> None:
    assert expected == build(tmp_path, links, path=path)


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


@pytest.mark.parametrize(
    ("speed", "lanes", "expected"),
    [
        ("2.5 GT/s PCIe\n", "1\n", 250_000_000),
        ("5.0 GT/s PCIe\n", "1\n", 500_000_000),
        ("8 GT/s\n", "1\n", 985_000_000),
        ("8.0 GT/s PCIe\n", "1\n", 985_000_000),
        ("16.0 GT/s PCIe\n", "1\n", 1_969_000_000),
        ("32.0 GT/s PCIe\n", "1\n", 3_938_000_000),
        ("64.0 GT/s PCIe\n", "1\n", 7_563_000_000),
        ("128.0 GT/s PCIe\n", "1\n", None),
        ("Unknown\n", "1\n", None),
        ("", "1\n", None),
        (None, "1\n", None),
        *(("32.0 GT/s PCIe\n", lanes, None) for lanes in ("0\n", "", "x16\n", None)),
    ],
)
def test_a_link_is_as_fast_as_its_lanes_and_their_generation(
    speed: str | None, lanes: str | None, expected: int | None
) -> None:
    assert expected == parse_link(speed, lanes)


def test_the_bridges_are_all_above_the_device_nearest_first() -> None:
    assert [SWITCH_DOWN, SWITCH_UP, ROOT_PORT] == list_bridges(GPU_PATH)
