"""Read the facts of the preflight checks: the ranks' Python, programs, ports, builds, disks."""

import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, cast

import msgspec

from zerowiz.core import shell
from zerowiz.core.launch.plan import CoreBinding, Programs, Saved
from zerowiz.core.preflight.facts import (
    Extensions,
    Folder,
    Installed,
    Lock,
    Op,
    PreflightFacts,
    SavedStates,
    Toolchain,
)
from zerowiz.core.structs import parse_json
from zerowiz.errors import PreflightError
from zerowiz.probe.files import Files, read_bad_releases, read_named
from zerowiz.probe.machine.host import parse_list
from zerowiz.probe.preflight import python_report
from zerowiz.probe.preflight.python_report import report
from zerowiz.probe.script.engine_config import read_imports

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
    is_apart = sys.prefix != sys.base_prefix and bin_folder != beside.parent
    return Programs(
        deepspeed=deepspeed,
        bin_folder=str(bin_folder),
        master_port=find_free_port(),
        rank_program=str(Path(__file__).parents[2] / "worker" / "rank.py"),
        extensions_folder=str(prefix / "torch_extensions") if virtual else None,
        tool_folder=str(beside.parent) if is_apart else None,
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


# What it builds and reads.

_LIBRARIES = (
    *("torch", "deepspeed", "transformers", "accelerate", "trl", "peft", "bitsandbytes"),
    "setuptools",
)
# Linux, capabilities(7), CAP_IPC_LOCK: the process may lock any amount of memory.
_CAN_LOCK = 1 << 14
_CAPABILITIES = re.compile(r"^CapEff:\s+([0-9a-f]{1,32})$", re.MULTILINE)


def read_facts(
    program: str | None,
    environ: Mapping[str, str],
    files: Files,
    *,
    ops: Sequence[Op] = (),
    cuda: bool,
    script: Path | None = None,
    import_folder: Path | None = None,
    nvme_path: str | None = None,
    output_folder: Path | None = None,
    resumed_from: str | None = None,
) -> PreflightFacts:
    """Every fact about this host that a preflight check may need.

    Args:
        program: The path of `deepspeed`; None if there is none.
        environ: The job's environment, with what a launch adds.
        files: The files of the host.
        ops: What DeepSpeed has to compile.
        cuda: Whether the job runs on GPUs.
        script: The training script.
        import_folder: The folder that it imports from first; None for its own.
        nvme_path: The folder of offloaded states.
        output_folder: The folder of checkpoints.
        resumed_from: The checkpoint that the script resumes from, by its arguments.
    """
    imports = () if script is None else read_imports(script, import_folder or script.parent)
    names = (*_LIBRARIES, *(module.name for module in imports))
    installed = None if program is None else read_installed(program, environ, names)
    folder = installed.extensions_folder if installed and ops else None
    shm = files.space("dev/shm")
    capabilities = _CAPABILITIES.search(files.text("proc/self/status") or "")
    return PreflightFacts(
        installed=installed,
        bad_releases=read_bad_releases(),
        toolchain=read_toolchain(environ, ops, cuda=cuda) if ops else None,
        extensions=None if folder is None else read_extensions(folder, ops, files),
        imports=imports,
        nvme=None if nvme_path is None else _read_folder(Path(nvme_path), files),
        checkpoints=None if output_folder is None else _read_folder(output_folder, files),
        resumed=None if resumed_from is None else read_resumed(resumed_from),
        shm_free_bytes=None if shm is None else shm.free_bytes,
        locks_any_amount=capabilities and bool(int(capabilities[1], 16) & _CAN_LOCK),
    )


def _read_folder(path: Path, files: Files) -> Folder:
    """A folder; of one that does not exist yet, the free space is that of its nearest parent."""
    space = files.space(str(find_existing(path)))
    return Folder(
        path=str(path),
        is_folder=path.is_dir(),
        writable=can_write(path),
        free_bytes=None if space is None else space.free_bytes,
        # deepspeed/runtime/swap_tensor/partitioned_param_swapper.py (0.19.8).
        holds_states=any(path.glob("zero_stage_*")),
    )


# Read the locks under which torch builds ops, and which process of this host has each open.

_PROC = Path("/proc")
# torch/utils/file_baton.py (2.13): the file that stands while an op is built. The process that
# made it keeps it open, and removes it right after it has closed it.
LOCK_FILE = "lock"
_CLOSED_BEFORE_REMOVED_S = 0.1
# Linux, include/linux/proc_ns.h, PROC_PID_INIT_INO: the PID namespace that sees every process.
_HOST_NAMESPACE = 0xEFFFFFFC
# File systems of one host alone; Linux, /proc/filesystems.
_LOCAL_FILE_SYSTEMS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "tmpfs", "ramfs"}
)
# The layers of a container's image; the containers of a host do not share the uppermost one.
_CONTAINER_FILE_SYSTEM = "overlay"

