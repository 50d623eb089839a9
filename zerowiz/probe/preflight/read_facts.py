"""Read the facts that the preflight checks are about, checkpoints included."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from zerowiz.core.launch.plan import Saved
from zerowiz.core.preflight.facts import (
    Extensions,
    Folder,
    Installed,
    Op,
    PreflightFacts,
    Resumed,
    SavedStates,
)
from zerowiz.core.structs import parse_json
from zerowiz.probe.files import read_named
from zerowiz.probe.host_files import Files
from zerowiz.probe.package_data import read_bad_releases
from zerowiz.probe.preflight.interpreter import is_taken, read_installed, read_interfaces
from zerowiz.probe.preflight.toolchain import (
    can_write,
    find_existing,
    find_extensions_folder,
    read_extensions,
    read_toolchain,
)
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
