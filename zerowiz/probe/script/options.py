"""Read the options that a script's own code declares: `add_argument` calls, dataclass fields."""

import ast
from collections.abc import Iterator, Mapping

from zerowiz.core.script.arguments import BY_ARCHITECTURE, field_options
from zerowiz.core.script.options import SWITCHES, Option, Reads, Takes, read_word
from zerowiz.core.values import replace
from zerowiz.probe.script.expressions import Scope, last_name, literal, unless_none, words
from zerowiz.probe.script.source import FunctionCall

_READS: Mapping[str, Reads] = {
    "int": Reads.INT,
    "float": Reads.FLOAT,
    "str": Reads.STR,
    "Path": Reads.STR,
    "bool": Reads.NONEMPTY,
    # Scripts have the same helper under these names.
    "str2bool": Reads.TRUTH,
    "str_to_bool": Reads.TRUTH,
    "string_to_bool": Reads.TRUTH,
    "strtobool": Reads.TRUTH,
}
# HfArgumentParser parses the text of a dataclass field's `bool`.
_FIELD_READS: Mapping[str, Reads] = {**_READS, "bool": Reads.TRUTH}


_LISTS = frozenset({"List", "list", "Sequence", "Iterable"})


def argparse_options(call: FunctionCall) -> tuple[Option, ...]:
    """The options that one `add_argument` call makes."""
    flags = tuple(
        arg.value
        for arg in call.node.args
        if isinstance(arg, ast.Constant) and isinstance(arg.value, str) and arg.value[:1] == "-"
    )
    if not flags:
        return ()
    dest, default, const = (
        literal(call.keyword(name), call.scope) for name in ("dest", "default", "const")
    )
    reader = call.keyword("type")
    reads = _READS.get(last_name(reader), Reads.UNSEEN) if reader is not None else Reads.STR
    several = _takes(call) is Takes.WORDS
    if several:
        reads = Reads.WORDS if reads is Reads.STR else Reads.UNSEEN
        default = _default_words(call.keyword("default"), call.scope)
    longest = next((flag for flag in flags if flag.startswith("--")), flags[0])
    option = Option(
        flags=flags,
        dest=dest if isinstance(dest, str) else longest.lstrip("-").replace("-", "_"),
        default=read_word(reads, default) if isinstance(default, str) else default,
        takes=_takes(call),
        reads=reads,
        const=const,
        line=call.line,
    )
    return _with_switches(option, call)


def _action(call: FunctionCall) -> str:
    action = call.keyword("action")
    return str(action.value) if isinstance(action, ast.Constant) else last_name(action)


def _takes(call: FunctionCall) -> Takes:
    """How many words argparse takes after an option."""
    action = _action(call)
    if action in {"store_true", "store_false"}:
        return Takes(action)
    if action not in {"", "store", "BooleanOptionalAction"}:
        return Takes.UNSEEN
    match call.keyword("nargs"):
        case None:
            return Takes.VALUE
        case ast.Constant(value="?"):
            return Takes.PERHAPS
        case _:
            return Takes.WORDS


def _with_switches(option: Option, call: FunctionCall) -> tuple[Option, ...]:
    """The option with a switch's default, and the `--no-` option of BooleanOptionalAction."""
    if _action(call) == "BooleanOptionalAction":
        off = tuple(f"--no-{flag[2:]}" for flag in option.flags if flag.startswith("--"))
        return (
            replace(option, takes=Takes.STORE_TRUE),
            replace(option, takes=Takes.STORE_FALSE, flags=off),
        )
    if option.takes in SWITCHES and call.keyword("default") is None:
        return (replace(option, default=not SWITCHES[option.takes]),)
    return (option,)


def dataclass_options(name: str, node: ast.AnnAssign, scope: Scope) -> tuple[Option, ...]:
    """The options that HfArgumentParser makes of one field of a dataclass in the script."""
    value = node.value
    if isinstance(value, ast.Call) and last_name(value) in {"field", "HfArg"}:
        value = next((_made(word) for word in value.keywords if word.arg in _DEFAULTS), None)
    reads = _annotation(node.annotation)
    default = _default_words(value, scope) if reads is Reads.WORDS else literal(value, scope)
    return field_options(name, reads, default, node.lineno)


_DEFAULTS = frozenset({"default", "default_factory"})


def _made(word: ast.keyword) -> ast.expr:
    """The default of a field; that of a factory is the body of its lambda."""
    return word.value.body if isinstance(word.value, ast.Lambda) else word.value


def _default_words(expr: ast.expr | None, scope: Scope) -> str | None:
    """The default of a list of names; the literal None leaves the choice to peft."""
    return BY_ARCHITECTURE if unless_none(expr) is None else words(expr, scope) if expr else None


def parameter_options(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Option]:
    """The options that Fire makes of a function's parameters."""
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults = [None] * (len(positional) - len(spec.defaults)) + spec.defaults
    for arg, value in [
        *zip(positional, defaults, strict=True),
        *zip(spec.kwonlyargs, spec.kw_defaults, strict=True),
    ]:
        yield from _parameter_options(arg, value)


def _parameter_options(arg: ast.arg, value: ast.expr | None) -> Iterator[Option]:
    name, empty = arg.arg, Scope()
    default = literal(value, empty)
    by_value = {bool: Reads.TRUTH, int: Reads.INT, float: Reads.FLOAT, str: Reads.STR}
    reads = by_value.get(type(default), Reads.UNSEEN)
    if arg.annotation is not None:
        reads = _annotation(arg.annotation)
    elif isinstance(value, ast.List | ast.Tuple):
        reads = Reads.WORDS
    if reads is Reads.WORDS:
        default = _default_words(value, empty)
    takes = Takes.PERHAPS if reads is Reads.TRUTH else Takes.VALUE
    flags = tuple(dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")))
    yield Option(flags=flags, dest=name, default=default, takes=takes, reads=reads, line=arg.lineno)
    if reads is Reads.TRUTH:
        # fire, core.py, _ParseKeywordArgs: `--noname`.
        off = (f"--no{name}",)
        yield Option(
            flags=off, dest=name, default=default, takes=Takes.STORE_FALSE, line=arg.lineno
        )


def _annotation(expr: ast.expr) -> Reads:
    """How an option of this type parses its word: `int`, `int | None`, `Optional[int]`."""
    match expr:
        case ast.Constant(value=str(text)):
            return _FIELD_READS.get(text, Reads.UNSEEN)
        case ast.BinOp(op=ast.BitOr(), left=left, right=ast.Constant(value=None)):
            return _annotation(left)
        case ast.Subscript(value=base, slice=inner) if last_name(base) == "Optional":
            return _annotation(inner)
        case ast.Subscript(value=base, slice=inner) if last_name(base) in _LISTS:
            return Reads.WORDS if _annotation(inner) is Reads.STR else Reads.UNSEEN
        case _:
            return _FIELD_READS.get(last_name(expr), Reads.UNSEEN)
