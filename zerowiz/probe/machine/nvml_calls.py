"""Open NVML, and turn its errors into values: every answer is a value or an Unavailable."""

import ctypes
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial
from types import ModuleType
from typing import Any, Generic, TypeVar

from msgspec import Struct

from zerowiz.core.machine.types import GpuProcess
from zerowiz.errors import PreflightError

_Value_co = TypeVar("_Value_co", covariant=True)


class Code(IntEnum):
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


# By the return code of init: what it means, and what to do.
_INIT_FAILURES: Mapping[int, tuple[str, tuple[str, ...]]] = {
    Code.LIBRARY_NOT_FOUND: (
        "no NVIDIA driver found: `libnvidia-ml.so.1` is not on this machine",
        ("in a container, start it with its GPUs: `docker run --gpus all ...`",),
    ),
    Code.DRIVER_NOT_LOADED: (
        "the NVIDIA driver is installed, but its kernel module is not loaded",
        ("load it: `sudo modprobe nvidia`",),
    ),
    Code.LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver library and its kernel module have different versions",
        ("reboot, or restart the container: the driver was upgraded",),
    ),
    Code.NO_PERMISSION: (
        "no permission to use the NVIDIA driver",
        ("check the permissions: `ls -l /dev/nvidia*`",),
    ),
    Code.UNKNOWN: (
        "the NVIDIA driver returns `unknown error`",
        ("restart the container: `systemctl daemon-reload` on the host removes its GPUs",),
    ),
}


class Unavailable(Struct, frozen=True, kw_only=True):
    """Why NVML gave no value."""

    code: int | None
    name: str


# What NVML answers of a GPU that can no longer be used, whatever it is asked.
GONE = (Code.GPU_IS_LOST, Code.RESET_REQUIRED)


class Handle(Struct, frozen=True, kw_only=True):
    """NVML's pointer to a GPU or a slice."""

    pointer: Any
    name: str
    """What a call about it is named by: `gpu3`, `gpu3.mig1`."""


class NvmlCall(Struct, Generic[_Value_co], frozen=True):
    """What a function of NVML is asked for."""

    function: str
    """Its name in pynvml."""
    read: Callable[..., _Value_co]
    """Makes a value of its answer; of pynvml, then of the handles and numbers that NVML takes."""


class Session(Struct, frozen=True, kw_only=True):
    """NVML between init and shutdown."""

    nvml: ModuleType
    refusals: tuple[type[Exception], ...]
    announce: Callable[[str], None]

    def ask(self, call: NvmlCall[_Value_co], *args: object) -> _Value_co | Unavailable:
        """The value of NVML's answer, or why there is none.

        A call is named before it is made: one that hangs or crashes tells nothing afterwards.
        """
        words = (arg.name if isinstance(arg, Handle) else str(arg) for arg in args)
        self.announce(f"{call.function}({', '.join(words)})")
        try:
            return call.read(self.nvml, *args)
        except self.refusals as error:
            return Unavailable(code=getattr(error, "value", None), name=type(error).__name__)
        finally:
            self.announce("")

    def maybe(self, call: NvmlCall[_Value_co], *args: object) -> _Value_co | None:
        """As `ask`, but `None` where there is no value, whatever the reason."""
        answer = self.ask(call, *args)
        return None if isinstance(answer, Unavailable) else answer


class NoDriverError(PreflightError):
    """NVML does not start: there is no driver, or it does not work."""

    code: int
    """NVML's, of init."""


