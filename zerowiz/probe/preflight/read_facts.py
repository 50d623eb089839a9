"""Read the facts of the preflight checks: compilers, built ops, locks, disks, checkpoints."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from zerowiz.core.launch.plan import CoreBinding, Saved
from zerowiz.core.preflight.facts import (
    Extensions,
    Folder,
    Installed,
    Lock,
    Op,
    PreflightFacts,
    Resumed,
    SavedStates,
    Toolchain,
)
from zerowiz.core.structs import parse_json
from zerowiz.probe.files import cache_folder, read_named
from zerowiz.probe.host_files import Files
from zerowiz.probe.machine.host import parse_list
from zerowiz.probe.package_data import read_bad_releases
from zerowiz.probe.preflight.interpreter import is_taken, read_installed, read_interfaces
from zerowiz.probe.script.engine_config import read_script_text

_LIBRARIES = (
    *("torch", "deepspeed", "transformers", "accelerate", "peft", "bitsandbytes"),
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
    master_port: int | None = None,
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
        master_port: A port that was chosen for the job on this host.
    """
    installed = None if program is None else read_installed(program, environ, _LIBRARIES)
    shm = files.space("dev/shm")
    return PreflightFacts(
        installed=installed,
        bad_releases=read_bad_releases(),
        toolchain=read_toolchain(
            environ, ops, is_own=None if installed is None else installed.own, cuda=cuda
        )
        if ops
        else None,
        extensions=None if installed is None else _read_extensions(environ, installed, ops, files),
        script=None
        if script is None
        else read_script_text(
            script, partial(_is_there, installed=installed), import_folder or script.parent
        ),
        nvme=None if nvme_path is None else _read_folder(Path(nvme_path)),
        checkpoints=None if output_folder is None else _read_folder(output_folder),
        resumed=None if resumed_from is None else read_resumed(resumed_from),
        shm_free_bytes=None if shm is None else shm.free_bytes,
        locks_any_amount=_locks_any_amount(files),
        master_port=master_port,
        port_taken=None if master_port is None else is_taken(master_port),
        interfaces=read_interfaces(environ, files),
    )


def _read_extensions(
    environ: Mapping[str, str], installed: Installed, ops: Sequence[Op], files: Files
) -> Extensions | None:
    folder = find_extensions_folder(environ, installed) if ops else None
    return None if folder is None else read_extensions(folder, ops, files)


def read_builds(
    program: str, environ: Mapping[str, str], ops: Sequence[Op], files: Files
) -> Extensions | None:
    """Where DeepSpeed builds these ops, and what is there; None where that is not known.

    Args:
        program: The path of `deepspeed`.
        environ: The job's environment.
        ops: What the job loads.
        files: The files of the host.
    """
    return _read_extensions(environ, read_installed(program, environ, _LIBRARIES), ops, files)


def _is_there(name: str, installed: Installed | None) -> bool | None:
    """Whether the ranks find a library; None for the libraries of another Python."""
    if installed is None or not installed.own:
        return None
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return None  # a module that was loaded without a spec


def _read_folder(path: Path) -> Folder:
    """A folder; of one that does not exist yet, the free space is that of its nearest parent."""
    try:
        system = os.statvfs(find_existing(path))
        free_bytes = system.f_bavail * system.f_frsize
    except OSError:
        free_bytes = None
    return Folder(
        path=str(path),
        is_folder=path.is_dir(),
        writable=can_write(path),
        free_bytes=free_bytes,
        # deepspeed/runtime/swap_tensor/partitioned_param_swapper.py (0.19.8).
        holds_states=any(path.glob("zero_stage_*")),
    )


def _locks_any_amount(files: Files) -> bool | None:
    match = _CAPABILITIES.search(files.text("proc/self/status") or "")
    return None if match is None else bool(int(match[1], 16) & _CAN_LOCK)


# Read the locks under which torch builds ops, and which process of this host has each open.

_PROC = Path("/proc")
# torch/utils/file_baton.py (2.13): the file that stands while an op is built. The process that
# made it keeps it open, and removes it right after it has closed it.
LOCK_FILE = "lock"
_CLOSED_BEFORE_REMOVED_S = 0.1
# Linux, include/linux/proc_ns.h, PROC_PID_INIT_INO: the PID namespace that sees every process.
_HOST_NAMESPACE = 0xEFFFFFFC

