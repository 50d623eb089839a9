"""Bind a setting to the expression in a call that says it."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from zerowiz.core.script import UNSEEN, Binding, Option
from zerowiz.probe.script.commandline import CommandLine
from zerowiz.probe.script.expressions import MOST_STEPS, follow, last_name, literal
from zerowiz.probe.script.source import Call, Source

# Wrappers around a path that leave it the same file.
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
_CONFIG_READS = frozenset({"train_micro_batch_size_per_gpu", "gradient_accumulation_steps"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """The source with its command line, and the questions asked of both."""

    source: Source
    line: CommandLine

    def bind(self, expr: ast.expr, call: Call, keyword: str | None = None) -> Binding:
        """What an expression in a call says: a literal, an option, the config, or nothing."""
        line = expr.lineno
        expr = follow(expr, call.scope)
        option = self._option(expr)
        if option is not None:
            return self.bind_option(option)
        if _asks_config(expr):
            return Binding(from_config=True, line=line)
        value = literal(expr, call.scope)
        if value is None:
            return Binding(line=line)
        said = f"{keyword}={ast.unparse(expr)}" if keyword else ast.unparse(expr)
        return Binding(value=value, line=line, code=f"{call.name}({said})", keyword=keyword)

    def _option(self, expr: ast.expr) -> Option | None:
        """The option behind `args.x`, `self.args.x` or `int(args.x)`."""
        if isinstance(expr, ast.Call) and last_name(expr) in {"int", "str"} and expr.args:
            expr = expr.args[0]
        if not isinstance(expr, ast.Attribute) or expr.attr in self.source.altered:
            return None
        if last_name(expr.value) not in self.source.namespaces:
            return None
        return next(iter(self.line.parser.of(expr.attr)), None)

    def bind_option(self, option: Option, default_of: str | None = None) -> Binding:
        """What an option says; two of one name with two defaults say nothing until given."""
        if option.dest in self.source.altered:
            return UNSEEN
        defaults = {other.default for other in self.line.parser.of(option.dest)}
        return Binding(
            value=option.default if len(defaults) == 1 else None,
            flag=option.flag,
            line=option.line,
            default_of=default_of if option.line is None else None,
        )

    def keyword(self, call: Call, name: str) -> Binding | None:
        """What a keyword of a call says, or None when the call does not have it."""
        expr = call.keyword(name)
        return None if expr is None else self.bind(expr, call, name)

    def named(self, names: frozenset[str]) -> Binding:
        """The one option that carries one of these names."""
        found = {o.dest: o for o in reversed(self.line.parser.options) if o.dest in names}
        return self.bind_option(next(iter(found.values()))) if len(found) == 1 else UNSEEN

    def config(self, expr: ast.expr, call: Call) -> Binding:
        """The file a config expression is read from: a literal path or an option."""
        for _ in range(MOST_STEPS):
            expr = follow(expr, call.scope)
            inner = self._unwrap(expr)
            if inner is None:
                break
            expr = inner
        found = self.bind(expr, call)
        is_path = isinstance(found.value, str) and not found.value.lstrip().startswith("{")
        return found if found.flag is not None or is_path else UNSEEN

    def _unwrap(self, expr: ast.expr) -> ast.expr | None:
        """The path inside what opens, reads or rewrites it."""
        if not isinstance(expr, ast.Call):
            return None
        if expr in self.source.opened:
            return self.source.opened[expr]
        if last_name(expr) in _PATH_CALLS and expr.args:
            return expr.args[0]
        if isinstance(expr.func, ast.Attribute) and expr.func.attr in _PATH_METHODS:
            return expr.func.value
        return None


def _asks_config(expr: ast.expr) -> bool:
    """`engine.train_micro_batch_size_per_gpu()`, `config["train_micro_batch_size_per_gpu"]`."""
    if isinstance(expr, ast.Subscript) and isinstance(expr.slice, ast.Constant):
        return expr.slice.value in _CONFIG_READS
    return isinstance(expr, ast.Call) and last_name(expr) in _CONFIG_READS


def agree(bindings: Iterable[Binding]) -> Binding:
    """What all say alike; where two differ, nothing is known."""
    found = list(bindings)
    said = {(binding.value, binding.flag, binding.from_config) for binding in found}
    return found[0] if len(said) == 1 else UNSEEN