_FileId = tuple[int, int]


def read_locks(
    folder: Path, ops: Iterable[str], file_system: str | None = None
) -> tuple[Lock, ...]:
    """The locks on these ops that no process seen here has open: it would build the op.

    Args:
        folder: Where torch builds ops, each in a folder with its name.
        ops: Their names.
        file_system: The type of the one that the folder is on.
    """
    seen = {op: status for op in ops if (status := _stat(folder / op / LOCK_FILE)) is not None}
    if not seen:
        return ()
    held = _find_held()
    time.sleep(_CLOSED_BEFORE_REMOVED_S)
    later = {op: _stat(folder / op / LOCK_FILE) for op in seen}
    return tuple(
        Lock(
            path=str(folder / op / LOCK_FILE),
            op=op,
            age_milliseconds=int(1000 * max(0.0, time.time() - status.st_mtime)),
            # The processes of other users are hidden, and so are those outside of a container.
            sees_all=os.geteuid() in {0, status.st_uid} and _shares_with_no_other(file_system),
        )
        for op, status in seen.items()
        if (same := later[op])
        and _file_id(status) not in held
        and (same.st_ino, same.st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
    )


def _file_id(status: os.stat_result) -> _FileId:
    return status.st_dev, status.st_ino


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _shares_with_no_other(file_system: str | None) -> bool:
    """Whether only processes that are seen here can use a file system of this type."""
    space = _stat(_PROC / "self/ns/pid")
    sees_host = space is not None and space.st_ino == _HOST_NAMESPACE
    return file_system == _CONTAINER_FILE_SYSTEM or (
        file_system in _LOCAL_FILE_SYSTEMS and sees_host
    )


def _find_held() -> set[_FileId]:
    """The locks that a process has open: in a container its path may be another."""
    held: set[_FileId] = set()
    for process in (path for path in _PROC.iterdir() if path.name.isdigit()):
        with suppress(OSError):
            for descriptor in list((process / "fd").iterdir()):
                with suppress(OSError):
                    # Of all others not even the status is read: a dead file server would not
                    # answer.
                    if descriptor.readlink().name == LOCK_FILE:
                        held.add(_file_id(descriptor.stat()))
    return held


_NVCC_RELEASE = re.compile(r"release (\d{1,3})\.(\d{1,3})", re.ASCII)
# Linux, proc(5), /proc/PID/mountinfo: the mount point, and after ` - ` the type. Spaces in a path
# are octal.
_MOUNT = re.compile(r"^\d+ \d+ \S+ \S+ (\S+) .*? - (\S+) ", re.MULTILINE)
_OCTAL = re.compile(r"\\([0-7]{3})")


def read_toolchain(environ: Mapping[str, str], ops: Sequence[Op], *, cuda: bool) -> Toolchain:
    """The compilers that torch would start.

    Args:
        environ: The job's environment.
        ops: What is to be built.
        cuda: Whether the ranks train on GPUs.
    """
    compiler, path = environ.get("CXX", "c++"), environ.get("PATH", "")
    program = shutil.which((compiler.split() or [""])[0], path=path)
    home = find_cuda_home(environ) if cuda else None
    nvcc = None if home is None else f"{home}/bin/nvcc"
    has_nvcc = nvcc is not None and os.access(nvcc, os.X_OK)
    # As DeepSpeed reads it (op_builder/builder.py, installed_cuda_version).
    told = _run([nvcc, "-V"], environ) if nvcc and any(op.nvcc for op in ops) else None
    release = _NVCC_RELEASE.search(told or "")
    return Toolchain(
        compiler=compiler,
        has_compiler=program is not None,
        has_ninja=shutil.which("ninja", path=path) is not None,
        cuda_home=home,
        has_nvcc=has_nvcc,
        cuda_version=(int(release[1]), int(release[2])) if release else None,
        has_libaio=_has_libaio(program, environ)
        if program and any(op.libaio for op in ops)
        else None,
    )


def find_cuda_home(environ: Mapping[str, str]) -> str | None:
    """The folder of the CUDA toolkit, found as torch does.

    Source: torch/utils/cpp_extension.py, _find_cuda_home (2.13).
    """
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    nvcc = shutil.which("nvcc", path=environ.get("PATH", ""))
    usual = Path(nvcc).parent.parent if nvcc else Path("/usr/local/cuda")
    return home or (str(usual) if usual.exists() else None)


def _has_libaio(compiler: str, environ: Mapping[str, str]) -> bool:
    """Whether a program links to libaio; DeepSpeed tries it too (op_builder/async_io.py)."""
    flags = f"{environ.get('CFLAGS', '')} {environ.get('LDFLAGS', '')}".split()
    argv = [compiler, "-x", "c++", "-", *flags, "-laio", "-o", os.devnull]
    source = "#include <libaio.h>\nint main() { io_context_t context; return !&context; }\n"
    return _run(argv, environ, source) is not None


def _run(argv: Sequence[str | Path], environ: Mapping[str, str], text: str = "") -> str | None:
    """The output of a program; None where it fails or takes too long."""
    try:
        done = subprocess.run(  # noqa: S603 - the compilers that torch itself would start, numactl
            argv,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(environ),
            timeout=_PATIENCE_S,
            check=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout


def read_extensions(folder: str, ops: Iterable[Op], files: Files) -> Extensions:
    """The builds of these ops in the folder, its locks, and whether it can be written."""
    root, names = Path(folder), [op.name for op in ops]
    file_system = find_file_system(files.text("proc/self/mountinfo") or "", root)
    return Extensions(
        folder=folder,
        writable=can_write(root),
        built=frozenset(name for name in names if (root / name / f"{name}.so").is_file()),
        locks=read_locks(root, names, file_system),
    )


def find_existing(path: Path) -> Path:
    """The path itself, or its nearest parent that exists."""
    absolute = path.absolute()
    return next(
        folder for folder in (absolute, *absolute.parents) if folder.exists() or not folder.name
    )


def can_write(folder: Path) -> bool:
    """Whether this process may write to the folder, or make it first."""
    nearest = find_existing(folder)
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def find_file_system(mountinfo: str, path: Path) -> str | None:
    """The type of the file system under a path: that of the nearest mount point above it.

    Args:
        mountinfo: The content of /proc/self/mountinfo.
        path: Any path.
    """
    resolved = Path(os.path.realpath(path))
    types = {
        _OCTAL.sub(lambda match: chr(int(match[1], 8)), point): kind
        for point, kind in _MOUNT.findall(mountinfo)
    }
    above = [str(parent) for parent in (resolved, *resolved.parents)]
    return next((types[point] for point in above if point in types), None)


# Try whether ranks can be bound to cores, as DeepSpeed's launcher would do it.


def try_core_binding(environ: Mapping[str, str], ranks: int, files: Files) -> CoreBinding:
    """The cores to bind the ranks of this host to, if a trial with all of them succeeds.

    Args:
        environ: The job's environment.
        ranks: On this host.
        files: Has the kernel's lists of cores.
    """
    numactl = shutil.which("numactl", path=environ.get("PATH", ""))
    allowed = os.sched_getaffinity(0)
    of_core = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    # Of cores that are threads of one, the first.
    cores = sorted(
        core
        for core in allowed
        if core == min(parse_list(files.text(of_core.format(core)) or "") & allowed, default=core)
    )
    if numactl is None:
        return _unbound("`numactl` is not installed")
    # deepspeed/utils/numa.py, get_numactl_cmd: memory too is bound, to nodes of the cores, and
    # KMP_AFFINITY is an error.
    can_bind = len(cores) >= ranks and "KMP_AFFINITY" not in environ
    if can_bind and _run([numactl, "-m", "all", "-C", _listed(cores), "true"], environ) is not None:
        return CoreBinding(cores=_listed(cores))
    return _unbound("`numactl` cannot bind each to its own here")


def _unbound(why: str) -> CoreBinding:
    # DeepSpeed's own measurement of its `--bind_cores_to_rank`.
    gain = "DeepSpeed measured an offloaded optimizer 1.29 times faster with bound cores"
    return CoreBinding(cores=None, notes=(f"the ranks are not bound to cores, as {why}; {gain}",))


def _listed(cores: Sequence[int]) -> str:
    """`0-3,8`; DeepSpeed wants them in ascending order."""
    spans: list[list[int]] = []
    for core in cores:
        if spans and core == spans[-1][1] + 1:
            spans[-1][1] = core
        else:
            spans.append([core, core])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


# Find the checkpoints that a script has saved, from which a restart could resume.

# transformers 5.23, trainer_utils.py, PREFIX_CHECKPOINT_DIR.
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")
# templates/portable_checkpoint/files.py: the file that is written last, and the name that a whole
# checkpoint has while a new one of the same step takes its place.
_PORTABLE = "portable.json"
_REPLACED = re.compile(r"\.checkpoint-(\d{1,12})\.replaced")

# deepspeed 0.19.8, runtime/engine.py: the file that names the newest checkpoint, those of ranks
# that shard optimizer states, and those of weights: whole up to stage 2, and sharded at stage 3.
_LATEST = "latest"
_STATES = "_optim_states.pt"
_ZERO_STATES = re.compile(r"(?:bf16_)?zero_pp_rank_\d+_mp_rank_00_optim_states\.pt")
_WHOLE_WEIGHTS = "mp_rank_00_model_states.pt"
_SHARDED_WEIGHTS = "zero_pp_rank_0_mp_rank_00_model_states.pt"

CheckpointStates = Mapping[Path, tuple[int, int]]
"""Of each checkpoint of a folder, what changes whenever it is written to."""


def read_states(folder: Path | None) -> CheckpointStates:
    """The checkpoints that are there before a job starts, for `read_saved` after it.

    Args:
        folder: A script's output folder; None where it is not known.
    """
    return {} if folder is None else {path: _state(path) for _, path in _checkpoints(folder)}


def read_saved(folder: Path | None, before: CheckpointStates | None = None) -> Saved:
    """The newest checkpoint of each kind in a script's output folder.

    Args:
        folder: None where it is not known.
        before: The checkpoints of other runs; those that are still as they were do not count. A
            time would not tell them apart: clocks are set back, and those of file servers differ.
    """
    if folder is None:
        return Saved()
    known = before or {}
    checkpoints = sorted(_checkpoints(folder), reverse=True)
    newest_first = [path for _, path in checkpoints if known.get(path) != _state(path)]
    in_place = [path for path in newest_first if not path.name.startswith(".")]
    portable = {path: _saves(path) for path in newest_first if (path / _PORTABLE).is_file()}
    return Saved(
        # By the count of saves, not by step: a run that was started again saves lower steps.
        portable=_first(sorted(portable, key=lambda path: portable[path], reverse=True)),
        engine=_first(path for path in in_place if any(path.glob("global_step*"))),
        weights=_first(path for path in in_place if _has_weights(path)),
    )


def read_resumed(path: str) -> SavedStates | None:
    """The states in the checkpoint that a job resumes from; None without any.

    Args:
        path: Its folder: `out/checkpoint-500`.
    """
    folder = Path(path)
    try:
        tag = read_named(folder / _LATEST).decode().strip()
        names = {file.name for file in (folder / tag).iterdir()}
    except (OSError, ValueError):
        return None
    ranks = sum(_ZERO_STATES.fullmatch(name) is not None for name in names)
    if ranks:
        stages = (3,) if _SHARDED_WEIGHTS in names else (1, 2)
        return SavedStates(path=path, tag=tag, stages=stages, ranks=ranks)
    if _WHOLE_WEIGHTS not in names:
        return None
    # Those of DeepSpeed's experts have other names.
    other_states = any(name.endswith(_STATES) for name in names)
    return SavedStates(path=path, tag=tag, stages=() if other_states else (0,))


def _checkpoints(folder: Path) -> Iterator[tuple[int, Path]]:
    try:
        paths = list(folder.iterdir())
    except OSError:
        return
    names = {path.name for path in paths}
    for path in paths:
        match = _CHECKPOINT.fullmatch(path.name)
        replaced = _REPLACED.fullmatch(path.name)
        if replaced and f"checkpoint-{replaced[1]}" not in names:
            match = replaced
        if match and path.is_dir():
            yield int(match[1]), path


def _state(path: Path) -> tuple[int, int]:
    """The inode, and when the last file was written, in nanoseconds; zeros if unreadable."""
    try:
        times = (file.stat().st_mtime_ns for file in (path, *path.iterdir()))
        return path.stat().st_ino, max(times)
    except OSError:
        return 0, 0


def _saves(path: Path) -> int:
    """How many saves led to a portable checkpoint; 0 where it does not say."""
    try:
        return int(cast("Any", parse_json(read_named(path / _PORTABLE)))["saves"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _has_weights(path: Path) -> bool:
    whole = any((path / f"model.safetensors{suffix}").is_file() for suffix in ("", ".index.json"))
    return whole and (path / "config.json").is_file()


def _first(paths: Iterable[Path]) -> str | None:
    return next(map(str, paths), None)
