"""Open NVML, and turn its errors into values: every answer is a value or an Unavailable."""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from types import ModuleType
from typing import Any, TypeVar

from msgspec import Struct

from zerowiz.core.machine.types import GpuProcess
from zerowiz.errors import PreflightError

_Value = TypeVar("_Value")


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


class Session(Struct, frozen=True, kw_only=True):
    """NVML between init and shutdown."""

    nvml: ModuleType
    refusals: tuple[type[Exception], ...]

    def ask(self, read: Callable[..., _Value], *args: object) -> _Value | Unavailable:
        """The value that `read` makes of pynvml's answer, or why there is none."""
        try:
            return read(self.nvml, *args)
        except self.refusals as error:
            return Unavailable(code=getattr(error, "value", None), name=type(error).__name__)

    def maybe(self, read: Callable[..., _Value], *args: object) -> _Value | None:
        """As `ask`, but `None` where there is no value, whatever the reason."""
        answer = self.ask(read, *args)
        return None if isinstance(answer, Unavailable) else answer


class NoDriverError(PreflightError):
    """NVML does not start: there is no driver, or it does not work."""

    is_absent = False
    """Whether no driver is installed or loaded, as on a host without a GPU."""
    is_not_installed = False


# Name each call before it is made: a call that hangs or crashes tells nothing afterwards.
#
# pynvml looks up every C function by name on one object, and passes ctypes values by reference. A
# `CallWatch` in place of that object sees each call.

# nvml.h, `nvmlValueType_t`: which member of the union `nvmlValue_t` holds the number.
UNION_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def address_of(pointer: Any) -> int:
    """Where a pointer leads; 0 where that is nowhere."""
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def is_output(arg: object) -> bool:
    """Whether NVML writes there: a reference, a text buffer, an array."""
    return hasattr(arg, "_obj") or isinstance(arg, ctypes.Array)


def outputs(args: Sequence[Any]) -> list[Any]:
    """The ctypes values that a call writes its outputs to."""
    return [getattr(arg, "_obj", arg) for arg in args if is_output(arg)]


def inputs(args: Sequence[Any], names: Mapping[int, str]) -> list[str]:
    """The inputs of a call, which distinguish it from other calls of the same function.

    The length of a buffer is not one of them.

    Args:
        args: Of the call.
        names: Of the handles, by their addresses.
    """
    words: list[str] = []
    after_buffer = False
    for arg in args:
        if isinstance(arg, ctypes._Pointer):  # noqa: SLF001 - the base class of every pointer
            words.append(names.get(address_of(arg), "gpu?"))
        elif arg is not None and not is_output(arg) and not after_buffer:
            words.append(str(getattr(arg, "value", arg)))
        after_buffer = isinstance(arg, ctypes.Array)
    return words


def name_call(symbol: str, words: Sequence[str]) -> str:
    """A call with its inputs.

    Example:
        >>> name_call("nvmlDeviceGetNvLinkState", ["gpu0", "3"])
        'nvmlDeviceGetNvLinkState(gpu0, 3)'
    """
    return f"{symbol}({', '.join(words)})"


def name_handle(words: Sequence[str]) -> str:
    """The name of the handle that a call with these inputs returns: `gpu3`, `gpu3.mig1`."""
    return f"gpu{words[0]}" if len(words) == 1 else f"{words[0]}.mig{words[1]}"


class CallWatch:
    """A function table that calls the real one, and says before each call which one it is.

    Args:
        library: The driver's library, or another table.
        announce: Told the name of a call, and an empty name after the call.
    """

    def __init__(self, library: object, announce: Callable[[str], None]) -> None:
        self._library = library
        self._announce = announce
        self._names: dict[int, str] = {}

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        """The C function of this name, as ctypes finds it."""
        function = getattr(self._library, symbol)
        if symbol == "nvmlErrorString":
            return function  # type: ignore[no-any-return]

        def watched(*args: Any) -> int:
            words = inputs(args, self._names)
            self._announce(name_call(symbol, words))
            code = int(function(*args))
            targets = outputs(args)
            if not code and targets and isinstance(targets[0], ctypes._Pointer):  # noqa: SLF001
                self._names[address_of(targets[0])] = name_handle(words)
            self._announce("")
            return code

        return watched


