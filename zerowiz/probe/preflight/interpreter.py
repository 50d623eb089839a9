"""Find the Python that the ranks run with, its libraries, launchers, programs and ports."""

import os
import random
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, cast

import msgspec

from zerowiz.core import shell
from zerowiz.core.launch.plan import Programs
from zerowiz.core.preflight.facts import Installed
from zerowiz.errors import PreflightError
from zerowiz.probe.preflight import python_report
from zerowiz.probe.preflight.python_report import report

# Where a path is long or has a space, pip and uv write `#!/bin/sh`, and start it in the next line.
_FIRST_LINES = re.compile(rb"""#!\s*(?:/bin/sh\n'''exec' )?(?:"(/[^"\n]+)"|(/\S+))([^\n]*)""")
# The longest first line that Linux starts (include/uapi/linux/binfmts.h, BINPRM_BUF_SIZE) is 256.
_FIRST_LINES_BYTES = 1024
# On a busy file server a Python takes seconds to start.
_PATIENCE_S = 20


def find_interpreter(program: str, environ: Mapping[str, str]) -> str | None:
    """The Python in the first line of a program; None where it names none.

    Args:
        program: The path of `deepspeed`, as pip or uv wrote it.
        environ: The environment whose PATH `env python3` searches.
    """
    try:
        with Path(program).open("rb") as file:
            match = _FIRST_LINES.match(file.read(_FIRST_LINES_BYTES))
    except OSError:
        return None
    path, rest = ("", "") if match is None else (os.fsdecode(match[1] or match[2]), match[3])
    if Path(path).name == "env" and rest.strip():
        return shutil.which(os.fsdecode(rest.split()[-1]), path=environ.get("PATH", ""))
    return path if "python" in Path(path).name else None


def read_installed(program: str, environ: Mapping[str, str], names: Sequence[str]) -> Installed:
    """What the Python of a `deepspeed` has, by its own report.

    Args:
        program: The path of `deepspeed`.
        environ: The environment of the job.
        names: The modules to look for.
    """
    interpreter = find_interpreter(program, environ)
    if interpreter is None:
        return Installed(program=program)
    own = _is_own(interpreter)
    # In this process, it takes a tenth of the time that another one takes to start.
    told = report(names, environ) if own else _ask(interpreter, environ, names)
    facts = {**told, "program": program, "interpreter": interpreter, "own": own}
    return msgspec.convert(facts, Installed)


def _is_own(interpreter: str) -> bool:
    """Whether it is the Python of this process.

    Their folders must be the same too: the `python` of several virtual environments may link to the
    same file.
    """
    theirs, ours = Path(interpreter), Path(sys.executable)
    same_folder = theirs.parent.resolve() == ours.parent.resolve()
    return same_folder and theirs.resolve() == ours.resolve()


def _ask(interpreter: str, environ: Mapping[str, str], names: Sequence[str]) -> dict[str, Any]:
    """The report of another Python, or why there is none."""
    try:
        done = subprocess.run(  # noqa: S603 - the Python that the ranks will run with
            [interpreter, python_report.__file__, *names],
            env=environ,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=True,
        )
        return cast("dict[str, Any]", msgspec.json.decode(done.stdout))
    except FileNotFoundError:
        return {"failure": "does not exist"}
    except subprocess.TimeoutExpired:
        return {"failure": f"does not answer within {_PATIENCE_S} s", "is_slow": True}
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        return {"failure": f"ends with status {error.returncode}: {''.join(said[-1:])}"}
    except (OSError, ValueError) as error:
        return {"failure": f"cannot be asked: {error}"}


# Find the file of a module without importing it.


