"""Read what a training script says of its own run, from its syntax tree."""

import ast
import difflib
import io
import re
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from zerowiz.core.script import (
    ARGUMENT_CLASSES,
    FIELD_ALIASES,
    TRAINING_CLASSES,
    UNSEEN,
    Binding,
    Convention,
    Obstacle,
    Option,
    Reads,
    Scalar,
    ScriptFacts,
    ScriptParser,
    Takes,
    field_options,
    read_word,
)
from zerowiz.core.workload import Integration
from zerowiz.errors import PreflightError, ZerowizError

# transformers 5.23, hf_argparser.py, and trl 1.x, scripts/utils.py.
_HF_PARSE_CALLS = frozenset({"parse_args_into_dataclasses", "parse_args_and_config"})
# Calls that turn the command line into values.
_PARSE_CALLS = frozenset(
    {
        "parse_args",
        "parse_known_args",
        "parse_intermixed_args",
        *_HF_PARSE_CALLS,
    }
)
_HF_PARSERS = frozenset({"HfArgumentParser", "TrlParser"})
_HF_LIBRARIES = frozenset({"transformers", "trl", "sentence_transformers"})
# The methods of HfArgumentParser that read every argument from one file.
_FILE_READERS: Mapping[str, tuple[str, ...]] = {
    "parse_json_file": (".json",),
    "parse_yaml_file": (".yaml", ".yml"),
}

# deepspeed 0.19.8, __init__.py, initialize: places of its positional arguments.
_INITIALIZE_PLACES: Mapping[str, int] = {
    "args": 0,
    "optimizer": 2,
    "training_data": 4,
    "config": 10,
    "config_params": 12,
}
# deepspeed 0.19.8, __init__.py, _add_core_arguments.
_CONFIG_ARGUMENTS = (
    Option(flags=("--deepspeed",), dest="deepspeed", default=False, takes=Takes.STORE_TRUE),
    Option(flags=("--deepspeed_config",), dest="deepspeed_config"),
    Option(flags=("--deepscale",), dest="deepscale", default=False, takes=Takes.STORE_TRUE),
    Option(flags=("--deepscale_config",), dest="deepscale_config"),
)

_READS: Mapping[str, Reads] = {
    "int": Reads.INT,
    "float": Reads.FLOAT,
    "str": Reads.STR,
    "bool": Reads.NONEMPTY,
    # The names under which scripts carry the same helper.
    "str2bool": Reads.TRUTH,
    "str_to_bool": Reads.TRUTH,
    "string_to_bool": Reads.TRUTH,
    "strtobool": Reads.TRUTH,
}
# A dataclass field's `bool` is read as a word by HfArgumentParser.
_FIELD_READS: Mapping[str, Reads] = {**_READS, "bool": Reads.TRUTH}

# Names that scripts give to these settings; read only where no call shows the setting itself.
_SEQUENCE_NAMES = frozenset(
    {
        "block_size",
        "context_length",
        "cutoff_len",
        "max_len",
        "max_length",
        "max_seq_len",
        "max_seq_length",
        "max_sequence_length",
        "model_max_length",
        "seq_len",
        "seq_length",
        "sequence_length",
    }
)
_MODEL_NAMES = frozenset(
    {"base_model", "model_id", "model_name", "model_name_or_path", "model_path"}
)
_MICRO_BATCH_NAMES = frozenset(
    {
        "micro_batch",
        "micro_batch_size",
        "per_device_train_batch_size",
        "train_micro_batch_size_per_gpu",
    }
)
_EVALUATION_NAME = re.compile(r"(?<![a-z])(eval|val|test)")
_CONFIG_READS = frozenset({"train_micro_batch_size_per_gpu", "gradient_accumulation_steps"})

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
_CHECKPOINTING_CALLS = frozenset(
    {"gradient_checkpointing_enable", "activation_checkpointing_enable"}
)
_CHECKPOINTING_FIELDS = frozenset({"gradient_checkpointing", "activation_checkpointing"})
_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: int.__add__,
    ast.Sub: int.__sub__,
    ast.Mult: int.__mul__,
}


class _Scope:
    """The names that one function, one class or the module binds."""

    def __init__(self, parent: "_Scope | None", *, is_class: bool = False) -> None:
        self.parent = parent
        self.is_class = is_class
        self.values: dict[str, list[ast.expr | None]] = {}
        """None stands for a value that is not followed."""

    def bind(self, name: str, value: ast.expr | None) -> None:
        self.values.setdefault(name, []).append(value)

    def value(self, name: str) -> ast.expr | None:
        """What a name that is bound once stands for."""
        scope: _Scope | None = self
        while scope is not None and name not in scope.values:
            scope = scope.parent
        values = scope.values[name] if scope is not None else []
        return values[0] if len(values) == 1 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """A call, where it stands and what it is under."""

    node: ast.Call
    scope: _Scope
    tests: tuple[ast.expr | None, ...]
    """The conditions around it; None is one that is not followed, such as an `else`."""
    target: str
    """The names its result is assigned to."""
    function: str
    """The function it stands in."""

    @property
    def method(self) -> str:
        """The last part of what is called."""
        func = self.node.func
        return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")

    def keyword(self, *names: str) -> ast.expr | None:
        """The value of the first of these keywords that is there."""
        found = {word.arg: word.value for word in self.node.keywords}
        return next((found[name] for name in names if name in found), None)

    def argument(self, name: str, place: int) -> ast.expr | None:
        """An argument by keyword or by place; a literal None counts as not given."""
        value = self.keyword(name)
        if value is None and len(self.node.args) > place:
            value = self.node.args[place]
        return None if isinstance(value, ast.Constant) and value.value is None else value


