"""Collect the options that a script's parser has."""

import ast
import re
from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from zerowiz.core.script.arguments import (
    ARGUMENT_CLASSES,
    BY_ARCHITECTURE,
    FIELD_ALIASES,
    SWITCHES,
    TRAINING_CLASSES,
    Option,
    Reads,
    ScriptParser,
    Takes,
    field_options,
    read_word,
)
from zerowiz.core.structs import replace
from zerowiz.probe.script.required import is_strict, parses_literal, shows_options
from zerowiz.probe.script.source import (
    HF_LIBRARIES,
    HF_PARSE_CALLS,
    HF_PARSERS,
    PARSE_CALLS,
    FunctionCall,
    Scope,
    Source,
    follow,
    last_name,
    literal,
    unless_none,
    words,
)

# Read the options that a script's own code declares: `add_argument` calls, dataclass fields.

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
        value = next((word.value for word in value.keywords if word.arg in _DEFAULTS), None)
        # That of a factory is the body of its lambda.
        value = value.body if isinstance(value, ast.Lambda) else value
    reads = _annotation(node.annotation)
    default = _default_words(value, scope) if reads is Reads.WORDS else literal(value, scope)
    return field_options(name, reads, default, node.lineno)


_DEFAULTS = frozenset({"default", "default_factory"})


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


# Find a script's arguments classes, such as TrainingArguments, and the calls that build them.


class Arguments(Struct, frozen=True, kw_only=True):
    """A dataclass of arguments, of a library or of the script."""

    name: str
    is_training: bool = False
    """Whether it is TrainingArguments or a subclass."""
    complete: bool = True
    """Whether every field is known with its default."""
    fields: Mapping[str, tuple[Option, ...]] = field(default_factory=dict)


def find_arguments(
    source: Source, expr: ast.expr, seen: frozenset[str] = frozenset()
) -> Arguments | None:
    """The arguments class that an expression names; None where it is not a known one."""
    if isinstance(expr, ast.Name) and expr.id in source.classes and expr.id not in seen:
        return _local_arguments(source, source.classes[expr.id], seen | {expr.id})
    if isinstance(expr, ast.Name) and expr.id in source.elsewhere:
        arguments = _module_arguments(source, expr)
        if arguments is not None:
            return arguments
    library, name = source.imported(expr)
    is_one = name not in _ONCE_NONE or _has_trainer(source, name)
    if library in HF_LIBRARIES and name in ARGUMENT_CLASSES and is_one:
        return _library_arguments(source, name, defaults_seen=True)
    name = source.origin(expr).rpartition(".")[2]
    if name in TRAINING_CLASSES and is_one:
        return _library_arguments(source, name, defaults_seen=False)
    if _HIDDEN_NAME.search(name) or _has_trainer(source, name):
        hidden = _library_arguments(source, "TrainingArguments", defaults_seen=False)
        return replace(hidden, name=name)
    return None


# Before trl 0.12 it was no TrainingArguments, and its Trainer took it as the first argument.
_ONCE_NONE = frozenset({"PPOConfig"})
# What a subclass of another module is called; transformers' examples name the data's arguments
# DataTrainingArguments.
_HIDDEN_NAME = re.compile(r"(?<!Data)Training(Arguments|Args)$")


def _has_trainer(source: Source, name: str) -> bool:
    """Whether `XConfig` has an `XTrainer(args=...)` in the script, as those of TRL."""
    trainer = f"{name.removesuffix('Config')}Trainer"
    return name.endswith("Config") and any(
        call.method == trainer and call.keyword("args") is not None for call in source.calls
    )


def _library_arguments(source: Source, name: str, *, defaults_seen: bool) -> Arguments:
    release = source.trl_release
    return Arguments(
        name=name,
        is_training=name in TRAINING_CLASSES,
        complete=defaults_seen,
        fields={
            key: field_options(key, row.reads, row.default_in(release) if defaults_seen else None)
            for key, row in ARGUMENT_CLASSES[name].items()
        },
    )


