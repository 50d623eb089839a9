"""Check that the ops which DeepSpeed compiles for a job can be compiled here."""

import re
from collections.abc import Iterator, Sequence

from zerowiz.core.launch.doctor import rules
from zerowiz.core.launch.doctor.finding import PreflightFinding, failures, found
from zerowiz.core.launch.doctor.found import Toolchain
from zerowiz.core.launch.doctor.ops import Op
from zerowiz.core.launch.doctor.situation import Situation
from zerowiz.core.rule import Severity
from zerowiz.core.values import replace

# deepspeed/ops/op_builder/builder.py, compute_capability_args (0.19.8): `int` of each part around
# the dot. torch takes `9.0a` and `Hopper`; DeepSpeed ends with a ValueError.
_ARCH = re.compile(r"(\d{1,2})\.(\d)(\+PTX)?", re.ASCII)

# What builds an op is here seen to take at most a minute or two; torch's own lock has no limit.
_LONGEST_BUILD_MILLISECONDS = 600_000

# File systems of many hosts; Linux, /proc/filesystems.
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "afs"}
)


def _needed(s: Situation) -> tuple[Op, ...]:
    """The ops of the job that did not come with DeepSpeed."""
    if s.planned is None:
        return ()
    prebuilt = s.found.installed.prebuilt if s.found.installed else frozenset()
    return tuple(op for op in s.planned.ops if op.name not in prebuilt)


def _missing(s: Situation) -> tuple[Op, ...]:
    """Those that nobody built yet."""
    built = s.found.extensions.built if s.found.extensions else frozenset()
    return tuple(op for op in _needed(s) if op.name not in built)


def _with_nvcc(s: Situation, ops: Sequence[Op]) -> tuple[Op, ...]:
    installed = s.found.installed
    all_the_same = installed.cuda_builders if installed else frozenset()
    return tuple(op for op in ops if s.on_gpus and (op.nvcc or op.name in all_the_same))


def _names(ops: Sequence[Op]) -> str:
    return ", ".join(f"`{op.name}`" for op in ops)


def _compiler(s: Situation) -> Iterator[PreflightFinding]:
    tools, missing, needed = s.found.toolchain, _missing(s), _needed(s)
    if tools is None or not needed:
        return
    if missing and not tools.has_compiler:
        yield found(
            rules.NO_COMPILER,
            f"there is no C++ compiler `{tools.compiler}` to build {_names(missing)}",
            "apt install g++",
            "dnf install gcc-c++",
        )
    if not tools.has_ninja:
        yield found(
            rules.NO_NINJA,
            f"there is no `ninja` for {_names(needed)}",
            "pip install ninja",
            "apt install ninja-build",
            "dnf install ninja-build",
        )
    if missing and tools.python_headers is False:
        yield found(
            rules.NO_PYTHON_HEADERS,
            f"there are no headers of this Python to build {_names(missing)}",
            "apt install python3-dev",
            "dnf install python3-devel",
        )


def _cuda_toolkit(s: Situation) -> Iterator[PreflightFinding]:
    tools, needed = s.found.toolchain, _with_nvcc(s, _needed(s))
    if tools is None or not needed:
        return
    if tools.cuda_home is None or tools.has_nvcc is False:
        where = f"`{tools.cuda_home}/bin/nvcc`" if tools.cuda_home else "nvcc, nor `CUDA_HOME`"
        missing = _with_nvcc(s, _missing(s))
        yield found(
            rules.NO_CUDA_TOOLKIT,
            f"there is no {where} for {_names(missing or needed)}",
            f"install CUDA's toolkit{_of_torch(s)}, then `export CUDA_HOME=/usr/local/cuda`",
            # What is built may load; DeepSpeed asks nvcc for its version first, for some ops.
            severity=Severity.ERROR if missing else Severity.WARNING,
        )
    else:
        yield from _other_toolkit(s, tools, needed)


def _other_toolkit(
    s: Situation, tools: Toolchain, needed: Sequence[Op]
) -> Iterator[PreflightFinding]:
    torch = s.found.torch
    if torch is None or torch.cuda_version is None or tools.cuda_version is None:
        return
    if tools.cuda_version[0] != torch.cuda_version[0]:
        major, minor = tools.cuda_version
        yield found(
            rules.OTHER_CUDA_TOOLKIT,
            f"nvcc of `{tools.cuda_home}` is {major}.{minor}, and torch is built for CUDA"
            f" {torch.cuda_version[0]}.{torch.cuda_version[1]}; nvcc builds {_names(needed)}",
            f"install CUDA's toolkit{_of_torch(s)}, and name it: `export CUDA_HOME=...`",
        )


