"""Complete a path as shells do."""

import os
from pathlib import Path

from zerowiz.core.decision.questions import Choice


def complete(typed: str) -> tuple[str, tuple[Choice, ...]]:
    """What is typed, as far as only one path goes on; the paths, where there are several.

    Args:
        typed: The beginning of a path; of a hidden one only if it says so.
    """
    folder, beginning = os.path.split(typed)
    found = _list(folder, beginning)
    names = [path for path, _name in found]
    shared = os.path.commonprefix(names)  # noqa: RUF071 - characters are meant, not components
    longer = max(shared, typed, key=len)
    several = found if len(found) > 1 else []
    return longer, tuple(Choice(value=path, title=name) for path, name in several)


def as_answer(typed: str) -> str:
    """A typed path, without what only a shell understands, or only completion needs."""
    path = os.path.expanduser(typed) if typed.startswith("~") else typed  # noqa: PTH111 - a prefix
    return path.rstrip("/") or path


def _list(folder: str, beginning: str) -> list[tuple[str, str]]:
    """Paths as they would be typed, and their names; a folder ends with a slash."""
    try:
        entries = sorted(Path(as_answer(folder) or ".").iterdir())
    except OSError:
        return []
    names = [
        f"{entry.name}/" if entry.is_dir() else entry.name
        for entry in entries
        if entry.name.startswith(beginning)
        and entry.name.isprintable()
        and (beginning or not entry.name.startswith("."))
    ]
    return [(os.path.join(folder, name), name) for name in names]  # noqa: PTH118 - keeps `./` and `~`