def _module_arguments(source: Source, expr: ast.Name) -> Arguments | None:
    """The arguments class of a module beside the script; its lines are not the script's."""
    name = source.origin(expr).rpartition(".")[2]
    arguments = find_arguments(source.elsewhere[expr.id], ast.Name(id=name))
    if arguments is None:
        return None
    fields = {
        key: tuple(replace(option, line=None) for option in options)
        for key, options in arguments.fields.items()
    }
    return replace(arguments, fields=fields)


def _local_arguments(source: Source, node: ast.ClassDef, seen: frozenset[str]) -> Arguments:
    bases = [find_arguments(source, base, seen) for base in node.bases]
    known = [base for base in bases if base is not None]
    fields: dict[str, tuple[Option, ...]] = {}
    for base in reversed(known):
        fields |= base.fields
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = _field_name(statement.target.id, fields)
            fields[name] = dataclass_options(name, statement, source.module)
    return Arguments(
        name=node.name,
        is_training=any(base.is_training for base in known),
        complete=len(known) == len(bases) and all(base.complete for base in known),
        fields=fields,
    )


def _field_name(name: str, fields: Mapping[str, tuple[Option, ...]]) -> str:
    """The inherited field that this name is an alias of, or the name itself."""
    same = (
        field_name
        for field_name, also in FIELD_ALIASES.items()
        if name in also and field_name in fields
    )
    return next(same, name)


class Built(Struct, frozen=True, kw_only=True):
    """One call of the script that builds TrainingArguments."""

    call: FunctionCall
    arguments: Arguments
    keywords: Mapping[str, ast.expr]
    hidden: bool
    """Whether it has positional arguments, or a `**` whose keys are not known."""


def built_arguments(source: Source) -> list[Built]:
    """Every call that builds TrainingArguments or a subclass."""
    built = []
    for call in source.calls:
        arguments = find_arguments(source, call.node.func)
        if arguments is None or not arguments.is_training:
            continue
        keywords, hidden = source.keywords(call)
        hidden = hidden or len(call.node.args) > 1
        built.append(Built(call=call, arguments=arguments, keywords=keywords, hidden=hidden))
    return built


# deepspeed 0.19.8, __init__.py, _add_core_arguments.
_CONFIG_ARGUMENTS = (
    Option(flags=("--deepspeed",), dest="deepspeed", default=False, takes=Takes.STORE_TRUE),
    Option(flags=("--deepspeed_config",), dest="deepspeed_config"),
    Option(flags=("--deepscale",), dest="deepscale", default=False, takes=Takes.STORE_TRUE),
    Option(flags=("--deepscale_config",), dest="deepscale_config"),
)
# The methods of HfArgumentParser that read every argument from one file.
_FILE_READERS: Mapping[str, tuple[str, ...]] = {
    "parse_json_file": (".json",),
    "parse_yaml_file": (".yaml", ".yml"),
}


class CommandLine(Struct, frozen=True, kw_only=True):
    """The script's parser, and the TrainingArguments that it fills."""

    parser: ScriptParser
    reads_words: bool
    """Whether it reads the command line, instead of only a file or a list in the code."""
    fills_arguments: bool
    """Whether the words fill the fields of HfArgumentParser's classes."""
    hf_line: int | None
    """Where an HfArgumentParser is made."""
    training: Arguments | None = None


def command_line(source: Source) -> CommandLine:
    """The command line of a script, as far as its source shows it."""
    hf_calls = [call for call in source.calls if _is_hf_parser(source, call)]
    fills = _fills_arguments(source, hf_calls)
    classes = [arguments for call in hf_calls for arguments in _parsed_classes(source, call)]
    known = [arguments for arguments in classes if arguments is not None]
    fields = [o for class_ in known if fills for row in class_.fields.values() for o in row]
    functions = [source.functions[name] for name in sorted(source.fired & source.functions.keys())]
    fired = [option for function in functions for option in parameter_options(function)]
    reads_words = bool(fired or fills) or any(
        call.method in PARSE_CALLS and not parses_literal(call) for call in source.calls
    )
    suffixes = [suffix for call in source.calls for suffix in _FILE_READERS.get(call.method, ())]
    parser = ScriptParser(
        options=(*_added(source), *fields, *fired) if reads_words else (),
        abbreviates=not fired and not any(_forbids_abbreviation(call) for call in source.calls),
        complete=len(known) == len(classes)
        and all(arguments.complete for arguments in known)
        and shows_options(source),
        args_file_suffixes=tuple(suffixes) if hf_calls else (),
        is_foreign=any(_is_foreign(source, call) for call in hf_calls),
        config_flag="--config" if source.calls_to("trl", "TrlParser") else None,
    )
    flags = {flag for option in parser.options for flag in option.flags}
    strict = parser.complete and is_strict(source, flags)
    parser = replace(parser, strict=strict)
    training = next((arguments for arguments in known if arguments.is_training), None)
    return CommandLine(
        parser=parser,
        reads_words=reads_words,
        fills_arguments=fills,
        hf_line=hf_calls[0].line if hf_calls else None,
        training=training,
    )


