"""Python programs as forks of one process that has loaded what they load: most of a start is loading.

A fork of the process that has loaded zerowiz stands for `python -m zerowiz`. One of the process that
has loaded torch, transformers and DeepSpeed, too, stands for a whole job (`ranks/loaded.py`).
"""

import atexit
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import re
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

_NUMBER = struct.Struct("i")
_LARGEST_BYTES = 2**17
# What Python and zerowiz read once, as they start.
_AT_START = re.compile(r"PYTHON|LANG|LC_|ZEROWIZ_LANG")
# What ZEROWIZ_LANG says in a process that forks: there is one for each.
_LANGUAGES: tuple[dict[str, str], ...] = ({}, {"ZEROWIZ_LANG": "ja"})


def _said_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if _AT_START.match(name)}


class Fork:
    """A running program, and how it ends.

    Args:
        program: What Python runs: `-m`, a module and words, or a script and words.
        folder: Where it runs.
        environ: All of its environment.
        streams: Its stdin, stdout and stderr. It is a session of its own, whose terminal is stdin.
        ranks: Whether it starts a job, all of whose processes are forks.
    """

    def __init__(
        self,
        program: Sequence[str],
        folder: Path,
        environ: Mapping[str, str],
        streams: Sequence[int],
        *,
        ranks: bool = False,
    ) -> None:
        self._status: int | None = None
        self._ended, report = os.pipe()
        asked = json.dumps([list(program), str(folder), dict(environ)]).encode()
        forking = _forking(environ.get("ZEROWIZ_LANG"), ranks=ranks)
        socket.send_fds(forking, [asked], [*streams, report])
        os.close(report)
        self.pid = self._hear()

    def _hear(self) -> int:
        (number,) = _NUMBER.unpack(os.read(self._ended, _NUMBER.size))
        return int(number)

    def poll(self, timeout_s: float | None = 0) -> int | None:
        """The exit code, or less than 0 for a signal; None while it runs after so many seconds."""
        if self._status is None and select.select([self._ended], [], [], timeout_s)[0]:
            self._status = os.waitstatus_to_exitcode(self._hear())
            os.close(self._ended)
        return self._status

    def kill(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def end(self) -> int:
        """Wait for a moment, then kill it; how it ended."""
        if self.poll(0.1) is None:
            self.kill(signal.SIGKILL)
        status = self.poll(None)
        assert status is not None
        return status


def can_fork(environ: Mapping[str, str]) -> bool:
    """Whether a fork has read what a program with this environment reads as it starts."""
    from cli.harness import clean_environ

    said = _said_at_start(environ)
    return any(said == _said_at_start(clean_environ(**each)) for each in _LANGUAGES)


@cache
def _forking(language: str | None, *, ranks: bool) -> socket.socket:
    """The process that forks, of this environment and language; it ends with this one."""
    from cli.harness import clean_environ

    said = {"ZEROWIZ_LANG": language} if language else {}
    loaded = ["ranks"] if ranks else []
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        number = theirs.fileno()
        server = subprocess.Popen(
            [sys.executable, __file__, str(number), *loaded],
            pass_fds=[number],
            env=clean_environ(**said),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def _load() -> None:
    """Load what zerowiz loads for most commands: not torch, which few trace with."""
    import zerowiz

    others = ("zerowiz.worker", "zerowiz.__main__", "zerowiz.probe.model.trace")
    for module in pkgutil.walk_packages(zerowiz.__path__, "zerowiz."):
        if not module.name.startswith(others):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()


def _serve(connection: socket.socket) -> tuple[list[str], str, dict[str, str], Sequence[int]]:
    """Fork for each request; what a fork is asked returns in it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        asked, files, *_ = socket.recv_fds(connection, _LARGEST_BYTES, 4)
        if not asked:
            sys.exit()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            *streams, report = files
            pid = os.fork()
            if pid == 0:
                connection.detach()
                program, folder, environ = json.loads(asked)
                return program, folder, environ, streams
            for each in streams:
                os.close(each)
            os.write(report, _NUMBER.pack(pid))
            os.write(report, _NUMBER.pack(os.waitpid(pid, 0)[1]))
            os._exit(0)
        for each in files:
            os.close(each)


def _enter(folder: str, streams: Sequence[int]) -> None:
    """Be a process of its own in a folder, with these streams."""
    os.setsid()
    for number, each in enumerate(streams):
        os.dup2(each, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(folder)


def run(program: Sequence[str], environ: Mapping[str, str]) -> None:
    """Run it as Python runs what it is started with."""
    unbuffered = program[0] == "-u" or "PYTHONUNBUFFERED" in environ
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        before = getattr(sys, name)
        said = {"encoding": before.encoding, "errors": before.errors, "closefd": False}
        stream = open(number, mode, 1 if number == 2 else -1, **said)  # noqa: PTH123, SIM115 - as Python opens them
        if unbuffered and mode == "w":
            raw = io.FileIO(number, mode, closefd=False)
            stream = io.TextIOWrapper(raw, before.encoding, before.errors, write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.environ.clear()
    os.environ.update(environ)
    first, *words = program[program[0] == "-u" :]
    if first == "-m":
        sys.path[0] = str(Path.cwd())
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(first).parent)
        sys.argv = [first, *words]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    _load()
    if sys.argv[2:]:
        sys.path.append(str(Path(__file__).parents[1]))
        loaded = importlib.import_module("ranks.loaded")
        loaded.load()
        run = loaded.go_on
    program, folder, environ, streams = _serve(socket.socket(fileno=int(sys.argv[1])))
    _enter(folder, streams)
    run(program, environ)
