"""Check that the ops which DeepSpeed compiles for a job can be compiled here."""

import re
from collections.abc import Iterator, Sequence

from zerowiz.core import shell
from zerowiz.core.findings import PreflightFinding, Rule, Severity, errors_of, found
from zerowiz.core.preflight.facts import Lock, Op, PreflightInput, Toolchain
from zerowiz.core.structs import replace

# deepspeed/ops/op_builder/builder.py, compute_capability_args (0.19.8): `int` of each part around
# the dot. torch takes `9.0a` and `Hopper`; DeepSpeed ends with a ValueError.
_ARCH = re.compile(r"(\d{1,2})\.(\d)(\+PTX)?", re.ASCII)

# What builds an op is here seen to take at most a minute or two; torch's own lock has no limit.
_LONGEST_BUILD_MILLISECONDS = 600_000

# File systems of many hosts; Linux, /proc/filesystems.
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "afs"}
)
# Those of one host alone.
_LOCAL_FILE_SYSTEMS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "tmpfs", "ramfs"}
)
# The layers of a container's image; the containers of a host do not share the uppermost one.
_CONTAINER_FILE_SYSTEM = "overlay"


def _needed(inputs: PreflightInput) -> tuple[Op, ...]:
    """The ops of the job that did not come with DeepSpeed."""
    if inputs.planned is None:
        return ()
    prebuilt = inputs.facts.installed.prebuilt if inputs.facts.installed else frozenset()
    return tuple(op for op in inputs.planned.ops if op.name not in prebuilt)


def _missing(inputs: PreflightInput) -> tuple[Op, ...]:
    """Those that are not built yet."""
    built = inputs.facts.extensions.built if inputs.facts.extensions else frozenset()
    return tuple(op for op in _needed(inputs) if op.name not in built)


def _with_nvcc(inputs: PreflightInput, ops: Sequence[Op]) -> tuple[Op, ...]:
    installed = inputs.facts.installed
    all_the_same = installed.cuda_builders if installed else frozenset()
    return tuple(op for op in ops if inputs.on_gpus and (op.nvcc or op.name in all_the_same))


def _names(ops: Sequence[Op]) -> str:
    return ", ".join(f"`{op.name}`" for op in ops)


NO_COMPILER = Rule(
    code="PF401",
    name="no-compiler",
    severity=Severity.ERROR,
    why="DeepSpeed compiles the op when the job starts",
    when="needed to build an op",
)
NO_NINJA = Rule(
    code="PF402",
    name="no-ninja",
    severity=Severity.ERROR,
    why="torch needs ninja even to load an op that is already built",
    when="needed for any op, even one that is already built",
)
NO_PYTHON_HEADERS = Rule(
    code="PF403",
    name="no-python-headers",
    severity=Severity.ERROR,
    why="the op includes `Python.h`",
    when="`Python.h`",
)


