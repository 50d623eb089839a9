"""Read what a script cannot do without, and what stands in its libraries' way."""

import ast
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from zerowiz.core.launch.doctor.facts import Import, Script

# Whose place a file beside the script must not take.
_LIBRARIES = ("torch", "deepspeed", "transformers", "accelerate", "peft", "datasets", "numpy")

# How a model is built in host memory, and where else a script may say that it is to be.
_BUILDS = re.compile(r"(Model|LM|For[A-Z])\w*\._?from_(pretrained|config)\(")
_PLACES = re.compile(
    r"device_map|torch\.device|\.device\b|init_empty_weights|OnDevice|set_default_device|cuda"
    r"|[\"']meta[\"']"
)


def read_script_text(path: Path, is_there: Callable[[str], bool | None]) -> Script:
    """What is seen of a script that Python can read.

    Args:
        path: The script.
        is_there: Whether a library can be imported; None where nobody can say.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return Script(path=str(path))
    beside = _list_names(path.parent)
    # Who changes where Python looks finds what cannot be seen from here.
    missing = () if "sys.path" in text else tuple(_list_missing(tree, beside, is_there))
    return Script(
        path=str(path),
        missing=missing,
        shadowing=tuple(_list_shadowing(path)),
        builds_on_host=bool(_BUILDS.search(text)) and not _PLACES.search(text),
    )


def _list_missing(
    tree: ast.Module, beside: frozenset[str], is_there: Callable[[str], bool | None]
) -> Iterator[Import]:
    """Imports at the top level that nothing guards, each library once."""
    seen: set[str] = set()
    for statement in tree.body:
        for name in _imported(statement):
            known = name in seen or name in beside or name in sys.stdlib_module_names
            seen.add(name)
            if not known and is_there(name) is False:
                yield Import(name=name, line=statement.lineno)


def _imported(statement: ast.stmt) -> list[str]:
    """The first words of what a statement imports."""
    if isinstance(statement, ast.Import):
        return [alias.name.partition(".")[0] for alias in statement.names]
    if isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
        return [statement.module.partition(".")[0]]
    return []


def _list_shadowing(path: Path) -> Iterator[str]:
    for name in _LIBRARIES:
        for place in (path.parent / f"{name}.py", path.parent / name / "__init__.py"):
            if place.is_file():
                yield str(place)


def _list_names(folder: Path) -> frozenset[str]:
    """What Python would import from a folder, by name."""
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except OSError:
        return frozenset()
    modules = {entry.name.removesuffix(".py") for entry in entries if entry.name.endswith(".py")}
    return frozenset(modules | {entry.name for entry in entries if entry.is_dir()})
