"""Read the model config that a script makes in its code: `LlamaConfig(hidden_size=1024)`."""

import ast
import re
from collections.abc import Iterator, Mapping

from zerowiz.core.model.built_config import family_of_class
from zerowiz.core.script.facts import UNSEEN, Binding, BuiltConfig, ScriptFacts
from zerowiz.core.values import replace
from zerowiz.probe.model.libraries import list_model_types
from zerowiz.probe.script.expressions import last_name, unless_none
from zerowiz.probe.script.model.model import is_other, loads
from zerowiz.probe.script.reader import Reader
from zerowiz.probe.script.source import FunctionCall, SetAttribute

# transformers, models/*/modeling_*.py: what takes a config and makes new weights.
_BUILDING = re.compile(r"(Model|For[A-Z]\w*)$")
_BY_METHOD = frozenset({"from_config", "_from_config"})
# transformers, configuration_utils.py: what reads the config of a model, and takes other values.
_READING = frozenset({"from_pretrained", "from_json_file"})


def with_built_config(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the config of the model that the script builds with new weights.

    One that it loads with its weights is known by its name.
    """
    calls = read.source.calls
    loaded = any(
        loads(read.source, call) == "Model" and call.method == "from_pretrained"
        for call in calls
        if not is_other(call)
    )
    if loaded:
        return facts
    nodes = {id(expr) for expr in _configs(read)}
    made = [call for call in calls if id(call.node) in nodes]
    if len(made) != 1:
        return facts
    built = _read(read, made[0])
    return facts if built is None else replace(facts, model=built.base, built_config=built)


def _configs(read: Reader) -> Iterator[ast.expr]:
    """The expressions of the configs of models that are built."""
    for call in read.source.calls:
        expr = call.argument("config", 0)
        if expr is not None and _builds(read, call) and not is_other(call):
            yield read.argument(expr, call).expr


def _builds(read: Reader, call: FunctionCall) -> bool:
    """Whether a call makes a model of a config: `LlamaModel(config)`, `X.from_config(config)`."""
    func = call.node.func
    if isinstance(func, ast.Attribute) and func.attr in _BY_METHOD:
        func = func.value
    is_library = read.source.origin(func).partition(".")[0] == "transformers"
    return is_library and _BUILDING.search(last_name(func)) is not None


def _read(read: Reader, call: FunctionCall) -> BuiltConfig | None:
    """What a call makes a config of; None where that is not seen."""
    given, hidden = read.source.keywords(call)
    own, base = UNSEEN, UNSEEN
    named = call.argument("pretrained_model_name_or_path", 0)
    family = _family(read, call)
    if call.method in _READING:
        path = call.argument("json_file", 0) if named is None else named
        base = UNSEEN if path is None else read.bind(path, call)
    elif call.method == "for_model" and named is not None:
        own = read.bind(named, call)
    elif family is not None and not call.node.args:
        own = Binding(value=family, line=call.line)
    names = call.target.split()
    if hidden or not (own.seen or base.seen) or read.source.changed.keys() & {*names}:
        return None
    values = {key: read.bind(expr, call, key) for key, expr in given.items()}
    return BuiltConfig(
        base=base,
        family=own,
        values={**values, **_set_later(read, call, names)},
        line=call.line,
        code=f"{call.name}(...)",
    )


def _family(read: Reader, call: FunctionCall) -> str | None:
    """The `model_type` of a class of transformers; if unknown, of the one that is installed."""
    if read.source.imported(call.node.func)[0] != "transformers":
        return None
    return family_of_class(call.method, list_model_types())


def _set_later(read: Reader, call: FunctionCall, names: list[str]) -> Mapping[str, Binding]:
    """The values that are set on a config after it was made; unseen where that depends."""
    found: dict[str, list[SetAttribute]] = {}
    for each in read.source.attributes:
        if each.owner in names:
            found.setdefault(each.name, []).append(each)
    return {name: _bind(read, call, places) for name, places in found.items()}


def _bind(read: Reader, call: FunctionCall, places: list[SetAttribute]) -> Binding:
    last, value = places[-1], places[-1].value
    line = call.line if value is None else value.lineno
    code = f"{last.owner}.{last.name} = {'...' if value is None else ast.unparse(value)}"
    if len(places) > 1 or value is None or last.tests != call.tests:
        return Binding(line=line, code=code)
    found = read.bind(value, replace(call, scope=last.scope, tests=last.tests))
    return found if found.seen or unless_none(value) is None else replace(found, code=code)
