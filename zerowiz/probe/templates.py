"""Read the scripts that a person can start from."""

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from zerowiz.core.launch.plan import PlannedFile
from zerowiz.core.templates import MODEL_FOLDER

# What each script needs beside it.
_SHARED = ("portable_checkpoint", MODEL_FOLDER, "corpus.txt")


def find_templates() -> Traversable:
    """The folder of the templates: in the installed package, or beside it in a checkout."""
    package = files("zerowiz")
    inside = package.joinpath("templates")
    return inside if inside.is_dir() else package.joinpath("..", "templates")


def read_template(script: str, folder: Path = Path()) -> tuple[PlannedFile, ...]:
    """A script of the templates and all that it needs, as files of a folder.

    Args:
        script: Its name; it is the last of the files.
        folder: Where they are to lie.
    """
    templates = find_templates()
    names = (*_SHARED, script)
    return tuple(
        file for name in names for file in _read(templates.joinpath(name), str(folder / name))
    )


def _read(entry: Traversable, path: str) -> Iterator[PlannedFile]:
    if entry.is_file():
        yield PlannedFile(path=path, text=entry.read_text(encoding="utf-8"))
        return
    for each in sorted(entry.iterdir(), key=lambda one: one.name):
        if each.name != "__pycache__":
            yield from _read(each, f"{path}/{each.name}")
