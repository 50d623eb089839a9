"""Find the strings of the program that people read, by their look and by where they stand."""

import ast
import io
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "zerowiz"

# What is done with others' text, or with a name: its arguments are shown to nobody.
_METHODS = frozenset(
    {
        *("startswith", "endswith", "removeprefix", "removesuffix", "split", "rsplit"),
        *("partition", "rpartition", "replace", "strip", "rstrip", "lstrip", "find", "index"),
        *("count", "encode", "decode", "get", "pop", "setdefault", "compile", "fullmatch"),
    }
)
_MODULES = frozenset({"re", "os", "shutil", "ast"})
# Errors among these tell of a mistake in zerowiz itself.
_CALLS = frozenset(
    {
        *("ValueError", "TypeError", "AssertionError", "RuntimeError", "KeyError", "OSError"),
        *("AttributeError", "NotImplementedError", "NotTextError", "OverlapError"),
        *("cast", "TypeVar", "getattr", "hasattr", "setattr", "which", "Path", "NewType"),
        *("Literal", "import_module", "_", "N_"),
    }
)
_COMMAND = re.compile(
    r"^(pip|apt|dnf|rm|export|unset|ulimit|mkdir|srun|qsub|bsub|sudo|cd|hf|#|scontrol)\b"
    r"|^zerowiz (init|plan|launch|machine|measure|check|doctor|report|template)\b"
    r"|^#"
)
# Units, types, options and settings are the same in every language.
_NO_WORDS = re.compile(
    r"`[^`]*`|\$\w+|--[\w-]+|<[^>]*>|\{[^}]*:[^}]*\}"
    r"|\b(GiB|MiB|KiB|GB|MB|TB|Gb|NVIDIA|NUMA|gen|Mapping|Scope|Sequence|None|int|str|float|bool)\b"
)
_HOLE = "\u25e6"


def text_of(node: ast.AST) -> str | None:
    """The string; what is put into it is a hole."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (each.value if isinstance(each, ast.Constant) else _HOLE for each in node.values)
        return "".join(map(str, parts))
    return None


def is_for_people(text: str) -> bool:
    """Whether a string looks like words: more than one, and not code, a command or a pattern."""
    if " " not in text or _COMMAND.search(text) or "\\" in text:
        return False
    bare = _NO_WORDS.sub("`", text)
    return re.search(r"[A-Za-z]{2,}", bare) is not None


class _Reader(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []

    def _note(self, node: ast.expr) -> None:
        text = text_of(node)
        if text is not None and is_for_people(text):
            self.found.append((node.lineno, text))

    def visit_Expr(self, node: ast.Expr) -> None:
        if text_of(node.value) is None:
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        self._note(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._note(node)
        for each in node.values:
            if isinstance(each, ast.FormattedValue):
                self.visit(each.value)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func
        silent = (isinstance(called, ast.Name) and called.id in _CALLS) or (
            isinstance(called, ast.Attribute)
            and (
                called.attr in _METHODS
                or (isinstance(called.value, ast.Name) and called.value.id in _MODULES)
            )
        )
        self.visit(called)
        for value in (*node.args, *(each.value for each in node.keywords)):
            if not (silent and text_of(value) is not None):
                self.visit(value)

    def visit_Compare(self, node: ast.Compare) -> None:
        for value in (node.left, *node.comparators):
            if not isinstance(value, ast.Constant | ast.Tuple | ast.Set | ast.List):
                self.visit(value)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key in node.keys:
            if key is not None and text_of(key) is None:
                self.visit(key)
        for value in node.values:
            self.visit(value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        if text_of(node.slice) is None:
            self.visit(node.slice)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        # What describes an option stands in an annotation, in a call.
        for each in ast.walk(node.annotation):
            if isinstance(each, ast.Call):
                self.visit(each)
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        for each in ast.walk(node.annotation) if node.annotation else ():
            if isinstance(each, ast.Call):
                self.visit(each)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.visit(node.args)
        for each in (*node.decorator_list, *node.body):
            self.visit(each)

    def visit_MatchValue(self, node: ast.MatchValue) -> None:
        """A pattern is shown to nobody."""


class _Values:
    """What a module can put into its texts: constants, and those that its names can mean."""

    def __init__(self, tree: ast.AST) -> None:
        self._named: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._named.setdefault(name, []).append(value)
                case (
                    ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                    | ast.NamedExpr(target=ast.Name(id=name), value=value)
                ):
                    self._named.setdefault(name, []).append(value)
                case _:
                    pass

    def of(self, node: ast.expr, depth: int = 0) -> Iterator[str]:
        """Every constant that an expression can be."""
        if depth > _DEEPEST:
            return
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        for part in self._parts(node):
            yield from self.of(part, depth + 1)

    def _parts(self, node: ast.expr) -> Iterator[ast.expr]:
        for name in _PARTS.get(type(node), ()):
            part = getattr(node, name)
            yield from part if isinstance(part, list) else (part,)
        match node:
            case ast.Name():
                yield from self._named.get(node.id, ())
            case ast.Call(func=ast.Name(id="listing" | "joined" | "str")):
                yield from node.args
            case ast.Call(func=ast.Attribute(value=table, attr="get")):
                yield from (table, *node.args[1:])
            case _:
                pass


_PARTS: Mapping[type[ast.expr], tuple[str, ...]] = {
    ast.IfExp: ("body", "orelse"),
    ast.BoolOp: ("values",),
    ast.Dict: ("values",),
    ast.Subscript: ("value",),
    ast.List: ("elts",),
    ast.Tuple: ("elts",),
    ast.Set: ("elts",),
    ast.GeneratorExp: ("elt",),
    ast.ListComp: ("elt",),
}
_DEEPEST = 6
_WORDS = re.compile(r"[a-z]{2,}(?:[ -][a-z]+)*")


def words_put_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """English words that a text of the catalog gets as a value, outside backticks."""
    values = _Values(tree)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        text = text_of(node.args[0]) if node.func.id == "_" and node.args else None
        bare = re.sub(r"`[^`]*`", "", text or "")
        for given in node.keywords:
            if f"{{{given.arg}" in bare:
                found = (word for word in values.of(given.value) if _WORDS.fullmatch(word))
                yield from ((node.lineno, word) for word in dict.fromkeys(found))


def unmarked(path: Path) -> list[tuple[int, str]]:
    """The line and the words of each string for people that is not in the catalog."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    reader = _Reader()
    reader.visit(tree)
    return [*reader.found, *words_put_in(tree)]


