"""Find the keys that a script asks its config for, and those that it sets, before the engine."""

import ast
from collections.abc import Iterator, Mapping

from zerowiz.core.script.facts import UNSEEN, Binding, Convention, KeyUse, ScriptFacts
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Integration
from zerowiz.probe.script.arguments import built_arguments
from zerowiz.probe.script.config.engine import CONFIG_POSITIONS
from zerowiz.probe.script.expressions import MOST_STEPS, Scope, entries, key_path, literal
from zerowiz.probe.script.reader import Reader
from zerowiz.probe.script.source import DictEntry, FunctionCall

# Where a script gets a config that zerowiz writes, and may change it before it hands it on.
_FROM_FILE = frozenset(
    {
        Convention.OWN_FLAG,
        Convention.CONFIG_LITERAL,
        Convention.HF_LITERAL,
        Convention.HF_PARSER,
        Convention.ADD_CONFIG_ARGUMENTS,
    }
)
# The arguments that may be a dict, by keyword and position.
_HANDING: Mapping[str, Mapping[str, int]] = {
    "initialize": CONFIG_POSITIONS,
    # accelerate 1.x, utils/dataclasses.py, DeepSpeedPlugin.
    "DeepSpeedPlugin": {"hf_ds_config": 0},
}
_MICRO, _STEPS, _WHOLE = (
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "train_batch_size",
)


