"""Read the GPUs of a machine and their links from NVML, in a child process."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

from msgspec import Struct

from zerowiz.core.machine.names import match_models
from zerowiz.core.machine.types import (
    P2P_OK,
    P2P_WORDS,
    PCIE_PATHS,
    Gpu,
    LeftOutGpu,
    PairLink,
    PcieSlot,
    Ports,
    link_pair,
    other_end,
)
from zerowiz.core.structs import replace
from zerowiz.probe.files import Files, World, read_gpu_table
from zerowiz.probe.machine import nvml_calls
from zerowiz.probe.machine.network import read_numa_node, read_upstream_bytes_per_s
from zerowiz.probe.machine.nvml_calls import (
    GONE,
    Code,
    Handle,
    Session,
    Unavailable,
    open_session,
)
from zerowiz.probe.machine.nvml_child import HINTS, Announce, DriverFailedError

# Read every GPU that NVML lists: its model, its memory, its PCIe slot, its processes.

# No process can use a GPU whose handle, name or memory NVML answers with one of these.
_UNUSABLE = (Code.NO_PERMISSION, Code.GPU_IS_LOST, Code.RESET_REQUIRED, Code.UNKNOWN)

_EXPLANATIONS: Mapping[int, str] = {
    Code.NO_PERMISSION: "no permission to open it",
    Code.GPU_IS_LOST: "the driver has lost it (see `dmesg` for `Xid`)",
    Code.RESET_REQUIRED: "it has to be reset",
}

_NO_SLICES = "it is in MIG mode without slices: see `nvidia-smi mig --help` to create some"
_NO_MEMORY = "NVML does not report how much memory it has"

# More than any host has; a broken driver may count four billion.
_MOST_GPUS = 1024

# A board in a slot has as many PCIe lanes; a GPU that is a part of its host reports one, or none.
_LANES_OF_A_BOARD = 4


class Device(Struct, frozen=True, kw_only=True):
    """A GPU that can be opened, and NVML's handle of it."""

    gpu: Gpu
    handle: Handle
    slices: tuple[Gpu, ...] = ()
    """The slices of a GPU in MIG mode, which no job can use as a whole."""


class _Unusable(Struct, frozen=True, kw_only=True):
    """Why a GPU is left out."""

    why: str
    is_counted: bool = False
    """Whether CUDA has a number for it."""


def list_devices(
    session: Session, files: Files, count: int
) -> tuple[tuple[Device, ...], tuple[LeftOutGpu, ...]]:
    """Every GPU that can be used, in NVML's order, and those that cannot, with the reason."""
    devices: list[Device] = []
    left_out: list[LeftOutGpu] = []
    ordinal = 0
    for index in range(min(count, _MOST_GPUS)):
        answer = _read_device(session, files, index, ordinal)
        if isinstance(answer, Device):
            devices.append(answer)
            ordinal += 1
            continue
        left_out.append(LeftOutGpu(index=index, why=answer.why))
        ordinal += answer.is_counted
    reports = any(device.gpu.total_bytes is not None for device in devices)
    usable = [d for d in devices if not _lacks_memory(d.gpu, others_report=reports)]
    numbers = {d.gpu.index for d in devices} - {d.gpu.index for d in usable}
    left_out += [LeftOutGpu(index=index, why=_NO_MEMORY) for index in sorted(numbers)]
    return tuple(usable), tuple(left_out)


def _lacks_memory(gpu: Gpu, *, others_report: bool) -> bool:
    """Whether a GPU does not report the memory that it must have of its own.

    One that shares the host's memory has none, and is neither a board in a slot nor in the table.
    Where others report their memory, the driver can tell it.
    """
    if gpu.mig_mode or gpu.total_bytes is not None:
        return False
    is_board = (gpu.pcie.max_lanes or 0) >= _LANES_OF_A_BOARD
    known = is_board or any(
        not model.shares_host_memory for model in match_models(gpu.name, read_gpu_table())
    )
    return known if gpu.shares_host_memory else others_report


def _explain(why: Unavailable) -> str:
    answer = f"NVML returned `{why.name}`"
    return answer if why.code is None else _EXPLANATIONS.get(why.code, answer)


