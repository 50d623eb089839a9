"""Find what a script's parser requires, and whether it refuses words that it does not know.

Rule: only what surely runs is followed, and one doubt about the parser leaves nothing required.
A condition, a loop or a `try` is passed over, unless it may end the script or parse the words.
"""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import NoReturn

from zerowiz.core.script.arguments import LOCAL_RANK_FLAG, Required, shown_flag
from zerowiz.core.structs import replace
from zerowiz.probe.script.source import (
    HF_LIBRARIES,
    HF_PARSERS,
    PARSE_CALLS,
    FunctionCall,
    Scope,
    Source,
    conjuncts,
    follow,
    is_main_guard,
    last_name,
)

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_PARSER = ("argparse", "ArgumentParser")
_ALL_WORDS = "sys.argv[1:]"
_MOST_CALLS = 20
"""How deep functions may call each other."""


class _Kind(Enum):
    """What an expression is, as far as it matters here."""

    PARSER = "parser"
    """The parser, or a group of its options."""
    NONE = "none"
    """Surely the value None."""
    OTHER = "other"


class _UnknownError(Exception):
    """Something about the parser is not understood."""


class _ParsedError(Exception):
    """The script has come to where it parses its words."""


def required_arguments(tree: ast.Module, source: Source) -> tuple[Required, ...]:
    """The arguments without which the script's parser ends it; none where one is in doubt.

    Args:
        tree: The syntax tree of the script.
        source: The names and calls of it.
    """
    parses = any(call.method in PARSE_CALLS or call.method == "Fire" for call in source.calls)
    if not parses or any(map(_hides, ast.walk(tree))):
        return ()
    follower = _Follower(tree, source)
    try:
        follower.block(tree.body, follower.module)
    except _ParsedError:
        return tuple(follower.required)
    except _UnknownError:
        pass
    return ()


# What changes a parser after its options are made, or makes one that reads words by other rules.
_HIDING = frozenset(
    {
        "_actions",
        "_option_string_actions",
        "_defaults",
        "_remove_action",
        "_handle_conflict_resolve",
    }
    | {"set_defaults", "add_subparsers"}
)
_NEVER_SET = frozenset({"argv", "required", "error", "exit", "add_argument"} | PARSE_CALLS)
_READS_LIST = frozenset({"len", "print", "str", "repr", "list", "tuple", "enumerate", "join"})


def _hides(node: ast.AST) -> bool:
    """Whether it may change the words or the parser in a way that is not followed."""
    match node:
        case ast.Attribute(attr=attr, ctx=ctx):
            is_set = attr in _NEVER_SET and not isinstance(ctx, ast.Load)
            return is_set or attr in _HIDING or _is_argv(node.value)
        case (
            ast.Subscript(value=value, ctx=ast.Store() | ast.Del())
            | ast.Assign(value=value)
            | ast.NamedExpr(value=value)
        ):
            return _is_argv(value)
        case ast.ImportFrom(module="sys", names=names):
            return any(name.name in {"argv", "*"} for name in names)
        case ast.Constant(value="argv" | "sys.argv" | "required"):
            return True
        case ast.Call(args=args, keywords=words):
            given = (*args, *(word.value for word in words))
            return any(map(_is_argv, given)) and last_name(node) not in _READS_LIST
        case _:
            return False


def _is_argv(expr: ast.expr) -> bool:
    return isinstance(expr, ast.Attribute) and expr.attr == "argv"


_Names = dict[str, _Kind]
# Arguments with which a parser has the options of others, or reads words by other rules.
_UNREAD_MAKE = frozenset(
    {"parents", "prefix_chars", "fromfile_prefix_chars", "argument_default", "conflict_handler"}
    | {"exit_on_error", None}
)
# Arguments of the methods that parse with which they still parse the command line.
_PARSE_WORDS = frozenset({"args", "return_remaining_strings", "look_for_args_file"})
_ENDS = frozenset({"exit", "quit", "_exit", "abort", "execv", "execvp", "execve"})
# Decorators with which a function still runs when it is called, once.
_PLAIN_DECORATORS = frozenset({"record", "no_grad", "inference_mode"})


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# What may run or not, or several times.
_MAYBE = (ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.Match)


