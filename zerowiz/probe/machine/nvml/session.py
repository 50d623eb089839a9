"""Open NVML, and turn its errors into values: every answer is a value or an Unavailable."""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import IntEnum
from types import ModuleType
from typing import TypeVar

from msgspec import Struct, field

from zerowiz.errors import PreflightError
from zerowiz.probe.recording.tape import CallLog, Calls, CallWatch, Replay
from zerowiz.words import _

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
        _("no NVIDIA driver found: `libnvidia-ml.so.1` is not on this machine"),
        (_("in a container, start it with its GPUs: `docker run --gpus all ...`"),),
    ),
    Code.DRIVER_NOT_LOADED: (
        _("the NVIDIA driver is installed, but its kernel module is not loaded"),
        (_("load it: `sudo modprobe nvidia`"),),
    ),
    Code.LIB_RM_VERSION_MISMATCH: (
        _("the NVIDIA driver library and its kernel module have different versions"),
        (_("reboot, or restart the container: the driver was upgraded"),),
    ),
    Code.NO_PERMISSION: (
        _("no permission to use the NVIDIA driver"),
        (_("check the permissions: `ls -l /dev/nvidia*`"),),
    ),
    Code.UNKNOWN: (
        _("the NVIDIA driver returns `unknown error`"),
        (_("restart the container: `systemctl daemon-reload` on the host removes its GPUs"),),
    ),
}


class Unavailable(Struct, frozen=True, kw_only=True):
    """Why NVML gave no value."""

    code: int | None
    name: str


# What NVML answers of a GPU that can no longer be used, whatever it is asked.
_GONE = (Code.GPU_IS_LOST, Code.RESET_REQUIRED)


class Session(Struct, frozen=True, kw_only=True):
    """NVML between init and shutdown."""

    nvml: ModuleType
    refusals: tuple[type[Exception], ...]
    gone: list[tuple[tuple[object, ...], Unavailable]] = field(default_factory=list)
    """The handles of each call that found a GPU gone, and what it answered."""

    def ask(self, read: Callable[..., _Value], *args: object) -> _Value | Unavailable:
        """The value that `read` makes of pynvml's answer, or why there is none."""
        try:
            return read(self.nvml, *args)
        except self.refusals as error:
            why = Unavailable(code=getattr(error, "value", None), name=type(error).__name__)
            if why.code in _GONE:
                handles = tuple(arg for arg in args if not isinstance(arg, int))
                self.gone.append((handles, why))
            return why

    def maybe(self, read: Callable[..., _Value], *args: object) -> _Value | None:
        """As `ask`, but `None` where there is no value, whatever the reason."""
        answer = self.ask(read, *args)
        return None if isinstance(answer, Unavailable) else answer

    def why_gone(self, handle: object) -> Unavailable | None:
        """What a call of this GPU alone answered that can no longer be used; None for any other."""
        of_it = (why for handles, why in self.gone if len(handles) == 1 and handles[0] is handle)
        return next(of_it, None)


class NoDriverError(PreflightError):
    """NVML does not start: there is no driver, or it does not work."""

    is_absent = False
    """Whether no driver is installed or loaded, as on a host without a GPU."""
    is_not_installed = False


@contextmanager
def open_session(
    replay: Calls | None = None,
    log: Calls | None = None,
    announce: Callable[[str], None] | None = None,
) -> Iterator[Session]:
    """NVML, from init to shutdown.

    Args:
        replay: Recorded calls to answer from; `None` asks the driver.
        log: Where every call and its answer is logged.
        announce: Told of each call before it is made, in a process that ends after the session:
            the driver is not asked to shut down, for that can hang too.

    Raises:
        NoDriverError: NVML does not start; its hints say what to do.
    """
    import pynvml

    with _answered_by(pynvml, None if replay is None else Replay(replay)):
        init_code = _init(pynvml)
        if log is not None:
            log["nvmlInitWithFlags(0)"] = {"err": init_code} if init_code else {"ok": None}
        if init_code:
            raise _init_failure(init_code)
        # Not a subclass of NVMLError, and absent from nvidia-ml-py before 12.560.
        mismatch = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
        refusals = (pynvml.NVMLError, mismatch, UnicodeDecodeError, ctypes.ArgumentError)
        table = pynvml.nvmlLib if announce is None else CallWatch(pynvml.nvmlLib, announce)
        try:
            with _answered_by(pynvml, table if log is None else CallLog(table, log)):
                yield Session(nvml=pynvml, refusals=refusals)
        finally:
            if announce is None:
                with suppress(pynvml.NVMLError):
                    pynvml.nvmlShutdown()


@contextmanager
def _answered_by(pynvml: ModuleType, table: object | None) -> Iterator[None]:
    """Replace the function table in which pynvml looks up its C functions."""
    if table is None:
        yield
        return
    # pynvml has no public way to do this. Every release has had these two names (nvidia-ml-py 7.352
    # to 13.615).
    names = vars(pynvml)
    before = {name: names[name] for name in ("nvmlLib", "_nvmlGetFunctionPointer_cache")}
    names.update(nvmlLib=table, _nvmlGetFunctionPointer_cache={})
    try:
        yield
    finally:
        names.update(before)


def _init(pynvml: ModuleType) -> int:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0


def _init_failure(code: int) -> NoDriverError:
    other = (
        _("the NVIDIA driver does not start: NVML error {code}", code=code),
        (_("see `nvidia-smi`"),),
    )
    message, hints = _INIT_FAILURES.get(code, other)
    failure = NoDriverError(message, *hints)
    failure.is_not_installed = code == Code.LIBRARY_NOT_FOUND
    failure.is_absent = code in (Code.LIBRARY_NOT_FOUND, Code.DRIVER_NOT_LOADED)
    return failure