def find_module_file(name: str, environ: Mapping[str, str]) -> Path:
    """The file that `python -m NAME` runs: `pkg/train.py`, or `pkg/train/__main__.py`.

    Args:
        name: The module.
        environ: The environment; PYTHONPATH counts after the working folder.

    Raises:
        PreflightError: There is none.
    """
    is_path = name.endswith(".py") or "/" in name
    if is_path or not all(name.split(".")):
        as_script = f"to start it as a script: `zerowiz launch {shell.quote(name)}`"
        raise PreflightError(f"`{name}` is not a module name", *([as_script] if is_path else []))
    here = str(Path.cwd())
    folders = [here, *filter(None, environ.get("PYTHONPATH", "").split(":")), *sys.path]
    # That finds a part in the folders of the package above it, and imports none of them.
    for part in name.split("."):
        spec = PathFinder.find_spec(part, folders)
        folders = list((spec and spec.submodule_search_locations) or ())
    if folders and (spec := PathFinder.find_spec("__main__", folders)) is None:
        raise PreflightError(
            f"the module `{name}` is a package without `__main__.py`",
            (
                "name the module in it that starts the training: `zerowiz launch -m "
                f"{shell.quote(name)}.train`"
            ),
        )
    if spec is None or spec.origin is None:
        relative = name.replace(".", "/")
        raise PreflightError(
            (
                f"there is no module `{name}`: neither `{relative}.py` nor "
                f"`{relative}/__main__.py` exists here, in PYTHONPATH or in the installed "
                "packages"
            ),
            (
                "start zerowiz in the folder that contains the package, or add that folder to "
                "PYTHONPATH"
            ),
        )
    return Path(spec.origin.removeprefix(f"{here}/"))


# Find a free port.

# Below what the kernel gives to connections, from 32768 on (ip(7), ip_local_port_range), and below
# the ports of torchrun (29400), DeepSpeed (29500) and Kubernetes' NodePorts (30000).
_PORTS = range(10_000, 29_400)


def find_free_port() -> int:
    """A TCP port on which no process listens; concurrent jobs try different ones.

    It takes seconds until a job's first rank listens there.
    """
    while True:
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("", random.choice(_PORTS)))  # noqa: S311 - nobody has to guess it
            return int(listener.getsockname()[1])


# Find the programs and folders of a launch, and a free port.


def find_programs(environ: Mapping[str, str]) -> Programs:
    """What runs a job: `deepspeed` of this interpreter's folder, else the one on PATH.

    Args:
        environ: The caller's environment.

    Raises:
        PreflightError: There is no `deepspeed`.
    """
    beside = Path(sys.executable).parent / "deepspeed"
    program = str(beside) if os.access(beside, os.X_OK) else None
    deepspeed = program or shutil.which("deepspeed", path=environ.get("PATH", ""))
    if deepspeed is None:
        raise PreflightError(
            f"no `deepspeed` in the environment of {sys.executable} or on PATH",
            '`pip install "zerowiz[train]"`',
        )
    # That of the ranks: `uvx` and `pipx` run zerowiz in an environment of its own.
    bin_folder = Path(find_interpreter(deepspeed, environ) or sys.executable).parent
    prefix = bin_folder.parent
    virtual = (prefix / "pyvenv.cfg").is_file()
    return Programs(
        deepspeed=deepspeed,
        bin_folder=str(bin_folder),
        master_port=find_free_port(),
        rank_program=str(Path(__file__).parents[2] / "worker" / "rank.py"),
        extensions_folder=str(prefix / "torch_extensions") if virtual else None,
    )


# What DeepSpeed looks for, and runs, on the nodes of a hostfile (multinode_runner.py, 0.19.8), each
# with the package of Debian that has it.
_STARTERS: Mapping[str, str] = {"pdsh": "pdsh", "ssh": "openssh-client"}


def check_pdsh(environ: Mapping[str, str]) -> None:
    """Refuse a launch over a hostfile that would not start.

    Args:
        environ: The environment, whose PATH is searched.

    Raises:
        PreflightError: A program is not installed.
    """
    for program, package in _STARTERS.items():
        if shutil.which(program, path=environ.get("PATH", "")) is None:
            raise PreflightError(
                f"`--hostfile` needs `{program}`, which is not on PATH",
                (
                    f"install it: `apt-get install {package}`, or the package of that name "
                    "on your system"
                ),
            )
