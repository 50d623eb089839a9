"""Check that the ops which DeepSpeed compiles for a job can be compiled here."""

import re
from collections.abc import Iterator, Sequence

from zerowiz.core import shell
from zerowiz.core.findings import Finding, Rule, Severity, dotted, found
from zerowiz.core.preflight.facts import Lock, Op, PreflightInput

# deepspeed/ops/op_builder/builder.py, compute_capability_args (0.19.8): `int` of each part around
# the dot. torch takes `9.0a` and `Hopper`; DeepSpeed ends with a ValueError.
_ARCH = re.compile(r"\d{1,2}\.\d(\+PTX)?", re.ASCII)

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
NO_CUDA_TOOLKIT = Rule(
    code="PF404",
    name="no-cuda-toolkit",
    severity=Severity.ERROR,
    why="nvcc builds the op",
    when="nvcc, for ops that need it: `fused_adam`, `quantizer`, `async_io` on GPUs",
)
OTHER_CUDA_TOOLKIT = Rule(
    code="PF405",
    name="other-cuda-toolkit",
    severity=Severity.WARNING,
    why="the op would link to another CUDA runtime than torch",
    when="nvcc of another major version than torch's CUDA",
)
ARCH_LIST = Rule(
    code="PF406",
    name="arch-list",
    severity=Severity.ERROR,
    why="DeepSpeed understands lists such as `8.0;9.0+PTX` only",
    when="`TORCH_CUDA_ARCH_LIST` has an entry that DeepSpeed cannot read, such as `9.0a`",
)
EXTENSIONS_FOLDER = Rule(
    code="PF409",
    name="extensions-folder",
    severity=Severity.ERROR,
    why="DeepSpeed cannot write the ops that it builds",
    when="the folder for built ops is not writable",
)
NO_LIBAIO = Rule(
    code="PF411",
    name="no-libaio",
    severity=Severity.ERROR,
    why="DeepSpeed reads and writes NVMe through libaio",
    when="needed for offload to NVMe",
)

_Need = tuple[Rule, Sequence[Op], bool, str, tuple[str, ...]]
"""A rule, the ops that it is about, whether they lack what it names, what to say, and fixes."""


def check_builds(inputs: PreflightInput) -> Iterator[Finding]:
    """What the ops of the job need, their locks, and what is compiled.

    An error where the job surely loads an op; where it only likely does, a warning.
    """
    for needs in (_tools, _toolkit, _places):
        for rule, ops, is_lacking, text, fixes in needs(inputs):
            if is_lacking and ops:
                is_sure = rule.severity is not Severity.ERROR or not all(op.likely for op in ops)
                severity = rule.severity if is_sure else Severity.WARNING
                yield found(rule, f"{text} {_names(ops)}", *fixes, severity=severity)
    # Torch asks even for an op that is built.
    extensions, names = inputs.facts.extensions, {op.name for op in _needed(inputs)}
    locks = [lock for lock in extensions.locks if lock.op in names] if extensions else []
    yield from map(judge_lock, locks)
    ops = _missing(inputs)
    if extensions is not None and ops:
        likely = "likely " if all(op.likely for op in ops) else ""
        yield found(
            COMPILES,
            f"DeepSpeed {likely}compiles {_names(ops)} when the job starts; this takes about half"
            " a minute, once",
        )


def _needed(inputs: PreflightInput) -> tuple[Op, ...]:
    """The ops of the job that did not come with DeepSpeed."""
    ops = inputs.planned.ops if inputs.planned else ()
    prebuilt = inputs.facts.installed.prebuilt if inputs.facts.installed else frozenset()
    return tuple(op for op in ops if op.name not in prebuilt)


def _missing(inputs: PreflightInput) -> tuple[Op, ...]:
    """Those that are not built yet."""
    built = inputs.facts.extensions.built if inputs.facts.extensions else frozenset()
    return tuple(op for op in _needed(inputs) if op.name not in built)


def _names(ops: Sequence[Op]) -> str:
    return ", ".join(f"`{op.name}`" for op in ops)


