"""Read the GPUs of this machine from NVML, the only module that knows pynvml.

Every read goes through `_Session.ask`, which gives a value or says why there is none: what one
GPU cannot answer never keeps the others from being planned for.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from zerowiz.core.machine import Gpu, Interconnect, Machine, MachineSource
from zerowiz.core.topology import NvLink, Ports, join_pairs, link_pair
from zerowiz.core.visible import VARIABLE, GpuId, choose_gpus
from zerowiz.errors import PreflightError
from zerowiz.probe.host import read_host

_Value = TypeVar("_Value")


class _Code(IntEnum):
    """The NVML return codes that decide something here (nvml.h, `nvmlReturn_t`)."""

    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    DRIVER_NOT_LOADED = 9
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    UNKNOWN = 999


# A GPU that answers its name or its memory so cannot be used, by us or by anyone.
_UNUSABLE = (_Code.NO_PERMISSION, _Code.GPU_IS_LOST, _Code.RESET_REQUIRED, _Code.UNKNOWN)

# What init answers, what it means, what to do.
_INIT_FAILURES: Mapping[int, tuple[str, tuple[str, ...]]] = {
    _Code.LIBRARY_NOT_FOUND: (
        "no NVIDIA driver found: `libnvidia-ml.so.1` is not on this machine",
        (
            "on a login node, run inside the job: `srun zerowiz ...`",
            "in a container, start it with its GPUs: `docker run --gpus all ...`",
        ),
    ),
    _Code.DRIVER_NOT_LOADED: (
        "the NVIDIA driver is installed, but its kernel module is not loaded",
        ("`sudo modprobe nvidia` loads it",),
    ),
    _Code.LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver library and its kernel module have different versions",
        ("the driver was upgraded: reboot, or restart the container",),
    ),
    _Code.NO_PERMISSION: (
        "no permission to use the NVIDIA driver",
        ("see who may read and write `/dev/nvidia*`",),
    ),
    _Code.UNKNOWN: (
        "the NVIDIA driver answers only `unknown error`",
        ("restart the container: a `systemctl daemon-reload` on the host takes its GPUs away",),
    ),
}

_PLAN_WITHOUT = (
    "`--machine 8xH100-80GB` plans without a GPU",
    "`--accelerator cpu` plans for the CPU",
)

# nvml.h, NVML_FI_DEV_NVLINK_LINK_COUNT and NVML_FI_DEV_NVLINK_GET_STATE.
_FIELD_LINK_COUNT = 91
_FIELD_LINK_STATE = 165

# nvml.h, NVML_NVLINK_MAX_LINKS as of R590; a link that is not there ends the walk.
_MOST_LINKS = 36

# nvml.h, NVML_P2P_CAPS_INDEX_NVLINK and NVML_P2P_STATUS_OK; pynvml's own names are broken tuples.
_P2P_NVLINK = 2
_P2P_OK = 0

# nvml.h, NVML_GPU_FABRIC_STATE_COMPLETED; GPUs before Hopper have no fabric state.
_FABRIC_COMPLETED = 3
_FIRST_WITH_FABRIC = (9, 0)

# nvml.h, `nvmlValueType_t`: which member of the union `nvmlValue_t` holds the number.
_UNION_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


@dataclass(frozen=True, kw_only=True, slots=True)
class Unavailable:
    """Why NVML gave no value."""

    code: int | None
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Session:
    """NVML between init and shutdown."""

    nvml: ModuleType
    refusals: tuple[type[Exception], ...]

    def ask(self, read: Callable[..., _Value], *args: object) -> _Value | Unavailable:
        """What `read` makes of pynvml's answer, as plain values, or why there is none."""
        try:
            return read(self.nvml, *args)
        except self.refusals as error:
            return Unavailable(code=getattr(error, "value", None), name=type(error).__name__)

    def maybe(self, read: Callable[..., _Value], *args: object) -> _Value | None:
        """As `ask`, when it does not matter why there is no value."""
        answer = self.ask(read, *args)
        return None if isinstance(answer, Unavailable) else answer


