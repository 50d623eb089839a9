"""Join to a script what it uses of the modules of its folder, package or repository."""

import ast
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct

from zerowiz.probe.files import LONGEST_SCRIPT_BYTES, read_named
from zerowiz.probe.script.source import (
    HF_LIBRARIES,
    MOST_STEPS,
    is_main_guard,
    last_name,
    nodes_of,
    parse_quietly,
)

# What is read at most; what lies behind that is not seen.
_MOST_FILES, _MOST_BYTES, _MOST_JOINED_BYTES = 200, 4 << 20, 512 << 10
HEIGHT = 4
"""How far above a script its repository begins, at most: `src/package/train/train.py`."""
# What shows that it begins there.
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
# Folders of a repository that may have the names of libraries, which Python finds first; what a
# script of a library itself does by it (`-m trl.scripts.dpo`) is known.
_LIBRARIES = HF_LIBRARIES | {
    *("accelerate", "datasets", "deepspeed", "diffusers", "evaluate", "lightning", "numpy"),
    *("peft", "pytorch_lightning", "timm", "torch"),
}
# What a definition says that shows some fact of a script, each with the pattern that it begins or
# is a part of. One that says none of it, and uses none that does, is left out.
_SHOWN: Mapping[str, str] = {
    **dict.fromkeys(("deepspeed", "Training", "peft", "parse_args", "ArgumentParser"), ""),
    **dict.fromkeys(("Arguments(", "fire.", "Optimizer", "Adam", "DataLoader", ".backward("), ""),
    **dict.fromkeys(("clip_grad", "truncation", "max_length", "LoRA", "LoRa"), ""),
    **dict.fromkeys(("from_pretrained", "from_config", "attn_implementation"), ""),
    **dict.fromkeys(("save_pretrained", "state_dict", "torch.save", "device_map", "load_in_"), ""),
    **dict.fromkeys(("lora", "Lora", "loRA"), ""),
    "ccelerator": "[Aa]ccelerator",
    "ightning": "[Ll]ightning",
    "Trainer": r"Trainer\b",
    "argument": r"add_\w*argument",
    "Arguments)": r"\(\w*Arguments\)",
    "optim": r"optim\b",
    "_checkpointing": r"[a-z](?<!self\.gradient)_checkpointing",
    "requires_grad": r"\.requires_grad(_\(| *=(?!=))",
    "layer": r"\b(n_layers?|num_hidden_layers) *=(?!=)",
    "args.": r"args\.\w+ *=(?!=)",
}
# A class of diffusers that generates, and trains nothing.
_GENERATES = re.compile(r"^class \w+\([^)]*\bDiffusionPipeline\b", re.MULTILINE)
_WORDS = re.compile(r"[A-Za-z_]\w*")
# A definition with its indentation, and all of it that stands before its body.
_DEFINES = re.compile(r"^([ \t]*)(?:async\s+)?(def|class)\s+(\w+)", re.MULTILINE)
_HEADER = re.compile(r".*?:(?=[ \t]*(?:#[^\n]*)?\n)", re.DOTALL)
_IMPORTS = re.compile(r"^[ \t]*(?:from|import)[ \t]+([.\w]+)", re.MULTILINE)

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Named = (ast.Name, ast.Attribute)
_Defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)
_Definitions = dict[str, list[tuple[int, str]]]
_Import = ast.Import | ast.ImportFrom


class Joined(Struct, frozen=True, kw_only=True):
    """A script with the definitions of its modules that it uses."""

    tree: ast.Module
    text: str
    """What was joined."""
    seen: str
    """The same with all else that the modules say."""
    files: tuple[tuple[int, str], ...] = ()
    """The modules, each with the number of lines before it: lines are counted through all."""


def join(script: Path, tree: ast.Module, text: str, folder: Path) -> Joined:
    """A script with what it uses of its own modules, and what that uses.

    A definition keeps its name unless that is taken. A module that is only imported adds nothing.

    Args:
        script: Its path.
        tree: Its syntax tree, whose nodes are changed.
        text: Its text.
        folder: The folder that it imports from first.
    """
    joiner = _Joiner(script, folder)
    module = _SourceFile(script, text, tree, {}, 0)
    if "sys.path" in text:
        joiner.add_folders(module, tree)
    imported = {name.partition(".")[0] for name in _IMPORTS.findall(text)}
    if not any(not top or joiner.places(top) for top in imported):
        return Joined(tree=tree, text=text, seen=text)
    return joiner.join(module, tree, text)


