"""Find how a script's engine gets its config, and the engines in modules beside it."""

import ast
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from zerowiz.core.dsconfig.merge import value_at
from zerowiz.core.dsconfig.schema import PARALLEL_KEYS, shares_work
from zerowiz.core.script.arguments import Scalar
from zerowiz.core.script.facts import (
    SHARED_SEQUENCES,
    UNSEEN,
    Convention,
    Obstacle,
    ParallelUse,
    ScriptFacts,
    ValueSource,
)
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration
from zerowiz.probe.files import LONGEST_SCRIPT_BYTES, read_named
from zerowiz.probe.script.imports import HEIGHT, has_module
from zerowiz.probe.script.reader import Reader, agree, show_argument
from zerowiz.probe.script.source import (
    ACCELERATOR,
    FROM_PARSED,
    HF_LIBRARIES,
    LIGHTNING,
    OPTIMIZER,
    PARSE_CALLS,
    FunctionCall,
    Scope,
    follow,
    last_name,
    literal,
    nodes_of,
    parse_quietly,
    unless_none,
    words_of,
)

if TYPE_CHECKING:
    from zerowiz.core.preflight.facts import Import, SourceFolder

# deepspeed 0.19.8, __init__.py, initialize: the positions of its arguments.
ARGS_POSITION = 0
CONFIG_POSITIONS = {"config": 10, "config_params": 12}
_REPLACING = {"optimizer": 2, "lr_scheduler": 5}

_BUILT = frozenset(
    {Obstacle.BUILT, Obstacle.BUILT_HF, Obstacle.BUILT_ACCELERATE, Obstacle.HIDDEN_HF}
)


# Find the libraries that a script needs and lacks.

_PROJECT_FILES = ("pyproject.toml", "setup.py")


def read_imports(path: Path, folder: Path) -> "tuple[Import, ...]":
    """The libraries that a script imports; none where Python cannot parse it.

    Args:
        path: The script.
        folder: The folder that it imports from first.
    """
    from zerowiz.core.preflight.facts import Import  # noqa: PLC0415 - only a launch asks

    try:
        text = read_named(path, LONGEST_SCRIPT_BYTES).decode(errors="replace")
        tree = parse_quietly(text)
    except (OSError, SyntaxError, ValueError, MemoryError, RecursionError):
        return ()
    lines: dict[str, int] = {}
    # A script that changes `sys.path` may import modules that are not found here.
    for statement in () if "sys.path" in text else tree.body:
        for name in _imported(statement):
            lines.setdefault(name, statement.lineno)
    return tuple(
        Import(path=str(path), line=line, name=name, source=_find_source(name, path))
        for name, line in lines.items()
        if name not in sys.stdlib_module_names and not has_module(folder, name)
    )


def _find_source(name: str, script: Path) -> "SourceFolder | None":
    """The folder of the script's repository that has a package, as seen from here."""
    from zerowiz.core.preflight.facts import SourceFolder  # noqa: PLC0415 - only a launch asks

    above = script.resolve().parents[:HEIGHT]
    for place in (place for folder in above for place in (folder, folder / "src")):
        if (place / name / "__init__.py").is_file():
            project = place.parent if place.name == "src" else place
            is_project = any((project / file).is_file() for file in _PROJECT_FILES)
            return SourceFolder(
                path=os.path.relpath(place),
                project=os.path.relpath(project) if is_project else None,
            )
    return None


def _imported(statement: ast.stmt) -> list[str]:
    """The libraries that a statement imports."""
    if isinstance(statement, ast.Import):
        return [alias.name.partition(".")[0] for alias in statement.names]
    if isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
        return [statement.module.partition(".")[0]]
    return []


# Find the convention by which a script takes its DeepSpeed config.


