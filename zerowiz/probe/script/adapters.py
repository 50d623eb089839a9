"""Read a script's adapters: whether they train, on which layers, at which rank."""

import ast
from collections.abc import Iterator

from msgspec import Struct

from zerowiz.core.script.arguments import BY_ARCHITECTURE
from zerowiz.core.script.facts import UNSEEN, Binding, ScriptFacts
from zerowiz.core.values import replace
from zerowiz.probe.script.expressions import (
    Scope,
    decide,
    follow,
    is_complete,
    last_name,
    unless_none,
)
from zerowiz.probe.script.reader import Reader, agree, show_argument
from zerowiz.probe.script.source import HF_LIBRARIES, FunctionCall, Source
from zerowiz.words import _

# peft 0.21, tuners/lora/config.py, class LoraConfig.
_DEFAULT_RANK = 8
_CONFIG = "LoraConfig"
# The functions that take a config of peft, with the keyword and the position of that argument:
# peft 0.21, mapping_func.py; transformers 5.23, integrations/peft.py.
_TAKERS = {"get_peft_model": ("peft_config", 1), "add_adapter": ("adapter_config", 0)}
# LoraConfig's fields that make adapters larger than their rank does, or train other weights whole.
_UNCOUNTED = ("use_dora", "modules_to_save", "target_parameters", "rank_pattern")
# Libraries whose functions return no weights in 4 bits that were not asked for.
_KNOWN = frozenset({"accelerate", "deepspeed", "diffusers", "peft", "timm", "torch", "unsloth"})
_KNOWN |= HF_LIBRARIES
# How many functions up the conditions around a call are collected.
_MOST_CALLERS = 4


