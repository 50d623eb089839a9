"""Find the checkpoints that a script has saved, from which a restart could resume."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from zerowiz.core.outcome.resume import Saved

# transformers 5.23, trainer_utils.py, PREFIX_CHECKPOINT_DIR.
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")
# templates/portable_checkpoint/files.py, MARKER: the file that is written last.
_PORTABLE = "portable.json"


def read_saved(folder: Path | None, since: float = 0.0) -> Saved:
    """The newest checkpoint of each kind in a script's output folder.

    Args:
        folder: None where it is not known.
        since: In seconds since 1970; a checkpoint that was last written before does not count.
    """
    if folder is None:
        return Saved()
    found = sorted(_checkpoints(folder), reverse=True)
    newest_first = [path for _, path in found if _written_at(path) >= since]
    portable = {path: _saved_at(path) for path in newest_first if (path / _PORTABLE).is_file()}
    return Saved(
        # By time, not by step: a run that was started again saves lower steps.
        portable=_first(sorted(portable, key=lambda path: portable[path], reverse=True)),
        engine=_first(path for path in newest_first if any(path.glob("global_step*"))),
        weights=_first(path for path in newest_first if _has_weights(path)),
    )


def _checkpoints(folder: Path) -> Iterator[tuple[int, Path]]:
    try:
        paths = list(folder.iterdir())
    except OSError:
        return
    for path in paths:
        match = _CHECKPOINT.fullmatch(path.name)
        if match and path.is_dir():
            yield int(match[1]), path


def _written_at(path: Path) -> float:
    """When its last file was written, in seconds since 1970; 0 where it cannot be read."""
    try:
        return max(each.stat().st_mtime for each in (path, *path.iterdir()))
    except OSError:
        return 0.0


def _saved_at(path: Path) -> int:
    """When a portable checkpoint was saved, in nanoseconds since 1970; 0 where it is not known."""
    try:
        content = json.loads((path / _PORTABLE).read_bytes())
        return int(content["saved_at_ns"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _has_weights(path: Path) -> bool:
    whole = any((path / f"model.safetensors{suffix}").is_file() for suffix in ("", ".index.json"))
    return whole and (path / "config.json").is_file()


def _first(paths: Iterable[Path]) -> str | None:
    return next(map(str, paths), None)
