"""See whether a script refuses a word that none of its own options spells, or reads no word at all.

It must be seen of every parser that reads the command line. A parser that another module made, or
was handed, may have options that do not stand here.
"""

import ast
import re
from collections.abc import Collection, Iterator

from zerowiz.core.script.options import LOCAL_RANK_FLAG
from zerowiz.probe.script.expressions import Scope, last_name
from zerowiz.probe.script.source import HF_LIBRARIES, HF_PARSERS, FunctionCall, Source
from zerowiz.probe.script.walk import PARSE_CALLS

_ALL_WORDS = "sys.argv[1:]"
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
        and all(_parses_strictly(source, call) for call in parse_calls)
        and not _edits_words(source, flags)
    )


def _has_hydra(source: Source) -> bool:
    """Whether Hydra calls a function of the script; it takes `name=value` beside its own options.

    hydra 1.3, main.py: `args_parser.parse_args()`.
    """
    decorators = (each for f in source.functions.values() for each in f.decorator_list)
    return any(
        source.imported(each.func if isinstance(each, ast.Call) else each) == ("hydra", "main")
        for each in decorators
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


def _parses_strictly(source: Source, call: FunctionCall) -> bool:
    return (
        call.method in _STRICT_CALLS
        and _reads_command_line(source, call)
        and call.keyword(*_LENIENT_PARSE) is None
    )


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
