"""The names that a script imports and defines, and the calls that it makes."""

import ast
import warnings

from msgspec import Struct, field

from zerowiz.core.script.arguments import ARGUMENT_CLASSES, Release
from zerowiz.core.workload.workload import NEWEST_TRL
from zerowiz.probe.script.expressions import Scope, entries, last_name, unless_none

HF_LIBRARIES = frozenset({"transformers", "trl", "sentence_transformers"})
HF_PARSERS = frozenset({"HfArgumentParser", "TrlParser"})


def parse_quietly(text: str) -> ast.Module:
    """The syntax tree of a script, without Python's warnings, such as of invalid escapes.

    Raises:
        SyntaxError: It is not Python.
        ValueError: It has a zero byte.
        MemoryError: It has too many levels, also a RecursionError.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


class FunctionCall(Struct, frozen=True, kw_only=True):
    """A call, with its scope and the conditions that it is under."""

    node: ast.Call
    scope: Scope
    tests: tuple[ast.expr, ...]
    """The conditions around it."""
    target: str
    """The names that its result is assigned to, separated by spaces."""
    function: str
    """The name of the function that it stands in."""
    around: tuple[ast.expr, ...] = ()
    """What the `with` blocks around it enter, and the conditions on which its function was left."""

    @property
    def method(self) -> str:
        """The last part of the called function's name."""
        return last_name(self.node)

    @property
    def line(self) -> int:
        """The line at which it begins."""
        return self.node.lineno

    @property
    def name(self) -> str:
        """The called function, as it is written."""
        return ast.unparse(self.node.func)

    def keyword(self, *names: str) -> ast.expr | None:
        """The value of the first of these keywords that the call has; None for none."""
        found = {word.arg: word.value for word in self.node.keywords}
        return next((found[name] for name in names if name in found), None)

    def argument(self, name: str, position: int) -> ast.expr | None:
        """An argument by keyword or by position; a literal None counts as not given."""
        value = self.keyword(name)
        if value is None and len(self.node.args) > position:
            value = self.node.args[position]
        return unless_none(value)


class DictEntry(Struct, frozen=True, kw_only=True):
    """One place where an entry of a dict is asked for, set or removed: `config["a"]["b"]`."""

    node: ast.expr
    scope: Scope
    tests: tuple[ast.expr, ...]
    """The conditions around it."""
    function: str
    """The name of the function that it stands in."""
    guarded: bool
    """Whether it may not run, or may fail, for a reason that is no condition: `try`, `and`."""
    sets: bool
    value: ast.expr | None = None
    """What it is set to; None where that is not known."""


class SetAttribute(Struct, frozen=True, kw_only=True):
    """One place where an attribute of a name is set: `config.num_hidden_layers = 4`."""

    owner: str
    name: str
    value: ast.expr | None
    """None for one that is not followed."""
    scope: Scope
    tests: tuple[ast.expr, ...]
    """The conditions around it."""
    function: str
    """The name of the function that it stands in."""


