"""Find the libraries that a script needs and lacks, and the files that shadow its libraries."""

import ast
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from zerowiz.core.launch.doctor.facts import Import, Script, SourceFolder
from zerowiz.probe.named_file import LONGEST_SCRIPT_BYTES, read_named
from zerowiz.probe.script.source import parse_quietly

# How far above a script its repository begins, at most: `src/package/train/train.py`.
_HEIGHT = 4
_PROJECT_FILES = ("pyproject.toml", "setup.py")

# Libraries that a file in the script's folder must not shadow.
_LIBRARIES = ("torch", "deepspeed", "transformers", "accelerate", "peft", "datasets", "numpy")


def read_script_text(path: Path, is_there: Callable[[str], bool | None], folder: Path) -> Script:
    """The facts of a script's text; without any where Python cannot parse it.

    Args:
        path: The script.
        is_there: Whether a library can be imported; None where that is not known.
        folder: The folder that it imports from first.
    """
    try:
        text = read_named(path, LONGEST_SCRIPT_BYTES).decode(errors="replace")
        tree = parse_quietly(text)
    except (OSError, SyntaxError, ValueError, MemoryError, RecursionError):
        return Script(path=str(path))
    siblings = _list_names(folder)
    # A script that changes `sys.path` may import modules that are not found here.
    missing = () if "sys.path" in text else _list_missing(tree, siblings, is_there)
    return Script(
        path=str(path),
        missing=tuple(
            Import(name=name, line=line, source=_find_source(name, path)) for name, line in missing
        ),
        shadowing=tuple(_list_shadowing(folder)),
        relative=_find_relative(tree) if folder == path.parent else None,
    )


def _find_relative(tree: ast.Module) -> Import | None:
    """The first unconditional import from the script's own package."""
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.level:
            name = "." * statement.level + (statement.module or "")
            return Import(name=name, line=statement.lineno)
    return None


def _list_missing(
    tree: ast.Module, siblings: frozenset[str], is_there: Callable[[str], bool | None]
) -> Iterator[tuple[str, int]]:
    """The missing libraries of unconditional imports at the top level, each once, and the lines."""
    seen: set[str] = set()
    for statement in tree.body:
        for name in _imported(statement):
            known = name in seen or name in siblings or name in sys.stdlib_module_names
            seen.add(name)
            if not known and is_there(name) is False:
                yield name, statement.lineno


def _find_source(name: str, script: Path) -> SourceFolder | None:
    """The folder of the script's repository that has a package, as seen from here."""
    above = script.resolve().parents[:_HEIGHT]
    for place in (place for folder in above for place in (folder, folder / "src")):
        if (place / name / "__init__.py").is_file():
            project = place.parent if place.name == "src" else place
            is_project = any((project / file).is_file() for file in _PROJECT_FILES)
            return SourceFolder(
                path=os.path.relpath(place),
                project=os.path.relpath(project) if is_project else None,
            )
    return None


def _imported(statement: ast.stmt) -> list[str]:
    """The libraries that a statement imports."""
    if isinstance(statement, ast.Import):
        return [alias.name.partition(".")[0] for alias in statement.names]
    if isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
        return [statement.module.partition(".")[0]]
    return []


def _list_shadowing(folder: Path) -> Iterator[str]:
    for name in _LIBRARIES:
        for shadow in (folder / f"{name}.py", folder / name / "__init__.py"):
            if shadow.is_file():
                yield str(shadow)


def _list_names(folder: Path) -> frozenset[str]:
    """The names of the modules and packages in a folder."""
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except OSError:
        return frozenset()
    modules = {entry.name.removesuffix(".py") for entry in entries if entry.name.endswith(".py")}
    # That of an entry raises an error at a link that leads to itself.
    return frozenset(modules | {entry.name for entry in entries if Path(entry.path).is_dir()})