def _compiler(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    tools, missing, needed = inputs.facts.toolchain, _missing(inputs), _needed(inputs)
    if tools is None or not needed:
        return
    if missing and not tools.has_compiler:
        yield found(
            NO_COMPILER,
            f"no C++ compiler `{tools.compiler}` found to build {_names(missing)}",
            "apt install g++",
            "dnf install gcc-c++",
        )
    if not tools.has_ninja:
        yield found(
            NO_NINJA,
            f"no `ninja` found, which is needed for {_names(needed)}",
            "pip install ninja",
            "apt install ninja-build",
            "dnf install ninja-build",
        )
    if missing and tools.python_headers is False:
        yield found(
            NO_PYTHON_HEADERS,
            (
                "the headers of this Python are missing, which are needed to build "
                f"{_names(missing)}"
            ),
            "apt install python3-dev",
            "dnf install python3-devel",
        )


NO_CUDA_TOOLKIT = Rule(
    code="PF404",
    name="no-cuda-toolkit",
    severity=Severity.ERROR,
    why="nvcc builds the op",
    when="nvcc, for ops that need it: `fused_adam`, `quantizer`, `async_io` on GPUs",
)


def _cuda_toolkit(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    tools, needed = inputs.facts.toolchain, _with_nvcc(inputs, _needed(inputs))
    if tools is None or not needed:
        return
    if tools.cuda_home is None or tools.has_nvcc is False:
        where = f"`{tools.cuda_home}/bin/nvcc`" if tools.cuda_home else "nvcc, nor `CUDA_HOME`"
        missing = _with_nvcc(inputs, _missing(inputs))
        yield found(
            NO_CUDA_TOOLKIT,
            f"there is no {where} for {_names(missing or needed)}",
            f"install CUDA's toolkit{_of_torch(inputs)}, then `export CUDA_HOME=/usr/local/cuda`",
            # What is built may load; DeepSpeed asks nvcc for its version first, for some ops.
            severity=Severity.ERROR if missing else Severity.WARNING,
        )
    else:
        yield from _other_toolkit(inputs, tools, needed)


OTHER_CUDA_TOOLKIT = Rule(
    code="PF405",
    name="other-cuda-toolkit",
    severity=Severity.WARNING,
    why="the op would link to another CUDA runtime than torch",
    when="nvcc of another major version than torch's CUDA",
)


def _other_toolkit(
    inputs: PreflightInput, tools: Toolchain, needed: Sequence[Op]
) -> Iterator[PreflightFinding]:
    torch = inputs.facts.torch
    if torch is None or torch.cuda_version is None or tools.cuda_version is None:
        return
    if tools.cuda_version[0] != torch.cuda_version[0]:
        major, minor = tools.cuda_version
        yield found(
            OTHER_CUDA_TOOLKIT,
            (
                f"nvcc in `{tools.cuda_home}` is {major}.{minor}, but torch is built for "
                f"CUDA {torch.cuda_version[0]}.{torch.cuda_version[1]}; nvcc builds "
                f"{_names(needed)}"
            ),
            f"install CUDA's toolkit{_of_torch(inputs)}, then `export CUDA_HOME=/usr/local/cuda`",
        )


def _of_torch(inputs: PreflightInput) -> str:
    torch = inputs.facts.torch
    return (
        f" {torch.cuda_version[0]}.{torch.cuda_version[1]}" if torch and torch.cuda_version else ""
    )


ARCH_LIST = Rule(
    code="PF406",
    name="arch-list",
    severity=Severity.ERROR,
    why="DeepSpeed understands lists such as `8.0;9.0+PTX` only",
    when="`TORCH_CUDA_ARCH_LIST` has an entry that DeepSpeed cannot read, such as `9.0a`",
)
ARCH_LIST_LACKS = Rule(
    code="PF407",
    name="arch-list-lacks",
    severity=Severity.ERROR,
    why="the op would have no code for this GPU",
    when="it has no entry for a GPU of the job",
)


def _arch_list(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    text = inputs.environ.get("TORCH_CUDA_ARCH_LIST", "").strip()
    needed = _with_nvcc(inputs, _needed(inputs))
    if not text or not needed or inputs.machine is None:
        return
    entries = [entry for entry in re.split(r"[; ]+", text) if entry]
    bad = [entry for entry in entries if not _ARCH.fullmatch(entry)]
    if bad:
        yield found(
            ARCH_LIST,
            f"`TORCH_CUDA_ARCH_LIST={text}`: DeepSpeed cannot read `{bad[0]}`",
            "unset TORCH_CUDA_ARCH_LIST",
        )
        return
    for gpu in inputs.machine.gpus:
        if gpu.compute_capability is not None and not _covers(entries, gpu.compute_capability):
            dotted = f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}"
            yield found(
                ARCH_LIST_LACKS,
                (
                    f"`TORCH_CUDA_ARCH_LIST={text}` has no entry for GPU {gpu.label} "
                    f"({gpu.name}, {dotted}); nvcc builds {_names(needed)}"
                ),
                "unset TORCH_CUDA_ARCH_LIST",
                f"export TORCH_CUDA_ARCH_LIST={dotted}",
            )
            return


def _covers(entries: Sequence[str], capability: tuple[int, int]) -> bool:
    """CUDA programming guide: code runs within its major version; PTX on all that is newer.

    DeepSpeed adds PTX to the newest where no entry has it.
    """
    matches = [match for entry in entries if (match := _ARCH.fullmatch(entry))]
    archs = [((int(match[1]), int(match[2])), match[3] is not None) for match in matches]
    if not any(ptx for _, ptx in archs):
        archs.append((max(arch for arch, _ in archs), True))
    return any(arch <= capability and (ptx or arch[0] == capability[0]) for arch, ptx in archs)


EXTENSIONS_FOLDER = Rule(
    code="PF409",
    name="extensions-folder",
    severity=Severity.ERROR,
    why="DeepSpeed cannot write the ops that it builds",
    when="the folder for built ops is not writable",
)
EXTENSIONS_ON_NETWORK = Rule(
    code="PF410",
    name="extensions-on-network",
    severity=Severity.INFO,
    why="builds are slow on a network file system, and nodes wait for each other's lock",
    when="ops would be built on NFS or another network file system",
)


def _folder(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    extensions, missing = inputs.facts.extensions, _missing(inputs)
    if extensions is None or not _needed(inputs):
        return
    if extensions.writable is False:
        yield found(
            EXTENSIONS_FOLDER,
            (
                f"`{extensions.folder}`, where DeepSpeed builds {_names(_needed(inputs))}, "
                "is not writable"
            ),
            "export TORCH_EXTENSIONS_DIR=/tmp/torch_extensions",
        )
    if missing and extensions.file_system in _NETWORK_FILE_SYSTEMS:
        yield found(
            EXTENSIONS_ON_NETWORK,
            (
                f"`{extensions.folder}`, where DeepSpeed builds {_names(missing)}, is on "
                f"{extensions.file_system}"
            ),
            "export TORCH_EXTENSIONS_DIR=/tmp/torch_extensions",
        )


STALE_LOCK = Rule(
    code="PF408",
    name="stale-lock",
    severity=Severity.ERROR,
    why="torch waits until the lock file is gone, and a killed build leaves it behind",
    when=(
        "a `lock` that no process has open, so the ranks would wait forever; a warning if "
        "another host or container may have it open"
    ),
)
BEING_BUILT = Rule(
    code="PF412",
    name="being-built",
    severity=Severity.INFO,
    why="the ranks wait until the build is done",
    when="another process is building an op of the job",
)


def _locks_of(inputs: PreflightInput) -> tuple[Lock, ...]:
    """The locks that the ranks would wait for: torch asks even for an op that is built."""
    extensions, names = inputs.facts.extensions, {op.name for op in _needed(inputs)}
    return tuple(lock for lock in extensions.locks if lock.op in names) if extensions else ()


def _locks(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    extensions = inputs.facts.extensions
    file_system = None if extensions is None else extensions.file_system
    return (judge_lock(lock, file_system) for lock in _locks_of(inputs))


def judge_lock(lock: Lock, file_system: str | None) -> PreflightFinding:
    """What follows of a lock for ranks that would wait for it.

    Args:
        lock: It.
        file_system: The type of the one that it is on.
    """
    if lock.holder_pid is not None:
        return found(
            BEING_BUILT,
            f"process {lock.holder_pid} is building `{lock.op}`; the ranks will wait for it",
        )
    if _is_nobodys(lock, file_system):
        text, severity = "was left by a build that was killed", Severity.ERROR
    else:
        minutes = lock.age_milliseconds // 60_000
        is_young = lock.age_milliseconds < _LONGEST_BUILD_MILLISECONDS
        text = f"is {minutes} minutes old, and no process on this host has it open"
        text += ": another host or container may be building" if is_young else ""
        severity = Severity.WARNING
    return found(
        STALE_LOCK,
        f"`{lock.path}` " + text,
        f"rm {shell.quote(lock.path)}",
        severity=severity,
    )


def _is_nobodys(lock: Lock, file_system: str | None) -> bool:
    """Whether no process anywhere can have it open, as far as none here has."""
    is_seen_whole = file_system in _LOCAL_FILE_SYSTEMS and not lock.in_container
    return lock.sees_all and (is_seen_whole or file_system == _CONTAINER_FILE_SYSTEM)


COMPILES = Rule(
    code="PF413",
    name="compiles",
    severity=Severity.INFO,
    why="the first job that needs an op builds it; later jobs load it",
    when="ops that are not built yet",
)


WAITS = frozenset({BEING_BUILT, COMPILES})
"""What a job waits for when it starts."""


def will_compile(ops: Sequence[Op]) -> PreflightFinding:
    """That a job compiles these ops when it starts."""
    likely = "likely " if all(op.likely for op in ops) else ""
    return found(
        COMPILES,
        (
            f"DeepSpeed {likely}compiles {_names(ops)} when the job starts; this takes about "
            "half a minute, once"
        ),
    )


def _builds(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    being_built = {lock.op for lock in _locks_of(inputs) if lock.holder_pid is not None}
    ops = [op for op in _missing(inputs) if op.name not in being_built]
    if inputs.facts.extensions is not None and ops:
        yield will_compile(ops)


NO_LIBAIO = Rule(
    code="PF411",
    name="no-libaio",
    severity=Severity.ERROR,
    why="DeepSpeed reads and writes NVMe through libaio",
    when="needed for offload to NVMe",
)


def _libaio(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    tools, ops = inputs.facts.toolchain, [op for op in _needed(inputs) if op.libaio]
    if tools is not None and ops and tools.has_libaio is False:
        yield found(
            NO_LIBAIO,
            f"libaio or its header is missing, and {_names(ops)} needs both",
            "apt install libaio-dev",
            "dnf install libaio-devel",
            "if they are in another folder: `export CFLAGS=-I.../include LDFLAGS=-L.../lib`",
        )


def _examine(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    for check in (_compiler, _cuda_toolkit, _arch_list, _folder, _locks, _libaio, _builds):
        yield from check(inputs)


def check_builds(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    """Errors where the job surely loads the op; where it only likely does, warnings."""
    planned = inputs.planned
    if planned is None:
        return
    surely = replace(planned, ops=tuple(op for op in planned.ops if not op.likely))
    ends_it = {finding.rule for finding in errors_of(_examine(replace(inputs, planned=surely)))}
    for finding in _examine(inputs):
        doubted = finding.severity is Severity.ERROR and finding.rule not in ends_it
        yield replace(finding, severity=Severity.WARNING) if doubted else finding
