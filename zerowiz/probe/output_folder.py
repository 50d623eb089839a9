"""Read the plan files that earlier runs have written, and the configs that they have not."""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from zerowiz.core.decision.plan_input import History
from zerowiz.core.launch.provenance import is_config_of_plan, is_plan_path, plan_path
from zerowiz.core.outcome import Saved
from zerowiz.core.preflight.facts import Resumed, SavedStates
from zerowiz.core.structs import decode, parse_json
from zerowiz.errors import UsageError
from zerowiz.probe.files import cache_folder, read_named


def read_plan_files(config_path: str) -> Iterator[tuple[str, bytes]]:
    """The plan files in the folder of a config, each with its content.

    That of the config itself comes first, then the newest of the others: on fewer GPUs another
    strategy may be chosen, whose config has another name. What cannot be read is left out.

    Args:
        config_path: The config; it need not be there.
    """
    own_file = Path(plan_path(config_path))
    try:
        files = [path for path in own_file.parent.iterdir() if is_plan_path(path.name)]
    except OSError:
        return
    for path in sorted(files, key=lambda file: (file == own_file, _written(file)), reverse=True):
        try:
            yield str(path), read_named(path)
        except (OSError, ValueError):
            continue


def _written(path: Path) -> int:
    """In nanoseconds; 0 where it is gone by now."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


# DeepSpeed takes no config without a batch size; a Trainer fills it in.
_OF_A_CONFIG = {"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization"}


def find_persons_configs(folder: Path) -> Iterator[Path]:
    """The DeepSpeed configs of a folder, by name, that are not as zerowiz wrote them.

    Args:
        folder: Its own files named `ds*.json` are looked at.
    """
    for path in sorted(folder.glob("ds*.json")):
        try:
            content = read_named(path)
            values = parse_json(content)
        except (OSError, ValueError):
            continue
        is_config = isinstance(values, dict) and bool(_OF_A_CONFIG & values.keys())
        if is_config and not is_plan_path(path.name) and not _is_ours(path, content):
            yield path


def _is_ours(path: Path, content: bytes) -> bool:
    try:
        return is_config_of_plan(path.name, content, read_named(Path(plan_path(str(path)))))
    except OSError:
        return False


# Read what was said of a script once, and holds for each of its jobs.

SCHEMA_VERSION = 1


def kept_path(folder: Path) -> Path:
    """The path of the file that remembers it."""
    return folder / ".zerowiz" / "scripts.json"


def read_kept(folder: Path) -> dict[str, Mapping[str, object]]:
    """What was said of each script, by its path; nothing where the file cannot be read.

    Args:
        folder: Where configs are written.

    Returns:
        Plain values, by the keys of their rows.
    """
    try:
        content = parse_json(read_named(kept_path(folder)))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        return {}
    scripts = content.get("scripts")
    if not isinstance(scripts, dict):
        return {}
    return {path: entry for path, entry in scripts.items() if isinstance(entry, dict)}


def script_key(script: str) -> str:
    """The name under which a script is remembered."""
    return posixpath.normpath(script)


# Read which runs of a job ran out of memory on this machine.


def history_path(key: str, environ: Mapping[str, str]) -> Path:
    """The path of the history of the jobs with this key."""
    return _folder(environ) / f"{key}.json"


def has_histories(environ: Mapping[str, str]) -> bool:
    """Whether any job ran out of memory here; where none did, no key has to be worked out."""
    return _folder(environ).is_dir()


def _folder(environ: Mapping[str, str]) -> Path:
    return cache_folder(environ) / "zerowiz" / "ran_out"


def read_history(path: Path) -> History:
    """The history in a file; an empty one where the file is missing or cannot be read."""
    try:
        return decode(History, parse_json(read_named(path)), "ran_out")
    except (OSError, ValueError, UsageError):
        return History()


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
