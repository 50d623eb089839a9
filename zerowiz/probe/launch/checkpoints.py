"""Find the checkpoints that a script has saved, from which a restart could resume."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from zerowiz.core.codec import parse_json
from zerowiz.core.launch.doctor.facts import Resumed, SavedStates
from zerowiz.core.outcome.resume import Saved
from zerowiz.probe.named_file import read_named

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
    found = sorted(_checkpoints(folder), reverse=True)
    newest_first = [path for _, path in found if known.get(path) != _state(path)]
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
        names = {each.name for each in (folder / tag).iterdir()}
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
        times = (each.stat().st_mtime_ns for each in (path, *path.iterdir()))
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