@contextmanager
def open_session(announce: Callable[[str], None]) -> Iterator[Session]:
    """NVML, from its init on, in a process that ends after the session.

    The driver is not asked to shut down, for that can hang too.

    Args:
        announce: Told of each call before it is made.

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
    with _answered_by(pynvml, CallWatch(pynvml.nvmlLib, announce)):
        yield Session(nvml=pynvml, refusals=refusals)


@contextmanager
def _answered_by(pynvml: ModuleType, table: object) -> Iterator[None]:
    """Replace the function table in which pynvml looks up its C functions."""
    # pynvml has no public way to do this. Every release has had these two names (nvidia-ml-py 7.352
    # to 13.615).
    names = vars(pynvml)
    before = {name: names[name] for name in ("nvmlLib", "_nvmlGetFunctionPointer_cache")}
    names.update(nvmlLib=table, _nvmlGetFunctionPointer_cache={})
    try:
        yield
    finally:
        names.update(before)


def _init_failure(code: int) -> NoDriverError:
    other = (
        f"the NVIDIA driver does not start: NVML error {code}",
        ("see `nvidia-smi`",),
    )
    message, hints = _INIT_FAILURES.get(code, other)
    failure = NoDriverError(message, *hints)
    failure.is_not_installed = code == Code.LIBRARY_NOT_FOUND
    failure.is_absent = code in (Code.LIBRARY_NOT_FOUND, Code.DRIVER_NOT_LOADED)
    return failure


# Turn the answer of one NVML function each into plain values.
#
# The first argument of every function is pynvml, then the handles and numbers that NVML takes.

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


def _answer(function: str, kind: Callable[[Any], _Value]) -> Callable[..., _Value]:
    """A question that one NVML function answers, and the kind of its answer."""
    return lambda nvml, *args: kind(getattr(nvml, function)(*args))


def _is_on(mode: tuple[int, int]) -> bool:
    """Whether a mode is on now; it may be another after the next reboot."""
    return bool(mode[0])


def _as_it_is(answer: object) -> object:
    return answer


driver_version = _answer("nvmlSystemGetDriverVersion", str)
"""Such as `580.159.04`."""
cuda_version = _answer(
    "nvmlSystemGetCudaDriverVersion_v2", lambda number: (number // 1000, number % 1000 // 10)
)
"""The newest CUDA that the driver runs: 13000 is 13.0."""
count = _answer("nvmlDeviceGetCount", int)
"""The count of GPUs, also of those that may not be opened."""
handle = _answer("nvmlDeviceGetHandleByIndex", _as_it_is)
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


def memory_v2(nvml: ModuleType, gpu: object) -> GpuMemory:
    """The memory with what the driver reserves; from driver R510 on."""
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
    return GpuMemory(
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        reserved_bytes=int(memory.reserved),
        call="nvmlDeviceGetMemoryInfo_v2",
    )


def memory_v1(nvml: ModuleType, gpu: object) -> GpuMemory:
    """The memory without what the driver reserves.

    Before R510 the total does not count that part; later the used bytes do.
    """
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
    return GpuMemory(
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        reserved_bytes=None,
        call="nvmlDeviceGetMemoryInfo",
    )


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
slice_handle = _answer("nvmlDeviceGetMigDeviceHandleByIndex", _as_it_is)
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


def read_field(nvml: ModuleType, gpu: object, number: int, scope: int) -> int:
    """One field value, which has its own return code and names its member of the union."""
    [value] = nvml.nvmlDeviceGetFieldValues(gpu, [(number, scope)])
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    return int(getattr(value.value, UNION_MEMBERS[value.valueType]))


link_is_active = _answer("nvmlDeviceGetNvLinkState", bool)
"""Whether an NVLink is active; for drivers that do not have the field."""


def link_carries_p2p(nvml: ModuleType, gpu: object, link: int) -> bool:
    """Whether peers may use an NVLink; NCCL ignores one that they may not."""
    return bool(nvml.nvmlDeviceGetNvLinkCapability(gpu, link, _CAP_P2P))


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


def fabric(nvml: ModuleType, gpu: object) -> Fabric:
    """The state of the fabric; GPUs before Hopper have none."""
    if not hasattr(nvml, "c_nvmlGpuFabricInfo_v2_t"):  # nvidia-ml-py before 13.580
        raise nvml.NVMLError(Code.FUNCTION_NOT_FOUND)
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(info))
    cluster = bytes(bytearray(ctypes.Structure.__getattribute__(info, "clusterUuid")))
    return Fabric(
        is_ready=info.state == _FABRIC_COMPLETED,
        clique=f"{cluster.hex()}.{info.cliqueId}" if any(cluster) else None,
    )
