"""Read the driver in a child process: a call that hangs or crashes takes nothing else with it.

The child is forked before NVML is loaded. It notes in shared memory which call it makes, and sends
what it has read through a pipe. This process waits for the pipe, so that it hears Ctrl-C, and looks
at the note from time to time. A child that sleeps in the kernel cannot be killed; it holds nothing
of this process, and nobody waits for it.
"""

import ctypes
import gc
import mmap
import os
import pickle
import re
import resource
import select
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeVar, cast

from zerowiz.errors import PreflightError
from zerowiz.probe.files import World

_Value = TypeVar("_Value")
Announce = Callable[[str], None]
"""Told of each call before it is made, and of an empty name after it."""

_POLL_S = 0.1
# Most calls take microseconds; without persistence mode the first takes seconds for each GPU.
_SAID_AFTER_S = 2.0
# For a child that has sent all, or was killed, to be gone; how often that is looked at.
_GONE_S, _REAP_S = 0.2, 0.0005
_CHUNK_BYTES = 1 << 20
# Of the shared memory: how often the note was changed, and the note. Of what is sent: its length.
_COUNT_BYTES, _NOTE_BYTES = 8, 120
_LOADING = "nvmlInit"


HINTS = (
    "see what the driver says: `dmesg | grep -i -e NVRM -e Xid`; `nvidia-smi` may hang as well",
)
"""What a person can look at where the driver fails."""


class DriverFailedError(PreflightError):
    """A call of the driver hangs, the driver crashes in it, or it fails for all GPUs."""


def read_in_child(world: World, read: Callable[[World, Announce], _Value]) -> _Value:
    """What `read` reads of the driver, in a child process.

    Args:
        world: This host.
        read: Announces the calls that it makes.

    Raises:
        DriverFailedError: The driver crashed, or a call took too long.
        Exception: Whatever `read` raises.
    """
    # Here, where its pages are not copied first; it loads no library before `nvmlInit`.
    import pynvml  # noqa: F401 - as everywhere

    note = mmap.mmap(-1, _COUNT_BYTES + _NOTE_BYTES)
    _write(note, 0, _LOADING)
    reader, writer = os.pipe()
    parent = os.getpid()
    with warnings.catch_warnings():
        # Of another thread, whose locks stay taken in the child: it takes none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _run(world, read, note, writer, parent)
    os.close(writer)
    has_ended = False
    try:
        sent = _receive(reader, note, world)
        has_ended = True
    finally:
        os.close(reader)
        status = _end(pid, has_ended=has_ended)
    if not sent:
        raise _crash(status, _read(note)[1])
    value, error = pickle.loads(sent)  # noqa: S301 - of our own child
    if error is not None:
        raise error
    return cast("_Value", value)


def _run(
    world: World,
    read: Callable[[World, Announce], object],
    note: mmap.mmap,
    writer: int,
    parent: int,
) -> NoReturn:
    """Be the child: read, send, and end without what a driver does at an exit."""
    try:
        _let_go(writer, parent)
        count = 0

        def announce(call: str) -> None:
            nonlocal count
            count += 1
            _write(note, count, call)

        value: object = None
        failure: BaseException | None = None
        try:
            value = read(world, announce)
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            failure = error
        sent = pickle.dumps((value, failure))
        left = memoryview(len(sent).to_bytes(_COUNT_BYTES, "little") + sent)
        while left:
            left = left[os.write(writer, left) :]
    finally:
        os._exit(0)


def _let_go(writer: int, parent: int) -> None:
    """Hold nothing of the parent: whoever waits for its end must not wait for this process."""
    gc.disable()  # it would write to every page that is shared with the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.closerange(3, writer)
    os.closerange(writer + 1, os.sysconf("SC_OPEN_MAX"))
    pr_set_pdeathsig = 1  # linux/prctl.h
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _write(note: mmap.mmap, count: int, call: str) -> None:
    text = call.encode(errors="replace")[:_NOTE_BYTES]
    note[:] = count.to_bytes(_COUNT_BYTES, "little") + text.ljust(_NOTE_BYTES, b"\0")


def _read(note: mmap.mmap) -> tuple[bytes, str]:
    """How often the note was changed, and the call that it names; empty between two calls."""
    text = note[_COUNT_BYTES:].rstrip(b"\0").decode(errors="replace")
    return note[:_COUNT_BYTES], text


def _receive(reader: int, note: mmap.mmap, world: World) -> bytes:
    """All that the child sends; empty where it ends without that."""
    received, seen, waited_s, silent_s, noted = bytearray(), b"", 0.0, 0.0, ""
    at = time.monotonic()
    while True:
        ready, *_rest = select.select([reader], [], [], _POLL_S)
        if ready:
            chunk = os.read(reader, _CHUNK_BYTES)
            received += chunk
            if not chunk:
                return b""
            # Its end may take long: the kernel closes what the driver had open.
            if len(received) >= _COUNT_BYTES + int.from_bytes(received[:_COUNT_BYTES], "little"):
                return bytes(received[_COUNT_BYTES:])
            continue
        count, call = _read(note)
        before, at = at, time.monotonic()
        # A pause of both processes (Ctrl-Z) is no time that the driver had.
        passed_s = min(at - before, 2 * _POLL_S)
        waited_s = waited_s + passed_s if count == seen else 0.0
        # Many calls that each take a while are no silence either.
        silent_s += passed_s
        seen = count
        if waited_s > world.call_timeout_s:
            limit_s = world.call_timeout_s
            raise DriverFailedError(
                f"{whose(call)} did not answer: `{_name(call)}` has taken {limit_s:g} s",
                "without persistence mode a GPU takes long to wake: `sudo nvidia-smi -pm 1`",
                f"wait longer: `$probe_timeout {max(120, round(4 * limit_s))}`",
                *HINTS,
            )
        if call and silent_s > _SAID_AFTER_S and noted != whose(call):
            noted, silent_s = whose(call), 0.0
            world.on_wait(f"waiting for {noted}: `{_name(call)}` takes long")


def _end(pid: int, *, has_ended: bool) -> int | None:
    """Have the child gone; its status, None where it cannot be killed, or somebody reaped it.

    Args:
        pid: Of the child.
        has_ended: Whether it ends by itself now, having sent all or crashed.
    """
    status = _wait(pid) if has_ended else _reap(pid)
    if status is None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        status = _wait(pid)
    return status


def _wait(pid: int) -> int | None:
    until = time.monotonic() + _GONE_S
    while (status := _reap(pid)) is None and time.monotonic() < until:
        time.sleep(_REAP_S)
    return status


def _reap(pid: int) -> int | None:
    with suppress(ChildProcessError):
        ended, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else None
    return None


def whose(call: str) -> str:
    """The GPUs that a call is about, in words; the driver where it is about none.

    Example: `GPU 3` of `nvmlDeviceGetName(gpu3)`.
    """
    numbers = re.findall(r"gpu(\d+)", call) or re.findall(r"HandleByIndex\w*\((\d+)", call)
    return f"GPU {' and '.join(numbers)}" if numbers else "the NVIDIA driver"


def _name(call: str) -> str:
    return call.partition("(")[0] or "a file of it"


def _crash(status: int | None, call: str) -> DriverFailedError:
    how = "ended without an answer"
    if status is not None and status < 0:
        how = f"crashed ({signal.Signals(-status).name})"
    of = f" of {whose(call)}" if "gpu" in call or "HandleByIndex" in call else ""
    return DriverFailedError(f"the NVIDIA driver {how} in `{_name(call)}`{of}", *HINTS)
