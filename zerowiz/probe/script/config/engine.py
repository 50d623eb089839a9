"""Find the engine, or the parser, that a script has in a module beside it."""

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from zerowiz.core.script.facts import Convention, Obstacle, ScriptFacts
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Integration
from zerowiz.probe.script.expressions import follow, last_name
from zerowiz.probe.script.reader import Reader
from zerowiz.probe.script.source import FunctionCall, Source

# What may be solved by a module of the script: the engine is there, or its parser.
ENGINE_ELSEWHERE = frozenset({Obstacle.ENGINE_UNSEEN, Obstacle.NO_ENGINE, Obstacle.NO_CONFIG})
# deepspeed 0.19.8, __init__.py, initialize: the positions of its arguments.
ARGS_POSITION = 0
CONFIG_POSITIONS = {"config": 10, "config_params": 12}
_REPLACING = {"optimizer": 2, "lr_scheduler": 5}

ReadModule = Callable[[str], Source | None]


def with_local_engine(facts: ScriptFacts, read: Reader, module: ReadModule) -> ScriptFacts:
    """Add the convention of a script whose engine or parser one of its own modules has.

    One step is followed: what the script itself imports, and calls with its parsed arguments.

    Args:
        facts: What the script alone shows.
        read: Answers what an expression of the script depends on.
        module: The module beside the script that has a dotted name; None for any other.
    """
    source, module = read.source, cache(module)
    if facts.obstacle is Obstacle.NO_CONFIG:
        engines = source.calls_to("deepspeed", "initialize")
        taken = [call.argument("args", ARGS_POSITION) for call in engines]
        adds = any(_is_parsed_there(expr, read, module) for expr in taken if expr is not None)
        return _delivered(facts) if adds else facts
    engines = [*_engines(read, module)]
    if not engines or not all(map(_takes_args_alone, engines)):
        return facts
    facts = replace(facts, integration=Integration.DEEPSPEED, passed=passed_by(engines))
    if source.calls_to("deepspeed", "add_config_arguments"):
        return _delivered(facts)
    own = next(iter(read.line.parser.of("deepspeed_config")), None)
    if own is None:
        return facts
    return replace(_delivered(facts), convention=Convention.OWN_FLAG, own_flag=own.flag)


def passed_by(engines: Iterable[FunctionCall]) -> frozenset[str]:
    """What calls of `initialize` pass that replaces a section of the config."""
    return frozenset(
        name
        for engine in engines
        for name, position in _REPLACING.items()
        if engine.argument(name, position) is not None
    )


def _delivered(facts: ScriptFacts) -> ScriptFacts:
    return replace(facts, convention=Convention.ADD_CONFIG_ARGUMENTS, obstacle=None)


def _is_parsed_there(expr: ast.expr, read: Reader, module: ReadModule) -> bool:
    """Whether `args` come from a module whose parser has DeepSpeed's options."""
    engine = next(iter(read.source.calls_to("deepspeed", "initialize")))
    made = follow(expr, engine.scope)
    if not isinstance(made, ast.Call):
        return False
    found = module(_module_of(read.source.origin(made.func)))
    return found is not None and bool(found.calls_to("deepspeed", "add_config_arguments"))


def _engines(read: Reader, module: ReadModule) -> Iterator[FunctionCall]:
    """The calls of `initialize` in modules whose functions or classes get the parsed arguments."""
    seen: set[str] = set()
    for call in read.source.calls:
        given = (*call.node.args, *(word.value for word in call.node.keywords))
        if not any(_is_namespace(expr, read.source) for expr in given):
            continue
        name = _module_of(read.source.origin(call.node.func))
        found = None if name in seen else module(name)
        seen.add(name)
        if found is not None:
            yield from found.calls_to("deepspeed", "initialize")


def _is_namespace(expr: ast.expr, source: Source) -> bool:
    return isinstance(expr, ast.Name) and expr.id in source.namespaces


def _module_of(origin: str) -> str:
    """The module that a dotted name is from; empty for a name of the script's own."""
    return origin.lstrip(".").rpartition(".")[0]


def _takes_args_alone(engine: FunctionCall) -> bool:
    """Whether an engine gets its config by arguments that are handed to its function or object."""
    built = any(
        engine.argument(name, position) is not None for name, position in CONFIG_POSITIONS.items()
    )
    expr = engine.argument("args", ARGS_POSITION)
    if built or expr is None:
        return False
    if isinstance(expr, ast.Attribute):
        return last_name(expr.value) in {"self", "cls"}
    return isinstance(expr, ast.Name) and engine.scope.owner(expr.id).values.get(expr.id) == [None]