def _read_device(session: Session, files: Files, index: int, ordinal: int) -> Device | _Unusable:
    """The GPU, or why it cannot be used."""
    handle = session.ask(nvml_calls.handle, index)
    if isinstance(handle, Unavailable):
        return _Unusable(why=_explain(handle))
    mig_mode = bool(session.maybe(nvml_calls.mig_is_on, handle))
    name, memory = session.ask(nvml_calls.name, handle), _read_memory(session, handle)
    for answer in (name, *(() if mig_mode else (memory,))):
        if isinstance(answer, Unavailable) and answer.code in _UNUSABLE:
            return _Unusable(why=_explain(answer))
    if isinstance(memory, nvml_calls.GpuMemory) and memory.is_impossible and not mig_mode:
        sizes = f"{memory.free_bytes} of {memory.total_bytes} bytes"
        return _Unusable(why=f"NVML returned that {sizes} are free", is_counted=True)
    fabric = session.maybe(nvml_calls.fabric, handle)
    bus_id = session.maybe(nvml_calls.bus_id, handle)
    gpu = Gpu(
        index=index,
        ordinal=ordinal,
        name="unknown GPU" if isinstance(name, Unavailable) else name,
        uuid=session.maybe(nvml_calls.uuid, handle),
        compute_capability=session.maybe(nvml_calls.compute_capability, handle),
        bus_id=bus_id,
        numa_node=None if bus_id is None else read_numa_node(files, bus_id),
        pcie=PcieSlot(
            max_generation=session.maybe(nvml_calls.max_generation, handle),
            current_generation=session.maybe(nvml_calls.current_generation, handle),
            max_lanes=session.maybe(nvml_calls.max_lanes, handle),
            current_lanes=session.maybe(nvml_calls.current_lanes, handle),
            upstream_bytes_per_s=(
                None if bus_id is None else read_upstream_bytes_per_s(files, bus_id)
            ),
        ),
        fabric_ready=fabric is None or fabric.is_ready,
        clique=None if fabric is None else fabric.clique,
        ecc=session.maybe(nvml_calls.ecc_is_on, handle),
        mig_mode=mig_mode,
        processes=tuple(
            replace(process, name=(files.text(f"proc/{process.pid}/comm") or "").strip() or None)
            for process in session.maybe(nvml_calls.processes, handle) or ()
        ),
    )
    gpu = _with_memory(gpu, memory)
    slices = tuple(_read_slices(session, handle, gpu)) if mig_mode else ()
    if mig_mode and not slices:
        return _Unusable(why=_NO_SLICES, is_counted=True)
    return Device(gpu=gpu, handle=handle, slices=slices)


def _read_memory(session: Session, handle: Handle) -> nvml_calls.GpuMemory | Unavailable:
    newer = session.ask(nvml_calls.memory_v2, handle)
    if not isinstance(newer, Unavailable) or newer.code in GONE:
        return newer
    return session.ask(nvml_calls.memory_v1, handle)


def _with_memory(gpu: Gpu, memory: nvml_calls.GpuMemory | Unavailable) -> Gpu:
    """The GPU with its sizes.

    NVML answers "not supported" or a total of 0 for a GPU that has no memory of its own.
    """
    if isinstance(memory, Unavailable):
        return replace(gpu, shares_host_memory=memory.code == Code.NOT_SUPPORTED)
    if not memory.total_bytes:
        return replace(gpu, shares_host_memory=True)
    if memory.is_impossible:
        return gpu
    return replace(
        gpu,
        total_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        reserved_bytes=memory.reserved_bytes,
        memory_source=memory.call,
    )


def _read_slices(session: Session, handle: Handle, whole: Gpu) -> Iterator[Gpu]:
    """The MIG slices of a GPU; their numbers have gaps."""
    for index in range(session.maybe(nvml_calls.most_slices, handle) or 0):
        part = session.ask(nvml_calls.slice_handle, handle, index)
        if isinstance(part, Unavailable):
            if part.code == Code.FUNCTION_NOT_FOUND:
                break
            continue
        gpu = replace(
            whole,
            mig_slice=index,
            name=session.maybe(nvml_calls.name, part) or whole.name,
            uuid=session.maybe(nvml_calls.uuid, part),
            total_bytes=None,
            free_bytes=None,
            reserved_bytes=None,
            processes=(),
        )
        yield replace(_with_memory(gpu, _read_memory(session, part)), shares_host_memory=False)


# Read the NVLinks of each GPU, and the link of each pair of GPUs.

# nvml.h, NVML_NVLINK_MAX_LINKS as of R590; the first missing link ends the loop.
_MOST_LINKS = 36

_BYTES_PER_MB = 1_000_000


def _read_device_ports(session: Session, device: Device, peers: frozenset[str | None]) -> Ports:
    """The NVLinks of one GPU; in MIG mode it has none that a job can use."""
    nvlinks: tuple[str | None, ...] | None = ()
    if not device.gpu.mig_mode:
        active = _list_active(session, device.handle)
        ends = [
            (
                session.maybe(nvml_calls.remote_type, device.handle, link),
                session.maybe(nvml_calls.remote_bus_id, device.handle, link),
            )
            for link in active or ()
        ]
        nvlinks = None if active is None else tuple(other_end(*end, peers) for end in ends)
    return Ports(
        gpu=device.gpu,
        nvlinks=nvlinks,
        raw_bytes_per_s=_read_raw_rate(session, device.handle) if nvlinks else None,
    )


def _read_raw_rate(session: Session, handle: Handle) -> int | None:
    megabytes_per_s = session.maybe(nvml_calls.read_field, handle, nvml_calls.FIELD_LINK_SPEED, 0)
    return megabytes_per_s * _BYTES_PER_MB if megabytes_per_s else None


