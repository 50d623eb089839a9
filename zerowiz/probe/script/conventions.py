"""Find the convention by which a script takes its DeepSpeed config."""

import ast

from zerowiz.core.script.facts import UNSEEN, Binding, Convention, Obstacle, ScriptFacts
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Integration
from zerowiz.probe.script.arguments import built_arguments
from zerowiz.probe.script.config.engine import ARGS_POSITION, CONFIG_POSITIONS, passed_by
from zerowiz.probe.script.expressions import follow, last_name, unless_none
from zerowiz.probe.script.reader import Reader, agree
from zerowiz.probe.script.source import HF_LIBRARIES, FunctionCall
from zerowiz.probe.script.walk import PARSE_CALLS


def with_convention(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the convention of a script; where it has several, the one that takes precedence."""
    for route in (_by_initialize, _by_arguments, _by_accelerator, _by_hidden_arguments):
        found = route(facts, read)
        if found is not None:
            return found
    added = read.source.calls_to("deepspeed", "add_config_arguments")
    if not added:
        is_program = _runs_llama_factory(read)
        return replace(facts, obstacle=Obstacle.PROGRAM_FILE if is_program else Obstacle.NO_ENGINE)
    return replace(
        facts,
        integration=Integration.DEEPSPEED,
        config_line=added[0].line,
        obstacle=Obstacle.ENGINE_UNSEEN,
    )


def _runs_llama_factory(read: Reader) -> bool:
    """Whether a script starts LLaMA-Factory, as `src/train.py` of its repository does."""
    return any(
        origin.partition(".")[0] == "llamafactory" for origin in read.source.imports.values()
    )


def _by_initialize(facts: ScriptFacts, read: Reader) -> ScriptFacts | None:
    """The convention of a script that calls `deepspeed.initialize`; None for any other script."""
    calls = read.source.calls_to("deepspeed", "initialize")
    if not calls:
        return None
    adds_arguments = bool(read.source.calls_to("deepspeed", "add_config_arguments"))
    facts = replace(
        facts,
        convention=Convention.ADD_CONFIG_ARGUMENTS,
        integration=Integration.DEEPSPEED,
        config_line=calls[0].line,
        passed=passed_by(calls),
    )
    configs = [
        (expr, call)
        for call in calls
        for name, position in CONFIG_POSITIONS.items()
        if (expr := call.argument(name, position)) is not None
    ]
    args = calls[0].argument("args", ARGS_POSITION)
    has_args = args is not None and not _is_made_here(args, read, calls[0])
    if configs:
        return _by_config(facts, read, configs, has_args=has_args)
    if has_args and adds_arguments:
        return facts
    own = next(iter(read.line.parser.of("deepspeed_config")), None)
    if has_args and own is not None:
        return replace(facts, convention=Convention.OWN_FLAG, own_flag=own.flag)
    return replace(facts, convention=Convention.UNKNOWN, obstacle=Obstacle.NO_CONFIG)


def _is_made_here(args: ast.expr, read: Reader, engine: FunctionCall) -> bool:
    """Whether `args=` is surely no parsed command line: `SimpleNamespace(local_rank=0)`."""
    made = follow(args, engine.scope)
    if not isinstance(made, ast.Call) or last_name(made) in read.source.functions:
        return False
    parts = [*ast.walk(made)]
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    parses = any(isinstance(part, ast.Call) and last_name(part) in PARSE_CALLS for part in parts)
    return not parses and not names & read.source.namespaces


def _by_config(
    facts: ScriptFacts,
    read: Reader,
    configs: list[tuple[ast.expr, FunctionCall]],
    *,
    has_args: bool,
) -> ScriptFacts:
    """The convention of `initialize(config=...)`, which may be a path, an option, or a dict."""
    found = agree(read.config(expr, call) for expr, call in configs)
    twice = has_args and any(
        isinstance(expr, ast.Attribute) and expr.attr == "deepspeed_config" for expr, _ in configs
    )
    if twice and found.flag is not None:
        return replace(facts, convention=Convention.UNKNOWN, obstacle=Obstacle.TWO_CONFIGS)
    return _by_source(facts, found, Convention.CONFIG_LITERAL, Obstacle.BUILT)


def _by_source(
    facts: ScriptFacts, found: Binding, literal: Convention, built: Obstacle
) -> ScriptFacts:
    """The convention by the config's source: an option, a literal path, or a built value."""
    if found.flag is not None:
        return replace(facts, convention=Convention.OWN_FLAG, own_flag=found.flag)
    if found.value is not None:
        return replace(
            facts, convention=literal, literal_config=str(found.value), config_line=found.line
        )
    return replace(facts, convention=Convention.CONFIG_DICT, obstacle=built)


def _by_arguments(facts: ScriptFacts, read: Reader) -> ScriptFacts | None:
    """The convention of a script with TrainingArguments; None for any other script.

    They may be built in the script, filled by a parser, or passed to a Trainer from elsewhere.
    """
    facts = replace(facts, convention=Convention.HF_IN_CODE, integration=Integration.HF)
    built = built_arguments(read.source)
    if built:
        facts = replace(facts, config_line=built[0].call.line)
    configs = [(unless_none(each.keywords.get("deepspeed")), each.call) for each in built]
    given = [expr for expr, _ in configs if expr is not None]
    if given:
        found = agree(read.config(expr, call) if expr else UNSEEN for expr, call in configs)
        facts = replace(facts, config_line=given[0].lineno)
        return _by_source(facts, found, Convention.HF_LITERAL, Obstacle.BUILT_HF)
    parsed = read.line.training is not None
    if parsed and read.line.fills_arguments:
        return replace(facts, convention=Convention.HF_PARSER)
    if any(each.hidden for each in built):
        return replace(facts, convention=Convention.UNKNOWN, obstacle=Obstacle.HIDDEN_HF)
    return facts if built or parsed else _by_trainer(facts, read)


def _by_trainer(facts: ScriptFacts, read: Reader) -> ScriptFacts | None:
    """The convention of a Trainer whose arguments come from elsewhere; None without a Trainer."""
    lines = [call.line for call in read.source.calls if _is_trainer(read, call.node.func)]
    return _hidden(facts, lines[0]) if lines else None


def _by_hidden_arguments(facts: ScriptFacts, read: Reader) -> ScriptFacts | None:
    """The convention of an HfArgumentParser that fills what a Trainer elsewhere may take."""
    return None if read.line.hf_line is None else _hidden(facts, read.line.hf_line)


def _hidden(facts: ScriptFacts, line: int) -> ScriptFacts:
    return replace(
        facts,
        convention=Convention.UNKNOWN,
        integration=Integration.HF,
        config_line=line,
        obstacle=Obstacle.HIDDEN_HF,
    )


def _is_trainer(read: Reader, expr: ast.expr, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a class is a Trainer of a library, or a subclass in the script."""
    library, name = read.source.imported(expr)
    if library in HF_LIBRARIES and name.endswith("Trainer"):
        return True
    node = read.source.classes.get(expr.id) if isinstance(expr, ast.Name) else None
    bases = node.bases if node is not None else []
    # A class may have the name of one that its bases are made of.
    seen |= {last_name(expr)}
    return any(_is_trainer(read, base, seen) for base in bases if last_name(base) not in seen)


def _by_accelerator(facts: ScriptFacts, read: Reader) -> ScriptFacts | None:
    """The convention of `Accelerator()`, configured from outside or by a plugin; None without."""
    calls = read.source.calls_to("accelerate", "Accelerator")
    if not calls:
        return None
    facts = replace(
        facts,
        convention=Convention.ACCELERATOR,
        integration=Integration.ACCELERATE,
        config_line=calls[0].line,
    )
    given = (unless_none(call.keyword("deepspeed_plugin", "deepspeed_plugins")) for call in calls)
    expr = next((expr for expr in given if expr is not None), None)
    if expr is None:
        return facts
    plugin = follow(expr, calls[0].scope)
    if not isinstance(plugin, ast.Call) or last_name(plugin) != "DeepSpeedPlugin":
        return _by_source(facts, UNSEEN, Convention.CONFIG_LITERAL, Obstacle.BUILT_ACCELERATE)
    built = replace(calls[0], node=plugin)
    # accelerate 1.x, DeepSpeedPlugin: without `hf_ds_config` it reads the environment too.
    config = built.argument("hf_ds_config", 0)
    if config is None:
        return facts
    facts = replace(facts, config_line=built.line)
    found = read.config(config, built)
    return _by_source(facts, found, Convention.CONFIG_LITERAL, Obstacle.BUILT_ACCELERATE)