def with_config_keys(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the keys of its config that the script uses, and the settings that it gives them.

    A batch that the script puts into the config is a setting of the script, where its value can be
    followed; DeepSpeed alone takes it from there.
    """
    if facts.convention not in _FROM_FILE:
        return facts
    dicts = _Dicts(facts, read)
    used = sorted(dicts.used(), key=lambda pair: pair[0].line)
    facts = replace(facts, config_keys=tuple(key for key, _ in used))
    if facts.integration is not Integration.DEEPSPEED:
        return facts
    values = {key: value for key, value in used if key.sets and not key.conditions}
    return _with_batch(facts, read, values)


def _with_batch(facts: ScriptFacts, read: Reader, values: dict[KeyUse, DictEntry]) -> ScriptFacts:
    """Add the batch that the script sets in the config; its keys then are no changes of a plan."""
    found: dict[str, Binding] = {}
    for name in (_MICRO, _STEPS):
        setting = [key for key in values if key.keys == (name,)]
        if len(setting) == 1 and setting[0].value.seen:
            found[name] = _shown(setting[0])
    whole = [(key, entry) for key, entry in values.items() if key.keys == (_WHOLE,)]
    if len(whole) == 1 and _MICRO in found:
        key, entry = whole[0]
        steps = _steps_of(read, key, entry, found[_MICRO])
        same = found.get(_STEPS, steps)
        if steps is not None and same is not None and _same(steps, same):
            found |= {_WHOLE: steps, _STEPS: same}
    followed = {(name,) for name in found}
    left = (key for key in facts.config_keys if not key.sets or key.keys not in followed)
    return replace(
        facts,
        config_keys=tuple(left),
        micro_batch=_micro_batch(facts.micro_batch, found.get(_MICRO)),
        accumulation_steps=found.get(_STEPS, facts.accumulation_steps),
    )


def _micro_batch(of_loader: Binding, in_config: Binding | None) -> Binding:
    """The micro-batch of the config and the loader; unseen where they differ."""
    if in_config is None or (of_loader.seen and not of_loader.from_config):
        return of_loader if in_config is None or _same(of_loader, in_config) else UNSEEN
    return in_config


def _shown(key: KeyUse) -> Binding:
    """The setting that a key is given, with the code that a person finds."""
    if key.value.flag is not None:
        return key.value
    return replace(key.value, code=f"{key.code} = {key.value.value}", keyword=None)


def _same(one: Binding, other: Binding) -> bool:
    return (one.flag, one.value) == (other.flag, other.value)


def _steps_of(read: Reader, key: KeyUse, entry: DictEntry, micro: Binding) -> Binding | None:
    """The accumulation in `micro_batch * world_size * accumulation_steps`; None where unclear.

    deepspeed 0.19.8, runtime/config.py, _batch_assertion: the three have to agree.
    """
    if entry.value is None:
        return None
    call = _as_call(entry)
    factors = [*_factors(read.follow(entry.value, call))]
    worlds = [each for each in factors if "world_size" in ast.unparse(each).lower()]
    others = [read.bind(each, call) for each in factors if each not in worlds]
    same = next((each for each in others if _same(each, micro)), None)
    if len(worlds) != 1 or same is None:
        return None
    others.remove(same)
    if not others:
        return Binding(value=1, line=key.line, code=key.code)
    return others[0] if len(others) == 1 and others[0].seen else None


def _factors(expr: ast.expr) -> Iterator[ast.expr]:
    match expr:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            yield from _factors(left)
            yield from _factors(right)
        case _:
            yield expr


def _as_call(entry: DictEntry) -> FunctionCall:
    """The place of an entry, as the reader takes it."""
    return FunctionCall(
        node=ast.copy_location(ast.Call(func=entry.node, args=[], keywords=[]), entry.node),
        scope=entry.scope,
        tests=entry.tests,
        target="",
        function=entry.function,
    )


class _Dicts:
    """The dicts of the script that hold its config.

    Args:
        facts: How the config reaches the script.
        read: Answers what an expression depends on.
    """

    def __init__(self, facts: ScriptFacts, read: Reader) -> None:
        self._facts, self._read = facts, read
        self._handed = set(self._find_handed())
        """The names whose dict is handed to the engine, each with its scope."""
        self._parameters = set(self._find_parameters())
        """The parameters of functions of the script that get such a dict."""

    def used(self) -> Iterator[tuple[KeyUse, DictEntry]]:
        """Every use of a key, and where it stands."""
        for entry in self._read.source.entries_used:
            root, keys, all_seen = key_path(entry.node)
            if self._is_handed(root, entry.scope) or (
                not entry.sets and all_seen and self._is_from_file(root, entry)
            ):
                yield self._key(entry, keys, all_seen=all_seen), entry
        for call in self._read.source.calls:
            yield from self._changed(call)

    def _key(self, entry: DictEntry, keys: tuple[str, ...], *, all_seen: bool) -> KeyUse:
        conditions = [*self._read.conditions(_as_call(entry))]
        if entry.guarded:
            conditions.append(UNSEEN)
        return KeyUse(
            keys=keys,
            all_seen=all_seen,
            sets=entry.sets,
            value=UNSEEN if entry.value is None else self._read.bind(entry.value, _as_call(entry)),
            conditions=tuple(conditions),
            line=entry.node.lineno,
            code=ast.unparse(entry.node),
        )

    def _changed(self, call: FunctionCall) -> Iterator[tuple[KeyUse, DictEntry]]:
        """The keys that a method of the dict sets: `config.update(...)`, `config.pop("x")`."""
        if not isinstance(call.node.func, ast.Attribute):
            return
        base = call.node.func.value
        root, keys, all_seen = key_path(base)
        if call.method not in _CHANGES or not self._is_handed(root, call.scope):
            return
        for key, value in _changes(call):
            entry = DictEntry(
                node=base,
                scope=call.scope,
                tests=call.tests,
                function=call.function,
                guarded=call.method == "setdefault",
                sets=True,
                value=value,
            )
            path = keys if key is None else (*keys, key)
            used = self._key(entry, path, all_seen=all_seen and key is not None)
            removes = call.method not in {"update", "setdefault"}
            yield replace(used, line=call.line, code=f"{call.name}(...)", removes=removes), entry

    def _is_handed(self, root: ast.expr, scope: Scope) -> bool:
        """Whether a name holds a dict that is handed to the engine."""
        if not isinstance(root, ast.Name):
            return False
        owner = scope.owner(root.id)
        return (owner, root.id) in self._handed or (owner.function, root.id) in self._parameters

    def _is_from_file(self, root: ast.expr, entry: DictEntry) -> bool:
        """Whether an expression is read from the file that the engine gets as well."""
        if isinstance(root, ast.Name) and entry.scope.value(root.id) is None:
            return False
        found = self._read.config(root, _as_call(entry))
        facts = self._facts
        if facts.literal_config is not None:
            return found.flag is None and found.value == facts.literal_config
        return found.flag is not None and found.flag == (facts.own_flag or _FLAGS[facts.convention])

    def _find_handed(self) -> Iterator[tuple[Scope, str]]:
        for call in self._read.source.calls:
            for name, position in _HANDING.get(call.method, {}).items():
                expr = call.argument(name, position)
                if expr is not None:
                    yield from _names_of(expr, call.scope)
        for built in built_arguments(self._read.source):
            if "deepspeed" in built.keywords:
                yield from _names_of(built.keywords["deepspeed"], built.call.scope)

    def _find_parameters(self) -> Iterator[tuple[str, str]]:
        for call in self._read.source.calls:
            function = self._read.source.functions.get(call.method)
            if function is None:
                continue
            names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
            given = [*zip(names, call.node.args, strict=False)]
            given += [(word.arg, word.value) for word in call.node.keywords if word.arg]
            for name, expr in given:
                if isinstance(expr, ast.Name) and set(_names_of(expr, call.scope)) & self._handed:
                    yield call.method, name


# The options by which these conventions get their file.
_FLAGS = {
    Convention.HF_PARSER: "--deepspeed",
    Convention.ADD_CONFIG_ARGUMENTS: "--deepspeed_config",
    Convention.OWN_FLAG: "--deepspeed_config",
}
_CHANGES = frozenset({"update", "pop", "setdefault", "clear", "popitem"})


def _names_of(expr: ast.expr, scope: Scope) -> Iterator[tuple[Scope, str]]:
    """A name with the scope that binds it, and every name that it stands for."""
    for _ in range(MOST_STEPS):
        if not isinstance(expr, ast.Name):
            return
        owner = scope.owner(expr.id)
        yield owner, expr.id
        value = owner.value(expr.id)
        if value is None:
            return
        expr, scope = value, owner


def _changes(call: FunctionCall) -> Iterator[tuple[str | None, ast.expr | None]]:
    """The keys that such a call sets, each with its value; None for a key that is not seen."""
    args = call.node.args
    if call.method == "update":
        for word in call.node.keywords:
            yield word.arg, word.value
        for arg in args:
            known = entries(arg, call.scope)
            yield from known.items() if known is not None else ((None, None),)
    elif call.method in {"pop", "setdefault"} and args:
        key = literal(args[0], call.scope)
        value = args[1] if call.method == "setdefault" and len(args) > 1 else None
        yield (key if isinstance(key, str) else None), value
    else:
        yield None, None
