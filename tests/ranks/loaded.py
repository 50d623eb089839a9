"""Let all processes of a job be forks of one that has loaded torch, transformers and DeepSpeed.

zerowiz, both of DeepSpeed's launchers and `worker/rank.py` start each other as ever: the same words,
environment, folders, streams, sessions and signals. But a Python that they start goes on with what is
loaded. One that is executed loads it first, which is most of what a short job of two ranks does.
"""

import atexit
import gc
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn
from weakref import finalize

from cli.forks import run

OBSERVER = str(Path(__file__).parent)
LAUNCHER = str(Path(sys.executable).with_name("deepspeed"))
# What `worker/measured_script.py` and `sitecustomize.py` wait for: who imports DeepSpeed imports it again.
AWAITED = ("deepspeed", "deepspeed.runtime.engine")
FINDERS: list[Any] = []


class Again(MetaPathFinder, Loader):
    """Finds a module that is loaded."""

    def __init__(self, name: str) -> None:
        self.module = sys.modules[name]

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> ModuleSpec | None:
        if fullname != self.module.__name__:
            return None
        assert self.module.__file__ is not None
        paths = getattr(self.module, "__path__", None)
        return importlib.util.spec_from_file_location(
            fullname, self.module.__file__, loader=self, submodule_search_locations=paths
        )

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        # What it imports may be awaited.
        if module.__name__ == AWAITED[0]:
            importlib.import_module(AWAITED[1])


def load() -> None:
    """Load what some rank loads, and fork wherever a Python would be executed."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    import cpuinfo  # type: ignore[import-untyped]
    import deepspeed.launcher.runner
    import deepspeed.runtime.zero.muon.muon_optimizer
    import deepspeed.runtime.zero.stage3
    import peft
    import transformers
    from transformers import AutoModelForCausalLM, LlamaForCausalLM, Trainer

    assert all((deepspeed, peft, AutoModelForCausalLM, LlamaForCausalLM, Trainer, transformers))
    # DeepSpeed asks it before each build, and it asks processes of its own.
    cpuinfo.get_cpu_info = cache(cpuinfo.get_cpu_info)
    cpuinfo.get_cpu_info()
    FINDERS.extend((*(Again(name) for name in AWAITED), *sys.meta_path))
    subprocess._fork_exec = fork  # type: ignore[attr-defined]
    os.execv = become
    os.execvpe = become  # type: ignore[assignment]
    gc.collect()
    gc.freeze()


def program_of(argv: Sequence[str | bytes]) -> list[str] | None:
    """What a Python is to run, `-u` before it; None of another program."""
    words = [os.fsdecode(word) for word in argv]
    if words[0] == LAUNCHER:
        return words
    started = words[1 + (words[1:2] == ["-u"]) :]
    is_python = words[0] == sys.executable and started
    return words[1:] if is_python and (started[0] == "-m" or started[0][0] != "-") else None


_fork_exec: Any = subprocess._fork_exec  # type: ignore[attr-defined]


def fork(argv: Sequence[str | bytes], *others: Any) -> int:
    """In place of `subprocess._fork_exec` (3.11 to 3.13): the new process goes on with what is loaded."""
    program = program_of(argv)
    if program is None:
        return int(_fork_exec(argv, *others))
    _, closes, kept, folder, variables, stdin, _, _, stdout, _, stderr, _, report = others[:13]
    session, prepare = others[14], others[20]
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        for number, each in enumerate((stdin, stdout, stderr)):
            if each != -1:
                os.dup2(each, number)
        if folder is not None:
            os.chdir(folder)
        if session:
            os.setsid()
        if prepare is not None:
            prepare()
        environ = (
            os.environ
            if variables is None
            else dict(os.fsdecode(v).split("=", 1) for v in variables)
        )
        start(program, environ, {*kept} - {report} if closes else None)
    return pid


def become(path: Any, argv: Any, environ: Any = os.environ) -> NoReturn:
    """In place of `os.execv` and `os.execvpe`."""
    program = program_of(argv)
    if program is None:
        os.execve(path, argv, environ)  # noqa: S606 - as it was asked
    start(program, environ, None)


def start(program: Sequence[str], environ: Mapping[str, str], kept: set[int] | None) -> NoReturn:
    """Run a program to its end in a process that is as a new one: files, signals.

    Args:
        program: As `program_of` has it.
        environ: All of its environment.
        kept: The descriptors that stay open besides its streams; None for those that an exec leaves.
    """
    for each in Path("/proc/self/fd").iterdir():
        number = int(each.name)
        # The folder itself has been read by one that is closed.
        with suppress(OSError):
            stays = os.get_inheritable(number) if kept is None else number in kept
            if number > 2 and not stays:
                os.close(number)
    # What is left to do at the end of another program, such as to remove its files.
    atexit._clear()
    finalize._registry.clear()  # type: ignore[attr-defined]
    finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    go_on(program, environ)


def go_on(program: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Run a program to its end, as it finds a Python at its start."""
    before, now = (each.get("PYTHONPATH", "").split(":") for each in (os.environ, environ))
    sys.path[1:] = [*now, *(path for path in sys.path[1:] if path not in before)]
    sys.meta_path[:] = FINDERS
    for name in (*AWAITED, "sitecustomize"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    environ = dict(environ)
    os.environ.clear()
    os.environ.update(environ)
    if OBSERVER in sys.path:
        importlib.import_module("sitecustomize")
    status = 0
    try:
        run(program, environ)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if status and not isinstance(ended.code, int):
            sys.stderr.write(f"{ended.code}\n")
    except BaseException as error:  # noqa: BLE001 - whatever it raises
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status & 255)