def _tools(inputs: PreflightInput) -> Iterator[_Need]:
    tools, installed = inputs.facts.toolchain, inputs.facts.installed
    missing, needed = _missing(inputs), _needed(inputs)
    if tools is None:
        return
    yield (
        NO_COMPILER,
        missing,
        not tools.has_compiler,
        f"no C++ compiler `{tools.compiler}` found to build",
        ("apt install g++", "dnf install gcc-c++"),
    )
    yield (
        NO_NINJA,
        needed,
        not tools.has_ninja,
        "no `ninja` found, which is needed for",
        ("pip install ninja", "apt install ninja-build", "dnf install ninja-build"),
    )
    yield (
        NO_PYTHON_HEADERS,
        missing,
        installed is not None and installed.has_headers is False,
        "the headers of this Python are missing, which are needed to build",
        ("apt install python3-dev", "dnf install python3-devel"),
    )
    yield (
        NO_LIBAIO,
        [op for op in needed if op.libaio],
        tools.has_libaio is False,
        "libaio or its header is missing, and both are needed for",
        (
            "apt install libaio-dev",
            "dnf install libaio-devel",
            "if they are in another folder: `export CFLAGS=-I.../include LDFLAGS=-L.../lib`",
        ),
    )


def _toolkit(inputs: PreflightInput) -> Iterator[_Need]:
    """What nvcc builds."""
    tools, torch = inputs.facts.toolchain, inputs.facts.torch
    if tools is None or not inputs.on_gpus:
        return
    needed = [op for op in _needed(inputs) if op.nvcc]
    built_for = torch.cuda_version if torch and torch.cuda_version else None
    of_torch = f" {dotted(built_for)}" if built_for else ""
    install = (f"install CUDA's toolkit{of_torch}, then `export CUDA_HOME=/usr/local/cuda`",)
    home = f"`{tools.cuda_home}/bin/nvcc`" if tools.cuda_home else "nvcc, nor `CUDA_HOME`"
    missing = [op for op in _missing(inputs) if op.nvcc]
    yield NO_CUDA_TOOLKIT, missing, not tools.has_nvcc, f"there is no {home} for", install
    release = tools.cuda_version
    if release and built_for:
        text = (
            f"nvcc in `{tools.cuda_home}` is {dotted(release)}, but torch is built for CUDA "
            f"{dotted(built_for)}; nvcc builds"
        )
        yield OTHER_CUDA_TOOLKIT, needed, release[0] != built_for[0], text, install
    archs = inputs.environ.get("TORCH_CUDA_ARCH_LIST", "")
    bad = [arch for arch in re.split(r"[; ]+", archs) if arch and not _ARCH.fullmatch(arch)]
    text = f"`TORCH_CUDA_ARCH_LIST={archs}`: DeepSpeed cannot read `{''.join(bad[:1])}` to build"
    yield ARCH_LIST, needed, bool(bad), text, ("unset TORCH_CUDA_ARCH_LIST",)


def _places(inputs: PreflightInput) -> Iterator[_Need]:
    extensions = inputs.facts.extensions
    if extensions is None:
        return
    yield (
        EXTENSIONS_FOLDER,
        _needed(inputs),
        extensions.writable is False,
        f"`{extensions.folder}` is not writable, where DeepSpeed builds",
        ("export TORCH_EXTENSIONS_DIR=/tmp/torch_extensions",),
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


def judge_lock(lock: Lock) -> Finding:
    """What follows of a lock for ranks that would wait for it."""
    fix = f"rm {shell.quote(lock.path)}"
    if lock.sees_all:
        return found(STALE_LOCK, f"`{lock.path}` was left by a build that was killed", fix)
    text = (
        f"`{lock.path}` is {lock.age_milliseconds // 60_000} minutes old, and no process on this"
        " host has it open: another host or container may be building"
    )
    return found(STALE_LOCK, text, fix, severity=Severity.WARNING)


COMPILES = Rule(
    code="PF413",
    name="compiles",
    severity=Severity.INFO,
    why="the first job that needs an op builds it; later jobs load it",
    when="ops that are not built yet",
)