def open_session(announce: Callable[[str], None]) -> Session:
    """NVML, from its init on, in a process that ends after the session.

    The driver is not asked to shut down, for that can hang too.

    Args:
        announce: Gets the name of each call before it is made, and an empty name after it.

    Raises:
        NoDriverError: NVML does not start; its hints say what to do.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _init_failure(int(error.value)) from None
    # Not a subclass of NVMLError, and absent from nvidia-ml-py before 12.560.
    mismatch = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
    refusals = (pynvml.NVMLError, mismatch, UnicodeDecodeError, ctypes.ArgumentError)
    return Session(nvml=pynvml, refusals=refusals, announce=announce)


def _init_failure(code: int) -> NoDriverError:
    other = (
        f"the NVIDIA driver does not start: NVML error {code}",
        ("see `nvidia-smi`",),
    )
    message, hints = _INIT_FAILURES.get(code, other)
    failure = NoDriverError(message, *hints)
    failure.code = code
    return failure


# Turn the answer of one NVML function each into plain values.

# nvml.h, `nvmlValueType_t`: which member of the union `nvmlValue_t` holds the number.
UNION_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

# nvml.h, NVML_FI_DEV_NVLINK_LINK_COUNT, _GET_SPEED and _GET_STATE.
FIELD_LINK_COUNT = 91
FIELD_LINK_SPEED = 164
FIELD_LINK_STATE = 165

# nvml.h, nvmlGpuP2PCapsIndex_t; pynvml's own names are broken tuples.
P2P_READ, P2P_WRITE, P2P_NVLINK = 0, 1, 2

# nvml.h, NVML_NVLINK_CAP_P2P_SUPPORTED.
_CAP_P2P = 0

# nvml.h, NVML_GPU_FABRIC_STATE_COMPLETED.
_FABRIC_COMPLETED = 3


def _answer(function: str, kind: Callable[[Any], _Value_co]) -> NvmlCall[_Value_co]:
    """A call that one NVML function answers, and the kind of its answer."""

    def read(nvml: ModuleType, *args: object) -> _Value_co:
        return kind(getattr(nvml, function)(*(getattr(arg, "pointer", arg) for arg in args)))

    return NvmlCall(function, read)


def _is_on(mode: tuple[int, int]) -> bool:
    """Whether a mode is on now; it may be another after the next reboot."""
    return bool(mode[0])


driver_version = _answer("nvmlSystemGetDriverVersion", str)
"""Such as `580.159.04`."""
cuda_version = _answer(
    "nvmlSystemGetCudaDriverVersion_v2", lambda number: (number // 1000, number % 1000 // 10)
)
"""The newest CUDA that the driver runs: 13000 is 13.0."""
count = _answer("nvmlDeviceGetCount", int)
"""The count of GPUs, also of those that may not be opened."""
handle = NvmlCall(
    "nvmlDeviceGetHandleByIndex",
    lambda nvml, index: Handle(pointer=nvml.nvmlDeviceGetHandleByIndex(index), name=f"gpu{index}"),
)
"""NVML's handle of a GPU; this is the first call that fails for a lost one."""
name = _answer("nvmlDeviceGetName", str)
"""Such as `NVIDIA H200`."""
uuid = _answer("nvmlDeviceGetUUID", str)
"""`GPU-...`, or `MIG-...` for a slice."""
bus_id = _answer("nvmlDeviceGetPciInfo", lambda info: str(info.busId))
"""The PCI address, with a domain of eight digits."""


class GpuMemory(Struct, frozen=True, kw_only=True):
    """A GPU's memory, and the NVML function that reported it."""

    total_bytes: int
    free_bytes: int
    reserved_bytes: int | None
    call: str

    @property
    def is_impossible(self) -> bool:
        """Whether more of it is free than there is."""
        return self.free_bytes > self.total_bytes


def _memory(answer: Any) -> GpuMemory:
    reserved = getattr(answer, "reserved", None)
    call = "nvmlDeviceGetMemoryInfo"
    return GpuMemory(
        total_bytes=int(answer.total),
        free_bytes=int(answer.free),
        reserved_bytes=None if reserved is None else int(reserved),
        call=call if reserved is None else f"{call}_v2",
    )