def all_unmarked() -> Iterator[tuple[str, int, str]]:
    """Of every module: its path in the package, the line, the words."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, text in unmarked(path):
            yield path.relative_to(PACKAGE).as_posix(), line, text


# Write the catalogs: what stands in the code, with the translations that are there already.
#
# $ make words
#
# A text that is new stands in the catalog without a translation: write one, and run it again.

MAKE_CATALOG_PACKAGE = Path(__file__).parents[2] / "zerowiz"
FOLDER = MAKE_CATALOG_PACKAGE / "data" / "locale"
LANGUAGES = ("ja",)
_NO_DATE = datetime(2026, 1, 1, tzinfo=UTC)


def path_of(language: str) -> Path:
    """The catalog that translators edit; the compiled one lies beside it."""
    return FOLDER / language / "LC_MESSAGES" / "zerowiz.po"


def read_catalog(language: str) -> Catalog:
    """What is translated."""
    path = path_of(language)
    if not path.exists():
        return Catalog(locale=language)
    return read_po(io.BytesIO(path.read_bytes()), locale=language)


def extract() -> dict[str, set[str]]:
    """Each text of the code, and the modules that it stands in.

    Babel's own reader does not see what stands inside an f-string of Python 3.11.
    """
    found: dict[str, set[str]] = {}
    for path in sorted(MAKE_CATALOG_PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            message = _marked(node)
            if message:
                name = path.relative_to(MAKE_CATALOG_PACKAGE.parent).as_posix()
                found.setdefault(message, set()).add(name)
    return found


def _marked(node: ast.AST) -> str | None:
    """The text of a call of `_` or `N_`."""
    match node:
        case ast.Call(func=ast.Name(id="_" | "N_"), args=[ast.Constant(value=str(message)), *_]):
            return message
        case _:
            return None


def make_catalog(language: str) -> tuple[bytes, bytes]:
    """The catalog of the code's texts as text and compiled, with what was translated of them."""
    before = read_catalog(language)
    # The compiled file names a date, and is to be the same whenever it is made.
    made = Catalog(locale=language, charset="utf-8", fuzzy=False, creation_date=_NO_DATE)
    texts = extract()
    for message, modules in sorted(texts.items(), key=lambda each: (min(each[1]), each[0])):
        known = before.get(message)
        made.add(
            message,
            "" if known is None else known.string,
            locations=[(module, 0) for module in sorted(modules)],
            flags={"python-brace-format"} if "{" in message else (),
        )
    text, compiled = io.BytesIO(), io.BytesIO()
    write_po(text, made, width=0, omit_header=True, include_lineno=False)
    write_mo(compiled, made)
    header = (
        "# Texts of zerowiz. `make words` brings them up to date; see docs/contributing.md.\n"
        'msgid ""\nmsgstr ""\n'
        f'"Language: {language}\\n"\n"Content-Type: text/plain; charset=utf-8\\n"\n\n'
    )
    return header.encode() + text.getvalue(), compiled.getvalue()


def main() -> None:
    """Write both files of each language."""
    for language in LANGUAGES:
        path = path_of(language)
        path.parent.mkdir(parents=True, exist_ok=True)
        text, compiled = make_catalog(language)
        path.write_bytes(text)
        path.with_suffix(".mo").write_bytes(compiled)
        missing = [str(each.id) for each in read_catalog(language) if each.id and not each.string]
        sys.stdout.writelines(f"{path}: not translated: {each!r}\n" for each in missing)


if __name__ == "__main__":
    main()
