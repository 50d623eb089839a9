"""Read every GPU that NVML lists: its model, its memory, its PCIe slot, its processes."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from zerowiz.core.machine.names.gpus import match_models
from zerowiz.core.machine.types import Gpu, GpuProcess, LeftOutGpu, PcieSlot
from zerowiz.core.values import replace
from zerowiz.probe.machine.gpu_table import read_gpu_table
from zerowiz.probe.machine.nvml import calls
from zerowiz.probe.machine.nvml.session import Code, Session, Unavailable
from zerowiz.probe.machine.pci import read_numa_node, read_upstream_bytes_per_s
from zerowiz.probe.recording.files import Files
from zerowiz.words import N_, _

# No process can use a GPU whose handle, name or memory NVML answers with one of these.
_UNUSABLE = (Code.NO_PERMISSION, Code.GPU_IS_LOST, Code.RESET_REQUIRED, Code.UNKNOWN)

_EXPLANATIONS: Mapping[int, str] = {
    Code.NO_PERMISSION: _("no permission to open it"),
    Code.GPU_IS_LOST: _("the driver has lost it (see `dmesg` for `Xid`)"),
    Code.RESET_REQUIRED: _("it has to be reset"),
}

_NO_SLICES = _("it is in MIG mode without slices: see `nvidia-smi mig --help` to create some")
_NO_MEMORY = _("NVML does not report how much memory it has")

# More than any host has; a broken driver may count four billion.
_MOST_GPUS = 1024

# A board in a slot has as many PCIe lanes; a GPU that is a part of its host reports one, or none.
_LANES_OF_A_BOARD = 4


class Device(Struct, frozen=True, kw_only=True):
    """A GPU that can be opened, and NVML's handle of it."""

    gpu: Gpu
    handle: object
    slices: tuple[Gpu, ...] = ()
    """The slices of a GPU in MIG mode, which no job can use as a whole."""


class _Unusable(Struct, frozen=True, kw_only=True):
    """Why a GPU is left out."""

    why: str
    is_counted: bool = False
    """Whether CUDA has a number for it."""
    is_missing: bool = False
    """Whether the driver lacks the function that was asked."""


def list_devices(
    session: Session, files: Files, count: int
) -> tuple[tuple[Device, ...], tuple[LeftOutGpu, ...]]:
    """Every GPU that can be used, in NVML's order, and those that cannot, with the reason."""
    devices: list[Device] = []
    left_out: list[LeftOutGpu] = []
    ordinal = 0
    for index in range(min(count, _MOST_GPUS)):
        found = _read_device(session, files, index, ordinal)
        if isinstance(found, Device):
            devices.append(found)
            ordinal += 1
            continue
        left_out.append(LeftOutGpu(index=index, why=found.why))
        ordinal += found.is_counted
        if found.is_missing and not devices:
            break  # the function is missing for the other GPUs too
    odd = {device.gpu.index for device in devices if _lacks_memory(device.gpu, devices)}
    left_out += [LeftOutGpu(index=index, why=_NO_MEMORY) for index in odd]
    usable = tuple(device for device in devices if device.gpu.index not in odd)
    return usable, tuple(sorted(left_out, key=lambda each: each.index))


def find_gone(session: Session, devices: Sequence[Device]) -> tuple[LeftOutGpu, ...]:
    """The GPUs that were found gone after they had been listed."""
    if any(len(handles) > 1 for handles, _ in session.gone):  # which of the two it is
        for device in devices:
            _read_memory(session, device.handle)
    found = ((device.gpu.index, session.why_gone(device.handle)) for device in devices)
    return tuple(LeftOutGpu(index=index, why=_explain(why)) for index, why in found if why)


def _lacks_memory(gpu: Gpu, devices: Sequence[Device]) -> bool:
    """Whether a GPU does not report the memory that it must have of its own.

    A GPU that shares the host's memory has none. Its budget would be that of all the others.
    """
    if gpu.mig_mode or gpu.total_bytes is not None:
        return False
    if any(device.gpu.total_bytes is not None for device in devices):
        return True
    is_board = (gpu.pcie.max_lanes or 0) >= _LANES_OF_A_BOARD
    return gpu.shares_host_memory and (is_board or bool(match_models(gpu.name, read_gpu_table())))


def _explain(why: Unavailable) -> str:
    answer = _("NVML returned `{why}`", why=why.name)
    return answer if why.code is None else _EXPLANATIONS.get(why.code, answer)


def _unusable(why: Unavailable) -> _Unusable:
    return _Unusable(why=_explain(why), is_missing=why.code == Code.FUNCTION_NOT_FOUND)


def _read_device(session: Session, files: Files, index: int, ordinal: int) -> Device | _Unusable:
    """The GPU, or why it cannot be used."""
    handle = session.ask(calls.handle, index)
    if isinstance(handle, Unavailable):
        return _unusable(handle)
    mig_mode = bool(session.maybe(calls.mig_is_on, handle))
    name, memory = session.ask(calls.name, handle), _read_memory(session, handle)
    for answer in (name, *(() if mig_mode else (memory,))):
        if isinstance(answer, Unavailable) and answer.code in _UNUSABLE:
            return _unusable(answer)
    if isinstance(memory, calls.GpuMemory) and memory.is_impossible and not mig_mode:
        sizes = _(
            "{free_bytes} of {total_bytes} bytes",
            free_bytes=memory.free_bytes,
            total_bytes=memory.total_bytes,
        )
        return _Unusable(why=_("NVML returned that {sizes} are free", sizes=sizes), is_counted=True)
    fabric = session.maybe(calls.fabric, handle)
    bus_id = session.maybe(calls.bus_id, handle)
    gpu = Gpu(
        index=index,
        ordinal=ordinal,
        name=N_("unknown GPU") if isinstance(name, Unavailable) else name,
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
    gone = session.why_gone(handle)
    if gone is not None:
        return _unusable(gone)
    if mig_mode and not slices:
        return _Unusable(why=_NO_SLICES, is_counted=True)
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
    if memory.is_impossible:
        return gpu
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
