"""Read the NVLinks of each GPU, and the link of each pair of GPUs."""

from collections.abc import Sequence
from itertools import combinations

from zerowiz.core.machine.links import PairLink
from zerowiz.core.machine.topology import (
    P2P_OK,
    P2P_WORDS,
    PCIE_PATHS,
    NvLink,
    PairAnswers,
    Ports,
    RemoteType,
    link_pair,
)
from zerowiz.core.values import replace
from zerowiz.probe.machine.nvml import calls
from zerowiz.probe.machine.nvml.gpus import Device
from zerowiz.probe.machine.nvml.session import Code, Session, Unavailable
from zerowiz.probe.machine.pci import read_class
from zerowiz.probe.recording.files import Files

# nvml.h, NVML_NVLINK_MAX_LINKS as of R590; the first missing link ends the loop.
_MOST_LINKS = 36

_BYTES_PER_MB = 1_000_000

# PCI code and ID assignment specification: bridge device, other. NVSwitches have it.
_BRIDGE_CLASS = "0x0680"


def read_ports(session: Session, files: Files, devices: Sequence[Device]) -> tuple[Ports, ...]:
    """The NVLinks of each GPU, with the device at the other end."""
    peers = frozenset(device.gpu.bus_id for device in devices)
    return tuple(_read_device_ports(session, files, device, peers) for device in devices)


def _read_device_ports(
    session: Session, files: Files, device: Device, peers: frozenset[str | None]
) -> Ports:
    """The NVLinks of one GPU; in MIG mode it has none that a job can use."""
    nvlinks: tuple[NvLink, ...] | None = ()
    if not device.gpu.mig_mode:
        active = _list_active(session, device.handle)
        ends = [_read_end(session, device.handle, link) for link in active or ()]
        nvlinks = None if active is None else tuple(_typed(end, files, peers) for end in ends)
    return Ports(
        gpu=device.gpu,
        nvlinks=nvlinks,
        raw_bytes_per_s=_read_raw_rate(session, device.handle) if nvlinks else None,
    )


def _read_raw_rate(session: Session, handle: object) -> int | None:
    megabytes_per_s = session.maybe(calls.field, handle, calls.FIELD_LINK_SPEED, 0)
    return megabytes_per_s * _BYTES_PER_MB if megabytes_per_s else None


def _read_end(session: Session, handle: object, link: int) -> NvLink:
    return NvLink(
        remote_type=session.maybe(calls.remote_type, handle, link),
        remote_bus_id=session.maybe(calls.remote_bus_id, handle, link),
    )


def _typed(link: NvLink, files: Files, peers: frozenset[str | None]) -> NvLink:
    """The link with the type of its other end; drivers before R470 have only the PCI address."""
    if link.remote_type is not None or link.to_switch or link.remote_bus_id in peers:
        return link
    pci_class = read_class(files, link.remote_bus_id or "")
    bridge = pci_class is None or pci_class.startswith(_BRIDGE_CLASS)
    return replace(link, remote_type=RemoteType.SWITCH if bridge else RemoteType.UNKNOWN)


def _list_active(session: Session, handle: object) -> list[int] | None:
    """The NVLinks of a GPU that peers can use; `None` where NVML does not know."""
    count = session.ask(calls.field, handle, calls.FIELD_LINK_COUNT, 0)
    if isinstance(count, Unavailable):
        if count.code == Code.NOT_SUPPORTED:
            return []
        count = _MOST_LINKS
    links: list[int] = []
    for link in range(count):
        active = _read_link_state(session, handle, link)
        if isinstance(active, Unavailable):
            if active.code == Code.INVALID_ARGUMENT:
                break
            if active.code != Code.NOT_SUPPORTED:
                return None
        elif active and session.maybe(calls.link_carries_p2p, handle, link) is not False:
            links.append(link)
    return links


def _read_link_state(session: Session, handle: object, link: int) -> bool | Unavailable:
    """Whether a link is active; newer GPUs have the field, older ones the function."""
    state = session.ask(calls.field, handle, calls.FIELD_LINK_STATE, link)
    if isinstance(state, Unavailable):
        return session.ask(calls.link_is_active, handle, link)
    return state == 1


def read_links(
    session: Session, devices: Sequence[Device], ports: Sequence[Ports]
) -> tuple[PairLink, ...]:
    """The link of every pair of GPUs."""
    plugged = zip(devices, ports, strict=True)
    return tuple(
        link_pair(one, other, _ask_pair(session, device.handle, peer.handle))
        for (device, one), (peer, other) in combinations(plugged, 2)
    )


def _ask_pair(session: Session, handle: object, peer: object) -> PairAnswers:
    nvlink = session.maybe(calls.p2p_status, handle, peer, calls.P2P_NVLINK)
    level = session.maybe(calls.common_ancestor, handle, peer)
    return PairAnswers(
        nvlink_p2p=None if nvlink is None else P2P_WORDS.get(nvlink) == P2P_OK,
        path=None if level is None else PCIE_PATHS.get(level),
        p2p=_join_p2p(
            session.maybe(calls.p2p_status, handle, peer, calls.P2P_READ),
            session.maybe(calls.p2p_status, handle, peer, calls.P2P_WRITE),
        ),
    )


def _join_p2p(read: int | None, write: int | None) -> str | None:
    """The status of reads, or that of writes where reads are OK; NCCL needs both."""
    if read is None or write is None:
        return None
    words = [P2P_WORDS.get(status, P2P_WORDS[6]) for status in (read, write)]
    return next((word for word in words if word != P2P_OK), P2P_OK)
