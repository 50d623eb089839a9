"""Find the setting behind an expression: a literal, an option of the script, or the config."""

import ast
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from zerowiz.core.script.arguments import Option, Reads, Scalar
from zerowiz.core.script.facts import UNSEEN, ValueSource
from zerowiz.core.structs import replace
from zerowiz.core.workload import ALL_LINEAR, SETTINGS
from zerowiz.probe.script.commandline import CommandLine
from zerowiz.probe.script.source import (
    MOST_STEPS,
    FunctionCall,
    Scope,
    Source,
    conjuncts,
    entry_key,
    follow,
    is_one_rank,
    last_name,
    literal,
    nodes_of,
    unless_none,
    words,
)

# Functions of a path that return the same file, or its content.
_PATH_CALLS = frozenset(
    {
        "HfDeepSpeedConfig",
        "Path",
        "abspath",
        "expanduser",
        "load",
        "loads",
        "open",
        "realpath",
        "safe_load",
        "str",
    }
)
_PATH_METHODS = frozenset({"absolute", "expanduser", "open", "read", "read_text", "resolve"})
# What has functions of these names, whose first argument is the path.
_NO_PATHS = frozenset({"codecs", "fsspec", "gzip", "io", "os.path", "pathlib.Path"})
_CONFIG_READS = frozenset(row.config_key for row in SETTINGS.values() if row.config_key)


class Argument(NamedTuple):
    """What an expression stands for."""

    expr: ast.expr
    call: FunctionCall
    """The one in whose scope it stands."""
    line: int
    """Of the argument."""
    label: str = ""
    """What stands before it where it is no argument: the key of a dict, a parameter's name."""


