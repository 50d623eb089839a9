"""Read every GPU that NVML lists: its model, its memory, its PCIe slot, its processes."""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from zerowiz.core.machine.types import Gpu, GpuProcess, LeftOutGpu, PcieSlot
from zerowiz.core.values import replace
from zerowiz.probe.machine.nvml import calls
from zerowiz.probe.machine.nvml.session import Code, Session, Unavailable
from zerowiz.probe.machine.pci import read_numa_node, read_upstream_bytes_per_s
from zerowiz.probe.recording.files import Files

# No process can use a GPU whose handle, name or memory NVML answers with one of these.
_UNUSABLE = (Code.NO_PERMISSION, Code.GPU_IS_LOST, Code.RESET_REQUIRED, Code.UNKNOWN)

_EXPLANATIONS: Mapping[int, str] = {
    Code.NO_PERMISSION: "no permission to open it",
    Code.GPU_IS_LOST: "the driver has lost it (see `dmesg` for `Xid`)",
    Code.RESET_REQUIRED: "it has to be reset",
}

_NO_SLICES = "it is in MIG mode without slices: see `nvidia-smi mig --help` to create some"


class Device(Struct, frozen=True, kw_only=True):
    """A GPU that can be opened, and NVML's handle of it."""

    gpu: Gpu
    handle: object
    slices: tuple[Gpu, ...] = ()
    """The slices of a GPU in MIG mode, which no job can use as a whole."""


def list_devices(
    session: Session, files: Files, count: int
) -> tuple[tuple[Device, ...], tuple[LeftOutGpu, ...]]:
    """Every GPU that can be used, in NVML's order, and those that cannot, with the reason."""
    devices: list[Device] = []
    left_out: list[LeftOutGpu] = []
    ordinal = 0
    for index in range(count):
        device = _read_device(session, files, index, ordinal)
        if isinstance(device, Unavailable):
            left_out.append(LeftOutGpu(index=index, why=_explain(device)))
            if device.code == Code.FUNCTION_NOT_FOUND:
                break  # the function is missing for the other GPUs too
            continue
        ordinal += 1
        if device.gpu.mig_mode and not device.slices:
            left_out.append(LeftOutGpu(index=index, why=_NO_SLICES))
        else:
            devices.append(device)
    return tuple(devices), tuple(left_out)


def _explain(why: Unavailable) -> str:
    answer = f"NVML returned `{why.name}`"
    return answer if why.code is None else _EXPLANATIONS.get(why.code, answer)


def _read_device(session: Session, files: Files, index: int, ordinal: int) -> Device | Unavailable:
    """The GPU, or why it cannot be used."""
    handle = session.ask(calls.handle, index)
    if isinstance(handle, Unavailable):
        return handle
    mig_mode = bool(session.maybe(calls.mig_is_on, handle))
    name, memory = session.ask(calls.name, handle), _read_memory(session, handle)
    for answer in (name, *(() if mig_mode else (memory,))):
        if isinstance(answer, Unavailable) and answer.code in _UNUSABLE:
            return answer
    fabric = session.maybe(calls.fabric, handle)
    bus_id = session.maybe(calls.bus_id, handle)
    gpu = Gpu(
        index=index,
        ordinal=ordinal,
        name="unknown GPU" if isinstance(name, Unavailable) else name,
        uuid=session.maybe(calls.uuid, handle),
        compute_capability=session.maybe(calls.compute_capability, handle),
        bus_id=bus_id,
        numa_node=None if bus_id is None else read_numa_node(files, bus_id),
        pcie=_read_slot(session, files, handle, bus_id),
        fabric_ready=fabric is None or fabric.is_ready,
        clique=None if fabric is None else fabric.clique,
        ecc=session.maybe(calls.ecc_is_on, handle),
        mig_mode=mig_mode,
        processes=_read_processes(session, files, handle),
    )
    gpu = _with_memory(gpu, memory)
    slices = tuple(_read_slices(session, handle, gpu)) if mig_mode else ()
    return Device(gpu=gpu, handle=handle, slices=slices)


def _read_memory(session: Session, handle: object) -> calls.GpuMemory | Unavailable:
    newer = session.ask(calls.memory_v2, handle)
    return session.ask(calls.memory_v1, handle) if isinstance(newer, Unavailable) else newer


def _with_memory(gpu: Gpu, memory: calls.GpuMemory | Unavailable) -> Gpu:
    """The GPU with its sizes.

    NVML answers "not supported" or a total of 0 for a GPU that has no memory of its own.
    """
    if isinstance(memory, Unavailable):
        return replace(gpu, shares_host_memory=memory.code == Code.NOT_SUPPORTED)
    if not memory.total_bytes:
        return replace(gpu, shares_host_memory=True)
    return replace(
        gpu,
        total_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        reserved_bytes=memory.reserved_bytes,
        memory_source=memory.call,
    )


def _read_slot(session: Session, files: Files, handle: object, bus_id: str | None) -> PcieSlot:
    upstream = None if bus_id is None else read_upstream_bytes_per_s(files, bus_id)
    return PcieSlot(
        max_generation=session.maybe(calls.max_generation, handle),
        current_generation=session.maybe(calls.current_generation, handle),
        max_lanes=session.maybe(calls.max_lanes, handle),
        current_lanes=session.maybe(calls.current_lanes, handle),
        upstream_bytes_per_s=upstream,
    )


def _read_processes(session: Session, files: Files, handle: object) -> tuple[GpuProcess, ...]:
    found = session.maybe(calls.processes, handle) or ()
    return tuple(replace(process, name=_name_of(files, process.pid)) for process in found)


def _name_of(files: Files, pid: int) -> str | None:
    return (files.text(f"proc/{pid}/comm") or "").strip() or None


def _read_slices(session: Session, handle: object, whole: Gpu) -> Iterator[Gpu]:
    """The MIG slices of a GPU; their numbers have gaps."""
    for index in range(session.maybe(calls.most_slices, handle) or 0):
        part = session.ask(calls.slice_handle, handle, index)
        if isinstance(part, Unavailable):
            if part.code == Code.FUNCTION_NOT_FOUND:
                break
            continue
        gpu = replace(
            whole,
            mig_slice=index,
            name=session.maybe(calls.name, part) or whole.name,
            uuid=session.maybe(calls.uuid, part),
            total_bytes=None,
            free_bytes=None,
            reserved_bytes=None,
            processes=(),
        )
        yield replace(_with_memory(gpu, _read_memory(session, part)), shares_host_memory=False)