class _SourceFile:
    """A file, whose definitions are parsed when something uses them."""

    def __init__(
        self, path: Path, text: str, tree: ast.Module, definitions: _Definitions, first: int
    ) -> None:
        self.path, self.text = path, text
        self.first = first
        """The number of lines before it."""
        self.definitions = definitions
        """What defines a name: the number of lines before, and the text."""
        self.variables: dict[str, list[ast.stmt]] = {}
        """The other statements that bind a name."""
        self.statements: list[ast.stmt] = []
        """All other statements."""
        self.imports: dict[str, list[tuple[str, str]]] = {}
        """The module of a name, and its name there; empty for a module itself."""
        self.stars: list[str] = []
        self.is_joined = False
        """Whether something of it was taken."""
        lines = text.splitlines()
        self.texts = {statement: _text(lines, statement) for statement in tree.body}
        for statement in tree.body:
            if not (isinstance(statement, ast.If) and is_main_guard(statement.test)):
                self._add(statement)
        self.names = {*self.definitions, *self.variables}

    def _add(self, statement: ast.stmt) -> None:
        if isinstance(statement, _Function | ast.ClassDef):
            self.variables.setdefault(statement.name, []).append(statement)
            return
        self.statements.append(statement)
        for name in _bound(self, nodes_of(statement)):
            self.variables.setdefault(name, []).append(statement)

    def note(self, node: _Import) -> None:
        """Add the names of an import."""
        for alias in node.names:
            if isinstance(node, ast.Import):
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                name, origin = alias.asname or whole, (whole, "")
            else:
                name = alias.asname or alias.name
                origin = ("." * node.level + (node.module or ""), alias.name)
            if name == "*":
                self.stars.append(origin[0])
            elif origin not in self.imports.setdefault(name, []):
                self.imports[name].append(origin)

    def may_have(self, expr: ast.expr) -> bool:
        """Whether a name, or the first one of a dotted name, is one of the module."""
        while isinstance(expr, ast.Attribute):
            expr = expr.value
        name = getattr(expr, "id", "")
        return name in self.names or name in self.imports or bool(self.stars)

    def text_of(self, name: str) -> str:
        """What makes a name what it is."""
        texts = [text for _before, text in self.definitions.get(name, ())]
        return "\n".join((*texts, *map(self.texts.__getitem__, self.variables.get(name, ()))))

    def take(
        self, name: str, shows: Callable[["_SourceFile", str], bool]
    ) -> Iterator[tuple[ast.stmt, int, str]]:
        """The statements that make a name what it is.

        Args:
            name: The name.
            shows: Whether a text shows some fact of a script, or uses what does.

        Yields:
            Each with the number of lines before those that it counts, and its text.
        """
        for before, text in self.definitions.pop(name, ()):
            # A line of a text may look like a method.
            tree = _tree(_emptied(text, partial(shows, self))) or _tree(text)
            yield from ((s, self.first + before, text) for s in (tree.body if tree else ()))
        binding = self.variables.get(name, [])
        # What an import does as well.
        shown = (s for s in self.statements if isinstance(s, ast.Expr) and _is_shown(self.texts[s]))
        taken = [] if self.is_joined else list[ast.stmt](shown)
        self.is_joined = True
        taken += [s for s in binding if isinstance(s, _Function | ast.ClassDef)]
        if not all(isinstance(s, _Function | ast.ClassDef) for s in binding):
            # `parser.add_argument(...)`
            rest = [s for s in self.statements if s not in taken]
            taken += [s for s in rest if s in binding or _changes(s, name)]
        self.statements = [s for s in self.statements if s not in taken]
        for statement in taken:
            yield statement, self.first, self.texts[statement]


def _text(lines: list[str], statement: ast.stmt) -> str:
    """The lines of a statement."""
    above = getattr(statement, "decorator_list", ())
    first = min([statement.lineno, *(decorator.lineno for decorator in above)])
    return "\n".join(lines[first - 1 : statement.end_lineno])


def _is_shown(text: str) -> bool:
    """Whether a text shows some fact of a script."""
    return any(part in text and re.search(whole, text) for part, whole in _SHOWN.items())


def _changes(statement: ast.stmt, name: str) -> bool:
    """Whether a statement may change what a variable holds."""
    return not isinstance(statement, ast.Assign | ast.AnnAssign) and any(
        isinstance(node, ast.Name) and node.id == name for node in nodes_of(statement)
    )