class _Follower:
    """Follows what surely runs, and keeps what the parser requires so far."""

    def __init__(self, tree: ast.Module, source: Source) -> None:
        self.source = source
        self.module: _Names = {}
        self.required: list[Required] = []
        self._made = False
        self._depth = 0
        self._calls = {id(call.node): call for call in source.calls}
        self._functions: dict[str, list[_Function]] = {}
        for node in ast.walk(tree):
            if isinstance(node, _Function):
                self._functions.setdefault(node.name, []).append(node)

    def block(self, body: Iterable[ast.stmt], names: _Names) -> _Kind | None:
        """Follow statements; what they return, or None where they do not.

        Raises:
            _ParsedError: They parse the words.
            _UnknownError: What they do is not understood.
        """
        for statement in body:
            returned = self._statement(statement, names)
            if returned is not None:
                return returned
        return None

    def _statement(self, node: ast.stmt, names: _Names) -> _Kind | None:
        match node:
            case ast.Return(value=value):
                return _Kind.OTHER if value is None else self._expr(value, names)
            case ast.If():
                return self._if(node, names)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    self._expr(item.context_expr, names)
                return self.block(body, names)
            case ast.Assign(targets=targets, value=value):
                kind = self._expr(value, names)
                for target in targets:
                    self._bind(target, kind, names)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._bind(target, self._expr(value, names), names)
            case _ if isinstance(node, _MAYBE):
                self._pass_over([node], names)
            case _ if not isinstance(node, _DEFINITIONS):
                self._children(node, names)
            case _:
                pass
        return None

    def _children(self, node: ast.AST, names: _Names) -> None:
        # A parser that is kept somewhere could be changed there.
        keeps = not isinstance(node, ast.Attribute | ast.Expr)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr) and self._expr(child, names) is _Kind.PARSER and keeps:
                raise _UnknownError

    def _if(self, node: ast.If, names: _Names) -> _Kind | None:
        if is_main_guard(node.test):
            return self.block(node.body, names)
        if any(ast.unparse(conjunct) == "len(sys.argv) == 2" for conjunct in conjuncts(node.test)):
            # A lone word may be a file that has all arguments.
            return self.block(node.orelse, names)
        match node.test:
            case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
                yes, no = node.body, node.orelse
            case ast.Compare(left=left, ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
                yes, no = node.orelse, node.body
            case ast.UnaryOp(op=ast.Not(), operand=left):
                yes, no = node.body, node.orelse
            case left:
                yes, no = node.orelse, node.body
        if isinstance(left, ast.Name) and self._look_up(left.id, names) is _Kind.NONE:
            return self.block(yes, names)
        self._expr(node.test, names)
        self._pass_over([*yes, *no], names)
        return None

    def _look_up(self, name: str, names: _Names) -> _Kind:
        return names.get(name, self.module.get(name, _Kind.OTHER))

    def _bind(self, target: ast.expr, kind: _Kind, names: _Names) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = kind
        elif kind is _Kind.PARSER:
            raise _UnknownError  # it may be changed under another name
        else:
            for node in ast.walk(target):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names[node.id] = _Kind.OTHER

    def _pass_over(self, nodes: Iterable[ast.AST], names: _Names) -> None:
        """See that what may run or not neither ends the script, nor parses, nor makes a parser."""
        for node in self._reached(nodes, set()):
            match node:
                case ast.Return() | ast.Yield() | ast.YieldFrom():
                    raise _UnknownError
                case ast.Call():
                    ends = last_name(node) in PARSE_CALLS | _ENDS | {"Fire"}
                    if ends or self._is_constructor(node) or self._is_handed_over(node, names):
                        raise _UnknownError
                case ast.Name(id=name, ctx=ast.Store()):
                    if self._look_up(name, names) is not _Kind.OTHER:
                        raise _UnknownError
                case _:
                    pass

    def _reached(self, nodes: Iterable[ast.AST], seen: set[str]) -> Iterator[ast.AST]:
        """These nodes, and those of the script's functions that they call; not their returns."""
        for top in nodes:
            for node in ast.walk(top):
                yield node
                name = last_name(node) if isinstance(node, ast.Call) else ""
                if name in self._functions and name not in seen:
                    seen.add(name)
                    inner = (n for f in self._functions[name] for n in f.body)
                    for below in self._reached(inner, seen):
                        if not isinstance(below, ast.Return | ast.Yield | ast.YieldFrom | ast.Name):
                            yield below

    def _is_handed_over(self, call: ast.Call, names: _Names) -> bool:
        """Whether a call gets the parser, which it could change."""
        given = (*call.args, *(word.value for word in call.keywords))
        inner = (expr.value if isinstance(expr, ast.Starred) else expr for expr in given)
        kinds = (self._look_up(expr.id, names) for expr in inner if isinstance(expr, ast.Name))
        return _Kind.PARSER in kinds

    def _expr(self, node: ast.expr, names: _Names) -> _Kind:
        match node:
            case ast.Constant(value=None):
                return _Kind.NONE
            case ast.Name(id=name):
                return self._look_up(name, names)
            case ast.NamedExpr(target=target, value=value):
                kind = self._expr(value, names)
                self._bind(target, kind, names)
                return kind
            case ast.IfExp() | ast.BoolOp() | ast.Lambda() | ast.ListComp() | ast.GeneratorExp():
                self._pass_over([node], names)
            case ast.Call():
                return self._call(node, names)
            case _:
                self._children(node, names)
        return _Kind.OTHER

    def _call(self, node: ast.Call, names: _Names) -> _Kind:
        func = node.func
        if self._is_constructor(node):
            return self._make(node)
        if self.source.imported(func) == ("fire", "Fire"):
            self._fire(node)
        owner = self._expr(func.value, names) if isinstance(func, ast.Attribute) else _Kind.OTHER
        given = [self._expr(arg, names) for arg in node.args]
        by_name = {word.arg: self._expr(word.value, names) for word in node.keywords}
        if owner is _Kind.PARSER:
            return self._of_parser(node, given, by_name)
        if self.source.imported(func) == ("deepspeed", "add_config_arguments"):
            return given[0] if given else _Kind.OTHER
        if isinstance(func, ast.Name) and func.id in self._functions:
            return self._function(func.id, given, by_name)
        # A parser that is not followed, or one that is changed elsewhere.
        if last_name(node) in PARSE_CALLS | _ENDS or _Kind.PARSER in (*given, *by_name.values()):
            raise _UnknownError
        if isinstance(func, ast.Name) and func.id in self.source.classes:
            self._pass_over(_methods(self.source.classes[func.id]), {})
        return _Kind.OTHER

    def _function(
        self, name: str, given: list[_Kind], by_name: Mapping[str | None, _Kind]
    ) -> _Kind:
        """Follow a function of the script."""
        functions = self._functions[name]
        node = functions[0]
        is_plain = {last_name(decorator) for decorator in node.decorator_list} <= _PLAIN_DECORATORS
        runs_now = not any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(node))
        if len(functions) > 1 or self._depth == _MOST_CALLS or None in by_name:
            raise _UnknownError
        if not is_plain or not runs_now:
            if _Kind.PARSER in (*given, *by_name.values()):
                raise _UnknownError
            self._pass_over(_calls_of(node.body), {})
            return _Kind.OTHER
        spec = node.args
        positional = [posonlyarg.arg for posonlyarg in (*spec.posonlyargs, *spec.args)]
        defaults = dict(zip(reversed(positional), reversed(spec.defaults), strict=False))
        defaults |= {a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d}
        names = dict.fromkeys((*positional, *(a.arg for a in spec.kwonlyargs)), _Kind.OTHER)
        for parameter, default in defaults.items():
            if isinstance(default, ast.Constant) and default.value is None:
                names[parameter] = _Kind.NONE
        names |= dict(zip(positional, given, strict=False))
        names |= {keyword: kind for keyword, kind in by_name.items() if keyword is not None}
        self._depth += 1
        returned = self.block(node.body, names)
        self._depth -= 1
        return returned or _Kind.OTHER

    def _is_constructor(self, call: ast.Call) -> bool:
        library, name = origin = self.source.imported(call.func)
        return origin == _PARSER or (library in HF_LIBRARIES and name in HF_PARSERS)

    def _make(self, node: ast.Call) -> _Kind:
        if self._made or _UNREAD_MAKE & {word.arg for word in node.keywords}:
            raise _UnknownError
        self._made = True
        if self.source.imported(node.func) != _PARSER:
            call = self._calls[id(node)]
            types = call.argument("dataclass_types", 0)
            types = None if types is None else follow(types, call.scope)
            items = types.elts if isinstance(types, ast.Tuple | ast.List) else [types]
            for item in items:
                self.required += _fields(self.source, item)
        return _Kind.PARSER

    def _of_parser(
        self, node: ast.Call, given: list[_Kind], by_name: Mapping[str | None, _Kind]
    ) -> _Kind:
        """Follow a method of the parser."""
        method = last_name(node)
        if method == "add_argument_group":
            return _Kind.PARSER
        if method == "add_argument":
            self.required += _added(node)
        if method not in PARSE_CALLS:
            return _Kind.OTHER
        if not by_name.keys() <= _PARSE_WORDS or len(given) > 1:
            raise _UnknownError
        words = next((w.value for w in node.keywords if w.arg == "args"), None)
        words = node.args[0] if node.args else words
        kinds = {*given, by_name.get("args", _Kind.NONE)} - {_Kind.NONE}
        if words is None or not kinds or ast.unparse(words) == _ALL_WORDS:
            raise _ParsedError
        if isinstance(words, ast.List | ast.Tuple):
            return _Kind.OTHER  # it reads no words
        raise _UnknownError

    def _fire(self, node: ast.Call) -> NoReturn:
        match node:
            case ast.Call(args=[ast.Name(id=name)], keywords=[]) if not self._made:
                functions = self._functions.get(name, [])
            case _:
                functions = []
        if (
            len(functions) != 1
            or functions[0].decorator_list
            or functions[0].args.kwarg
            or functions[0].args.vararg
        ):
            raise _UnknownError
        self.required += _parameters(functions[0])
        raise _ParsedError


