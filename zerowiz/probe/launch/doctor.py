"""Gather, for the checks of a launch, what is around the job."""

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from zerowiz.core.launch.doctor.facts import Extensions, Folder, Installed, PreflightFacts
from zerowiz.core.launch.doctor.ops import Op
from zerowiz.probe.launch.interpreter import read_installed
from zerowiz.probe.launch.ports import is_taken, read_interfaces
from zerowiz.probe.launch.toolchain import (
    can_write,
    find_extensions_folder,
    read_extensions,
    read_toolchain,
)
from zerowiz.probe.recording.files import Files
from zerowiz.probe.script.imports import read_script_text

_LIBRARIES = (
    *("torch", "deepspeed", "transformers", "accelerate", "peft", "bitsandbytes"),
    "setuptools",
)
# Linux, capabilities(7), CAP_IPC_LOCK: locks whatever it likes.
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
    nvme_path: str | None = None,
    output_folder: Path | None = None,
    master_port: int | None = None,
) -> PreflightFacts:
    """Everything that a check may ask about this host.

    Args:
        program: `deepspeed`; None where there is none.
        environ: Of the job, with what a launch adds.
        files: Of the host.
        ops: What DeepSpeed has to compile.
        cuda: Whether the job runs on GPUs.
        script: The training script.
        nvme_path: Where offloaded states go.
        output_folder: Where checkpoints go.
        master_port: A port that somebody chose for the job on this host.
    """
    installed = None if program is None else read_installed(program, environ, _LIBRARIES)
    shm = files.space("dev/shm")
    return PreflightFacts(
        installed=installed,
        toolchain=read_toolchain(
            environ, ops, own=None if installed is None else installed.own, cuda=cuda
        )
        if ops
        else None,
        extensions=None if installed is None else _read_extensions(environ, installed, ops, files),
        script=None
        if script is None
        else read_script_text(script, partial(_is_there, installed=installed)),
        nvme=None if nvme_path is None else _read_folder(Path(nvme_path)),
        checkpoints=None if output_folder is None else _read_folder(output_folder),
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


def _is_there(name: str, installed: Installed | None) -> bool | None:
    """Whether the ranks find a library; of another Python nobody knows."""
    if installed is None or not installed.own:
        return None
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return None  # a module that was loaded without a spec


def _read_folder(path: Path) -> Folder:
    """A folder, or the nearest one above it where it is not there yet."""
    nearest = path.absolute()
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        system = os.statvfs(nearest)
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