_FileId = tuple[int, int]


class _Holders(Struct, frozen=True, kw_only=True):
    """Who has which lock open."""

    pids: Mapping[_FileId, int]
    """By the device and the inode of the lock: in a container its path may be another."""
    hidden_users: frozenset[int]
    """Whose Pythons could not be looked at."""


def read_locks(folder: Path, ops: Iterable[str]) -> tuple[Lock, ...]:
    """The locks on these ops.

    Args:
        folder: Where torch builds ops, each in a folder with its name.
        ops: Their names.
    """
    seen = {op: status for op in ops if (status := _stat(folder / op / LOCK_FILE)) is not None}
    if not seen:
        return ()
    holders = _find_holders()
    time.sleep(_CLOSED_BEFORE_REMOVED_S)
    return tuple(
        _describe(folder / op / LOCK_FILE, op, status, holders)
        for op, status in seen.items()
        if _made(status) == _made(_stat(folder / op / LOCK_FILE))
    )


def _file_id(status: os.stat_result) -> _FileId:
    return status.st_dev, status.st_ino


def _made(status: os.stat_result | None) -> tuple[int, int]:
    return (0, 0) if status is None else (status.st_ino, status.st_mtime_ns)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _describe(path: Path, op: str, status: os.stat_result, holders: _Holders) -> Lock:
    holder_pid = holders.pids.get(_file_id(status))
    return Lock(
        path=str(path),
        op=op,
        age_milliseconds=int(1000 * max(0.0, time.time() - status.st_mtime)),
        holder_pid=holder_pid,
        sees_all=_sees_all_of(status.st_uid, holders),
        in_container=_namespace_inode() != _HOST_NAMESPACE,
    )


def _find_holders() -> _Holders:
    """Which process has which lock open."""
    pids: dict[_FileId, int] = {}
    hidden_users: set[int] = set()
    for process in (path for path in _PROC.iterdir() if path.name.isdigit()):
        try:
            opened = list((process / "fd").iterdir())
        except PermissionError:
            hidden_users |= _user_of_python(process)
            continue
        except OSError:
            continue
        for descriptor in opened:
            with suppress(OSError):
                # Of all others not even the status is read: a dead file server would not answer.
                if descriptor.readlink().name == LOCK_FILE:
                    # A child that it starts has it too, until it is another program. Linux lists
                    # processes by their number, and a parent's is the smaller one.
                    pids.setdefault(_file_id(descriptor.stat()), int(process.name))
    return _Holders(pids=pids, hidden_users=frozenset(hidden_users))


def _user_of_python(process: Path) -> set[int]:
    """Whose process it is, if it is a Python: nothing else makes such a lock."""
    with suppress(OSError):
        if b"python" in (process / "cmdline").read_bytes():
            lines = (process / "status").read_text(errors="replace").splitlines()
            users = next(line for line in lines if line.startswith("Uid:")).split()
            # proc(5): the real, effective, saved and file system user; a file is the last one's.
            return {int(users[4])}
    return set()


def _sees_all_of(user: int, holders: _Holders) -> bool:
    """Whether a process of this user would have been seen; those of others may be hidden."""
    return os.geteuid() in {0, user} and user not in holders.hidden_users


def _namespace_inode() -> int:
    status = _stat(_PROC / "self/ns/pid")
    return 0 if status is None else status.st_ino


_NVCC_RELEASE = re.compile(r"release (\d{1,3})\.(\d{1,3})", re.ASCII)
_PATIENCE_S = 2.0

# Linux, proc(5), /proc/PID/mountinfo: the mount point, and after ` - ` the type. Spaces in a path
# are octal.
_MOUNT = re.compile(r"^\d+ \d+ \S+ \S+ (\S+) .*? - (\S+) ", re.MULTILINE)
_OCTAL = re.compile(r"\\([0-7]{3})")