def _methods(node: ast.ClassDef) -> Iterator[ast.AST]:
    """What a class does when one of it is made."""
    for statement in node.body:
        if isinstance(statement, _Function) and statement.name in {
            "__init__",
            "__new__",
            "__post_init__",
        }:
            yield from _calls_of(statement.body)


def _calls_of(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """The calls of a function, without its returns and its names."""
    nodes = (node for statement in body for node in ast.walk(statement))
    return (node for node in nodes if isinstance(node, ast.Call))


_ENDING_ACTIONS = frozenset({"help", "version"})


def _added(call: ast.Call) -> Iterator[Required]:
    """What an `add_argument` call requires."""
    texts = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
    names = tuple(text for text in texts if isinstance(text, str) and text)
    words = {word.arg: word.value for word in call.keywords}
    action = words.get("action", ast.Constant(value="store"))
    is_plain = isinstance(action, ast.Constant) and action.value not in _ENDING_ACTIONS
    if not names or len(names) != len(call.args) or None in words or not is_plain:
        return
    if all(name.startswith("-") for name in names):
        needed = words.get("required")
        if isinstance(needed, ast.Constant) and needed.value is True:
            yield Required(name=shown_flag(names), flags=names, line=call.lineno)
        return
    count = _word_count(words.get("nargs"))
    if len(names) == 1 and count and "required" not in words and not names[0].startswith("-"):
        yield Required(name=names[0], count=count, line=call.lineno)


def _word_count(nargs: ast.expr | None) -> int:
    """How many words an argument without a flag needs at least; 0 where that is not known."""
    match nargs:
        case None | ast.Constant(value="+"):
            return 1
        case ast.Constant(value=int(count)):
            return count
        case _:
            return 0


def _parameters(function: _Function) -> Iterator[Required]:
    """What Fire requires of a function: a parameter without a default, by flag or as a word."""
    spec = function.args
    positional = (*spec.posonlyargs, *spec.args)
    open_ones = positional[: len(positional) - len(spec.defaults)]
    only = [a for a, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if not default]
    for arg in (*open_ones, *only):
        names = dict.fromkeys((arg.arg, arg.arg.replace("_", "-")))
        flags = (*(f"--{name}" for name in names), f"-{arg.arg}")
        # fire 0.7, core.py, _ParseKeywordArgs: what no flag gives is taken from the other words.
        yield Required(name=flags[0], flags=flags, count=1, line=arg.lineno)


def _fields(source: Source, expr: ast.expr | None) -> Iterator[Required]:
    """What HfArgumentParser requires of a class in the script, or in a module beside it."""
    if not isinstance(expr, ast.Name):
        return
    if expr.id in source.classes:
        yield from _class_fields(source, source.classes[expr.id])
    elif expr.id in source.elsewhere:
        name = source.origin(expr).rpartition(".")[2]
        for field in _fields(source.elsewhere[expr.id], ast.Name(id=name)):
            yield replace(field, line=None)


def _class_fields(source: Source, node: ast.ClassDef) -> Iterator[Required]:
    # A field without a default has that of a base which sets the same name.
    decorators = [
        decorator.func if isinstance(decorator, ast.Call) else decorator
        for decorator in node.decorator_list
    ]
    if node.bases or [source.imported(decorator) for decorator in decorators] != [
        ("dataclasses", "dataclass")
    ]:
        return
    texts = [ast.unparse(statement) for statement in node.body]
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)) if _is_required(source, statement):
                is_set_again = any(text.startswith(f"{name} =") for text in texts)
                again = sum(text.startswith(f"{name}:") for text in texts) > 1
                if not is_set_again and not again:
                    flags = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
                    yield Required(name=f"--{name}", flags=tuple(flags), line=statement.lineno)
            case _:
                pass


