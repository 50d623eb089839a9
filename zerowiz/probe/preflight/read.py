"""Read the facts that the preflight checks of a launch are about."""

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from zerowiz.core.preflight.facts import Extensions, Folder, Installed, Op, PreflightFacts
from zerowiz.probe.output_folder import read_resumed
from zerowiz.probe.package_data import read_bad_releases
from zerowiz.probe.preflight.interpreter import is_taken, read_installed, read_interfaces
from zerowiz.probe.preflight.toolchain import (
    can_write,
    find_existing,
    find_extensions_folder,
    read_extensions,
    read_toolchain,
)
from zerowiz.probe.recording import Files
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