class Reader(Struct, frozen=True, kw_only=True, eq=False):
    """Answers what an expression of the source depends on."""

    source: Source
    line: CommandLine

    def bind(self, expr: ast.expr, call: FunctionCall, keyword: str | None = None) -> ValueSource:
        """The setting that an expression in a call has: a literal, an option, or the config's.

        Args:
            expr: The expression.
            call: The call that it is an argument or a condition of.
            keyword: The keyword, where it is a keyword argument.
        """
        expr, used, line, label = self.argument(expr, call)
        keyword, call = keyword if used is call else None, used
        option = self._option(expr, call.scope)
        if option is not None:
            return self.bind_option(option)
        if asks_config(expr):
            return ValueSource(from_config=True, line=line)
        value = literal(expr, call.scope)
        code = f"{label}{short_code(expr)}" if label else show_argument(call, expr, keyword)
        if value is None:
            return ValueSource(line=line, code=None if unless_none(expr) is None else code)
        return ValueSource(value=value, line=line, code=code, keyword=keyword)

    def bind_words(self, expr: ast.expr, call: FunctionCall, keyword: str) -> ValueSource:
        """As `bind`, for a list of names; a single text, a pattern to peft, is unseen."""
        line = expr.lineno
        changed = isinstance(expr, ast.Name) and expr.id in self.source.changed
        expr = self.follow(expr, call)
        texts: str | None = words(expr, call.scope)
        if isinstance(expr, ast.Call) and last_name(expr) in {"split", "list"}:
            expr, is_list = self.follow(_split_by_commas(expr), call), True
        else:
            is_list = False
        option = self._option(expr, call.scope)
        if option is not None and (is_list or option.reads is Reads.WORDS):
            return self.bind_option(option)
        text = literal(expr, call.scope)
        if isinstance(text, str) and (is_list or text == ALL_LINEAR):
            texts = text
        code = show_argument(call, expr, keyword)
        return ValueSource(value=None if changed else texts, line=line, code=code)

    def follow(self, expr: ast.expr, call: FunctionCall) -> ast.expr:
        """The expression, or the value of a name or of a dict's entry."""
        for _ in range(MOST_STEPS):
            expr = follow(expr, call.scope)
            inner = self._entry(expr, call.scope) or self._uncapped(expr, call)
            if inner is None:
                break
            expr = inner
        return expr

    def _uncapped(self, expr: ast.expr, call: FunctionCall) -> ast.expr | None:
        """What `x` is before `if x > MOST: x = MOST`, where it is not above that."""
        name = getattr(expr, "id", "")
        owner = call.scope.owner(name)
        match owner.values.get(name):
            case [ast.expr() as before, ast.expr() as most] if name in owner.caps and not any(
                isinstance(node, ast.Name) and node.id == name for node in nodes_of(before)
            ):
                first = self.argument(before, call)
                value, largest = literal(first.expr, first.call.scope), literal(most, call.scope)
                is_below = isinstance(value, int) and isinstance(largest, int) and value <= largest
                return before if is_below else None
            case _:
                return None

    def argument(self, expr: ast.expr, call: FunctionCall) -> Argument:
        """The expression, or what the only call of a function passes for its parameter."""
        line, label = expr.lineno, ""
        for _ in range(MOST_STEPS):
            expr = self.follow(expr, call)
            line = expr.lineno if label else line
            passed = self._passed(expr, call.scope)
            if passed is None:
                break
            label = _label(expr, *passed)
            expr, call = passed
            line = expr.lineno
        return Argument(expr, call, line, "" if isinstance(expr, ast.Subscript) else label)

    def _passed(self, expr: ast.expr, scope: Scope) -> tuple[ast.expr, FunctionCall] | None:
        """What a parameter, or an entry of one, gets, and the only call that passes it."""
        if isinstance(expr, ast.Name):
            return self.source.passed(expr, scope)
        if not isinstance(expr, ast.Subscript) or not isinstance(expr.value, ast.Name):
            return None
        passed = self.source.passed(expr.value, scope)
        key = entry_key(expr)
        changed = self.source.changed.get(expr.value.id, set()) & {key, None}
        if passed is None or key is None or changed:
            return None
        entry = ast.Subscript(value=passed[0], slice=expr.slice, ctx=expr.ctx)
        return ast.copy_location(entry, expr), passed[1]

    def _entry(self, expr: ast.expr, scope: Scope) -> ast.expr | None:
        """The value of `SETTINGS["x"]`, where the dict is a literal; the number in `int(...)`."""
        match expr:
            case ast.Subscript(
                value=ast.Name() | ast.Dict() as whole, slice=ast.Constant(value=key)
            ):
                return self.source.entry(whole, str(key), scope)
            case ast.Call(func=ast.Name(id="int"), args=[number], keywords=[]):
                return number
            case _:
                return None

    def condition(
        self, expr: ast.expr, call: FunctionCall, keyword: str | None = None, depth: int = 0
    ) -> ValueSource:
        """What a condition depends on: a constant, or an option that is on or has some value."""
        expr, used, *_ = self.argument(expr, call)
        keyword, call = keyword if used is call else None, used
        match expr:
            case ast.UnaryOp(op=ast.Not(), operand=inner) if depth < MOST_STEPS:
                condition = self.condition(inner, call, keyword, depth + 1)
                return replace(condition, unless=not condition.unless)
            case ast.IfExp(
                test=inner, body=ast.Constant(value=True), orelse=ast.Constant(value=False | None)
            ) if depth < MOST_STEPS:
                return self.condition(inner, call, keyword, depth + 1)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                values = _compared(op, right)
                condition = self.bind(left, call) if values is not None else UNSEEN
                known = condition.flag is not None or condition.value is not None
                negated = isinstance(op, ast.NotEq | ast.NotIn)
                return replace(condition, when=values or (), unless=negated) if known else condition
            case _:
                return self.bind(expr, call, keyword)

    def conditions(self, place: FunctionCall, depth: int = 0) -> Iterator[ValueSource]:
        """What has to hold for some rank to come to a place in a function."""
        tests = (part for test in place.tests for part in conjuncts(test))
        yield from (self.condition(test, place) for test in tests if not is_one_rank(test))
        if not place.function or place.function in self.source.fired:
            return
        starts = self.source.callers(place.function)
        if len(starts) != 1 or depth == MOST_STEPS:
            yield UNSEEN
            return
        yield from self.conditions(starts[0], depth + 1)

    def _option(self, expr: ast.expr, scope: Scope) -> Option | None:
        """The option of `args.x`, `self.args.x`, `int(args.x)`, or of a parameter for Fire."""
        if isinstance(expr, ast.Call) and last_name(expr) in {"int", "str"} and expr.args:
            expr = expr.args[0]
        if isinstance(expr, ast.Name):
            owner = scope.owner(expr.id)
            once = owner.values.get(expr.id) == [None]
            if not once or owner.function not in self.source.fired:
                return None
            return next(iter(self.line.parser.of(expr.id)), None)
        if not isinstance(expr, ast.Attribute) or expr.attr in self.source.altered:
            return None
        name = expr.attr
        if last_name(expr.value) not in self.source.namespaces:
            # `cfg.train.lr` of Hydra.
            root, _, name = ast.unparse(expr).partition(".")
            if root not in self.source.namespaces:
                return None
        return next(iter(self.line.parser.of(name)), None)

    def bind_option(self, option: Option, default_of: str | None = None) -> ValueSource:
        """The setting of an option; its default is unseen where two options of the name differ."""
        if option.dest in self.source.altered:
            return UNSEEN
        defaults = {other.default for other in self.line.parser.of(option.dest)}
        return ValueSource(
            value=option.default if len(defaults) == 1 else None,
            flag=option.flag,
            line=option.line,
            default_of=default_of if option.line is None else None,
        )

    def keyword(self, call: FunctionCall, name: str) -> ValueSource | None:
        """The setting of a call's keyword argument; None where the call does not have it."""
        expr = call.keyword(name)
        return None if expr is None else self.bind(expr, call, name)

    def named(self, names: frozenset[str]) -> ValueSource:
        """The setting of the only option with one of these names; unseen if there are several."""
        options = {o.dest: o for o in reversed(self.line.parser.options) if o.dest in names}
        return self.bind_option(next(iter(options.values()))) if len(options) == 1 else UNSEEN

    def config(self, expr: ast.expr, call: FunctionCall) -> ValueSource:
        """The file that a config expression is read from: a literal path or an option."""
        for _ in range(MOST_STEPS):
            expr = follow(expr, call.scope)
            inner = self._unwrap(expr)
            if inner is None:
                break
            expr = inner
        binding = self.bind(expr, call)
        is_path = isinstance(binding.value, str) and not binding.value.lstrip().startswith("{")
        return binding if binding.flag is not None or is_path else UNSEEN

    def _unwrap(self, expr: ast.expr) -> ast.expr | None:
        """The path in a call that opens, reads or converts it; None for any other expression."""
        if not isinstance(expr, ast.Call):
            return None
        if expr in self.source.opened:
            return self.source.opened[expr]
        match expr.func:
            # `path.open("r")`, where `open(path, "r")` has its path behind it.
            case ast.Attribute(value=path, attr=attr) if (
                attr in _PATH_METHODS and self.source.origin(path) not in _NO_PATHS
            ):
                return path
        return expr.args[0] if last_name(expr) in _PATH_CALLS and expr.args else None