def _of_torch(s: Situation) -> str:
    torch = s.found.torch
    return (
        f" {torch.cuda_version[0]}.{torch.cuda_version[1]}" if torch and torch.cuda_version else ""
    )


def _arch_list(s: Situation) -> Iterator[PreflightFinding]:
    text = s.environ.get("TORCH_CUDA_ARCH_LIST", "").strip()
    needed = _with_nvcc(s, _needed(s))
    if not text or not needed or s.machine is None:
        return
    entries = [entry for entry in re.split(r"[; ]+", text) if entry]
    bad = [entry for entry in entries if not _ARCH.fullmatch(entry)]
    if bad:
        yield found(
            rules.ARCH_LIST,
            f"`TORCH_CUDA_ARCH_LIST={text}`: `{bad[0]}` is nothing that DeepSpeed reads",
            "unset TORCH_CUDA_ARCH_LIST",
        )
        return
    for gpu in s.machine.gpus:
        if gpu.compute_capability is not None and not _covers(entries, gpu.compute_capability):
            dotted = f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}"
            yield found(
                rules.ARCH_LIST_LACKS,
                f"`TORCH_CUDA_ARCH_LIST={text}` has nothing for GPU {gpu.label} ({gpu.name},"
                f" {dotted}); nvcc builds {_names(needed)}",
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


def _folder(s: Situation) -> Iterator[PreflightFinding]:
    extensions, missing = s.found.extensions, _missing(s)
    if extensions is None or not _needed(s):
        return
    if extensions.writable is False:
        yield found(
            rules.EXTENSIONS_FOLDER,
            f"`{extensions.folder}` cannot be written to, where {_names(_needed(s))} is built",
            "export TORCH_EXTENSIONS_DIR=/tmp/torch_extensions",
        )
    if missing and extensions.file_system in _NETWORK_FILE_SYSTEMS:
        yield found(
            rules.EXTENSIONS_ON_NETWORK,
            f"`{extensions.folder}` lies on {extensions.file_system}, and {_names(missing)} is"
            " built there",
            "export TORCH_EXTENSIONS_DIR=/tmp/torch_extensions",
        )


def _locks(s: Situation) -> Iterator[PreflightFinding]:
    extensions, names = s.found.extensions, {op.name for op in _needed(s)}
    for lock in () if extensions is None else extensions.locks:
        if lock.op not in names:
            continue
        minutes = lock.age_milliseconds // 60_000
        stale = lock.age_milliseconds >= _LONGEST_BUILD_MILLISECONDS
        yield found(
            rules.STALE_LOCK,
            f"`{lock.path}` is {minutes} minutes old"
            f"{'' if stale else ': somebody may be building'}",
            f"rm {lock.path}",
            severity=Severity.WARNING if stale else Severity.INFO,
        )


def _libaio(s: Situation) -> Iterator[PreflightFinding]:
    tools, ops = s.found.toolchain, [op for op in _needed(s) if op.libaio]
    if tools is not None and ops and tools.has_libaio is False:
        yield found(
            rules.NO_LIBAIO,
            f"libaio and its header are not both here, and {_names(ops)} needs them",
            "apt install libaio-dev",
            "dnf install libaio-devel",
            "elsewhere: `export CFLAGS=-I.../include LDFLAGS=-L.../lib`",
        )


def _examine(s: Situation) -> Iterator[PreflightFinding]:
    for check in (_compiler, _cuda_toolkit, _arch_list, _folder, _locks, _libaio):
        yield from check(s)


def _ops(s: Situation) -> Iterator[PreflightFinding]:
    """Errors where the job surely loads the op; where it only likely does, warnings."""
    planned = s.planned
    if planned is None:
        return
    surely = replace(planned, ops=tuple(op for op in planned.ops if not op.likely))
    ends_it = {finding.rule for finding in failures(_examine(replace(s, planned=surely)))}
    for finding in _examine(s):
        doubted = finding.severity is Severity.ERROR and finding.rule not in ends_it
        yield replace(finding, severity=Severity.WARNING) if doubted else finding


CHECKS = (_ops,)
