"""Ports that are taken, and interfaces that are not there."""

import socket
from pathlib import Path

import pytest
from fake_host import build_host

from zerowiz.probe.preflight.interpreter import find_free_port, is_taken, read_interfaces

ADAPTERS = {
    "sys/class/net/lo/type": "772",
    "sys/class/net/eth0/type": "1",
    "sys/class/infiniband/mlx5_0/node_type": "1: CA",
    "sys/class/infiniband/mlx5_1/node_type": "1: CA",
}


def test_a_port_with_a_listener_is_taken_and_a_left_one_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        assert is_taken(port) is True
    assert is_taken(port) is False


def test_what_an_ended_job_left_of_a_port_does_not_count() -> None:
    """Who closes first leaves the port waiting, which forbids a plain listener there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()
            client.recv(1)
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("", port))
    assert is_taken(port) is False


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("32768\t60999\n", 10_000, 29_399),
        ("16384\t65535\n", 10_000, 16_383),
        ("1024\t65535\n", 1_024, 65_535),  # nothing is left, so the kernel is asked
        ("no", 10_000, 29_399),
    ],
)
def test_a_free_port_is_none_that_the_kernel_gives_to_connections(
    tmp_path: Path, text: str, low: int, high: int
) -> None:
    (tmp_path / "range").write_text(text)
    ports = {find_free_port(tmp_path / "range") for _ in range(20)}
    assert all(low <= port <= high for port in ports)
    assert 1 < len(ports)
    assert {False} == {is_taken(port) for port in ports}


def test_no_port_at_all_is_unknown() -> None:
    assert is_taken(70000) is None


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("NCCL_SOCKET_IFNAME", "eth0", True),
        ("NCCL_SOCKET_IFNAME", "eth", True),
        ("NCCL_SOCKET_IFNAME", "=eth", False),
        ("NCCL_SOCKET_IFNAME", "ib0,eth0", True),
        ("NCCL_SOCKET_IFNAME", "ib0", False),
        ("NCCL_SOCKET_IFNAME", "^docker", True),
        ("NCCL_SOCKET_IFNAME", "^lo,eth", False),
        ("GLOO_SOCKET_IFNAME", "eth0", True),
        ("GLOO_SOCKET_IFNAME", "eth", False),
        ("NCCL_IB_HCA", "mlx5", True),
        ("NCCL_IB_HCA", "=mlx5_1:1", True),
        ("NCCL_IB_HCA", "=mlx5", False),
        ("NCCL_IB_HCA", "mlx4_0", False),
        ("NCCL_IB_HCA", "^mlx5_0", True),
    ],
)
def test_a_variable_names_what_is_there_or_nothing(
    tmp_path: Path, variable: str, value: str, expected: bool
) -> None:
    files = build_host(tmp_path, ADAPTERS)
    assert {variable: expected} == read_interfaces({variable: value}, files)


def test_where_nothing_is_listed_nothing_is_said(tmp_path: Path) -> None:
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA")
    assert {} == read_interfaces(dict.fromkeys(names, "eth0"), build_host(tmp_path, {}))
    assert {} == read_interfaces({"NCCL_SOCKET_IFNAME": "x"}, build_host(tmp_path, ADAPTERS))