def with_convention(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the convention of a script; where it has several, the one that takes precedence."""
    routes = [_by_initialize, _by_arguments, _by_accelerator, _by_lightning, _by_hidden_arguments]
    engines = read.source.calls_to("deepspeed", "initialize")
    own_lines = read.source.own_lines
    libraries = {origin.partition(".")[0] for origin in read.source.imports.values()}
    prepared = (call.node.args for call in read.source.by_method.get("prepare", []))
    by_accelerate = any(OPTIMIZER.search(ast.unparse(arg)) for args in prepared for arg in args)
    if by_accelerate or (own_lines and all(engine.line >= own_lines for engine in engines)):
        # One that a module makes, or beside a loop of Accelerate, may be that of another model.
        routes.insert(-1, routes.pop(0))
    for route in routes:
        routed = route(facts, read)
        if routed is not None:
            by_hydra = routed.obstacle in _BUILT and "hydra" in libraries
            return replace(routed, obstacle=Obstacle.HYDRA) if by_hydra else routed
    added = read.source.calls_to("deepspeed", "add_config_arguments")
    # Hydra may make a Trainer of its files.
    fits = read.source.by_method.get("fit", []) if libraries & {*LIGHTNING} else []
    if fits and not added:
        return replace(
            facts,
            integration=Integration.LIGHTNING,
            config_line=fits[0].line,
            obstacle=Obstacle.HIDDEN_LIGHTNING,
        )
    if not added:
        # Such as `src/train.py` of LLaMA-Factory's repository.
        is_program = "llamafactory" in libraries
        return replace(facts, obstacle=Obstacle.PROGRAM_FILE if is_program else Obstacle.NO_ENGINE)
    return replace(
        facts,
        integration=Integration.DEEPSPEED,
        config_line=added[0].line,
        obstacle=Obstacle.ENGINE_UNSEEN,
    )


def _by_initialize(facts: ScriptFacts, read: Reader) -> ScriptFacts | None:
    """The convention of a script that calls `deepspeed.initialize`; None for any other script."""
    calls = read.source.calls_to("deepspeed", "initialize")
    # A Trainer makes one of the model beside that which it trains, such as a reference.
    calls = [call for call in calls if not _is_of_trainer(read, call)]
    if not calls:
        return None
    adds_arguments = bool(read.source.calls_to("deepspeed", "add_config_arguments"))
    facts = replace(
        facts,
        convention=Convention.ADD_CONFIG_ARGUMENTS,
        integration=Integration.DEEPSPEED,
        config_line=calls[0].line,
        passed=frozenset(
            name
            for engine in calls
            for name, position in _REPLACING.items()
            if engine.argument(name, position) is not None
        ),
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
    if has_args and "deepspeed_config" in read.source.altered:
        return replace(facts, convention=Convention.CONFIG_DICT, obstacle=Obstacle.BUILT)
    if has_args and adds_arguments:
        return facts
    option = next(iter(read.line.parser.of("deepspeed_config")), None)
    if has_args and option is not None:
        return replace(facts, convention=Convention.OWN_FLAG, own_flag=option.flag)
    return replace(facts, convention=Convention.UNKNOWN, obstacle=Obstacle.NO_CONFIG)


def _is_of_trainer(read: Reader, call: FunctionCall) -> bool:
    """Whether a call stands in a method of a Trainer."""
    return call.function in read.source.methods and any(
        _is_trainer(read, ast.Name(id=name))
        for name, node in read.source.classes.items()
        if any(inner is call.node for inner in nodes_of(node))
    )


def _is_made_here(args: ast.expr, read: Reader, engine: FunctionCall) -> bool:
    """Whether `args=` is surely no parsed command line: `SimpleNamespace(local_rank=0)`."""
    value = follow(args, engine.scope)
    if not isinstance(value, ast.Call) or last_name(value) in read.source.functions:
        return False
    parts = [*nodes_of(value)]
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
    source = agree(read.config(expr, call) for expr, call in configs)
    twice = has_args and any(
        isinstance(expr, ast.Attribute) and expr.attr == "deepspeed_config" for expr, _ in configs
    )
    if twice and source.flag is not None:
        return replace(facts, convention=Convention.UNKNOWN, obstacle=Obstacle.TWO_CONFIGS)
    return _by_source(facts, source, Convention.CONFIG_LITERAL, Obstacle.BUILT)


def _by_source(
    facts: ScriptFacts, source: ValueSource, literal: Convention, built: Obstacle
) -> ScriptFacts:
    """The convention by the config's source: an option, a literal path, or a built value."""
    if source.flag is not None:
        return replace(facts, convention=Convention.OWN_FLAG, own_flag=source.flag)
    if source.value is not None:
        return replace(
            facts, convention=literal, literal_config=str(source.value), config_line=source.line
        )
    return replace(facts, convention=Convention.CONFIG_DICT, obstacle=built)


def _by_arguments(facts: ScriptFacts, read: Reader) -> ScriptFacts | None:
    """The convention of a script with TrainingArguments; None for any other script.

    They may be built in the script, filled by a parser, or passed to a Trainer from elsewhere. A
    loop of its own over an `Accelerator()` may only read them.
    """
    methods = read.source.by_method
    # Of alpaca_farm: a subclass in another module.
    has_loop = "prepare" in methods and any(method.endswith("Accelerator") for method in methods)
    has_engine = read.source.calls_to("deepspeed", "initialize")
    trains = [method for method in methods if method.endswith("Trainer")]
    own = all(t in read.source.classes and not _is_trainer(read, ast.Name(id=t)) for t in trains)
    # A class of its own that has an engine or a loop may take the arguments of a Trainer.
    if own and (has_loop or (has_engine and trains)):
        return None
    facts = replace(facts, convention=Convention.HF_IN_CODE, integration=Integration.HF)
    built = read.line.built
    if built:
        facts = replace(facts, config_line=built[0].call.line)
    configs = [(unless_none(call.keywords.get("deepspeed")), call.call) for call in built]
    given = [expr for expr, _ in configs if expr is not None]
    if given:
        source = agree(read.config(expr, call) if expr else UNSEEN for expr, call in configs)
        facts = replace(facts, config_line=given[0].lineno)
        return _by_source(facts, source, Convention.HF_LITERAL, Obstacle.BUILT_HF)
    parsed = read.line.training is not None
    if parsed and read.line.fills_arguments:
        return replace(facts, convention=Convention.HF_PARSER)
    if any(call.hidden for call in built):
        return replace(facts, convention=Convention.UNKNOWN, obstacle=Obstacle.HIDDEN_HF)
    if built or parsed:
        return facts
    lines = [call.line for call in read.source.calls if _is_trainer(read, call.node.func)]
    return _hidden(facts, lines[0]) if lines and not has_loop else None


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


def _is_trainer(read: Reader, expr: ast.expr) -> bool:
    """Whether a class is a Trainer of a library, or a subclass in the script."""
    _own, others = read.source.lineage(expr)
    kinds = map(read.source.imported, others)
    return any(library in HF_LIBRARIES and name.endswith("Trainer") for library, name in kinds)


def _by_accelerator(facts: ScriptFacts, read: Reader) -> ScriptFacts | None:
    """The convention of `Accelerator()`, configured from outside or by a plugin; None without."""
    calls = read.source.calls_to(*ACCELERATOR)
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
    # `DeepSpeedPlugin(hf_ds_config=args.deepspeed) if args.deepspeed else None`
    plugin = plugin.body if isinstance(plugin, ast.IfExp) else plugin
    if not isinstance(plugin, ast.Call) or last_name(plugin) != "DeepSpeedPlugin":
        return _by_source(facts, UNSEEN, Convention.CONFIG_LITERAL, Obstacle.BUILT_ACCELERATE)
    built = replace(calls[0], node=plugin, words=words_of(plugin))
    # accelerate 1.x, DeepSpeedPlugin: without `hf_ds_config` it reads the environment too.
    config = built.argument("hf_ds_config", 0)
    if config is None:
        return facts
    source = read.config(config, built)
    return _by_source(facts, source, Convention.CONFIG_LITERAL, Obstacle.BUILT_ACCELERATE)


def _by_lightning(facts: ScriptFacts, read: Reader) -> ScriptFacts | None:
    """The convention of Lightning's Trainer, by its strategy; None without one."""
    calls = read.source.lightning_trainers()
    if not calls:
        return None
    call = calls[0]
    facts = replace(
        facts,
        convention=Convention.LIGHTNING,
        integration=Integration.LIGHTNING,
        config_line=call.line,
    )
    keywords, hidden = read.source.keywords(call)
    expr = keywords.get("strategy")
    is_hidden, named = hidden and expr is None, lightning_word(read, call, "strategy", "auto")
    if is_hidden:
        named = ValueSource(line=call.line, code=f"{call.name}(...)")
    strategy = None if expr is None else read.follow(expr, call)
    if isinstance(strategy, ast.Call) and last_name(strategy) == "DeepSpeedStrategy":
        named, built = UNSEEN, [replace(call, node=strategy, words=words_of(strategy))]
    else:
        # One that some runs take.
        is_open = is_hidden or isinstance(strategy, ast.Name)
        built = read.source.by_method.get("DeepSpeedStrategy", []) if is_open else []
    facts = facts.with_sources(strategy=named)
    for made in built[:1]:
        config = unless_none(made.keyword("config"))
        if config is None:
            return facts
        facts = replace(facts, config_line=made.line).with_sources(strategy=UNSEEN)
        source = read.config(config, made)
        return _by_source(facts, source, Convention.CONFIG_LITERAL, Obstacle.BUILT_LIGHTNING)
    is_other = named.flag is None and named.seen and not str(named.value).startswith("deepspeed")
    # One that is not followed is DeepSpeed's only where the script says so somewhere.
    is_other |= not named.seen and "deepspeed" not in read.source.text.lower()
    if is_other and not is_hidden:
        return replace(facts, convention=Convention.UNKNOWN, obstacle=Obstacle.NO_STRATEGY)
    return facts


def lightning_word(read: Reader, call: FunctionCall, word: str, default: Scalar) -> ValueSource:
    """What a Trainer of Lightning gets for an argument; unseen where `**` hides it."""
    keywords, hidden = read.source.keywords(call)
    if word in keywords:
        return read.bind(keywords[word], call, word)
    if call.method == FROM_PARSED:
        return read.named(frozenset({word}))
    return (
        UNSEEN
        if hidden
        else ValueSource(value=default, line=call.line, keyword=word, default_of="Trainer")
    )


# Find what makes several ranks share a tensor, a sequence or experts.

# accelerate 1.15, parallelism_config.py and utils/dataclasses.py; transformers 5.23,
# modeling_utils.py; deepspeed 0.19.8, __init__.py and runtime/sequence_parallel/ulysses_sp.py.
_BY_MPU = "the parallelism of an `mpu`"
_SIZES: Mapping[str, Mapping[str, str]] = {
    "ParallelismConfig": {
        "sp_size": SHARED_SEQUENCES,
        "cp_size": "context parallelism",
        "tp_size": "tensor parallelism",
    },
    "TorchTensorParallelPlugin": {"tp_size": "tensor parallelism"},
    "DistributedConfig": {
        "tp_size": "tensor parallelism",
        "enable_expert_parallel": "expert parallelism",
    },
    "from_pretrained": {"tp_plan": "tensor parallelism"},
    "tp_model_init": {"tp_size": "tensor parallelism"},
    "register_with_transformers": {"sequence_parallel_size": SHARED_SEQUENCES},
    "initialize": {"mpu": _BY_MPU},
}


def with_parallelism(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add what makes ranks share more than data; the size of a sequence's group is a setting."""
    uses = (*_sizes(read), *_written_sizes(read))
    shared = [use for use in uses if use.kind == SHARED_SEQUENCES and use.size.seen]
    settled = [use for use in shared if not use.conditions or use.size.flag is not None]
    size = agree(use.size for use in settled)
    built = read.source.by_method.get("ParallelismConfig", [])
    replicas = agree(read.keyword(call, "dp_shard_size") or UNSEEN for call in built)
    facts = facts.with_sources(sequence_parallel=size, data_parallel=replicas)
    # What Ulysses returns is the `mpu`.
    by_ulysses = "register_with_transformers" in read.source.by_method
    others = (use for use in uses if use.kind != _BY_MPU or not by_ulysses)
    return replace(
        facts, parallel=tuple(use for use in others if not size.seen or use not in settled)
    )


def _sizes(read: Reader) -> Iterator[ParallelUse]:
    for name, sizes in _SIZES.items():
        for call in read.source.by_method.get(name, []):
            for keyword, kind in sizes.items():
                expr = unless_none(call.keyword(keyword))
                if expr is not None:
                    yield ParallelUse(
                        conditions=tuple(read.conditions(call)),
                        line=expr.lineno,
                        code=show_argument(call, expr, keyword),
                        size=read.bind(expr, call, keyword),
                        kind=kind,
                    )


def _written_sizes(read: Reader) -> Iterator[ParallelUse]:
    """Those of a config that the script builds itself."""
    sections = "|".join(key.partition(".")[0] for key in PARALLEL_KEYS)
    if not re.search(f"[\"']({sections})[\"'] *:", read.source.text):
        return
    for node in (part for part in nodes_of(read.source.tree) if isinstance(part, ast.Dict)):
        values = _written(node, read.source.module)
        for key, kind in PARALLEL_KEYS.items():
            if shares_work(values, key):
                yield ParallelUse(
                    line=node.lineno,
                    code=key,
                    size=UNSEEN,
                    kind=kind,
                    is_open=isinstance(value_at(values, key), str),
                )


def _written(expr: ast.expr | None, scope: Scope) -> object:
    """A dict literal with its constants; anything else in it is its text."""
    if not isinstance(expr, ast.Dict):
        value = literal(expr, scope)
        return ast.unparse(expr) if value is None and expr is not None else value
    return {
        key.value: _written(value, scope)
        for key, value in zip(expr.keys, expr.values, strict=True)
        if isinstance(key, ast.Constant)
    }
