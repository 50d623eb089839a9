"""Read the plan files that earlier runs have written."""

from collections.abc import Iterator
from pathlib import Path

from zerowiz.core.launch.provenance import is_plan_path, plan_path
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