# transformers 5.23, hf_argparser.py, _parse_dataclass_field: a `bool` is false by default.
_OPTIONAL_TYPES = ("bool", "ClassVar", "InitVar", "KW_ONLY")


def _is_required(source: Source, node: ast.AnnAssign) -> bool:
    if any(name in ast.unparse(node.annotation) for name in _OPTIONAL_TYPES):
        return False
    match node.value:
        case None:
            return True
        case ast.Call(func=func, args=[], keywords=words):
            is_field = source.imported(func) == ("dataclasses", "field")
            names = {word.arg for word in words}
            has_aliases = any("aliases" in ast.unparse(word.value) for word in words)
            return is_field and names <= {"metadata", "kw_only", "repr"} and not has_aliases
        case _:
            return False


# See whether a script refuses a word that none of its own options spells, or reads no word at
# all.
#
# It must be seen of every parser that reads the command line. A parser that another module made,
# or was handed, may have options that do not stand here.

_STRICT_CALLS = PARSE_CALLS - {"parse_known_args"}
# Arguments with which a parser takes words that none of its options spells (transformers 5.23,
# hf_argparser.py; trl 1.x, scripts/utils.py).
_LENIENT_PARSE = ("return_remaining_strings", "fail_with_unknown_args")
# Arguments with which a parser has options that do not stand here, or spells them differently.
_LENIENT_MAKE = ("parents", "prefix_chars")


