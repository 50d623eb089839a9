"""Collect the options that a script's parser has."""

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import cast

from msgspec import Struct, field

from zerowiz.core.script.arguments import (
    ARGUMENT_CLASSES,
    BY_ARCHITECTURE,
    FIELD_ALIASES,
    LOCAL_RANK_FLAG,
    SWITCHES,
    TRAINING_CLASSES,
    Option,
    Reads,
    Scalar,
    ScriptParser,
    Takes,
    field_options,
    read_word,
    read_words,
)
from zerowiz.core.structs import replace
from zerowiz.errors import ZerowizError
from zerowiz.probe.files import require_text
from zerowiz.probe.script.source import (
    HF_LIBRARIES,
    HF_PARSE_CALLS,
    HF_PARSERS,
    MOST_STEPS,
    PARSE_CALLS,
    FunctionCall,
    Scope,
    Source,
    default_of,
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

# How a word is read in the place of a value of this type.
_OF_TYPES = {bool: Reads.TRUTH, int: Reads.INT, float: Reads.FLOAT, str: Reads.STR}
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
    needed = call.keyword("required")
    option = Option(
        flags=flags,
        dest=dest if isinstance(dest, str) else longest.lstrip("-").replace("-", "_"),
        default=read_word(reads, default) if isinstance(default, str) else default,
        takes=_takes(call),
        reads=reads,
        const=const,
        required=isinstance(needed, ast.Constant) and needed.value is True and not call.tests,
        line=call.line,
    )
    if _action(call) == "BooleanOptionalAction":
        off = tuple(f"--no-{flag[2:]}" for flag in option.flags if flag.startswith("--"))
        return (
            replace(option, takes=Takes.STORE_TRUE),
            replace(option, takes=Takes.STORE_FALSE, flags=off),
        )
    if option.takes in SWITCHES and call.keyword("default") is None:
        return (replace(option, default=not SWITCHES[option.takes]),)
    return (option,)


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


def dataclass_options(name: str, node: ast.AnnAssign, scope: Scope) -> tuple[Option, ...]:
    """The options that HfArgumentParser makes of one field of a dataclass in the script."""
    value = node.value
    if isinstance(value, ast.Call) and last_name(value) in {"field", "HfArg"}:
        value = next((word.value for word in value.keywords if word.arg in _DEFAULTS), None)
        # That of a factory is the body of its lambda.
        value = value.body if isinstance(value, ast.Lambda) else value
    reads = _annotation(node.annotation)
    default = _default_words(value, scope) if reads is Reads.WORDS else literal(value, scope)
    options = field_options(name, reads, default, node.lineno)
    return (replace(options[0], required=_has_no_default(node)), *options[1:])


# transformers 5.23, hf_argparser.py, _parse_dataclass_field: a `bool` is false by default.
_OPTIONAL_TYPES = ("bool", "ClassVar", "InitVar", "KW_ONLY")


def _has_no_default(node: ast.AnnAssign) -> bool:
    """Whether HfArgumentParser requires a field."""
    if any(name in ast.unparse(node.annotation) for name in _OPTIONAL_TYPES):
        return False
    match node.value:
        case None:
            return True
        case ast.Call(func=func, args=[], keywords=words) if last_name(func) == "field":
            has_aliases = any("aliases" in ast.unparse(word.value) for word in words)
            return {word.arg for word in words} <= {
                "metadata",
                "kw_only",
                "repr",
            } and not has_aliases
        case _:
            return False


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
    reads = _OF_TYPES.get(type(default), Reads.UNSEEN)
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
    of_library: frozenset[str] = frozenset()
    """The fields that a library knows."""
    fields: Mapping[str, tuple[Option, ...]] = field(default_factory=dict)


def find_arguments(
    source: Source, expr: ast.expr, seen: frozenset[str] = frozenset()
) -> Arguments | None:
    """The arguments class that an expression names; None where it is not a known one."""
    if isinstance(expr, ast.Name) and expr.id in source.classes and expr.id not in seen:
        return _local_arguments(source, source.classes[expr.id], seen | {expr.id})
    library, name = source.imported(expr)
    is_one = name not in _ONCE_NONE or _has_trainer(source, name)
    if library in HF_LIBRARIES and name in ARGUMENT_CLASSES and is_one:
        return _library_arguments(source, name, defaults_seen=True)
    name = name or getattr(expr, "id", "")
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
    calls = source.by_method.get(trainer, ()) if name.endswith("Config") else ()
    return any(call.keyword("args") is not None for call in calls)


def _library_arguments(source: Source, name: str, *, defaults_seen: bool) -> Arguments:
    release = source.trl_release
    return Arguments(
        name=name,
        of_library=frozenset(ARGUMENT_CLASSES[name]),
        is_training=name in TRAINING_CLASSES,
        complete=defaults_seen,
        fields={
            key: field_options(key, row.reads, row.default_in(release) if defaults_seen else None)
            for key, row in ARGUMENT_CLASSES[name].items()
        },
    )


def _local_arguments(source: Source, node: ast.ClassDef, seen: frozenset[str]) -> Arguments:
    bases = [find_arguments(source, base, seen) for base in node.bases]
    known = [base for base in bases if base is not None]
    fields: dict[str, tuple[Option, ...]] = {}
    for base in reversed(known):
        fields |= base.fields
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            same = (
                field_name
                for field_name, also in FIELD_ALIASES.items()
                if statement.target.id in also and field_name in fields
            )
            name = next(same, statement.target.id)
            options = dataclass_options(name, statement, source.module)
            # A field without a default has that of a base which sets the same name.
            fields[name] = options if not node.bases else _optional(options)
    return Arguments(
        name=node.name,
        is_training=any(base.is_training for base in known),
        complete=len(known) == len(bases) and all(base.complete for base in known),
        of_library=frozenset[str]().union(*(base.of_library for base in known)),
        fields=fields,
    )


def _optional(options: tuple[Option, ...]) -> tuple[Option, ...]:
    return tuple(replace(option, required=False) for option in options)


class Built(Struct, frozen=True, kw_only=True):
    """One call of the script that builds TrainingArguments."""

    call: FunctionCall
    arguments: Arguments
    keywords: Mapping[str, ast.expr]
    hidden: bool
    """Whether it has positional arguments, or a `**` whose keys are not known."""


def _built_arguments(source: Source) -> list[Built]:
    """Every call that builds TrainingArguments or a subclass."""
    built = []
    for call in source.calls:
        arguments = find_arguments(source, call.node.func)
        if arguments is None or not arguments.is_training:
            continue
        # What a call says in a field of a class is a default: tyro makes options of it.
        keywords, hidden = ({}, True) if source.calls_to("tyro", "cli") else source.keywords(call)
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
# lightning 1.9, pytorch/trainer/trainer.py: of what `Trainer.add_argparse_args` adds.
_OF_LIGHTNING = tuple(
    Option(flags=(f"--{name}",), dest=name, default=default)
    for name, default in {
        **dict.fromkeys(("accelerator", "accumulate_grad_batches", "devices", "precision")),
        "strategy": "auto",
    }.items()
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
    built: list[Built]
    """Every call that builds TrainingArguments or a subclass."""


def command_line(source: Source) -> CommandLine:
    """The command line of a script, as far as its source shows it."""
    hf_calls = _hf_parsers(source)
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
    # Whether every option of the parsers that read the command line stands in the script.
    shows_options = (
        all(
            isinstance(call.node.func, ast.Attribute)
            and _is_parser(source, call.node.func.value, call.scope)
            for call in _parse_calls(source)
        )
        and all(_fires_strictly(source, call) for call in source.calls_to("fire", "Fire"))
        # The spellings of each option stand in the code.
        and all(
            call.node.args and all(isinstance(arg, ast.Constant) for arg in call.node.args)
            for call in source.by_method.get("add_argument", ())
        )
        and not any(_is_handed_over(source, call) for call in source.calls)
    )
    parser = ScriptParser(
        options=(*_added(source), *fields, *fired) if reads_words else (),
        abbreviates=not fired
        and all(
            getattr(call.words.get("allow_abbrev"), "value", None) is not False
            for call in source.calls
        ),
        complete=len(known) == len(classes)
        and all(arguments.complete for arguments in known)
        and shows_options,
        args_file_suffixes=tuple(suffixes) if hf_calls else (),
        is_foreign=any(_is_foreign(source, call) for call in hf_calls),
        config_flag="--config" if source.calls_to("trl", "TrlParser") else None,
    )
    flags = {flag for option in parser.options for flag in option.flags}
    is_strict = parser.complete and _is_strict(source, flags)
    by_release = bool(fired) or any(arguments.of_library for arguments in known)
    of_script = is_strict and not by_release and not _takes_others(source)
    # tyro 0.9, _cli.py, cli: it ends the job at a word that it does not know.
    is_strict = is_strict or bool(source.calls_to("tyro", "cli"))
    parser = replace(parser, strict=is_strict, of_script=of_script)
    if not (shows_options and _may_require(source)):
        parser = replace(parser, options=_optional(parser.options))
    training = next((arguments for arguments in known if arguments.is_training), None)
    return CommandLine(
        parser=parser,
        reads_words=reads_words,
        fills_arguments=fills,
        hf_line=hf_calls[0].line if hf_calls else None,
        training=training,
        built=_built_arguments(source),
    )


# See of the parsers that read the command line whether all their options stand in the script, and
# whether they end it at a word that none of these spells. One that another module made, or was
# handed, may have options that do not.

_STRICT_CALLS = PARSE_CALLS - {"parse_known_args"}
# Arguments with which a parser takes words that none of its options spells (transformers 5.23,
# hf_argparser.py; trl 1.x, scripts/utils.py).
_LENIENT_PARSE = ("return_remaining_strings", "fail_with_unknown_args")
# Arguments with which a parser has options that do not stand here, or spells them differently.
_LENIENT_MAKE = frozenset({None, "parents", "prefix_chars"})
_ALL_WORDS = "sys.argv[1:]"


def _is_strict(source: Source, flags: Collection[str]) -> bool:
    """Whether every word that none of these spells ends a script whose options are all seen."""
    parse_calls, fire_calls = _parse_calls(source), source.calls_to("fire", "Fire")
    looks_for_rank = any(t.startswith(LOCAL_RANK_FLAG) for t in source.option_texts - {*flags})
    return (
        bool(parse_calls or fire_calls)
        and all(
            call.method in _STRICT_CALLS
            and _reads_command_line(source, call)
            and call.keyword(*_LENIENT_PARSE) is None
            for call in parse_calls
        )
        and not _edits_words(source)
        and not looks_for_rank
    )


def _takes_others(source: Source) -> bool:
    """Whether a parser takes words of other parsers, or of none."""
    added = source.by_method.get("add_argument", ())
    numbers = [(n, call.scope) for call in added if (n := call.keyword("nargs")) is not None]
    rest = {last_name(number) or literal(number, scope) for number, scope in numbers}
    makers = source.by_method.get("add_parser", ())
    return not rest.isdisjoint({"REMAINDER", "PARSER", "...", "A..."}) or any(
        maker.keyword("parents", "prefix_chars") is not None for maker in makers
    )


def _parse_calls(source: Source) -> list[FunctionCall]:
    """The calls that read the command line, apart from those of the script's own functions."""
    return [
        call
        for call in source.calls
        if call.method in PARSE_CALLS and not parses_literal(call) and not _is_own(source, call)
    ]


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
    is_given = any(c.node.args or c.node.keywords for c in source.callers(call.function))
    return (
        function is not None
        and isinstance(words, ast.Name)
        and call.scope.values.get(words.id) == [None]
        and default_of(function, words.id) is None
        and not is_given
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
    return takes or any(call.function == expr.func.id for call in _constructors(source))


def _is_constructor(source: Source, call: ast.Call) -> bool:
    library, name = source.imported(call.func)
    types = bool(call.args or call.keywords)
    is_hf = library in HF_LIBRARIES and name in HF_PARSERS and types
    return is_hf or (library, name) == ("argparse", "ArgumentParser")


def _constructors(source: Source) -> list[FunctionCall]:
    """The calls that make a parser."""
    origins = (("argparse", "ArgumentParser"), *product(HF_LIBRARIES, HF_PARSERS))
    calls = (call for origin in origins for call in source.calls_to(*origin))
    return [call for call in calls if _is_constructor(source, call.node)]


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


def _is_handed_over(source: Source, call: FunctionCall) -> bool:
    """Whether a function of another module gets a parser, to which it may add options."""
    return any(
        isinstance(arg, ast.Name)
        and ("parser" in arg.id.lower() or _is_bound_to_parser(source, arg.id, call.scope))
        for arg in (*call.node.args, *call.words.values())
    ) and not (_is_own(source, call) or _adds_config_arguments(source, call.node))


def _is_bound_to_parser(source: Source, name: str, scope: Scope) -> bool:
    values = scope.owner(name).values.get(name, [])
    calls = [value for value in values if isinstance(value, ast.Call)]
    return any(_is_constructor(source, v) or _adds_config_arguments(source, v) for v in calls)


def _edits_words(source: Source) -> bool:
    """Whether it changes `sys.argv`."""
    calls = source.calls if "argv." in source.text else ()
    return "argv" in source.altered or any(
        isinstance(call.node.func, ast.Attribute) and last_name(call.node.func.value) == "argv"
        for call in calls
    )


# What the parser surely requires: where one doubt is left, nothing.

# Methods after which an option may not be required, or of another parser.
_DOUBTFUL = frozenset({"add_subparsers", "add_mutually_exclusive_group", "set_defaults"})
# Arguments with which a parser reads words by other rules.
_DOUBTFUL_MAKE = frozenset(
    {"fromfile_prefix_chars", "argument_default", "conflict_handler", "exit_on_error"}
)


def _may_require(source: Source) -> bool:
    """Whether one parser reads all words, whatever else the script does before."""
    makers = _constructors(source)
    parses = _parse_calls(source)
    fires = source.calls_to("fire", "Fire")
    return (
        len(makers) + len(fires) == 1
        and all(_DOUBTFUL_MAKE.isdisjoint(maker.words) for maker in makers)
        and any(
            _reads_command_line(source, call) and _is_reached(source, call)
            for call in (*parses, *fires)
        )
        and not _edits_words(source)
        and {"required", "error", "exit"}.isdisjoint(source.altered)
        and _DOUBTFUL.isdisjoint(source.by_method)
    )


def _is_reached(source: Source, call: FunctionCall, depth: int = 0) -> bool:
    """Whether a script surely comes to a call, unless its words name a file of all arguments."""
    # A lone word may be a file that has all arguments.
    tests = [t for t in (*call.tests, *call.around) if "len(sys.argv) == 2" not in ast.unparse(t)]
    if tests or depth == MOST_STEPS or call.function in source.methods:
        return False
    callers = source.callers(call.function)
    return not call.function or any(_is_reached(source, other, depth + 1) for other in callers)


def _added(source: Source) -> list[Option]:
    """The options that `add_argument` calls make."""
    calls = source.by_method.get("add_argument", ())
    options = [option for call in calls for option in argparse_options(call)]
    if source.calls_to("deepspeed", "add_config_arguments"):
        options += _CONFIG_ARGUMENTS
    if "add_argparse_args" in source.by_method:
        options += _OF_LIGHTNING
    return options


def _hf_parsers(source: Source) -> list[FunctionCall]:
    """The calls that make an HfArgumentParser, a TrlParser, or a subclass.

    A subclass of another module is known by its name and by the classes that it is given.
    """
    calls = [
        call
        for (library, name), imported in source.by_origin.items()
        for call in imported
        if last_name(call.node) not in source.classes
        if (
            name in HF_PARSERS
            if library in HF_LIBRARIES
            else _is_parser_name(name) and call.node.args
        )
    ]
    for name, node in source.classes.items():
        bases = map(last_name, node.bases)
        if any(base in HF_PARSERS or _is_parser_name(base) for base in bases):
            calls += source.by_method.get(name, ())
    return sorted(calls, key=lambda call: call.line)


def _is_foreign(source: Source, call: FunctionCall) -> bool:
    """Whether a class of another module makes the parser."""
    library, name = source.imported(call.node.func)
    return library not in HF_LIBRARIES and _is_parser_name(name)


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


# Read what Hydra gives a script: its YAML files, composed, and the words that choose them.
#
# hydra 1.3, _internal/defaults_list.py: a file lists in `defaults` the files that it is made of,
# each an option of a group, which is a folder; what the file says itself counts last, but for
# `_self_`.

_DEEPEST = 8
_SELF = "_self_"
# What puts keys of one file into another place, or changes what another file chose.
_PLACED = re.compile(r"@package|^ *- *override (?!/?hydra/)", re.MULTILINE)
# hydra 1.3, _internal/utils.py, get_args_parser: of its own options those that name a file.
_OWN_OPTIONS = ScriptParser(
    options=(
        Option(flags=("--config-path", "-cp"), dest="config_path"),
        Option(flags=("--config-name", "-cn"), dest="config_name"),
    )
)
# A number to OmegaConf, and a text to PyYAML.
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def with_hydra(
    line: CommandLine, source: Source, folder: Path, words: Sequence[str]
) -> CommandLine:
    """Add the keys of Hydra's files, as options that are written `key=value`.

    Args:
        line: The command line without them, which is left as it is where a file cannot be read, or
            says where its keys go.
        source: The script; what its function is called with becomes a namespace.
        folder: That of the script, from which Hydra's path counts.
        words: The words after the script.
    """
    mains = (
        (function, decorator)
        for function in source.functions.values()
        for decorator in function.decorator_list
        if source.imported(getattr(decorator, "func", decorator)) == ("hydra", "main")
    )
    function, decorator = next(mains, (None, None))
    if function is None:
        return line
    # Its parser ends the job at a word such as `--local_rank=0`.
    line = replace(line, parser=replace(line.parser, strict=True))
    given = {
        word.arg: getattr(word.value, "value", None) for word in getattr(decorator, "keywords", ())
    }
    given |= {dest: said.value for dest, said in read_words(_OWN_OPTIONS, tuple(words)).items()}
    root = folder / str(given.get("config_path") or "")
    try:
        chosen = _chosen(words, root)
        keys = dict(_compose(root, str(given.get("config_name")), "", chosen, _DEEPEST))
    except (OSError, ValueError, ZerowizError):
        return line
    source.namespaces.update(argument.arg for argument in function.args.args[:1])
    options = tuple(_key_option(key, value) for key, value in keys.items())
    parser = ScriptParser(options=options, abbreviates=False, strict=True)
    return replace(line, parser=parser, reads_words=True)


def _chosen(words: Sequence[str], root: Path) -> Mapping[str, str]:
    """What is typed as `key=value`; a group among the keys chooses its file.

    Raises:
        ValueError: A group is added or taken away.
    """
    pairs = [word.partition("=") for word in words if not word.startswith("-")]
    for key, _, _ in pairs:
        name = key.lstrip("+~")
        if "@" in key or (name != key and (root / name).is_dir()):
            raise ValueError(key)
    return {key: value for key, _, value in pairs}


def _compose(
    root: Path, name: str, package: str, chosen: Mapping[str, str], depth: int
) -> Iterator[tuple[str, object]]:
    """The keys of a file with dots between them, and their values; a later one counts.

    Raises:
        OSError: A file is not there.
        ValueError: It is of a shape that is not followed.
        ZerowizError: It is not YAML.
    """
    from zerowiz.probe.config_text import load_yaml  # noqa: PLC0415 - takes long to load

    path = root / f"{name.removesuffix('.yaml')}.yaml"
    text = require_text(path)
    content = load_yaml(str(path), text)
    if not isinstance(content, dict) or _PLACED.search(text) or not depth:
        raise ValueError(str(path))
    parts = content.pop("defaults", None) or []
    for part in parts if _SELF in parts else [*parts, _SELF]:
        if part == _SELF:
            yield from _leaves(content, package)
            continue
        (group, option), *_ = part.items() if isinstance(part, dict) else [("", part)]
        needed = str(group).removeprefix("optional ")
        if "hydra/" in needed:
            continue
        is_absolute = f"{needed}{option}".startswith("/")
        inner = needed if is_absolute else f"{name.rpartition('/')[0]}/{needed}"
        option = chosen.get(inner.strip("/"), str(option))
        target = f"{inner}/{option}".strip("/").removesuffix(".yaml")
        is_there = needed == group or (root / f"{target}.yaml").is_file()
        if option not in {"None", "null"} and is_there:
            below = f"{package}.{needed.strip('/').replace('/', '.')}".strip(".")
            yield from _compose(root, target, below, chosen, depth - 1)


def _leaves(content: Mapping[str, object], package: str) -> Iterator[tuple[str, object]]:
    for key, value in content.items():
        name = f"{package}.{key}".lstrip(".")
        if isinstance(value, dict):
            yield from _leaves(value, name)
        else:
            yield name, value


def _key_option(key: str, value: object) -> Option:
    """A key as an option; a value that is made of others is not known."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    is_known = type(value) in _OF_TYPES and "${" not in str(value)
    default = cast("Scalar", value) if is_known else None
    reads = _OF_TYPES.get(type(value), Reads.STR)
    return Option(flags=(f"{key}=",), dest=key, default=default, reads=reads)