def _parts(text: str, indent: int = 0) -> Iterator[tuple[re.Match[str] | None, str]]:
    """The statements of a text that are indented by so many characters at most.

    Yields:
        Each with the definition that it is, if it is one.
    """
    begun = 0
    begins = re.finditer(rf"^[ \t]{{0,{indent}}}[^\s#)\]}}]", text, re.MULTILINE)
    for end in (*(match.start() for match in begins), len(text)):
        part = text[begun:end]
        named = _DEFINES.search(part)
        if named is not None and len(named[1]) > indent:
            named = None
        if named is None and part.lstrip(" \t").startswith("@"):
            continue
        yield named, part
        begun = end


def _split(text: str) -> tuple[str, _Definitions]:
    """A text without its definitions, with as many lines, and the definitions."""
    rest: list[str] = []
    definitions: _Definitions = {}
    before = 0
    for named, part in _parts(text):
        lines = part.count("\n")
        if named is not None:
            definitions.setdefault(named[3], []).append((before, part))
        rest.append(part if named is None else "\n" * lines)
        before += lines
    return "".join(rest), definitions


def _emptied(text: str, shows: Callable[[str], bool]) -> str:
    """A class, with as many lines, without what stands in its methods that show nothing."""
    whole, *inner = _DEFINES.finditer(text)
    if whole[2] == "def" or not inner:
        return text
    found = list(_parts(text, len(inner[0][1])))
    parts = [part for _named, part in found]
    methods = {n: named[3] for n, (named, _) in enumerate(found) if named and named[2] == "def"}
    kept = {n for n in methods if shows(parts[n])}
    words = {n: {*_WORDS.findall(parts[n])} for n in methods if n not in kept}
    while more := {n for n in words if words[n] & {methods[k] for k in kept}} - kept:
        kept |= more
    for n in methods.keys() - kept:
        header = _HEADER.match(parts[n])
        if header is not None:
            lines = parts[n].count("\n") - header[0].count("\n")
            parts[n] = f"{header[0]} pass" + "\n" * lines
    return "".join(parts)


def _tree(text: str) -> ast.Module | None:
    """The syntax tree of a text; None for one that Python does not read."""
    try:
        return parse_quietly(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _bound(module: _SourceFile, nodes: list[ast.AST]) -> set[str]:
    """The names that a statement, or a function with all that stands in it, binds.

    What it imports is added to the names of its module.
    """
    names: set[str] = set()
    wide: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                names.add(node.id)
        elif isinstance(node, ast.expr):
            continue  # most are
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, _Defined) and node is not nodes[0]:
            names.add(node.name or "")
        elif isinstance(node, ast.Global):
            wide.update(node.names)
        elif isinstance(node, _Import):
            module.note(node)
    return names - wide


_EXTENDING = frozenset({"sys.path.append", "sys.path.insert"})


class _Own(Struct, frozen=True):
    """A definition or a variable of a module."""

    module: _SourceFile
    name: str


# What a name stands for; a text is the dotted origin of what is not found here.
_Target = _Own | _SourceFile | str | None