@dataclass(frozen=True, kw_only=True, slots=True)
class _Device:
    """A usable GPU and NVML's handle of it."""

    gpu: Gpu
    handle: object


def read_machine(
    environ: Mapping[str, str], *, gpus: str | None = None, root: Path = Path("/")
) -> Machine:
    """This machine, with the GPUs that a CUDA job would use.

    Args:
        environ: The environment; `CUDA_VISIBLE_DEVICES` is read.
        gpus: The value of `--gpus`, NVML indices; `None` for all that CUDA sees.
        root: Where /proc and /sys are looked for.

    Raises:
        PreflightError: There is no driver, or no GPU that can be used.
        UsageError: `gpus` names a GPU that is not there or not visible.
    """
    with _open_session() as session:
        devices, notes = _list_devices(session)
        chosen = _choose(devices, environ.get(VARIABLE), gpus)
        ports = _read_all_ports(session, chosen)
        return Machine(
            source=MachineSource.NVML,
            gpus=tuple(device.gpu for device in chosen),
            interconnect=_read_interconnect(session, chosen, ports),
            host=read_host(root),
            notes=(*notes, *_note_order(devices, environ), *_note_ports(session, chosen, ports)),
        )


@contextmanager
def _open_session() -> Iterator[_Session]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _init_failure(error.value) from None
    # Not a subclass of NVMLError, and absent from nvidia-ml-py before 12.560.
    mismatch = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
    refusals = (pynvml.NVMLError, mismatch, UnicodeDecodeError, ctypes.ArgumentError)
    try:
        yield _Session(nvml=pynvml, refusals=refusals)
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _init_failure(code: int) -> PreflightError:
    unforeseen = (f"the NVIDIA driver does not start: NVML error {code}", ("see `nvidia-smi`",))
    message, hints = _INIT_FAILURES.get(code, unforeseen)
    return PreflightError(message, *hints, *_PLAN_WITHOUT)


def _list_devices(session: _Session) -> tuple[list[_Device], list[str]]:
    """Every usable GPU, and a note for each that is left out."""
    count = session.ask(_count)
    if isinstance(count, Unavailable):
        raise PreflightError(f"the GPUs cannot be counted: `{count.name}`", *_PLAN_WITHOUT)
    devices: list[_Device] = []
    notes: list[str] = []
    for index in range(count):
        device = _read_device(session, index)
        if isinstance(device, str):
            notes.append(f"GPU {index} is left out: {device}")
        else:
            devices.append(device)
    if not devices:
        raise PreflightError("there is no usable GPU on this machine", *notes, *_PLAN_WITHOUT)
    return devices, notes


def _read_device(session: _Session, index: int) -> _Device | str:
    """The GPU, or why it cannot be used."""
    handle = session.ask(_handle, index)
    if isinstance(handle, Unavailable):
        return _explain(handle)
    name = session.ask(_name, handle)
    memory = session.ask(_memory_v2, handle)
    if isinstance(memory, Unavailable):
        memory = session.ask(_memory_v1, handle)
    for answer in (name, memory):
        if isinstance(answer, Unavailable) and answer.code in _UNUSABLE:
            return _explain(answer)
    if session.maybe(_mig_is_on, handle):
        return "it is split into MIG slices, which share no links"
    # A GPU that shares the host's memory has none of its own: not supported, or a total of 0.
    sizes = (None, None) if isinstance(memory, Unavailable) or not any(memory) else memory
    gpu = Gpu(
        index=index,
        name="unknown GPU" if isinstance(name, Unavailable) else name,
        uuid=session.maybe(_uuid, handle),
        total_bytes=sizes[0],
        free_bytes=sizes[1],
        compute_capability=session.maybe(_compute_capability, handle),
    )
    return _Device(gpu=gpu, handle=handle)


