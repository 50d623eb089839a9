"""Read the plan files that earlier runs have written, and the configs that they have not."""

from collections.abc import Iterator
from pathlib import Path

from zerowiz.core.codec import parse_json
from zerowiz.core.launch.provenance import is_config_of_plan, is_plan_path, plan_path
from zerowiz.probe.named_file import read_named


def read_plan_files(config_path: str) -> Iterator[tuple[str, bytes]]:
    """The plan files in the folder of a config, each with its content.

    That of the config itself comes first, then the newest of the others: on fewer GPUs another
    strategy may be chosen, whose config has another name. What cannot be read is left out.

    Args:
        config_path: The config; it need not be there.
    """
    own = Path(plan_path(config_path))
    try:
        found = [path for path in own.parent.iterdir() if is_plan_path(path.name)]
    except OSError:
        return
    for path in sorted(found, key=lambda each: (each == own, _written(each)), reverse=True):
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