def with_adapters(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the adapters of a script that can train any."""
    source = read.source
    facts = replace(
        facts,
        trains_adapters=_trains_adapters(source),
        builds_elsewhere=any(_builds_elsewhere(source, call) for call in source.calls),
    )
    if not facts.trains_adapters:
        return facts
    facts = replace(facts, quantized=_quantized(read), uncounted=tuple(_uncounted(read)))
    if source.calls_to("trl", "get_peft_config"):
        return replace(
            facts,
            adapters=_by_model_config(read, "use_peft"),
            lora_rank=_by_model_config(read, "lora_r"),
            lora_target_modules=_by_model_config(read, "lora_target_modules"),
        )
    used = [*_used(read)]
    return replace(
        facts,
        adapters=_adapters(read, used),
        lora_rank=agree(_rank(read, config) for each in used for config in each.configs),
        lora_target_modules=agree(
            _targets(read, config) for each in used for config in each.configs
        ),
    )


def _by_model_config(read: Reader, name: str) -> Binding:
    """The setting that a field of TRL's ModelConfig has."""
    options = read.line.parser.of(name)
    return read.bind_option(options[0], "ModelConfig") if options else UNSEEN


def _trains_adapters(source: Source) -> bool:
    """Whether the script imports peft, or TRL's function that builds a config of peft.

    A config of peft may come from another module of it, too.
    """
    origins = (*source.imports.values(), *source.stars)
    names = {origin.rpartition(".")[2] for origin in origins}
    libraries = {origin.split(".")[0] for origin in origins}
    return (
        "get_peft_config" in names
        or not libraries.isdisjoint({"peft", "unsloth"})
        or any(unless_none(call.keyword("peft_config")) for call in source.calls)
    )


class _Use(Struct, frozen=True, kw_only=True):
    """One call that takes a config of peft, and the LoraConfigs that may be that config."""

    call: FunctionCall
    configs: tuple[FunctionCall, ...]
    hidden: bool = False
    """The config may be another one, or none."""


def _used(read: Reader) -> Iterator[_Use]:
    """The calls that add adapters to a model; without any, those that build their config."""
    source, found = read.source, False
    built = tuple(source.calls_to("peft", _CONFIG))
    for call in source.calls:
        expr = _taken(source, call)
        if expr is not None:
            found = True
            yield _resolve(source, call, expr, built)
    if not found:
        yield from (_Use(call=call, configs=(call,)) for call in built)


def _taken(source: Source, call: FunctionCall) -> ast.expr | None:
    """The argument of a call that is a config of peft; None where it has none."""
    if call.method not in _TAKERS:
        return unless_none(call.keyword("peft_config"))
    known = call.method != "get_peft_model" or source.imported(call.node.func)[0] == "peft"
    return call.argument(*_TAKERS[call.method]) if known else None


def _resolve(
    source: Source, call: FunctionCall, expr: ast.expr, built: tuple[FunctionCall, ...]
) -> _Use:
    """The LoraConfigs that an expression may stand for."""
    expr = follow(expr, call.scope)
    inside = {id(node) for node in ast.walk(expr)}
    name = last_name(expr)
    for configs in (
        tuple(config for config in built if id(config.node) in inside),
        tuple(c for c in built if not isinstance(expr, ast.Call) and name in c.target.split()),
        tuple(c for c in built if isinstance(expr, ast.Call) and c.function == name),
    ):
        if configs:
            # A function that returns at several places may return none.
            returns = _returns(source, name) if isinstance(expr, ast.Call) else 1
            return _Use(call=call, configs=configs, hidden=returns > 1)
    # A parameter of a function: its callers pass one of the configs that the file builds, if any.
    passed = isinstance(expr, ast.Name) and expr.id in call.scope.values
    return _Use(call=call, configs=built, hidden=not (passed and built))


def _returns(source: Source, name: str) -> int:
    function = source.functions.get(name)
    return sum(isinstance(node, ast.Return) for node in ast.walk(function)) if function else 0


def _condition(read: Reader, use: _Use) -> Binding:
    """The condition under which a model gets its adapters."""
    if use.hidden or not use.configs:
        return Binding(line=use.call.line, code=f"{use.call.name}(...)")
    tests = [_tests(read.source, call) for call in (use.call, *use.configs[:1])]
    if any(_tests(read.source, config) != tests[-1] for config in use.configs):
        return UNSEEN
    return _under(read, use.call, tests)


def _adapters(read: Reader, used: list[_Use]) -> Binding:
    """The condition under which a model has adapters: new ones, or those of a checkpoint."""
    found = _join([_condition(read, each) for each in used])
    if found.seen or any(use.hidden or not use.configs for use in used):
        return found
    calls = [*(use.call for use in used), *filter(_loads_adapters, read.source.calls)]
    tested = [_tests(read.source, call) for call in calls]
    branches = [dict(decide(_parsed(test)) for test in tests or ()) for tests in tested]
    for test in tested[0] or () if tested and None not in tested else ():
        name, holds = decide(_parsed(test))
        others = [{n: b for n, b in branch.items() if n != name} for branch in branches]
        if all(branch.get(name) is holds for branch in branches) and is_complete(others):
            return _under(read, calls[0], [(test,)])
    return found


def _loads_adapters(call: FunctionCall) -> bool:
    """Whether a call loads adapters that train on."""
    trains = call.keyword("is_trainable")
    is_on = isinstance(trains, ast.Constant) and trains.value is True
    return is_on and call.name.endswith("PeftModel.from_pretrained")


def _parsed(test: str) -> ast.expr:
    return ast.parse(test, mode="eval").body


def _tests(source: Source, call: FunctionCall, depth: int = 0) -> tuple[str, ...] | None:
    """The conditions around a call, and around the calls of the function that it stands in.

    Returns:
        None where that function is called under different conditions.
    """
    own = tuple(ast.unparse(test) for test in call.tests)
    callers = source.callers(call.function)
    if not callers or depth == _MOST_CALLERS:
        return own
    around = {_tests(source, caller, depth + 1) for caller in callers}
    if len(around) > 1 or None in around:
        return None
    return (*(around.pop() or ()), *own)


def _under(read: Reader, call: FunctionCall, around: list[tuple[str, ...] | None]) -> Binding:
    """The condition under which several calls are all made; certain if there is none.

    Args:
        read: Answers what the condition depends on.
        call: The call that the binding names.
        around: The conditions of each call.

    Returns:
        A binding without a value where there is more than one condition.
    """
    certain = Binding(value=True, line=call.line, code=f"{call.name}(...)")
    if None in around:
        return replace(certain, value=None)
    tests = list(dict.fromkeys(test for tests in around for test in tests or ()))
    if not tests:
        return certain
    if len(tests) > 1:
        return replace(certain, value=None)
    node = _parsed(tests[0])
    found = read.condition(ast.copy_location(node, call.node), call)
    return replace(found, line=call.line) if found.flag is None else found


def _join(bindings: list[Binding]) -> Binding:
    """The condition under which one of several calls is made.

    It is certain where one call is unconditional, and where two calls are the two branches of one
    condition.
    """
    certain = [b for b in bindings if b.value is True and b.flag is None and not b.unless]
    if certain:
        return certain[0]
    if len(bindings) == 2 and bindings[0].seen:  # noqa: PLR2004 - a pair
        one, other = bindings
        same = replace(one, unless=other.unless, line=None) == replace(other, line=None)
        if same and one.unless is not other.unless:
            return Binding(value=True, line=one.line, code=one.code)
    return agree(bindings)


def _rank(read: Reader, config: FunctionCall) -> Binding:
    keywords, hidden = read.source.keywords(config)
    if "r" in keywords:
        return read.bind(keywords["r"], config, "r")
    if hidden or config.node.args:
        return Binding(line=config.line, code=f"{config.name}(**...)")
    return Binding(value=_DEFAULT_RANK, line=config.line, keyword="r", default_of=_CONFIG)


def _targets(read: Reader, config: FunctionCall) -> Binding:
    name = "target_modules"
    keywords, hidden = read.source.keywords(config)
    if name in keywords and unless_none(keywords[name]) is not None:
        return read.bind_words(keywords[name], config, name)
    if name not in keywords and (hidden or config.node.args):
        return Binding(line=config.line, code=f"{config.name}(**...)")
    return Binding(value=BY_ARCHITECTURE, line=config.line, keyword=name, default_of=_CONFIG)


def _uncounted(read: Reader) -> Iterator[Binding]:
    """What makes adapters larger, trains beside them, or lets their base hold 8 bits."""
    source = read.source
    for config in source.calls_to("peft", _CONFIG):
        keywords, _ = source.keywords(config)
        for name in _UNCOUNTED:
            expr = unless_none(keywords.get(name))
            if expr is not None:
                yield from _unless_off(read, config, expr, name)
    added = min((use.call.line for use in _used(read)), default=None)
    for node in source.unfrozen:
        # What is let train before the adapters are added is frozen by peft again.
        if added is not None and added < node.lineno:
            yield Binding(line=node.lineno, code=ast.unparse(node))
    for call, expr in _with_keyword(source, "load_in_8bit"):
        if not _is_off(expr):
            yield Binding(line=call.line, code=show_argument(call, expr, "load_in_8bit"))


def _unless_off(read: Reader, config: FunctionCall, expr: ast.expr, name: str) -> Iterator[Binding]:
    """An argument of a LoraConfig that is on, or is where an option says so."""
    code = show_argument(config, expr, name)
    option = read.bind(expr, config)
    if option.flag is not None:
        yield replace(option, line=config.line, code=code)
    elif not all(map(_is_off, _values(expr, config.scope))):
        yield Binding(line=config.line, code=code)


def _values(expr: ast.expr, scope: Scope) -> list[ast.expr]:
    """The values that an expression may have, as far as they stand in the script."""
    if isinstance(expr, ast.IfExp):
        return [*_values(expr.body, scope), *_values(expr.orelse, scope)]
    if isinstance(expr, ast.Name):
        return [each for each in scope.owner(expr.id).values.get(expr.id, []) if each is not None]
    return [expr]


def _is_off(expr: ast.expr) -> bool:
    """Whether it is a false literal, or an expression whose value is not known."""
    return not isinstance(expr, ast.List | ast.Dict | ast.Tuple) and not (
        isinstance(expr, ast.Constant) and bool(expr.value)
    )


def _with_keyword(source: Source, name: str) -> Iterator[tuple[FunctionCall, ast.expr]]:
    """Every call that has this keyword, also in a dict behind `**`, with the keyword's value."""
    for call in source.calls:
        keywords, _ = source.keywords(call)
        if name in keywords and call.method != "dict":
            yield call, keywords[name]


def _quantized(read: Reader) -> Binding:
    """Whether the frozen weights are loaded in 4 bits."""
    source, name = read.source, "load_in_4bit"
    if source.calls_to("trl", "get_quantization_config"):
        return _by_model_config(read, name)
    found = [_guarded(read, call, expr, name) for call, expr in _with_keyword(source, name)]
    if found:
        return _join([b for b in found if b.value is not False or b.flag] or found)
    hidden = next((call for call in source.calls if _may_quantize(source, call)), None)
    if hidden is not None and _builds_elsewhere(source, hidden) and read.line.parser.of(name):
        return _by_model_config(read, name)
    if hidden is None or [*_with_keyword(source, "load_in_8bit")]:
        return Binding(value=False, line=1, code=_("no `load_in_4bit`"))
    return Binding(line=hidden.line, code=f"{hidden.name}(...)")


def _may_quantize(source: Source, call: FunctionCall) -> bool:
    """Whether a call may return quantized weights, or takes them.

    It has a quantization config that cannot be followed, or is of a module that is not seen.
    """
    # peft 0.21, utils/other.py: it is for weights in 4 or in 8 bits.
    kbit = call.method == "prepare_model_for_kbit_training"
    config = unless_none(call.keyword("quantization_config"))
    return kbit or config is not None or _builds_elsewhere(source, call)


def _builds_elsewhere(source: Source, call: FunctionCall) -> bool:
    """Whether a function of a module that is not seen builds the model."""
    library, _ = source.imported(call.node.func)
    is_named = isinstance(call.node.func, ast.Name) and call.method in source.imports
    if not is_named or library in _KNOWN:
        return False
    handed_on = (each.keyword("model") is call.node for each in source.calls)
    is_model = "model" in call.target.split() or any(handed_on)
    return is_model and not any(isinstance(a, ast.Name) and a.id == "model" for a in call.node.args)


def _guarded(read: Reader, call: FunctionCall, expr: ast.expr, name: str) -> Binding:
    """A boolean argument of a call, together with the condition that the call itself is under."""
    own = read.condition(expr, call, name)
    under = _under(read, call, [_tests(read.source, call)])
    literal = own.flag is None and isinstance(own.value, bool) and not own.unless
    if literal and own.value is False:
        return own
    certain = under.value is True and under.flag is None and not under.unless
    if certain or (under.flag is not None and under.flag == own.flag):
        return own
    return under if literal else Binding(line=call.line, code=show_argument(call, expr, name))