# Rule: an answer that is not here is named as NVML names it.
_EXPLANATIONS: Mapping[int, str] = {
    _Code.NO_PERMISSION: "no permission to open it",
    _Code.GPU_IS_LOST: "the driver has lost it (see `dmesg` for `Xid`)",
    _Code.RESET_REQUIRED: "it has to be reset",
}


def _explain(why: Unavailable) -> str:
    said = f"NVML answers `{why.name}`"
    return said if why.code is None else _EXPLANATIONS.get(why.code, said)


def _choose(
    devices: Sequence[_Device], visible: str | None, asked: str | None
) -> tuple[_Device, ...]:
    ids = [GpuId(index=device.gpu.index, uuid=device.gpu.uuid) for device in devices]
    chosen = choose_gpus(ids, visible=visible, asked=asked)
    if not chosen:
        raise PreflightError(
            f"`{VARIABLE}={visible}` leaves no GPU of the {len(devices)} that can be used",
            f"unset `{VARIABLE}`, or give it indices or `GPU-...` UUIDs that exist",
        )
    by_index = {device.gpu.index: device for device in devices}
    return tuple(by_index[gpu.index] for gpu in chosen)


def _read_all_ports(session: _Session, devices: Sequence[_Device]) -> tuple[Ports, ...]:
    """What each GPU is plugged into; a lone GPU needs no links, so it is not asked."""
    if len(devices) == 1:
        return ()
    return tuple(_read_ports(session, device) for device in devices)


def _read_ports(session: _Session, device: _Device) -> Ports:
    handle, capability = device.handle, device.gpu.compute_capability
    fabric_state = None
    if capability is not None and capability >= _FIRST_WITH_FABRIC:
        fabric_state = session.maybe(_fabric_state, handle)
    widths = (session.maybe(_current_lanes, handle), session.maybe(_most_lanes, handle))
    return Ports(
        index=device.gpu.index,
        bus_id=session.maybe(_bus_id, handle),
        compute_capability=capability,
        nvlinks=_read_nvlinks(session, handle),
        fabric_ready=fabric_state in (None, _FABRIC_COMPLETED),
        # The current generation drops when a GPU idles; the current width does not.
        pcie_generation=session.maybe(_pcie_generation, handle),
        pcie_lanes=min((width for width in widths if width), default=None),
    )


def _read_nvlinks(session: _Session, handle: object) -> tuple[NvLink, ...] | None:
    """The active NVLinks of a GPU; `None` when NVML could not say."""
    count = session.ask(_field, handle, _FIELD_LINK_COUNT, 0)
    if isinstance(count, Unavailable):
        if count.code == _Code.NOT_SUPPORTED:
            return ()
        count = _MOST_LINKS
    links: list[NvLink] = []
    for link in range(count):
        active = _read_link_state(session, handle, link)
        if isinstance(active, Unavailable):
            if active.code == _Code.INVALID_ARGUMENT:
                break
            if active.code != _Code.NOT_SUPPORTED:
                return None
        elif active:
            links.append(
                NvLink(
                    remote_type=session.maybe(_remote_type, handle, link),
                    remote_bus_id=session.maybe(_remote_bus_id, handle, link),
                )
            )
    return tuple(links)


def _read_link_state(session: _Session, handle: object, link: int) -> bool | Unavailable:
    """Whether a link is active; newer GPUs answer the field, older ones the call."""
    state = session.ask(_field, handle, _FIELD_LINK_STATE, link)
    if isinstance(state, Unavailable):
        return session.ask(_link_state, handle, link)
    return state == 1


def _read_interconnect(
    session: _Session, devices: Sequence[_Device], ports: Sequence[Ports]
) -> Interconnect:
    plugged = zip(devices, ports, strict=False)
    return join_pairs(
        link_pair(one, other, nvlink_p2p=session.maybe(_p2p, device.handle, peer.handle))
        for (device, one), (peer, other) in combinations(plugged, 2)
    )