def _added(source: Source) -> list[Option]:
    """The options that `add_argument` calls make."""
    calls = [call for call in source.calls if call.method == "add_argument"]
    options = [option for call in calls for option in argparse_options(call)]
    if source.calls_to("deepspeed", "add_config_arguments"):
        options += _CONFIG_ARGUMENTS
    return options


def _is_hf_parser(source: Source, call: FunctionCall) -> bool:
    """Whether a call makes an HfArgumentParser, a TrlParser, or a subclass.

    A subclass of another module is known by its name and by the classes that it is given.
    """
    expr = call.node.func
    if isinstance(expr, ast.Name) and expr.id in source.classes:
        return any(
            last_name(base) in HF_PARSERS or _is_parser_name(last_name(base))
            for base in source.classes[expr.id].bases
        )
    library, name = source.imported(expr)
    is_known = library in HF_LIBRARIES and name in HF_PARSERS
    return is_known or (_is_foreign(source, call) and bool(call.node.args))


def _is_foreign(source: Source, call: FunctionCall) -> bool:
    """Whether a class of another module makes the parser."""
    library, name = source.imported(call.node.func)
    return _is_parser_name(name) and library not in HF_LIBRARIES


def _is_parser_name(name: str) -> bool:
    """Whether it is named like a parser of dataclasses; argparse and others have ArgumentParser."""
    return "ArgumentParser" in name and name != "ArgumentParser"


# transformers 5.23, hf_argparser.py: the methods that read no words.
_WORDLESS = frozenset({*_FILE_READERS, "parse_dict"})


def _fills_arguments(source: Source, hf_calls: list[FunctionCall]) -> bool:
    """Whether one of these parsers reads the command line, and not only a file."""
    parsers = {id(call.node) for call in hf_calls}
    for call in source.calls:
        func = call.node.func
        if parses_literal(call) or not isinstance(func, ast.Attribute):
            continue
        if call.method in _WORDLESS:
            if call.method in _FILE_READERS and "sys.argv" in ast.unparse(call.node):
                return True  # the words name the file
            continue
        by_method = (
            call.method.startswith("parse") and id(_maker(source, func.value, call)) in parsers
        )
        if by_method or call.method in HF_PARSE_CALLS:
            return True
    return False


def _maker(source: Source, expr: ast.expr, before: FunctionCall) -> ast.expr | None:
    """The call whose result a name has before another call; any other expression is itself."""
    if not isinstance(expr, ast.Name):
        return expr
    makers = [
        call.node
        for call in source.calls
        if expr.id in call.target.split() and call.line < before.line
    ]
    return max(makers, key=lambda node: node.lineno, default=None)


def _parsed_classes(source: Source, call: FunctionCall) -> list[Arguments | None]:
    expr = call.argument("dataclass_types", 0)
    if expr is None:
        return []
    expr = follow(expr, call.scope)
    items = expr.elts if isinstance(expr, ast.Tuple | ast.List) else [expr]
    return [find_arguments(source, item) for item in items]


def parsed_names(source: Source) -> set[str]:
    """The names of the classes that HfArgumentParser, or a parser like it, fills."""
    exprs = [
        follow(expr, call.scope)
        for call in source.calls
        if _is_hf_parser(source, call) and (expr := call.argument("dataclass_types", 0)) is not None
    ]
    nodes = [node for expr in exprs for node in ast.walk(expr)]
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _forbids_abbreviation(call: FunctionCall) -> bool:
    word = call.keyword("allow_abbrev")
    return isinstance(word, ast.Constant) and word.value is False