# Libraries that read no command line when a script imports and calls them. Anything else that it
# imports, such as a module of its own, may read it.
_WORDLESS_MODULES = frozenset(
    {
        *("accelerate", "bitsandbytes", "datasets", "deepspeed", "numpy", "peft"),
        *("safetensors", "tokenizers", "torch", "tqdm", "transformers", "trl"),
        *("__future__", "collections", "contextlib", "copy", "dataclasses", "datetime"),
        *("functools", "gc", "itertools", "json", "logging", "math", "os", "pathlib", "random"),
        *("re", "sys", "time", "typing", "warnings"),
    }
)
# What may read it all the same: a parser, `sys.argv`, a library's own program, code in a text.
_MAY_READ_WORDS = re.compile(
    r"argv|cmdline|pars(e|ing)|Parser|add_config_arguments|__\w*import|__dict__"
    r"|(?<![\w.])(exec|eval|getattr|vars)\(|import_module|runpy"
    r"|\b(trl|transformers|accelerate)\.(scripts|cli|commands)|torch\.distributed\.run"
    r"|deepspeed\.launcher"
)


def reads_no_words(text: str, tree: ast.Module) -> bool:
    """Whether it is seen that a script reads nothing of its command line.

    Args:
        text: The script.
        tree: Its syntax tree.
    """
    return _MAY_READ_WORDS.search(text) is None and _WORDLESS_MODULES.issuperset(_libraries(tree))