def _default(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> ast.expr | None:
    """The constant that a parameter is by default; None where a decorator may give it another."""
    spec = function.args
    positional = (*spec.posonlyargs, *spec.args)
    given = [*zip(reversed(positional), reversed(spec.defaults), strict=False)]
    given += [(a, d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d]
    found = next((default for arg, default in given if arg.arg == name), None)
    is_plain = isinstance(found, ast.Constant) and not function.decorator_list
    return unless_none(found) if is_plain else None


class Source(Struct, frozen=True, kw_only=True):
    """The names and calls of a script; `walk` collects them from the syntax tree."""

    trl_release: Release = NEWEST_TRL
    """Whose defaults the arguments classes have."""
    imports: dict[str, str] = field(default_factory=dict)
    """The dotted origin of each imported name."""
    stars: list[str] = field(default_factory=list)
    """The modules of `from ... import *`."""
    elsewhere: "dict[str, Source]" = field(default_factory=dict)
    """The modules beside the script that define the classes which its parser fills, by class."""
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    methods: set[str] = field(default_factory=set)
    """The names of functions that belong to a class."""
    unfrozen: list[ast.expr | ast.stmt] = field(default_factory=list)
    """What lets parameters of a model train: `p.requires_grad = True`, `p.requires_grad_()`."""
    fired: set[str] = field(default_factory=set)
    """The functions of whose parameters `fire.Fire` makes options."""
    calls: list[FunctionCall] = field(default_factory=list)
    entries_used: list[DictEntry] = field(default_factory=list)
    altered: set[str] = field(default_factory=set)
    """Attributes that are assigned."""
    attributes: list[SetAttribute] = field(default_factory=list)
    """Where those of a name are."""
    changed: dict[str, set[str | None]] = field(default_factory=dict)
    """Names of containers that are changed after they were made, with the keys of which the values
    are set there; None is any."""
    option_texts: set[str] = field(default_factory=set)
    """The texts that begin like an option."""
    namespaces: set[str] = field(default_factory=set)
    """Names that may hold parsed arguments."""
    opened: dict[ast.Call, ast.expr] = field(default_factory=dict)
    """For a call like `json.load(f)`, the expression that the `with` around it opened as `f`."""
    module: Scope = field(default_factory=Scope)

    def origin(self, expr: ast.expr) -> str:
        """The dotted name that an expression was imported from."""
        if isinstance(expr, ast.Attribute):
            base = self.origin(expr.value)
            return f"{base}.{expr.attr}" if base else ""
        if not isinstance(expr, ast.Name):
            return ""
        known = expr.id in ARGUMENT_CLASSES or expr.id in HF_PARSERS
        star = f"{self.stars[0]}." if known and len(self.stars) == 1 else ""
        return self.imports.get(expr.id, f"{star}{expr.id}")

    def imported(self, expr: ast.expr) -> tuple[str, str]:
        """The library that a name was imported from, and its last part; empty for other names."""
        library, *rest = self.origin(expr).split(".")
        return (library, rest[-1]) if rest else ("", "")

    def calls_to(self, library: str, name: str) -> list[FunctionCall]:
        """The calls of one function or class of a library."""
        return [call for call in self.calls if self.imported(call.node.func) == (library, name)]

    def callers(self, function: str) -> list[FunctionCall]:
        """The calls of a function of the script; `trainer.train()` is none of its own `train`."""
        found = [call for call in self.calls if function and call.method == function]
        by_name = [call for call in found if isinstance(call.node.func, ast.Name)]
        return found if function in self.methods else by_name

    def passed(self, name: ast.Name, scope: Scope) -> tuple[ast.expr, FunctionCall] | None:
        """What a parameter gets, and the only call that passes it; None for any other name.

        One that the call leaves out gets its default, if that is a constant.
        """
        owner = scope.owner(name.id)
        function = self.functions.get(owner.function)
        calls = self.callers(owner.function)
        if function is None or len(calls) != 1 or owner.function in self.methods | self.fired:
            return None
        names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        known = {*names, *(arg.arg for arg in function.args.kwonlyargs)}
        if name.id not in known or owner.values.get(name.id) != [None]:
            return None
        node = calls[0].node
        if any(isinstance(arg, ast.Starred) for arg in node.args):
            return None
        by_position = dict(zip(names, node.args, strict=False))
        value = calls[0].keyword(name.id) or by_position.get(name.id)
        if value is None and not any(word.arg is None for word in node.keywords):
            value = _default(function, name.id)
        return None if value is None else (value, calls[0])

    def keywords(self, call: FunctionCall) -> tuple[dict[str, ast.expr], bool]:
        """The keyword arguments of a call, also behind `**`, and whether others are hidden."""
        found: dict[str, ast.expr] = {}
        hidden = False
        for word in call.node.keywords:
            entries = {word.arg: word.value} if word.arg else self.entries(word.value, call.scope)
            found |= entries or {}
            hidden = hidden or entries is None
        return found, hidden

    def entry(self, expr: ast.expr, key: str, scope: Scope) -> ast.expr | None:
        """The value of a dict literal by one key; None where the script changes that one."""
        changed = self.changed.get(last_name(expr), set())
        found = None if changed & {key, None} else entries(expr, scope)
        return (found or {}).get(key)

    def entries(self, expr: ast.expr, scope: Scope) -> dict[str, ast.expr] | None:
        """The values of a dict literal by its constant keys; None where the script changes it."""
        changed = isinstance(expr, ast.Name) and expr.id in self.changed
        return None if changed else entries(expr, scope)