memory_v2 = NvmlCall(
    "nvmlDeviceGetMemoryInfo",
    lambda nvml, gpu: _memory(
        nvml.nvmlDeviceGetMemoryInfo(gpu.pointer, version=nvml.nvmlMemory_v2)
    ),
)
"""The memory with what the driver reserves; from driver R510 on."""
memory_v1 = _answer("nvmlDeviceGetMemoryInfo", _memory)
"""The memory without what the driver reserves.

Before R510 the total does not count that part; later the used bytes do.
"""
compute_capability = _answer(
    "nvmlDeviceGetCudaComputeCapability", lambda version: (int(version[0]), int(version[1]))
)
"""CUDA's compute capability, such as 9 and 0."""
ecc_is_on = _answer("nvmlDeviceGetEccMode", _is_on)
"""Whether error correction is on now."""
mig_is_on = _answer("nvmlDeviceGetMigMode", _is_on)
"""Whether the GPU is split into slices now."""
most_slices = _answer("nvmlDeviceGetMaxMigDeviceCount", int)
"""How many MIG slices it could have; the numbers of slices are below that, with gaps."""
slice_handle = NvmlCall(
    "nvmlDeviceGetMigDeviceHandleByIndex",
    lambda nvml, gpu, index: Handle(
        pointer=nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.pointer, index),
        name=f"{gpu.name}.mig{index}",
    ),
)
"""NVML's handle of a MIG slice."""
processes = _answer(
    "nvmlDeviceGetComputeRunningProcesses",
    lambda infos: tuple(GpuProcess(pid=int(p.pid), used_bytes=p.usedGpuMemory) for p in infos),
)
"""The processes that hold memory of it; in a container the pids may be the host's."""
max_generation = _answer("nvmlDeviceGetMaxPcieLinkGeneration", int)
"""The PCIe generation that both GPU and slot support."""
current_generation = _answer("nvmlDeviceGetCurrPcieLinkGeneration", int)
"""The PCIe generation now; it is lower while the GPU idles."""
max_lanes = _answer("nvmlDeviceGetMaxPcieLinkWidth", int)
"""The PCIe lanes that both GPU and slot support."""
current_lanes = _answer("nvmlDeviceGetCurrPcieLinkWidth", int)
"""The PCIe lanes in use."""


@partial(NvmlCall, "nvmlDeviceGetFieldValues")
def read_field(nvml: ModuleType, gpu: Handle, number: int, scope: int) -> int:
    """One field value, which has its own return code and names its member of the union."""
    [value] = nvml.nvmlDeviceGetFieldValues(gpu.pointer, [(number, scope)])
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    return int(getattr(value.value, UNION_MEMBERS[value.valueType]))


link_is_active = _answer("nvmlDeviceGetNvLinkState", bool)
"""Whether an NVLink is active; for drivers that do not have the field."""


link_carries_p2p = NvmlCall(
    "nvmlDeviceGetNvLinkCapability",
    lambda nvml, gpu, link: bool(nvml.nvmlDeviceGetNvLinkCapability(gpu.pointer, link, _CAP_P2P)),
)
"""Whether peers may use an NVLink; NCCL ignores one that they may not."""
remote_type = _answer("nvmlDeviceGetNvLinkRemoteDeviceType", int)
"""The type of the device at the other end of an NVLink (`nvmlIntNvLinkDeviceType_t`)."""
remote_bus_id = _answer("nvmlDeviceGetNvLinkRemotePciInfo", lambda info: str(info.busId))
"""The PCI address of the device at the other end of an NVLink."""
common_ancestor = _answer("nvmlDeviceGetTopologyCommonAncestor", int)
"""The level at which the PCIe paths of two GPUs meet (`nvmlGpuTopologyLevel_t`)."""
p2p_status = _answer("nvmlDeviceGetP2PStatus", int)
"""Whether two GPUs can use this kind of peer-to-peer access (`nvmlGpuP2PStatus_t`)."""


class Fabric(Struct, frozen=True, kw_only=True):
    """The NVSwitch fabric as one GPU sees it."""

    is_ready: bool
    clique: str | None
    """The cluster's UUID and the clique in it; `None` where the domain is a single node."""


@partial(NvmlCall, "nvmlDeviceGetGpuFabricInfoV")
def fabric(nvml: ModuleType, gpu: Handle) -> Fabric:
    """The state of the fabric; GPUs before Hopper have none."""
    if not hasattr(nvml, "c_nvmlGpuFabricInfo_v2_t"):  # nvidia-ml-py before 13.580
        raise nvml.NVMLError(Code.FUNCTION_NOT_FOUND)
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(gpu.pointer, ctypes.byref(info))
    cluster = bytes(bytearray(ctypes.Structure.__getattribute__(info, "clusterUuid")))
    return Fabric(
        is_ready=info.state == _FABRIC_COMPLETED,
        clique=f"{cluster.hex()}.{info.cliqueId}" if any(cluster) else None,
    )