def _list_active(session: Session, handle: Handle) -> list[int] | None:
    """The NVLinks of a GPU that peers can use; `None` where NVML does not know."""
    count = session.ask(nvml_calls.read_field, handle, nvml_calls.FIELD_LINK_COUNT, 0)
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
        elif active and session.maybe(nvml_calls.link_carries_p2p, handle, link) is not False:
            links.append(link)
    return links


def _read_link_state(session: Session, handle: Handle, link: int) -> bool | Unavailable:
    """Whether a link is active; newer GPUs have the field, older ones the function."""
    state = session.ask(nvml_calls.read_field, handle, nvml_calls.FIELD_LINK_STATE, link)
    if isinstance(state, Unavailable):
        return session.ask(nvml_calls.link_is_active, handle, link)
    return state == 1


def _read_pair(
    session: Session, handle: Handle, peer: Handle, ports: tuple[Ports, Ports]
) -> PairLink:
    nvlink = session.maybe(nvml_calls.p2p_status, handle, peer, nvml_calls.P2P_NVLINK)
    level = session.maybe(nvml_calls.common_ancestor, handle, peer)
    by_nvlink = None if nvlink is None else P2P_WORDS.get(nvlink) == P2P_OK
    return replace(
        link_pair(*ports, nvlink_p2p=by_nvlink),
        path=None if level is None else PCIE_PATHS.get(level),
        p2p=_join_p2p(
            session.maybe(nvml_calls.p2p_status, handle, peer, nvml_calls.P2P_READ),
            session.maybe(nvml_calls.p2p_status, handle, peer, nvml_calls.P2P_WRITE),
        ),
    )


def _join_p2p(read: int | None, write: int | None) -> str | None:
    """The status of reads, or that of writes where reads are OK; NCCL needs both."""
    if read is None or write is None:
        return None
    words = [P2P_WORDS.get(status, P2P_WORDS[6]) for status in (read, write)]
    return next((word for word in words if word != P2P_OK), P2P_OK)


class GpuReading(Struct, frozen=True, kw_only=True):
    """All that NVML reports of a machine."""

    gpus: tuple[Gpu, ...]
    """Every GPU that can be used; for one in MIG mode, its slices."""
    left_out: tuple[LeftOutGpu, ...]
    links: tuple[PairLink, ...]
    """Of every pair of whole GPUs."""
    driver_version: str | None
    cuda_version: tuple[int, int] | None


def read_gpus(world: World, announce: Announce) -> GpuReading:
    """Every GPU of the machine, also those that the job does not see.

    Args:
        world: What is read beside the driver.
        announce: Hears of each call before it is made: it may not return.

    Raises:
        NoDriverError: NVML does not start.
        DriverFailedError: NVML cannot count the GPUs.
    """
    session = open_session(announce)
    count = session.ask(nvml_calls.count)
    if isinstance(count, Unavailable):
        raise DriverFailedError(f"the GPUs cannot be counted: `{count.name}`", *HINTS)
    devices, left_out = list_devices(session, world.files, count)
    peers = frozenset(device.gpu.bus_id for device in devices)
    ports = tuple(_read_device_ports(session, device, peers) for device in devices)
    plugged = zip(devices, ports, strict=True)
    links = tuple(
        _read_pair(session, device.handle, peer.handle, (plug, other_plug))
        for (device, plug), (peer, other_plug) in combinations(plugged, 2)
    )
    answers = [(device.gpu.index, _read_memory(session, device.handle)) for device in devices]
    gone = tuple(
        LeftOutGpu(index=index, why=_explain(answer))
        for index, answer in answers
        if isinstance(answer, Unavailable) and answer.code in GONE
    )
    indices = {gpu.index for gpu in gone}
    gpus = [gpu for pair in zip(devices, ports, strict=True) for gpu in _usable(*pair)]
    return GpuReading(
        gpus=tuple(_without(indices, gpus)),
        left_out=tuple(sorted((*left_out, *gone), key=lambda gpu: gpu.index)),
        links=tuple(link for link in links if indices.isdisjoint(link.pair)),
        driver_version=session.maybe(nvml_calls.driver_version),
        cuda_version=session.maybe(nvml_calls.cuda_version),
    )


def _without(gone: Collection[int], gpus: Sequence[Gpu]) -> Iterator[Gpu]:
    """The GPUs that are still there, with the numbers that CUDA gives them now."""
    lost = {gpu.cuda_ordinal for gpu in gpus if gpu.index in gone}
    for gpu in gpus:
        if gpu.index not in gone:
            before = sum(ordinal < gpu.cuda_ordinal for ordinal in lost)
            yield replace(gpu, ordinal=gpu.cuda_ordinal - before)


def _usable(device: Device, ports: Ports) -> tuple[Gpu, ...]:
    """What a job can use of a GPU: the GPU itself, or its slices."""
    nvlinks = None if ports.nvlinks is None else len(ports.nvlinks)
    return device.slices or (replace(device.gpu, nvlinks=nvlinks),)