def read_toolchain(
    environ: Mapping[str, str], ops: Sequence[Op], *, is_own: bool | None, cuda: bool
) -> Toolchain:
    """The compilers that torch would start.

    Args:
        environ: The job's environment.
        ops: What is to be built.
        is_own: Whether the ranks run with the Python of this process.
        cuda: Whether they train on GPUs.
    """
    compiler, path = environ.get("CXX", "c++"), environ.get("PATH", "")
    words = _split(compiler)
    program = shutil.which(words[0], path=path) if words else None
    home = find_cuda_home(environ) if cuda else None
    nvcc = None if home is None else Path(home) / "bin" / "nvcc"
    has_nvcc = None if nvcc is None else os.access(nvcc, os.X_OK)
    wants_libaio, wants_nvcc = any(op.libaio for op in ops), any(op.nvcc for op in ops)
    return Toolchain(
        compiler=compiler,
        has_compiler=program is not None,
        has_ninja=shutil.which("ninja", path=path) is not None,
        python_headers=_has_headers() if is_own else None,
        cuda_home=home,
        has_nvcc=has_nvcc,
        # As DeepSpeed reads it (op_builder/builder.py, installed_cuda_version).
        cuda_version=parse_nvcc(_run([str(nvcc), "-V"], environ))
        if has_nvcc and wants_nvcc
        else None,
        has_libaio=_has_libaio(program, environ) if program and wants_libaio else None,
    )


def find_cuda_home(environ: Mapping[str, str]) -> str | None:
    """The folder of the CUDA toolkit, found as torch does.

    Source: torch/utils/cpp_extension.py, _find_cuda_home (2.13).
    """
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    if home:
        return home
    nvcc = shutil.which("nvcc", path=environ.get("PATH", ""))
    if nvcc is not None:
        return str(Path(nvcc).parent.parent)
    usual = Path("/usr/local/cuda")
    return str(usual) if usual.exists() else None


def parse_nvcc(text: str) -> tuple[int, int] | None:
    """The release in the output of `nvcc -V`; None if there is none."""
    match = _NVCC_RELEASE.search(text)
    return (int(match[1]), int(match[2])) if match else None


def _has_headers() -> bool:
    folders = (sysconfig.get_path(name) for name in ("include", "platinclude"))
    return any((Path(folder) / "Python.h").is_file() for folder in folders if folder)


def _has_libaio(compiler: str, environ: Mapping[str, str]) -> bool | None:
    """Whether the compiler finds libaio; only it knows which folders it and its linker search."""
    flags, links = _split(environ.get("CFLAGS", "")), _split(environ.get("LDFLAGS", ""))
    path = _run([compiler, *links, "-print-file-name=libaio.so"], environ).strip()
    folders = [Path(flag.removeprefix("-L")) for flag in links if flag.startswith("-L")]
    linked = Path(path).is_absolute() or any((folder / "libaio.so").exists() for folder in folders)
    argv = [compiler, *flags, "-E", "-x", "c++", "-"]
    preprocessed = _run(argv, environ, "#include <libaio.h>\nio_context_t zerowiz;\n")
    if not path:
        return None
    return linked and "zerowiz" in preprocessed and "struct io_context" in preprocessed


