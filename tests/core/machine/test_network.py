import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.machine.types import Network, NetworkKind, Nic, join_nics
from zerowiz.core.structs import replace

NICS = st.builds(
    Nic,
    name=st.sampled_from(["mlx5_0", "mlx5_1", "eth0"]),
    kind=st.sampled_from(NetworkKind),
    bytes_per_s=st.none() | st.integers(1, 10**12),
    unusable=st.none() | st.just("port 1 is DOWN"),
)
LISTS = st.lists(NICS, max_size=6)


def infiniband(bytes_per_s: int | None = 50_000_000_000) -> Nic:
    return Nic(name="mlx5_0", kind=NetworkKind.INFINIBAND, bytes_per_s=bytes_per_s)


def ethernet(bytes_per_s: int | None) -> Nic:
    return Nic(name="eth0", kind=NetworkKind.ETHERNET, bytes_per_s=bytes_per_s)


def test_rdma_adapters_carry_a_job_together() -> None:
    network = join_nics([infiniband(), infiniband(), ethernet(10**12)])
    assert (NetworkKind.INFINIBAND, 100_000_000_000) == (network.kind, network.bytes_per_s)


def test_sockets_use_the_fastest_interface_alone() -> None:
    network = join_nics([ethernet(1_250_000_000), ethernet(125_000_000), ethernet(None)])
    assert (NetworkKind.ETHERNET, 1_250_000_000) == (network.kind, network.bytes_per_s)


@given(LISTS)
def test_every_adapter_stays_listed(nics: list[Nic]) -> None:
    assert tuple(nics) == join_nics(nics).nics


@given(LISTS)
def test_an_unusable_adapter_changes_nothing(nics: list[Nic]) -> None:
    network = join_nics(nics)
    usable = join_nics([nic for nic in nics if nic.unusable is None])
    assert (usable.kind, usable.bytes_per_s) == (network.kind, network.bytes_per_s)


@given(LISTS)
def test_without_a_usable_adapter_nothing_is_known(nics: list[Nic]) -> None:
    network = join_nics([replace(nic, unusable="it is down") for nic in nics])
    assert (NetworkKind.UNKNOWN, None, False) == (
        network.kind,
        network.bytes_per_s,
        network.is_fast,
    )


@given(LISTS)
def test_the_order_of_adapters_changes_nothing(nics: list[Nic]) -> None:
    shuffled = sorted(nics, key=lambda nic: (nic.kind, nic.bytes_per_s or 0, nic.name))
    one, other = join_nics(nics), join_nics(shuffled)
    assert (one.kind, one.bytes_per_s) == (other.kind, other.bytes_per_s)


@given(LISTS, NICS)
def test_one_more_adapter_never_makes_the_network_slower(nics: list[Nic], more: Nic) -> None:
    before, after = join_nics(nics), join_nics([*nics, more])
    assert list(NetworkKind).index(after.kind) <= list(NetworkKind).index(before.kind)
    if before.kind is after.kind:
        assert (before.bytes_per_s or 0) <= (after.bytes_per_s or 0)


@pytest.mark.parametrize(
    ("kind", "bytes_per_s", "expected"),
    [
        (NetworkKind.NVLINK, None, True),
        (NetworkKind.INFINIBAND, None, True),
        (NetworkKind.EFA, 12_500_000_000, True),
        (NetworkKind.ROCE, 12_500_000_000, True),
        (NetworkKind.ROCE, 12_499_999_999, False),
        (NetworkKind.ROCE, None, False),
        (NetworkKind.ETHERNET, 50_000_000_000, False),
        (NetworkKind.UNKNOWN, None, False),
    ],
)
def test_infiniband_or_better_is_fast(
    kind: NetworkKind, bytes_per_s: int | None, *, expected: bool
) -> None:
    assert expected is Network(kind=kind, bytes_per_s=bytes_per_s).is_fast


@given(st.builds(Network, kind=st.sampled_from(NetworkKind), bytes_per_s=st.integers(1, 10**12)))
def test_an_unknown_rate_never_looks_faster_than_a_known_one(network: Network) -> None:
    assert network.is_fast or not replace(network, bytes_per_s=None).is_fast