class _Joiner:
    """Finds the modules of a script, and what it uses of them."""

    def __init__(self, script: Path, folder: Path) -> None:
        above = [*script.parents]
        self._above = [*above, *[*script.absolute().parents][len(above) :]][: HEIGHT + 1]
        self._folders = [folder]
        self._root = next(
            (f for f in self._above if any((f / name).exists() for name in _PROJECT_FILES)), None
        )
        self._tops: dict[str, list[Path]] = {}
        self._located: dict[tuple[Path | None, str], Path | None] = {}
        self._modules: dict[Path, _SourceFile | None] = {}
        self._telling: dict[tuple[Path, str], bool] = {}
        self._found: dict[tuple[_SourceFile, str, int], _Target] = {}
        self._lines = self._bytes = self._joined_bytes = 0
        self._names: dict[tuple[Path | None, str], str] = {}
        """What a definition of a file is called here, or what an origin is imported as."""
        self._taken: set[str] = set()
        self._todo: list[_Own] = []
        self._imports: list[ast.stmt] = []

    # Find a module.

    def add_folders(self, script: _SourceFile, tree: ast.Module) -> None:
        """Add the folders that a script adds to `sys.path`."""
        for node in nodes_of(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in _EXTENDING and node.args:
                folder = _path(script, node.args[-1])
                if folder is not None:
                    self._folders.append(Path(os.path.relpath(folder)))

    def locate(self, near: _SourceFile, name: str) -> Path | None:
        """The file of a module by its dotted name, as another module imports it."""
        parts = [part for part in name.split(".") if part]
        level = len(name) - len(name.lstrip("."))
        key = (near.path.parent if level else None, name)
        if key not in self._located:
            above = [near.path.parent, *near.path.parent.parents]
            places = above[level - 1 : level] if level else self.places(parts[0])
            files = (file for place in places for file in _files(place, parts))
            self._located[key] = next(files, None)
        return self._located[key]

    def places(self, top: str) -> list[Path]:
        """The folders in which a package or a module of the script is."""
        if top not in self._tops and top in sys.stdlib_module_names:
            self._tops[top] = []
        if top not in self._tops:
            is_library = top in _LIBRARIES
            above = () if is_library else self._above
            around = (folder.parent for folder in above if folder.name == top)
            places = (*self._folders, *around)
            self._tops[top] = [place for place in places if has_module(place, top)]
            if self._root is not None and not is_library:
                roots = (self._root, self._root / "src")
                self._tops[top] += [r for r in roots if (r / top / "__init__.py").is_file()]
        return self._tops[top]

    def module(self, near: _SourceFile, name: str) -> _SourceFile | None:
        """A module by its dotted name; None for one that is not here or cannot be read."""
        path = self.locate(near, name)
        if path is None:
            return None
        if path not in self._modules:
            can = len(self._modules) < _MOST_FILES and self._bytes < _MOST_BYTES
            self._modules[path] = self._read(path) if can else None
        return self._modules[path]

    def _read(self, path: Path) -> _SourceFile | None:
        try:
            text = read_named(path, LONGEST_SCRIPT_BYTES).decode(errors="replace")
        except OSError:
            return None
        rest, definitions = _split(text)
        tree = _tree(rest)
        if tree is None:
            # A line of a text may look like a statement.
            tree, definitions = _tree(text), {}
        if tree is None:
            return None
        module = _SourceFile(path, text, tree, definitions, self._lines)
        self._bytes += len(text)
        self._lines += text.count("\n") + 1
        return module

    # Find what a name stands for.

    def find(self, module: _SourceFile, name: str) -> _Target:
        """What a name of a module stands for; None for a name that it does not have."""
        # A function that imports it, too, is looked at later.
        key = (module, name, len(module.imports.get(name, ())))
        if key not in self._found:
            self._found[key] = self._find(module, name, 0)
        return self._found[key]

    def _find(self, module: _SourceFile, name: str, depth: int) -> _Target:
        if name in module.names:
            return _Own(module, name)
        if depth == MOST_STEPS:
            return None
        if name in module.imports:
            targets = [self._follow(module, *o, depth) for o in module.imports[name]]
            here = [target for target in targets if not isinstance(target, str)]
            # What two imports of a name bring differently is not seen.
            is_one = bool(here) and all(target == here[0] for target in here)
            return here[0] if is_one else ".".join(filter(None, module.imports[name][-1]))
        for star in () if name.startswith("_") else module.stars:
            source = self.module(module, star)
            target = None if source is None else self._find(source, name, depth + 1)
            if target is not None:
                return target
        return None

    def _follow(self, module: _SourceFile, source: str, name: str, depth: int) -> _Target:
        """What an import brings, as far as that is found here."""
        origin = f"{source}.{name}" if name else source
        package = self.module(module, source)
        if not name:
            return package or origin
        target = None if package is None else self._find(package, name, depth + 1)
        # A relative name has another meaning elsewhere.
        if target is None or (isinstance(target, str) and target.startswith(".")):
            dot = "" if source.endswith(".") else "."
            return self.module(module, f"{source}{dot}{name}") or origin
        return target

    def target(self, module: _SourceFile, expr: ast.expr, bound: set[str]) -> _Target:
        """What a name, or an attribute of a module, stands for."""
        match expr:
            case ast.Name(id=name) if name not in bound:
                return self.find(module, name)
            case ast.Attribute(value=ast.Name() | ast.Attribute() as base, attr=attr):
                whole = self.target(module, base, bound)
                if isinstance(whole, _SourceFile):
                    is_package = whole.path.name == "__init__.py"
                    inner = self.module(whole, f".{attr}") if is_package else None
                    return self.find(whole, attr) or inner
                if not isinstance(whole, str):
                    return None
                name = f"{whole}.{attr}"
                is_here = self.places(whole.partition(".")[0])
                return (self.module(module, name) if is_here else None) or name
            case _:
                return None

    def matters(self, target: _Target) -> bool:
        """Whether a definition shows any fact of a script, or may be a class of its options."""
        if not isinstance(target, _Own):
            return False
        return self._tells(target) or "@dataclass" in target.module.text_of(target.name)

    def _tells(self, own: _Own) -> bool:
        """Whether a definition shows any fact of a script, or uses one that does."""
        key = (own.module.path, own.name)
        if key not in self._telling:
            self._telling[key] = False  # of one that uses itself
            text = own.module.text_of(own.name)
            self._telling[key] = not _GENERATES.search(text) and self._shows(own.module, text)
        return self._telling[key]

    def _shows(self, module: _SourceFile, text: str) -> bool:
        if _is_shown(text):
            return True
        # By their order in the text: a module that is read first has the first lines.
        words = dict.fromkeys(_WORDS.findall(text))
        for word in words:
            if word not in module.names and word not in module.imports:
                continue
            target = self.find(module, word)
            parts = [target] if isinstance(target, _Own) else []
            if isinstance(target, _SourceFile):
                parts = [_Own(target, name) for name in words if name in target.names]
            if any(map(self._tells, parts)):
                return True
        return False

    # Join.

    def join(self, script: _SourceFile, tree: ast.Module, whole: str) -> Joined:
        """The script with all that it uses."""
        self._lines = whole.count("\n") + 1
        self._modules[script.path] = script
        self._taken |= _bound(script, nodes_of(tree))
        self._names |= {(script.path, name): name for name in script.variables}
        for name, origins in script.imports.items():
            target = self.find(script, name)
            if target == ".".join(filter(None, origins[-1])):
                self._names.setdefault((None, str(target)), name)
            if not self.matters(target):
                self._taken.add(name)
        body = [self._renamed(script, statement, 0) for statement in tree.body]
        texts = [whole]
        while self._todo and self._joined_bytes < _MOST_JOINED_BYTES:
            own = self._todo.pop(0)
            for statement, lines, text in own.module.take(own.name, self._shows):
                body.append(self._renamed(own.module, statement, lines))
                texts.append(text)
                self._joined_bytes += len(text)
        modules = [module for module in self._modules.values() if module and module is not script]
        body.sort(key=lambda statement: statement.lineno)
        return Joined(
            tree=ast.Module(body=[*self._imports, *body], type_ignores=[]),
            text="\n".join(texts),
            seen="\n".join([whole, *(module.text for module in modules)]),
            files=tuple((module.first, str(module.path)) for module in modules),
        )

    def _renamed(self, module: _SourceFile, statement: ast.stmt, lines: int) -> ast.stmt:
        """A statement whose names are those that their definitions have here.

        Args:
            module: Its module.
            statement: It has not been renamed before.
            lines: What is added to its lines.
        """
        bound = None if isinstance(statement, _Function) else set[str]()
        if isinstance(statement, ast.ClassDef):
            whole = statement.body
            rest = [inner for inner in whole if not isinstance(inner, _Function)]
            fields = _bound(module, [node for inner in rest for node in nodes_of(inner)])
            for inner in whole:
                is_method = isinstance(inner, _Function)
                self._rename_part(module, inner, lines, None if is_method else fields)
            self._taken |= {inner.name for inner in whole if isinstance(inner, _Function)}
            statement.body = []
            self._rename_part(module, statement, lines, bound)
            statement.body = whole
        else:
            self._rename_part(module, statement, lines, bound)
        if isinstance(statement, _Function | ast.ClassDef):
            statement.name = self.name(_Own(module, statement.name))
        return statement

    def _rename_part(
        self, module: _SourceFile, part: ast.stmt, lines: int, bound: set[str] | None
    ) -> None:
        """Rename in a part of a statement; `bound` is None for what a function binds."""
        nodes = nodes_of(part)
        bound = _bound(module, nodes) if bound is None else bound
        for node in nodes:
            if lines and hasattr(node, "lineno"):
                node.lineno += lines
            if isinstance(node, _Named) and module.may_have(node):
                target = self.target(module, node, bound)
                is_whole = isinstance(target, _Own) or isinstance(node, ast.Name)
                if is_whole and isinstance(target, _Own | str) and self._joins(module, target):
                    # `work.main` becomes a name in its place.
                    node.__class__ = ast.Name
                    node.id = self.name(target)  # type: ignore[union-attr]
            elif isinstance(node, _Import):
                source = getattr(node, "module", None) or ""
                source = "." * getattr(node, "level", 0) + source
                node.names = [a for a in node.names if self._stays(module, source, a, bound)]

    def _stays(self, module: _SourceFile, source: str, alias: ast.alias, bound: set[str]) -> bool:
        """Whether what an import brings is not joined, but imported."""
        name = alias.asname or alias.name
        target = self.find(module, name)
        if name not in bound and isinstance(target, _Own) and target.module is module:
            # `try: import x`, `except ImportError: x = None`
            alias.asname = self.name(target)
        elif name not in bound:
            if name == "*":
                return not module.first and self.module(module, source) is None
            if isinstance(target, _Own):
                return not module.first and not self.matters(target)
            is_same = not isinstance(target, str) or self.name(target) == name
            return not module.first and is_same
        return True

    def _joins(self, module: _SourceFile, target: _Own | str) -> bool:
        """Whether what a module uses is called here as it is joined, and not as it is imported."""
        return (
            isinstance(target, str)
            or bool(module.first)
            or self.matters(target)
            or (target.module is module)
        )

    def name(self, target: _Own | str) -> str:
        """What something is called here; it is joined as well."""
        if isinstance(target, _Own):
            path, name = target.module.path, target.name
            key: tuple[Path | None, str] = (path, name)
            longer = [*path.parent.parts, path.stem]
        else:
            *longer, name = target.split(".")
            key = (None, target)
        if key not in self._names:
            names = (".".join((*longer[len(longer) - n :], name)) for n in range(len(longer) + 1))
            known = next((name for name in names if name not in self._taken), f".{target}")
            self._names[key] = known
            self._taken.add(known)
            if isinstance(target, str):
                self._imports.append(_import(target, known))
            elif self.matters(target):
                self._todo.append(target)
        return self._names[key]


def _import(origin: str, name: str) -> ast.stmt:
    """The import of a dotted origin."""
    source, _dot, last = origin.rpartition(".")
    if not source:
        return ast.Import(names=[ast.alias(name=last, asname=name)])
    return ast.ImportFrom(module=source, names=[ast.alias(name=last, asname=name)], level=0)


def has_module(folder: Path, name: str) -> bool:
    """Whether a folder has a module or a package of a name."""
    return (folder / name).is_dir() or (folder / f"{name}.py").exists()


def _files(folder: Path, parts: list[str]) -> Iterator[Path]:
    """The files that a module of a folder may have."""
    place = folder.joinpath(*parts)
    for path in ([place.with_name(f"{place.name}.py")] if parts else []) + [place / "__init__.py"]:
        try:
            if path.is_file():
                yield path
        except OSError:
            return


# Functions and methods of a path that give the same path.
_SAME = frozenset({"Path", "abspath", "realpath", "normpath", "str", "resolve", "absolute"})


def _path(script: _SourceFile, expr: ast.expr | None, depth: int = 0) -> Path | None:
    """The folder that an expression names: `os.path.dirname(__file__)`, `Path("src")`."""
    parts: list[ast.expr] = []
    above = 0
    match expr:
        case ast.Constant(value=str(text)):
            return Path(text)
        case ast.Name(id="__file__"):
            return script.path.absolute()
        case ast.Name(id=name):
            values = [s.value for s in script.variables.get(name, []) if isinstance(s, ast.Assign)]
            inner: ast.expr | None = values[0] if len(values) == 1 else None
        case ast.Call(func=ast.Attribute(value=inner), args=[]) if last_name(expr) in _SAME:
            pass
        case ast.Call(args=[inner]) if last_name(expr) in _SAME:
            pass
        case ast.Call(args=[inner, *parts]) if last_name(expr) == "join":
            pass
        case ast.BinOp(left=inner, op=ast.Div(), right=part):
            parts = [part]
        case ast.Call(args=[inner]) if last_name(expr) == "dirname":
            above = 1
        case ast.Attribute(value=inner, attr="parent"):
            above = 1
        case ast.Subscript(
            value=ast.Attribute(value=inner, attr="parents"), slice=ast.Constant(value=int(number))
        ):
            above = number + 1
        case _:
            return None
    path = None if depth == MOST_STEPS else _path(script, inner, depth + 1)
    texts = [part.value for part in parts if isinstance(part, ast.Constant)]
    if path is None or len(texts) < len(parts) or above > len(path.parents):
        return None
    return [path, *path.parents][above].joinpath(*map(str, texts))
