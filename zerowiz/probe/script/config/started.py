"""Find the module whose function trains, where the script only calls that function."""

import ast
from collections.abc import Callable, Iterator

from msgspec import Struct

from zerowiz.probe.script.source import parse_quietly
from zerowiz.probe.script.walk import is_main_guard

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Started(Struct, frozen=True, kw_only=True):
    """A module that a script imports a function from, and calls it."""

    name: str
    """The dotted name of the module."""
    text: str
    tree: ast.Module
    """Its statements, and at their end those of the script."""


def list_started(tree: ast.Module, read_module: Callable[[str], str | None]) -> Iterator[Started]:
    """The modules whose functions a script calls by their names.

    Args:
        tree: The script.
        read_module: The text of the module with a dotted name; None where it is not found.
    """
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    for statement in tree.body:
        if not isinstance(statement, ast.ImportFrom) or statement.level or not statement.module:
            continue
        names = {alias.name for alias in statement.names if alias.asname is None}
        text = read_module(statement.module) if names & called else None
        module = None if text is None else _parse(text)
        if text is None or module is None:
            continue
        own = _defined(module)
        # A name that both have would be taken for one.
        if names & called & own and not own & _defined(tree):
            body = [each for each in module.body if not _is_main(each)]
            rest = [each for each in tree.body if each is not statement]
            joined = ast.Module(body=[*body, *rest], type_ignores=[])
            yield Started(name=statement.module, text=text, tree=joined)


def _parse(text: str) -> ast.Module | None:
    try:
        return parse_quietly(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _defined(tree: ast.Module) -> set[str]:
    return {each.name for each in tree.body if isinstance(each, _Definition)}


def _is_main(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and is_main_guard(statement.test)