def _libraries(tree: ast.Module) -> Iterator[str]:
    """The first part of each imported module; empty for one of the script's own package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "" if node.level else str(node.module).partition(".")[0]


def is_strict(source: Source, flags: Collection[str]) -> bool:
    """Whether every word that none of the script's options spells ends it.

    Args:
        source: The script.
        flags: The spellings of its options.
    """
    parse_calls, fire_calls = _parse_calls(source), source.calls_to("fire", "Fire")
    return (
        bool(parse_calls or fire_calls or _has_hydra(source))
        and shows_options(source)
        and all(
            call.method in _STRICT_CALLS
            and _reads_command_line(source, call)
            and call.keyword(*_LENIENT_PARSE) is None
            for call in parse_calls
        )
        and not _edits_words(source, flags)
    )


def _has_hydra(source: Source) -> bool:
    """Whether Hydra calls a function of the script; it takes `name=value` beside its own options.

    hydra 1.3, main.py: `args_parser.parse_args()`.
    """
    decorators = (decorator for f in source.functions.values() for decorator in f.decorator_list)
    return any(
        source.imported(decorator.func if isinstance(decorator, ast.Call) else decorator)
        == ("hydra", "main")
        for decorator in decorators
    )


def shows_options(source: Source) -> bool:
    """Whether every option of the parsers that read the command line stands in the script."""
    return (
        all(_is_parsed_here(source, call) for call in _parse_calls(source))
        and all(_fires_strictly(source, call) for call in source.calls_to("fire", "Fire"))
        and all(_shows_flags(call) for call in source.calls if call.method == "add_argument")
        and not any(_is_handed_over(source, call) for call in source.calls)
    )


def _parse_calls(source: Source) -> list[FunctionCall]:
    """The calls that read the command line, apart from those of the script's own functions."""
    return [
        call
        for call in source.calls
        if call.method in PARSE_CALLS and not parses_literal(call) and not _is_own(source, call)
    ]


def _is_parsed_here(source: Source, call: FunctionCall) -> bool:
    func = call.node.func
    return isinstance(func, ast.Attribute) and _is_parser(source, func.value, call.scope)


def parses_literal(call: FunctionCall) -> bool:
    """Whether a call like `parse_args([...])` has its words in the code."""
    return isinstance(call.argument("args", 0), ast.List | ast.Tuple)


def _is_own(source: Source, call: FunctionCall) -> bool:
    """Whether a call is of a function that the script defines."""
    return isinstance(call.node.func, ast.Name) and call.node.func.id in source.functions


def _reads_command_line(source: Source, call: FunctionCall) -> bool:
    """Whether it reads all words: without an argument, or with `sys.argv[1:]`."""
    if len(call.node.args) > 1:
        return False
    words = call.argument("args", 0)
    return words is None or ast.unparse(words) == _ALL_WORDS or _is_never_given(source, call, words)