def _run(argv: list[str], environ: Mapping[str, str], text: str = "") -> str:
    """The output of a program; empty where it fails or takes too long."""
    try:
        done = subprocess.run(  # noqa: S603 - the compilers that torch itself would start
            argv,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(environ),
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def find_extensions_folder(environ: Mapping[str, str], installed: Installed) -> str | None:
    """The folder in which torch builds; None where it is not known.

    Source: torch/utils/cpp_extension.py, _get_build_directory (2.13).
    """
    folder = environ.get("TORCH_EXTENSIONS_DIR")
    if folder:
        return folder
    torch = installed.torch
    if torch is None or torch.hip or not installed.own:
        return None
    python = f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"
    kind = f"cu{torch.cuda_version[0]}{torch.cuda_version[1]}" if torch.cuda_version else "cpu"
    return str(cache_folder(environ) / "torch_extensions" / f"{python}_{kind}")


def read_extensions(folder: str, ops: Iterable[Op], files: Files) -> Extensions:
    """The builds of these ops in the folder, its locks, and whether it can be written."""
    root = Path(folder)
    names = [op.name for op in ops]
    return Extensions(
        folder=folder,
        writable=can_write(root),
        file_system=find_file_system(files.text("proc/self/mountinfo") or "", root),
        built=frozenset(name for name in names if (root / name / f"{name}.so").is_file()),
        locks=read_locks(root, names),
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


# Try whether each rank can be bound to cores of its own, as DeepSpeed's launcher would do it.

_SYSTEM = Path("/sys/devices/system")


def try_core_binding(environ: Mapping[str, str], ranks: int, system: Path = _SYSTEM) -> CoreBinding:
    """The cores to bind the ranks of this host to, if a trial of each rank's own succeeds.

    Args:
        environ: The job's environment.
        ranks: On this host.
        system: Where the kernel lists cores and NUMA nodes.
    """
    numactl = shutil.which("numactl", path=environ.get("PATH", ""))
    if numactl is None:
        return CoreBinding(cores=None, why_not="`numactl` is not installed")
    # deepspeed/utils/numa.py, get_numactl_cmd.
    if "KMP_AFFINITY" in environ:
        return CoreBinding(
            cores=None, why_not="DeepSpeed does not bind cores if `KMP_AFFINITY` is set"
        )
    cores = sorted(_physical(os.sched_getaffinity(0), system))
    count = len(cores) // ranks
    if not count:
        return CoreBinding(cores=None, why_not="there are fewer cores than ranks")
    nodes = [
        (folder.name.removeprefix("node"), _read(folder / "cpulist"))
        for folder in sorted(system.glob("node/node[0-9]*"))
    ]
    of_ranks = [cores[count * rank : count * (rank + 1)] for rank in range(ranks)]
    if all(_binds([numactl, *_words(share, nodes)], environ) for share in of_ranks):
        return CoreBinding(cores=_listed(cores))
    return CoreBinding(cores=None, why_not="`numactl` is not allowed to bind cores or memory here")


def _physical(allowed: Collection[int], system: Path) -> Iterator[int]:
    """One core of those that are threads of one."""
    for core in allowed:
        threads = _read(system / f"cpu/cpu{core}/topology/thread_siblings_list")
        if core == min(threads.intersection(allowed), default=core):
            yield core


def _read(path: Path) -> frozenset[int]:
    try:
        return parse_list(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return frozenset()


def _words(cores: Sequence[int], nodes: Sequence[tuple[str, frozenset[int]]]) -> tuple[str, ...]:
    """As DeepSpeed does: memory of the node too, where all cores of a rank are of one."""
    node = next((name for name, inside in nodes if inside.issuperset(cores)), None)
    memory = () if node is None else ("-m", node)
    return (*memory, "-C", _listed(cores), "true")


def _listed(cores: Sequence[int]) -> str:
    """`0-3,8`; DeepSpeed wants them in ascending order."""
    spans: list[list[int]] = []
    for core in cores:
        if spans and core == spans[-1][1] + 1:
            spans[-1][1] = core
        else:
            spans.append([core, core])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _binds(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(  # noqa: S603 - numactl's own words
            words,
            env=dict(environ),
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


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


def read_resumed(path: str) -> Resumed:
    """The checkpoint that a job resumes from.

    Args:
        path: Its folder: `out/checkpoint-500`.
    """
    folder = Path(path)
    return Resumed(path=path, is_folder=folder.is_dir(), states=_states_in(folder))


def _states_in(folder: Path) -> SavedStates | None:
    try:
        tag = read_named(folder / _LATEST).decode().strip()
        names = {file.name for file in (folder / tag).iterdir()}
    except (OSError, ValueError):
        return None
    ranks = sum(_ZERO_STATES.fullmatch(name) is not None for name in names)
    if ranks:
        stages = (3,) if _SHARDED_WEIGHTS in names else (1, 2)
        return SavedStates(tag=tag, stages=stages, ranks=ranks)
    if _WHOLE_WEIGHTS not in names:
        return None
    # Those of DeepSpeed's experts have other names.
    other_states = any(name.endswith(_STATES) for name in names)
    return SavedStates(tag=tag, stages=() if other_states else (0,))


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