def _note_order(devices: Sequence[_Device], environ: Mapping[str, str]) -> tuple[str, ...]:
    """CUDA numbers the fastest GPU first, NVML by PCI bus: with one model they agree."""
    ordinals = environ.get(VARIABLE, "")
    mixed = len({device.gpu.name for device in devices}) > 1
    by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not mixed or by_bus or not ordinals or ordinals.startswith("GPU-"):
        return ()
    remedy = "CUDA does so only with `CUDA_DEVICE_ORDER=PCI_BUS_ID`"
    return (f"`{VARIABLE}={ordinals}` is read in PCI bus order; {remedy}",)


def _note_ports(
    session: _Session, devices: Sequence[_Device], ports: Sequence[Ports]
) -> tuple[str, ...]:
    notes: list[str] = []
    for device, port in zip(devices, ports, strict=False):
        most = session.maybe(_most_lanes, device.handle)
        if most is not None and port.pcie_lanes is not None and port.pcie_lanes < most:
            notes.append(f"GPU {port.index} has {port.pcie_lanes} of its {most} PCIe lanes")
        if not port.fabric_ready and any(link.to_switch for link in port.nvlinks or ()):
            notes.append(
                f"GPU {port.index} cannot use its NVSwitch: the fabric is not trained"
                " (see `systemctl status nvidia-fabricmanager`)"
            )
    return tuple(notes)


# Readers: each takes pynvml first and turns one answer into plain values.


def _count(nvml: ModuleType) -> int:
    return int(nvml.nvmlDeviceGetCount())


def _handle(nvml: ModuleType, index: int) -> object:
    return nvml.nvmlDeviceGetHandleByIndex(index)


def _name(nvml: ModuleType, handle: object) -> str:
    return str(nvml.nvmlDeviceGetName(handle))


def _uuid(nvml: ModuleType, handle: object) -> str:
    return str(nvml.nvmlDeviceGetUUID(handle))


def _bus_id(nvml: ModuleType, handle: object) -> str:
    return str(nvml.nvmlDeviceGetPciInfo(handle).busId)


def _memory_v2(nvml: ModuleType, handle: object) -> tuple[int, int]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return int(memory.total), int(memory.free)


def _memory_v1(nvml: ModuleType, handle: object) -> tuple[int, int]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return int(memory.total), int(memory.free)


def _mig_is_on(nvml: ModuleType, handle: object) -> bool:
    current, _ = nvml.nvmlDeviceGetMigMode(handle)
    return bool(current)


def _compute_capability(nvml: ModuleType, handle: object) -> tuple[int, int]:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return int(major), int(minor)


def _pcie_generation(nvml: ModuleType, handle: object) -> int:
    return int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))


def _current_lanes(nvml: ModuleType, handle: object) -> int:
    return int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))


def _most_lanes(nvml: ModuleType, handle: object) -> int:
    return int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))


def _field(nvml: ModuleType, handle: object, field: int, scope: int) -> int:
    """One field value: it carries its own return code and says where in the union it lies."""
    [value] = nvml.nvmlDeviceGetFieldValues(handle, [(field, scope)])
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    return int(getattr(value.value, _UNION_MEMBERS[value.valueType]))


def _link_state(nvml: ModuleType, handle: object, link: int) -> bool:
    return bool(nvml.nvmlDeviceGetNvLinkState(handle, link))


def _remote_type(nvml: ModuleType, handle: object, link: int) -> int:
    return int(nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))


def _remote_bus_id(nvml: ModuleType, handle: object, link: int) -> str:
    return str(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)


def _p2p(nvml: ModuleType, handle: object, peer: object) -> bool:
    return bool(nvml.nvmlDeviceGetP2PStatus(handle, peer, _P2P_NVLINK) == _P2P_OK)


def _fabric_state(nvml: ModuleType, handle: object) -> int:
    if not hasattr(nvml, "c_nvmlGpuFabricInfo_v2_t"):  # nvidia-ml-py before 13.580
        raise nvml.NVMLError(_Code.FUNCTION_NOT_FOUND)
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return int(info.state)