def _is_never_given(source: Source, call: FunctionCall, words: ast.expr) -> bool:
    """Whether the words are a parameter of the function around, which nobody gives a value."""
    function = source.functions.get(call.function)
    if function is None or not isinstance(words, ast.Name):
        return False
    spec = function.args
    defaults = dict(
        zip([a.arg for a in reversed(spec.args)], reversed(spec.defaults), strict=False)
    )
    default = defaults.get(words.id)
    values = call.scope.values.get(words.id)
    return (
        isinstance(default, ast.Constant)
        and default.value is None
        and values == [None]
        and not any(
            other.node.args or other.node.keywords
            for other in source.calls
            if isinstance(other.node.func, ast.Name) and other.node.func.id == call.function
        )
    )


def _is_parser(source: Source, expr: ast.expr, scope: Scope) -> bool:
    """Whether an expression is a parser that the script makes, all of whose options are its own."""
    if isinstance(expr, ast.Name):
        bound = scope.owner(expr.id).values.get(expr.id, [None])
        # `args = get_parser()`, then `args = args.parse_args()`.
        values = [value for value in bound if last_name(value) not in PARSE_CALLS]
        return bool(values) and all(v is not None and _is_made(source, v, scope) for v in values)
    return _is_made(source, expr, scope)


def _is_made(source: Source, expr: ast.expr, scope: Scope) -> bool:
    """Whether a call makes a parser here, or returns one that was made here."""
    if not isinstance(expr, ast.Call):
        return False
    if _is_constructor(source, expr):
        return not any(word.arg is None or word.arg in _LENIENT_MAKE for word in expr.keywords)
    if _adds_config_arguments(source, expr):
        return True
    if not isinstance(expr.func, ast.Name) or expr.func.id not in source.functions:
        return False
    takes = any(
        (isinstance(arg, ast.Call) and _is_constructor(source, arg))
        or (isinstance(arg, ast.Name) and _is_bound_to_parser(source, arg.id, scope))
        for arg in expr.args
    )
    return takes or any(
        call.function == expr.func.id and _is_constructor(source, call.node)
        for call in source.calls
    )


def _is_constructor(source: Source, call: ast.Call) -> bool:
    library, name = source.imported(call.func)
    types = bool(call.args or call.keywords)
    is_hf = library in HF_LIBRARIES and name in HF_PARSERS and types
    return is_hf or (library, name) == ("argparse", "ArgumentParser")


def _adds_config_arguments(source: Source, call: ast.Call) -> bool:
    return source.imported(call.func) == ("deepspeed", "add_config_arguments")


def _fires_strictly(source: Source, call: FunctionCall) -> bool:
    """Whether Fire is given a function of the script that takes no other options."""
    match call.node.args:
        case [ast.Name(id=name)]:
            function = source.functions.get(name)
            return (
                function is not None
                and function.args.kwarg is None
                and not function.decorator_list
                and not call.node.keywords
            )
        case _:
            return False


def _shows_flags(call: FunctionCall) -> bool:
    """Whether the spellings of an option stand in the code."""
    return bool(call.node.args) and all(isinstance(arg, ast.Constant) for arg in call.node.args)


def _is_handed_over(source: Source, call: FunctionCall) -> bool:
    """Whether a function of another module gets a parser, to which it may add options."""
    if _is_own(source, call) or _adds_config_arguments(source, call.node):
        return False
    given = [*call.node.args, *(word.value for word in call.node.keywords)]
    return any(
        isinstance(arg, ast.Name)
        and ("parser" in arg.id.lower() or _is_bound_to_parser(source, arg.id, call.scope))
        for arg in given
    )


def _is_bound_to_parser(source: Source, name: str, scope: Scope) -> bool:
    values = scope.owner(name).values.get(name, [])
    calls = [value for value in values if isinstance(value, ast.Call)]
    return any(_is_constructor(source, v) or _adds_config_arguments(source, v) for v in calls)


def _edits_words(source: Source, flags: Collection[str]) -> bool:
    """Whether it changes `sys.argv`, or looks for the launcher's word in it."""
    changes = "argv" in source.altered or any("argv." in call.name for call in source.calls)
    return changes or any(t.startswith(LOCAL_RANK_FLAG) for t in source.option_texts - {*flags})
