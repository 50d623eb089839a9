"""Collect the options that a script's parser has."""

import ast
from collections.abc import Mapping

from msgspec import Struct

from zerowiz.core.script.options import Option, ScriptParser, Takes
from zerowiz.core.values import replace
from zerowiz.probe.script.arguments import Arguments, find_arguments
from zerowiz.probe.script.expressions import follow, last_name
from zerowiz.probe.script.options import argparse_options, parameter_options
from zerowiz.probe.script.source import HF_LIBRARIES, HF_PARSERS, FunctionCall, Source
from zerowiz.probe.script.strict import is_strict, parses_literal, shows_options
from zerowiz.probe.script.walk import HF_PARSE_CALLS, PARSE_CALLS

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
    classes = [found for call in hf_calls for found in _parsed_classes(source, call)]
    known = [found for found in classes if found is not None]
    fired = [option for name in sorted(source.fired) for option in _fired(source, name)]
    reads_words = bool(fired or fills) or any(
        call.method in PARSE_CALLS and not parses_literal(call) for call in source.calls
    )
    suffixes = [suffix for call in source.calls for suffix in _FILE_READERS.get(call.method, ())]
    parser = ScriptParser(
        options=(*_added(source), *_fields(known if fills else []), *fired) if reads_words else (),
        abbreviates=not fired and not any(_forbids_abbreviation(call) for call in source.calls),
        complete=len(known) == len(classes)
        and all(found.complete for found in known)
        and shows_options(source),
        args_file_suffixes=tuple(suffixes) if hf_calls else (),
        is_foreign=any(_is_foreign(source, call) for call in hf_calls),
        config_flag="--config" if source.calls_to("trl", "TrlParser") else None,
    )
    flags = {flag for option in parser.options for flag in option.flags}
    strict = parser.complete and is_strict(source, flags)
    parser = replace(parser, strict=strict)
    training = next((found for found in known if found.is_training), None)
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


def _fields(classes: list[Arguments]) -> list[Option]:
    """The options that HfArgumentParser makes of these classes."""
    return [option for each in classes for row in each.fields.values() for option in row]


def _fired(source: Source, name: str) -> list[Option]:
    """The options that Fire makes of a function."""
    function = source.functions.get(name)
    return [] if function is None else [*parameter_options(function)]


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
    made = {id(call.node) for call in hf_calls}
    for call in source.calls:
        func = call.node.func
        if parses_literal(call) or not isinstance(func, ast.Attribute):
            continue
        if call.method in _WORDLESS:
            if call.method in _FILE_READERS and "sys.argv" in ast.unparse(call.node):
                return True  # the words name the file
            continue
        by_method = call.method.startswith("parse") and id(_maker(source, func.value, call)) in made
        if by_method or call.method in HF_PARSE_CALLS:
            return True
    return False


def _maker(source: Source, expr: ast.expr, before: FunctionCall) -> ast.expr | None:
    """The call whose result a name has before another call; any other expression is itself."""
    if not isinstance(expr, ast.Name):
        return expr
    found = [
        call.node
        for call in source.calls
        if expr.id in call.target.split() and call.line < before.line
    ]
    return max(found, key=lambda node: node.lineno, default=None)


def _parsed_classes(source: Source, call: FunctionCall) -> list[Arguments | None]:
    expr = call.argument("dataclass_types", 0)
    if expr is None:
        return []
    expr = follow(expr, call.scope)
    items = expr.elts if isinstance(expr, ast.Tuple | ast.List) else [expr]
    return [find_arguments(source, item) for item in items]


def parsed_names(source: Source) -> set[str]:
    """The names of the classes that HfArgumentParser, or a parser like it, fills."""
    taken = [
        follow(expr, call.scope)
        for call in source.calls
        if _is_hf_parser(source, call) and (expr := call.argument("dataclass_types", 0)) is not None
    ]
    nodes = [node for expr in taken for node in ast.walk(expr)]
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _forbids_abbreviation(call: FunctionCall) -> bool:
    word = call.keyword("allow_abbrev")
    return isinstance(word, ast.Constant) and word.value is False