def _is_main_guard(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and getattr(test.left, "id", "") == "__name__"


class _Source(ast.NodeVisitor):
    """One walk over the tree: what is imported, bound, called."""

    def __init__(self, tree: ast.Module) -> None:
        self.imports: dict[str, str] = {}
        self.stars: list[str] = []
        self.classes: dict[str, ast.ClassDef] = {}
        self.calls: list[_Call] = []
        self.altered: set[str] = set()
        """Attributes that are assigned, and containers that are changed, after their birth."""
        self.namespaces: set[str] = set()
        """Names that may hold parsed arguments."""
        self.opened: dict[ast.Call, ast.expr] = {}
        """`json.load(f)` -> what the `with` around it opened as `f`."""
        self.module = self.scope = _Scope(None)
        self._tests: tuple[ast.expr | None, ...] = ()
        self._target = ""
        self._files: dict[str, ast.expr] = {}
        self._results: list[tuple[list[str], ast.expr]] = []
        self._parsing_functions: set[str] = set()
        self._function = ""
        self.visit(tree)
        self._find_namespaces()

    def _find_namespaces(self) -> None:
        for names, value in self._results:
            if isinstance(value, ast.Call) and (
                getattr(value.func, "attr", "") in _PARSE_CALLS
                or getattr(value.func, "id", "") in self._parsing_functions
            ):
                self.namespaces.update(names)

    # Names

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            whole = alias.name if alias.asname else alias.name.partition(".")[0]
            self.imports[alias.asname or whole] = whole

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(module)
            self.imports[alias.asname or alias.name] = f"{module}.{alias.name}"

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.scope.bind(node.name, None)
        outer, function = self.scope, self._function
        parent = outer.parent if outer.is_class else outer
        self.scope, self._function = _Scope(parent), node.name
        spec = node.args
        for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg):
            if arg is not None:
                self.scope.bind(arg.arg, None)
                self.namespaces |= {arg.arg} - {"self", "cls"}
        self._visit_all(node.body)
        self.scope, self._function = outer, function

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name ast looks for

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.classes[node.name] = node
        outer, self.scope = self.scope, _Scope(self.scope, is_class=True)
        self._visit_all(node.body)
        self.scope = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._bind(target, node.value)
        self._assigned(node.targets, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, node.value)
            self._assigned([node.target], node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._bind(node.target, None)
        self._bind(node.target, None)
        self.visit(node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._bind(node.target, node.value)
        self.visit(node.value)

    def visit_For(self, node: ast.For) -> None:
        self._bind(node.target, None)
        self.generic_visit(node)

    def visit_With(self, node: ast.With) -> None:
        outer = self._files
        for item in node.items:
            self.visit(item.context_expr)
            if isinstance(item.optional_vars, ast.Name):
                self._files = {**self._files, item.optional_vars.id: item.context_expr}
            if item.optional_vars is not None:
                self._bind(item.optional_vars, None)
        self._visit_all(node.body)
        self._files = outer

    def _assigned(self, targets: list[ast.expr], value: ast.expr) -> None:
        names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        names += [t.attr for t in targets if isinstance(t, ast.Attribute)]
        self._results.append((names, value))
        outer, self._target = self._target, " ".join(names)
        self.visit(value)
        self._target = outer

    def _bind(self, target: ast.expr, value: ast.expr | None) -> None:
        match target:
            case ast.Name(id=name):
                self.scope.bind(name, value)
            case ast.Attribute(value=base, attr=attr) if _last_name(base) not in {"self", "cls"}:
                self.altered.add(attr)
            case ast.Subscript(value=ast.Name(id=name)):
                self.altered.add(name)
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                same = isinstance(value, ast.Tuple) and len(value.elts) == len(elts)
                values = value.elts if same and isinstance(value, ast.Tuple) else [None] * len(elts)
                for one, its in zip(elts, values, strict=True):
                    self._bind(one, its)
            case ast.Starred(value=inner):
                self._bind(inner, None)
            case _:
                pass

    # Conditions and calls

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        outer = self._tests
        if not _is_main_guard(node.test):
            self._tests = (*outer, node.test)
        self._visit_all(node.body)
        self._tests = (*outer, None)
        self._visit_all(node.orelse)
        self._tests = outer

    def visit_Call(self, node: ast.Call) -> None:
        call = _Call(
            node=node,
            scope=self.scope,
            tests=self._tests,
            target=self._target,
            function=self._function,
        )
        self.calls.append(call)
        if call.method in _PARSE_CALLS:
            self._parsing_functions.add(self._function)
        if call.method in {"update", "setdefault", "pop"} and isinstance(node.func, ast.Attribute):
            self.altered.add(getattr(node.func.value, "id", ""))
        if node.args and isinstance(node.args[0], ast.Name) and node.args[0].id in self._files:
            self.opened[node] = self._files[node.args[0].id]
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            name = node.func.value.id
            if name in self._files and node.func.attr == "read":
                self.opened[node] = self._files[name]
        self.generic_visit(node)

    def _visit_all(self, nodes: Iterable[ast.stmt]) -> None:
        for node in nodes:
            self.visit(node)

    # Questions

    def origin(self, expr: ast.expr) -> str:
        """The dotted name that an expression was imported as."""
        if isinstance(expr, ast.Attribute):
            base = self.origin(expr.value)
            return f"{base}.{expr.attr}" if base else ""
        if not isinstance(expr, ast.Name):
            return ""
        star = f"{self.stars[0]}." if len(self.stars) == 1 else ""
        known = expr.id in ARGUMENT_CLASSES or expr.id in _HF_PARSERS
        return self.imports.get(expr.id, f"{star}{expr.id}" if known else expr.id)

    def calls_to(self, library: str, name: str) -> list[_Call]:
        """Calls of one name of one library, wherever in it that was imported from."""
        return [call for call in self.calls if self.is_from(call.node.func, library, name)]

    def is_from(self, expr: ast.expr, library: str, name: str) -> bool:
        """Whether an expression is this name of this library."""
        parts = self.origin(expr).split(".")
        return parts[0] == library and len(parts) > 1 and parts[-1] == name

    def follow(self, expr: ast.expr, scope: _Scope) -> ast.expr:
        """Replace a name that is bound once by what it stands for."""
        for _ in range(8):
            value = scope.value(expr.id) if isinstance(expr, ast.Name) else None
            if value is None:
                break
            expr = value
        return expr

    def literal(self, expr: ast.expr, scope: _Scope) -> Scalar:
        """The value of a constant, of a name for one, or of a product of them."""
        expr = self.follow(expr, scope)
        match expr:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                number = self.literal(operand, scope)
                return -number if isinstance(number, int | float) else None
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                one, other = self.literal(left, scope), self.literal(right, scope)
                if isinstance(one, int) and isinstance(other, int):
                    return _ARITHMETIC[type(op)](one, other)
            case _:
                pass
        return None

    def entries(self, expr: ast.expr, scope: _Scope) -> dict[str, ast.expr] | None:
        """A dict literal with constant keys, or None when the dict cannot be seen."""
        if isinstance(expr, ast.Name) and expr.id in self.altered:
            return None
        match self.follow(expr, scope):
            case ast.Dict(keys=keys, values=values) if all(
                isinstance(key, ast.Constant) for key in keys
            ):
                pairs = zip(keys, values, strict=True)
                return {str(k.value): v for k, v in pairs if isinstance(k, ast.Constant)}
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=words) if all(
                word.arg for word in words
            ):
                return {word.arg: word.value for word in words if word.arg}
            case _:
                pass
        return None


# The command line


def _argparse_option(source: _Source, call: _Call) -> tuple[Option, ...]:
    """The options that one `add_argument` call makes."""
    flags = tuple(
        arg.value
        for arg in call.node.args
        if isinstance(arg, ast.Constant) and isinstance(arg.value, str) and arg.value[:1] == "-"
    )
    if not flags:
        return ()
    longest = next((flag for flag in flags if flag.startswith("--")), flags[0])
    dest_word, type_word = call.keyword("dest"), call.keyword("type")
    dest = source.literal(dest_word, call.scope) if dest_word is not None else None
    reads = _READS.get(_last_name(type_word), Reads.UNSEEN) if type_word is not None else Reads.STR
    default_word, const = call.keyword("default"), call.keyword("const")
    default = source.literal(default_word, call.scope) if default_word is not None else None
    option = Option(
        flags=flags,
        dest=dest if isinstance(dest, str) else longest.lstrip("-").replace("-", "_"),
        default=read_word(reads, default) if isinstance(default, str) else default,
        takes=_takes(call),
        reads=reads,
        const=source.literal(const, call.scope) if const is not None else None,
        line=call.node.lineno,
    )
    return _with_switches(option, call, has_default=default_word is not None)


def _takes(call: _Call) -> Takes:
    """What the words after an option are to argparse."""
    action, nargs = call.keyword("action"), call.keyword("nargs")
    name = action.value if isinstance(action, ast.Constant) else _last_name(action)
    if name in {"store_true", "store_false"}:
        return Takes(name)
    if name not in {"", "store", "BooleanOptionalAction"}:
        return Takes.UNSEEN
    if nargs is None:
        return Takes.VALUE
    optional = isinstance(nargs, ast.Constant) and nargs.value == "?"
    return Takes.PERHAPS if optional else Takes.UNSEEN


def _with_switches(option: Option, call: _Call, *, has_default: bool) -> tuple[Option, ...]:
    """Give a switch its default, and BooleanOptionalAction its `--no-` half."""
    if _last_name(call.keyword("action")) == "BooleanOptionalAction":
        off = tuple(f"--no-{flag[2:]}" for flag in option.flags if flag.startswith("--"))
        return (
            replace(option, takes=Takes.STORE_TRUE),
            replace(option, takes=Takes.STORE_FALSE, flags=off),
        )
    if option.takes in {Takes.STORE_TRUE, Takes.STORE_FALSE} and not has_default:
        return (replace(option, default=option.takes is Takes.STORE_FALSE),)
    return (option,)


def _last_name(expr: ast.expr | None) -> str:
    """The last part of a dotted name, or of what is called by it."""
    if isinstance(expr, ast.Call):
        expr = expr.func
    return expr.attr if isinstance(expr, ast.Attribute) else getattr(expr, "id", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Arguments:
    """A dataclass of arguments, of a library or of the file."""

    name: str
    is_training: bool = False
    """It is TrainingArguments or descends from it."""
    complete: bool = True
    fields: Mapping[str, tuple[Option, ...]] = field(default_factory=dict)


def _library_arguments(name: str, *, defaults_seen: bool) -> _Arguments:
    row = ARGUMENT_CLASSES[name]
    return _Arguments(
        name=name,
        is_training=name in TRAINING_CLASSES,
        complete=defaults_seen,
        fields={
            key: field_options(key, reads, default if defaults_seen else None)
            for key, (reads, default) in row.items()
        },
    )


def _arguments(
    source: _Source, expr: ast.expr, seen: frozenset[str] = frozenset()
) -> _Arguments | None:
    """The arguments class that an expression names, or None when it is none that is known."""
    origin = source.origin(expr)
    name = origin.rpartition(".")[2]
    if isinstance(expr, ast.Name) and expr.id in source.classes and expr.id not in seen:
        return _local_arguments(source, source.classes[expr.id], seen | {expr.id})
    if name in ARGUMENT_CLASSES and origin.partition(".")[0] in _HF_LIBRARIES:
        return _library_arguments(name, defaults_seen=True)
    if name.endswith("TrainingArguments"):
        hidden = _library_arguments("TrainingArguments", defaults_seen=False)
        return replace(hidden, name=name)
    return None


def _local_arguments(source: _Source, node: ast.ClassDef, seen: frozenset[str]) -> _Arguments:
    bases = [_arguments(source, base, seen) for base in node.bases]
    known = [base for base in bases if base is not None]
    fields: dict[str, tuple[Option, ...]] = {}
    for base in reversed(known):
        fields |= base.fields
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
            same = (k for k, also in FIELD_ALIASES.items() if name in also and k in fields)
            name = next(same, name)
            fields[name] = _field_option(source, name, statement)
    return _Arguments(
        name=node.name,
        is_training=any(base.is_training for base in known),
        complete=len(known) == len(bases) and all(base.complete for base in known),
        fields=fields,
    )


def _field_option(source: _Source, name: str, node: ast.AnnAssign) -> tuple[Option, ...]:
    """The options that HfArgumentParser makes of one field of a dataclass in the file."""
    value = node.value
    if isinstance(value, ast.Call) and _last_name(value) in {"field", "HfArg"}:
        words = {word.arg: word.value for word in value.keywords}
        value = words.get("default")
    default = source.literal(value, source.module) if value is not None else None
    return field_options(name, _annotation(node.annotation), default, node.lineno)


def _annotation(expr: ast.expr) -> Reads:
    """How a field of this type reads its word: `int`, `int | None`, `Optional[int]`."""
    match expr:
        case ast.Constant(value=str(text)):
            return _FIELD_READS.get(text, Reads.UNSEEN)
        case ast.BinOp(op=ast.BitOr(), left=left, right=ast.Constant(value=None)):
            return _annotation(left)
        case ast.Subscript(value=base, slice=inner) if _last_name(base) == "Optional":
            return _annotation(inner)
        case _:
            return _FIELD_READS.get(_last_name(expr), Reads.UNSEEN)


@dataclass(frozen=True, kw_only=True, slots=True)
class _CommandLine:
    """The script's parser, with the arguments classes it fills."""

    parser: ScriptParser
    training: _Arguments | None = None
    """TrainingArguments, where a parser fills it from the command line."""


def _command_line(source: _Source) -> _CommandLine:
    added = [
        option
        for call in source.calls
        if call.method == "add_argument"
        for option in _argparse_option(source, call)
    ]
    if source.calls_to("deepspeed", "add_config_arguments"):
        added += _CONFIG_ARGUMENTS
    hf_calls = [call for call in source.calls if _is_hf_parser(source, call.node.func)]
    classes = [found for call in hf_calls for found in _parsed_classes(source, call)]
    known = [found for found in classes if found is not None]
    reads_words = any(
        call.method in _PARSE_CALLS and not _parses_literal(call) for call in source.calls
    )
    options = [
        *added,
        *(option for found in known for row in found.fields.values() for option in row),
    ]
    parser = ScriptParser(
        options=tuple(options if reads_words else ()),
        abbreviates=not any(
            isinstance(word, ast.Constant) and word.value is False
            for call in source.calls
            if (word := call.keyword("allow_abbrev")) is not None
        ),
        complete=len(known) == len(classes) and all(found.complete for found in known),
        args_file_suffixes=tuple(
            suffix for call in source.calls for suffix in _FILE_READERS.get(call.method, ())
        )
        if hf_calls
        else (),
        config_flag="--config" if source.calls_to("trl", "TrlParser") else None,
    )
    training = next((found for found in known if found.is_training), None)
    return _CommandLine(parser=parser, training=training if reads_words else None)


def _is_hf_parser(source: _Source, expr: ast.expr) -> bool:
    """Whether a class is HfArgumentParser, TrlParser, or one of the file's own built on them."""
    if isinstance(expr, ast.Name) and expr.id in source.classes:
        return any(_last_name(base) in _HF_PARSERS for base in source.classes[expr.id].bases)
    return any(source.is_from(expr, lib, name) for lib in _HF_LIBRARIES for name in _HF_PARSERS)


def _parsed_classes(source: _Source, call: _Call) -> list[_Arguments | None]:
    expr = call.argument("dataclass_types", 0)
    if expr is None:
        return []
    expr = source.follow(expr, call.scope)
    items = expr.elts if isinstance(expr, ast.Tuple | ast.List) else [expr]
    return [_arguments(source, item) for item in items]


def _parses_literal(call: _Call) -> bool:
    """Whether `parse_args([...])` is given its words in the code."""
    return isinstance(call.argument("args", 0), ast.List | ast.Tuple)


# One expression


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reader:
    """The source with its command line, and the questions asked of both."""

    source: _Source
    line: _CommandLine

    def bind(self, expr: ast.expr, call: _Call, keyword: str | None = None) -> Binding:
        """What an expression in a call says: a literal, an option, the config, or nothing."""
        line = expr.lineno
        expr = self.source.follow(expr, call.scope)
        option = self._option(expr)
        if option is not None:
            return self.bind_option(option)
        if _asks_config(expr):
            return Binding(from_config=True, line=line)
        value = self.source.literal(expr, call.scope)
        if value is None:
            return Binding(line=line)
        return Binding(value=value, line=line, code=_code(call, keyword, expr), keyword=keyword)

    def _option(self, expr: ast.expr) -> Option | None:
        """The option behind `args.x`, `self.args.x` or `int(args.x)`."""
        if isinstance(expr, ast.Call) and _last_name(expr) in {"int", "str"} and expr.args:
            expr = expr.args[0]
        if not isinstance(expr, ast.Attribute) or expr.attr in self.source.altered:
            return None
        if _last_name(expr.value) not in self.source.namespaces:
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

    def named(self, names: frozenset[str]) -> Binding:
        """The one option that carries one of these names."""
        found = {o.dest: o for o in reversed(self.line.parser.options) if o.dest in names}
        return self.bind_option(next(iter(found.values()))) if len(found) == 1 else UNSEEN

    def config(self, expr: ast.expr, call: _Call) -> Binding:
        """The file a config expression is read from: a literal path or an option."""
        for _ in range(8):
            expr = self.source.follow(expr, call.scope)
            if not isinstance(expr, ast.Call):
                break
            inner = self._unwrap(expr)
            if inner is None:
                break
            expr = inner
        found = self.bind(expr, call)
        is_path = isinstance(found.value, str) and not found.value.lstrip().startswith("{")
        return found if found.flag is not None or is_path else UNSEEN

    def _unwrap(self, call: ast.Call) -> ast.expr | None:
        if call in self.source.opened:
            return self.source.opened[call]
        if _last_name(call) in _PATH_CALLS and call.args:
            return call.args[0]
        if isinstance(call.func, ast.Attribute) and call.func.attr in _PATH_METHODS:
            return call.func.value
        return None


def _asks_config(expr: ast.expr) -> bool:
    """`engine.train_micro_batch_size_per_gpu()`, `config["train_micro_batch_size_per_gpu"]`."""
    if isinstance(expr, ast.Subscript) and isinstance(expr.slice, ast.Constant):
        return expr.slice.value in _CONFIG_READS
    return isinstance(expr, ast.Call) and _last_name(expr) in _CONFIG_READS


def _code(call: _Call, keyword: str | None, expr: ast.expr) -> str:
    """The words of a call that say one thing."""
    name = ast.unparse(call.node.func)
    value = ast.unparse(expr)
    return f"{name}({keyword}={value})" if keyword else f"{name}({value})"


def _agree(bindings: Iterable[Binding]) -> Binding:
    """What all say alike; where two differ, nothing is known."""
    found = list(bindings)
    said = {(binding.value, binding.flag, binding.from_config) for binding in found}
    return found[0] if len(said) == 1 else UNSEEN


# How the config comes in


def _route_initialize(read: _Reader, path: str) -> ScriptFacts | None:
    """`deepspeed.initialize`, the first in the order of who wins."""
    source = read.source
    calls = source.calls_to("deepspeed", "initialize")
    adds_arguments = bool(source.calls_to("deepspeed", "add_config_arguments"))
    facts = ScriptFacts(
        path=path,
        convention=Convention.ADD_CONFIG_ARGUMENTS,
        integration=Integration.DEEPSPEED,
        parser=read.line.parser,
        accumulation_steps=Binding(from_config=True),
    )
    if not calls:
        return facts if adds_arguments else None
    call = calls[0]
    places = _INITIALIZE_PLACES
    configs = [
        (expr, each)
        for each in calls
        for name in ("config", "config_params")
        if (expr := each.argument(name, places[name])) is not None
    ]
    facts = replace(
        facts,
        config_line=call.node.lineno,
        passes_optimizer=any(c.argument("optimizer", places["optimizer"]) for c in calls),
    )
    has_args = call.argument("args", places["args"]) is not None
    if configs:
        return _with_config(facts, read, configs, has_args=has_args)
    if has_args and adds_arguments:
        return facts
    own = next(iter(read.line.parser.of("deepspeed_config")), None)
    if has_args and own is not None:
        return replace(facts, convention=Convention.OWN_FLAG, own_flag=own.flag)
    return replace(facts, convention=Convention.UNKNOWN, obstacle=Obstacle.NO_CONFIG)


def _with_config(
    facts: ScriptFacts, read: _Reader, configs: list[tuple[ast.expr, _Call]], *, has_args: bool
) -> ScriptFacts:
    """`initialize(config=...)`: a path, an option, or a dict."""
    found = _agree(read.config(expr, call) for expr, call in configs)
    twice = has_args and any(
        isinstance(expr, ast.Attribute) and expr.attr == "deepspeed_config" for expr, _ in configs
    )
    if twice and found.flag is not None:
        return replace(facts, convention=Convention.UNKNOWN, obstacle=Obstacle.TWO_CONFIGS)
    return _by_source(facts, found, Convention.CONFIG_LITERAL, Obstacle.BUILT)


def _by_source(
    facts: ScriptFacts, found: Binding, literal: Convention, built: Obstacle
) -> ScriptFacts:
    """Name the convention by where the config comes from."""
    if found.flag is not None:
        return replace(facts, convention=Convention.OWN_FLAG, own_flag=found.flag)
    if found.value is not None:
        return replace(
            facts, convention=literal, literal_config=str(found.value), config_line=found.line
        )
    return replace(facts, convention=Convention.CONFIG_DICT, obstacle=built)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Built:
    """One call that builds TrainingArguments in the file."""

    call: _Call
    arguments: _Arguments
    keywords: Mapping[str, ast.expr]
    hidden: bool
    """A `**` whose keys cannot be seen, or arguments by place."""


def _built_arguments(source: _Source) -> list[_Built]:
    found = []
    for call in source.calls:
        arguments = _arguments(source, call.node.func)
        if arguments is None or not arguments.is_training:
            continue
        keywords: dict[str, ast.expr] = {}
        hidden = len(call.node.args) > 1
        for word in call.node.keywords:
            entries = None if word.arg else source.entries(word.value, call.scope)
            keywords |= {word.arg: word.value} if word.arg else entries or {}
            hidden = hidden or (word.arg is None and entries is None)
        found.append(_Built(call=call, arguments=arguments, keywords=keywords, hidden=hidden))
    return found


def _route_arguments(read: _Reader, path: str) -> ScriptFacts | None:
    """TrainingArguments, built in the file or filled by a parser."""
    built = _built_arguments(read.source)
    facts = ScriptFacts(
        path=path,
        convention=Convention.HF_IN_CODE,
        integration=Integration.HF,
        parser=read.line.parser,
        config_line=built[0].call.node.lineno if built else None,
    )
    configs = [_given(each.keywords.get("deepspeed")) for each in built]
    if any(configs):
        found = _agree(
            read.config(expr, each.call) if expr else UNSEEN
            for expr, each in zip(configs, built, strict=True)
        )
        facts = replace(facts, config_line=next(expr.lineno for expr in configs if expr))
        facts = _by_source(facts, found, Convention.HF_LITERAL, Obstacle.BUILT_HF)
    elif read.line.training is not None:
        facts = replace(facts, convention=Convention.HF_PARSER)
        return _with_arguments(facts, _parsed(read, read.line.training))
    elif any(each.hidden for each in built):
        facts = replace(facts, convention=Convention.UNKNOWN, obstacle=Obstacle.HIDDEN_HF)
    return _with_arguments(facts, _built(read, built)) if built else _route_trainer(read, facts)


def _given(expr: ast.expr | None) -> ast.expr | None:
    """An expression, but for a literal None."""
    return None if isinstance(expr, ast.Constant) and expr.value is None else expr


def _route_trainer(read: _Reader, facts: ScriptFacts) -> ScriptFacts | None:
    """A Trainer whose arguments come from elsewhere: a parser that reads a file, or nobody."""
    source = read.source
    if any(
        found is not None and found.is_training
        for call in source.calls
        if _is_hf_parser(source, call.node.func)
        for found in _parsed_classes(source, call)
    ):
        return facts
    for call in source.calls:
        origin = source.origin(call.node.func)
        if origin.partition(".")[0] in _HF_LIBRARIES and origin.endswith("Trainer"):
            return replace(
                facts,
                convention=Convention.UNKNOWN,
                config_line=call.node.lineno,
                obstacle=Obstacle.HIDDEN_HF,
            )
    return None


def _route_accelerator(read: _Reader, path: str) -> ScriptFacts | None:
    """`Accelerator()`, the last in the order of who wins."""
    calls = read.source.calls_to("accelerate", "Accelerator")
    if not calls:
        return None
    facts = ScriptFacts(
        path=path,
        convention=Convention.ACCELERATOR,
        integration=Integration.ACCELERATE,
        parser=read.line.parser,
        config_line=calls[0].node.lineno,
        mixed_precision=_agree(_keyword(read, call, "mixed_precision") for call in calls),
        accumulation_steps=_agree(_accelerated_steps(read, call) for call in calls),
    )
    plugins = [
        plugin
        for call in calls
        if (plugin := _given(call.keyword("deepspeed_plugin", "deepspeed_plugins"))) is not None
    ]
    if not plugins:
        return facts
    # accelerate 1.x, DeepSpeedPlugin: without `hf_ds_config` it reads the environment too.
    plugin = read.source.follow(plugins[0], calls[0].scope)
    if not isinstance(plugin, ast.Call) or _last_name(plugin) != "DeepSpeedPlugin":
        return _by_source(facts, UNSEEN, Convention.CONFIG_LITERAL, Obstacle.BUILT_ACCELERATE)
    built = replace(calls[0], node=plugin)
    config = built.argument("hf_ds_config", 0)
    if config is None:
        return facts
    found = read.config(config, built)
    facts = replace(facts, config_line=plugin.lineno)
    return _by_source(facts, found, Convention.CONFIG_LITERAL, Obstacle.BUILT_ACCELERATE)


def _keyword(read: _Reader, call: _Call, name: str) -> Binding:
    expr = _given(call.keyword(name))
    return read.bind(expr, call, name) if expr is not None else UNSEEN


def _accelerated_steps(read: _Reader, call: _Call) -> Binding:
    """`Accelerator(gradient_accumulation_steps=)`, unless one of its plugins says it instead."""
    name = "gradient_accumulation_steps"
    words = [word.arg for word in call.node.keywords]
    said = call.keyword(name)
    if any("plugin" in word for word in words if word) or (said is None and None in words):
        return UNSEEN
    if said is not None:
        return read.bind(said, call, name)
    # accelerate 1.x, accelerator.py, Accelerator.__init__.
    return Binding(value=1, line=call.node.lineno, keyword=name, default_of="Accelerator")


# What the run uses


def _with_arguments(facts: ScriptFacts, said: Callable[[str], Binding]) -> ScriptFacts:
    """The settings that fields of TrainingArguments and its descendants carry."""
    return replace(
        facts,
        micro_batch=said("per_device_train_batch_size"),
        accumulation_steps=said("gradient_accumulation_steps"),
        bf16=said("bf16"),
        fp16=said("fp16"),
        gradient_checkpointing=said("gradient_checkpointing"),
        optimizer=said("optim"),
        sequence_tokens=said("max_length"),
    )


def _parsed(read: _Reader, arguments: _Arguments) -> Callable[[str], Binding]:
    """What a TrainingArguments says that a parser fills."""

    def said(name: str) -> Binding:
        options = arguments.fields.get(name)
        return read.bind_option(options[0], arguments.name) if options else UNSEEN

    return said


def _built(read: _Reader, calls: list[_Built]) -> Callable[[str], Binding]:
    """What TrainingArguments built in code say, where all the calls agree."""
    return lambda name: _agree(_built_field(read, each, name) for each in calls)


def _built_field(read: _Reader, built: _Built, name: str) -> Binding:
    options = built.arguments.fields.get(name)
    spellings = (*FIELD_ALIASES.get(name, ()), name)
    if not options or read.source.altered & set(spellings):
        return UNSEEN
    for spelling in spellings:
        if spelling in built.keywords:
            return read.bind(built.keywords[spelling], built.call, spelling)
    if built.hidden:
        return UNSEEN
    return Binding(
        value=options[0].default,
        line=built.call.node.lineno,
        keyword=name,
        default_of=built.arguments.name,
    )


def _loader_batch(read: _Reader) -> Binding:
    """`batch_size=` of the training DataLoader."""
    found = []
    for call in read.source.calls:
        size = call.argument("batch_size", 1)
        if call.method != "DataLoader" or size is None:
            continue
        about = f"{call.target} {ast.unparse(call.node.args[0]) if call.node.args else ''}".lower()
        if not _EVALUATION_NAME.search(about):
            found.append(read.bind(size, call, "batch_size"))
    if found:
        return _agree(found)
    if any(
        call.argument("training_data", _INITIALIZE_PLACES["training_data"])
        for call in read.source.calls_to("deepspeed", "initialize")
    ):
        return Binding(from_config=True)
    return read.named(_MICRO_BATCH_NAMES)


def _checkpointing(read: _Reader, said: Binding) -> Binding:
    """What `model.gradient_checkpointing_enable()` adds to what the arguments say."""
    calls = read.source.calls
    by_condition = {call.method for call in calls if call.tests}
    # peft, utils/other.py: it turns checkpointing on, unless it is told not to.
    if any(call.method == "prepare_model_for_kbit_training" for call in calls):
        return UNSEEN
    found = []
    for call in calls:
        if call.method not in _CHECKPOINTING_CALLS:
            continue
        if len(call.tests) > 1 or call.function in by_condition:
            return UNSEEN
        found.append(_enabled(read, call, said))
    return _agree(found) if found else said


def _enabled(read: _Reader, call: _Call, said: Binding) -> Binding:
    """What one enabling call says, under at most one condition."""
    if not call.tests:
        code = f"{ast.unparse(call.node.func)}()"
        return Binding(value=True, line=call.node.lineno, code=code)
    test = call.tests[0]
    if test is None:
        return UNSEEN
    found = read.bind(test, call)
    asks_arguments = said.seen and _last_name(test) in _CHECKPOINTING_FIELDS
    return said if asks_arguments and not found.seen else found


def _no_checkpointing(read: _Reader) -> Binding:
    """A model of transformers that is built here checkpoints nothing until it is told to."""
    if _mentions_checkpointing(read.source):
        return UNSEEN
    for call in read.source.calls:
        if _model_class(read, call) == "Model":
            code = f"{ast.unparse(call.node.func)}(...)` with no `gradient_checkpointing_enable()"
            return Binding(value=False, line=call.node.lineno, code=code)
    return UNSEEN


def _mentions_checkpointing(source: _Source) -> bool:
    """Whether anything could turn it on; saving and loading a checkpoint is another matter."""
    files = ("save", "load", "get", "find", "resume")
    return (
        bool(source.altered & _CHECKPOINTING_FIELDS)
        or any(
            "checkpointing" in (word.arg or "")
            for call in source.calls
            for word in call.node.keywords
        )
        or any(
            "checkpoint" in call.method and not call.method.startswith(files)
            for call in source.calls
        )
    )


def _model_class(read: _Reader, call: _Call) -> str:
    """`Model` or `Config` where a call builds one with transformers, else nothing."""
    origin = read.source.origin(call.node.func).split(".")
    if origin[0] != "transformers" or call.method not in {"from_pretrained", "from_config"}:
        return ""
    kind = origin[-2]
    return "Model" if "Model" in kind or "For" in kind else "Config" if "Config" in kind else ""


def _model(read: _Reader) -> Binding:
    """The id or the folder that the model, or else its config, is loaded from."""
    found: dict[str, list[Binding]] = {"Model": [], "Trainer": [], "Config": []}
    for call in read.source.calls:
        kind = _model_class(read, call)
        kind = "Trainer" if _last_name(call.node).endswith("Trainer") else kind
        expr = call.argument("model" if kind == "Trainer" else "pretrained_model_name_or_path", 0)
        if kind and expr is not None and call.method != "from_config":
            found[kind].append(read.bind(expr, call, "model" if kind == "Trainer" else None))
    for bindings in found.values():
        seen = [b for b in bindings if b.flag is not None or isinstance(b.value, str)]
        if seen:
            return _agree(seen)
    return read.named(_MODEL_NAMES)


def _attention(read: _Reader) -> Binding:
    found = [
        read.bind(expr, call, "attn_implementation")
        for call in read.source.calls
        if (expr := call.keyword("attn_implementation")) is not None
    ]
    return _agree(found) if found else read.named(frozenset({"attn_implementation"}))


def _sequence(read: _Reader) -> Binding:
    """The length that texts are cut to: in a call, else an option or a constant so named."""
    found = []
    for call in read.source.calls:
        cuts = call.keyword("truncation", "padding") is not None
        for name in ("model_max_length", "max_seq_length", *(("max_length",) if cuts else ())):
            expr = call.keyword(name)
            if expr is not None:
                found.append(read.bind(expr, call, name))
    seen = [binding for binding in found if binding.seen]
    if seen:
        return _agree(seen)
    if any(option.dest in _SEQUENCE_NAMES for option in read.line.parser.options):
        return read.named(_SEQUENCE_NAMES)
    constants = list(_constants(read))
    return _agree(constants) if constants else UNSEEN


def _constants(read: _Reader) -> Iterator[Binding]:
    """Constants of the module whose name says that they are the sequence length."""
    for name, values in read.source.module.values.items():
        if name.lower() in _SEQUENCE_NAMES and values[0] is not None:
            value = read.source.literal(ast.Name(id=name), read.source.module)
            code = f"{name} = {ast.unparse(values[0])}"
            yield Binding(value=value, line=values[0].lineno, code=code)


def _settings(read: _Reader, facts: ScriptFacts) -> ScriptFacts:
    """Add what is said outside the arguments classes."""
    is_hf = facts.integration is Integration.HF
    checkpointing = _checkpointing(read, facts.gradient_checkpointing)
    if not is_hf and not checkpointing.seen:
        checkpointing = _no_checkpointing(read)
    return replace(
        facts,
        micro_batch=facts.micro_batch if is_hf else _loader_batch(read),
        gradient_checkpointing=checkpointing,
        sequence_tokens=facts.sequence_tokens if facts.sequence_tokens.seen else _sequence(read),
        attention=_attention(read),
        model=_model(read),
        args_file=_args_file(read.source, facts.path),
    )


# transformers 5.23, hf_argparser.py, parse_args_into_dataclasses, `look_for_args_file`.
def _args_file(source: _Source, path: str) -> str | None:
    """The file beside the script whose words HfArgumentParser puts before the command line."""
    reads = any(call.method in _HF_PARSE_CALLS for call in source.calls)
    return str(Path(path).with_suffix(".args")) if reads and Path(path).name else None


def parse_script(text: str, path_name: str) -> ScriptFacts:
    """What a script says of its own run; it is never run.

    Raises:
        ZerowizError: The text is not Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own dubious escapes
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f" line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ZerowizError(
            f"{path_name}{line} is not Python: {reason}",
            "SCRIPT is the training script itself, not a shell script or a notebook that starts it",
        ) from None
    source = _Source(tree)
    read = _Reader(source=source, line=_command_line(source))
    for route in (_route_initialize, _route_arguments, _route_accelerator):
        facts = route(read, path_name)
        if facts is not None:
            return _settings(read, facts)
    return ScriptFacts(
        path=path_name,
        convention=Convention.UNKNOWN,
        integration=None,
        parser=read.line.parser,
        obstacle=Obstacle.NO_ENGINE,
    )


def read_script(path: Path) -> ScriptFacts:
    """Open a training script, and the `.args` file that HfArgumentParser reads beside it.

    Raises:
        PreflightError: There is no such file, or it cannot be opened.
        ZerowizError: It is not Python text.
    """
    if path.is_dir():
        scripts = sorted(child.name for child in path.glob("*.py"))
        raise PreflightError(
            f"`{path}` is a folder, not a script",
            *(f"it holds `{path / name}`" for name in scripts[:3]),
        )
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise PreflightError(f"there is no script `{path}`", *_near(path)) from None
    except OSError as error:
        raise PreflightError(f"`{path}` cannot be read: {error.strerror}") from None
    facts = parse_script(_decode(data, path), str(path))
    if facts.args_file is None or not Path(facts.args_file).is_file():
        return facts
    words = Path(facts.args_file).read_text(encoding="utf-8").split()
    return replace(facts, args_file_words=tuple(words))


def _near(path: Path) -> tuple[str, ...]:
    """Scripts with a name like it, else those beside it."""
    beside = sorted(child.name for child in path.parent.glob("*.py"))
    names = difflib.get_close_matches(path.name, beside, n=2) or beside[:3]
    return tuple(f"did you mean `{path.parent / name}`?" for name in names)


def _decode(data: bytes, path: Path) -> str:
    """The text of Python source, by its encoding cookie or BOM."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return io.TextIOWrapper(io.BytesIO(data), encoding).read()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ZerowizError(
            f"{path} line {line} is not {error.encoding} text",
            "save it as UTF-8, or name its encoding in line 1: `# -*- coding: latin-1 -*-`",
        ) from None
    except SyntaxError as error:
        raise ZerowizError(f"{path} line 1 is not Python: {error.msg}") from None
