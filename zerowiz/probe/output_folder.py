"""Read what earlier runs have written into a folder: plan files, OOM records."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from zerowiz.core.decision.job import History
from zerowiz.core.dsconfig.merge import KeyEdit, find_edits
from zerowiz.core.launch.provenance import (
    is_config_of_plan,
    is_plan_path,
    plan_path,
    read_earlier_plan,
    written_config,
)
from zerowiz.core.structs import decode, parse_json
from zerowiz.errors import UsageError
from zerowiz.probe.files import cache_folder, read_named


class EditedConfig(Struct, frozen=True, kw_only=True):
    """A config that zerowiz wrote, and a person edited."""

    path: str
    edits: tuple[KeyEdit, ...]
    content: bytes | None
    """Where it is the config that is to be written again."""


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


def read_edits(config_path: str, script: str | None) -> EditedConfig | None:
    """A person's edits of a config that zerowiz wrote for a script; None where there are none.

    Where the config is not there yet, those of the newest one of another strategy.

    Args:
        config_path: The config that is to be written.
        script: As it is named in the command; None for a config without a script.
    """
    is_there = Path(config_path).exists()
    for path, plan in read_plan_files(config_path):
        is_own = path == plan_path(config_path)
        if is_there and not is_own:
            return None
        wrote = written_config(plan)
        if wrote is None or (not is_own and read_earlier_plan(path, plan, script) is None):
            continue
        name, values = wrote
        edited = Path(path).with_name(name)
        try:
            content = read_named(edited)
            there = parse_json(content)
        except (OSError, ValueError):
            continue
        edits = find_edits(values, there) if isinstance(there, dict) else ()
        if edits or is_own:
            taken = content if is_own else None
            return EditedConfig(path=str(edited), edits=edits, content=taken) if edits else None
    return None


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