_LONGEST_CODE = 72


def short_code(expr: ast.expr) -> str:
    """The text of an expression, cut where it is long."""
    code = ast.unparse(expr)
    return code if len(code) <= _LONGEST_CODE else f"{code[:_LONGEST_CODE]}..."


def _label(name: ast.expr, value: ast.expr, call: FunctionCall) -> str:
    """What stands before a value that a parameter, or an entry of one, gets from a call."""
    key = entry_key(name)
    if key is not None:
        return f'"{key}": '
    given = (*call.node.args, *(word.value for word in call.node.keywords))
    return "" if value in given else f"{last_name(name)}="


def show_argument(call: FunctionCall, expr: ast.expr, keyword: str | None = None) -> str:
    """A call with one of its arguments, as a person finds it in the script; without a long one."""
    argument = f"{keyword}={ast.unparse(expr)}" if keyword else ast.unparse(expr)
    code = f"{call.name}({argument})"
    short = f"{call.name}({keyword}=...)" if keyword else f"{call.name}(...)"
    return code if len(code) <= _LONGEST_CODE else short


def _split_by_commas(call: ast.Call) -> ast.expr:
    """The text of `text.split(",")`, or the list of `list(names)`."""
    match call:
        case ast.Call(func=ast.Attribute(value=text, attr="split"), args=[ast.Constant(value=",")]):
            return text
        case ast.Call(func=ast.Name(id="list"), args=[names]):
            return names
        case _:
            return call


def _compared(op: ast.cmpop, right: ast.expr) -> tuple[Scalar, ...] | None:
    """The values for which a comparison holds; empty where a number has to be above 0.

    Returns:
        None for a comparison that is not understood.
    """
    items = right.elts if isinstance(right, ast.Tuple | ast.List | ast.Set) else [right]
    values = tuple(item.value for item in items if isinstance(item, ast.Constant))
    known = tuple(v for v in values if isinstance(v, str | int | float | bool))
    if len(known) != len(items):
        return None
    if isinstance(op, ast.Gt):
        return () if known == (0,) else None
    return known if isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) else None


def asks_config(expr: ast.AST, keys: Collection[str | None] = _CONFIG_READS) -> bool:
    """Whether it is `engine.train_micro_batch_size_per_gpu()` or such an entry of a config."""
    if isinstance(expr, ast.Subscript) and isinstance(expr.slice, ast.Constant):
        return expr.slice.value in keys
    return isinstance(expr, ast.Call) and last_name(expr) in keys


def agree(bindings: Iterable[ValueSource]) -> ValueSource:
    """The setting that all of these have; unseen where two differ, or if there is none."""
    values = list(bindings)
    distinct = {(b.value, b.flag, b.from_config, b.when, b.unless) for b in values}
    return values[0] if len(distinct) == 1 else UNSEEN
