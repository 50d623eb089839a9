"""Read what turns gradient checkpointing on: TrainingArguments, the script's calls, or both."""

import ast
from collections.abc import Iterator

from zerowiz.core.script.facts import UNSEEN, Binding, ScriptFacts
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Integration
from zerowiz.probe.script.expressions import decide, is_complete, last_name
from zerowiz.probe.script.model.model import loads
from zerowiz.probe.script.reader import Reader, agree
from zerowiz.probe.script.source import FunctionCall, Source
from zerowiz.words import _

# The last one is diffusers' name of it.
_ENABLING = frozenset(
    {
        "gradient_checkpointing_enable",
        "activation_checkpointing_enable",
        "enable_gradient_checkpointing",
    }
)
_DISABLING = frozenset({"gradient_checkpointing_disable", "disable_gradient_checkpointing"})
# The second is peft's name of it before 0.10.
_PREPARING = frozenset({"prepare_model_for_kbit_training", "prepare_model_for_int8_training"})
_FIELDS = frozenset({"gradient_checkpointing", "activation_checkpointing"})
# transformers 5.23, modeling_utils.py: every family that the ledger counts has it.
_ABILITY = "supports_gradient_checkpointing"
# How the names of functions begin that save and load checkpoints; those do not checkpoint
# activations.
_CHECKPOINT_FILES = ("save", "load", "get", "find", "resume")


def with_checkpointing(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add what turns gradient checkpointing on.

    A Trainer turns it on where its arguments say so (transformers 5.23, trainer.py), whatever the
    script does; a call of the script can turn it on as well.
    """
    by_words = facts.every_n_layers if facts.every_n_layers.flag else UNSEEN
    facts = replace(facts, every_n_layers=_every_n_layers(read) or by_words)
    of_arguments, trains = facts.gradient_checkpointing, facts.integration is Integration.HF
    if not trains and _disables(read):
        return facts
    by_calls = list(_by_calls(read, of_arguments))
    for found in by_calls:
        if found.value is True and found.flag is None:
            return replace(facts, gradient_checkpointing=found)
    if trains:
        # Where the arguments are not seen, neither is whether the Trainer turns it on.
        known = by_calls and of_arguments.seen
        return replace(facts, checkpoints_too=agree(by_calls)) if known else facts
    if by_calls:
        found = agree(by_calls)
        return _by_condition(facts, found if found.seen else _in_every_branch(read))
    return replace(facts, gradient_checkpointing=_nothing(read))


_EVERY = "every_n_layers"


def _every_n_layers(read: Reader) -> Binding | None:
    """The value of that name in a call, or in a dict that is handed to one."""
    for call in read.source.calls:
        for node in ast.walk(call.node):
            for name, value in _named_values(node):
                if name == _EVERY:
                    code = f"{_EVERY}={ast.unparse(value)}"
                    every = value.value if isinstance(value, ast.Constant) else None
                    return Binding(
                        value=every if isinstance(every, int) else None,
                        line=value.lineno,
                        code=code,
                    )
    return None


def _named_values(node: ast.AST) -> Iterator[tuple[str | None, ast.expr]]:
    if isinstance(node, ast.keyword):
        yield node.arg, node.value
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value), value


def _by_condition(facts: ScriptFacts, found: Binding) -> ScriptFacts:
    """The facts of a script that turns it on under this condition alone."""
    if not found.when and not found.unless:
        return replace(facts, gradient_checkpointing=found)
    off = Binding(value=False, line=found.line, code=found.code)
    return replace(facts, gradient_checkpointing=off, checkpoints_too=found)


def _enabling(read: Reader) -> list[FunctionCall]:
    return [call for call in read.source.calls if call.method in _ENABLING]


def _by_calls(read: Reader, of_arguments: Binding) -> Iterator[Binding]:
    """The condition of each call that turns it on, apart from what the arguments say themselves."""
    for call in read.source.calls:
        found: Binding | None = None
        if call.method in _ENABLING:
            found = _condition(read, call, of_arguments)
        elif call.method in _PREPARING:
            found = _prepared(read, call, of_arguments)
        if found is not None:
            yield found


def _in_every_branch(read: Reader) -> Binding:
    """The option that alone decides, where the script asks it in each of its branches.

    Such as with adapters in one branch, and without them in the other.
    """
    calls = [call for call in read.source.calls if call.method in _ENABLING | _PREPARING]
    tested = [_tests_with_argument(read.source, call) for call in calls]
    known = [tests for tests in tested if tests is not None]
    branches = [dict(map(decide, tests)) for tests in known]
    if len(known) < len(tested):
        return UNSEEN
    for test in known[0]:
        found, name = read.condition(test, calls[0]), ast.unparse(test)
        others = [{n: b for n, b in branch.items() if n != name} for branch in branches]
        is_option = found.flag is not None and not found.when and not found.unless
        if is_option and all(branch.get(name) for branch in branches) and is_complete(others):
            return found
    return UNSEEN


def _tests_with_argument(source: Source, call: FunctionCall) -> list[ast.expr] | None:
    """The conditions of a call, with the argument that turns checkpointing on; None if unknown."""
    tests = _tests(source, call)
    if tests is None or call.method in _ENABLING:
        return tests
    own = call.argument("use_gradient_checkpointing", 1)
    return None if own is None else [*tests, own]


def _condition(read: Reader, call: FunctionCall, of_arguments: Binding) -> Binding | None:
    """The condition of a call; None for one that needs that the arguments say it too."""
    tests = _tests(read.source, call)
    if tests is None:
        return UNSEEN
    conditions = [read.condition(test, call) for test in tests]
    if of_arguments.seen:
        asked = {last_name(test) for test in tests if isinstance(test, ast.Attribute)}
        flags = {each.flag for each in conditions if not each.when and not each.unless}
        if asked & _FIELDS or (of_arguments.flag is not None and of_arguments.flag in flags):
            return None
    if not conditions:
        return Binding(value=True, line=call.line, code=f"{call.name}()")
    return conditions[0] if len(conditions) == 1 else UNSEEN


def _tests(source: Source, call: FunctionCall) -> list[ast.expr] | None:
    """Every condition that has to hold for a call; None where they are not known.

    Those around the function that it stands in are among them, where one call starts it.
    """
    tests = [*call.tests]
    starts = source.callers(call.function)
    if len(starts) == 1:
        tests += starts[0].tests
    elif any(each.tests for each in starts):
        return None
    return [part for test in tests for part in _conjuncts(test) if not _asks_ability(part)]


def _conjuncts(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from _conjuncts(value)
    else:
        yield test


def _asks_ability(test: ast.expr) -> bool:
    """Whether a condition only asks if the model can do it."""
    if isinstance(test, ast.Attribute):
        return test.attr == _ABILITY
    if last_name(test) not in {"getattr", "hasattr"} or not isinstance(test, ast.Call):
        return False
    names = [arg.value for arg in test.args if isinstance(arg, ast.Constant)]
    return any(name == _ABILITY or name in _ENABLING for name in names)


def _prepared(read: Reader, call: FunctionCall, of_arguments: Binding) -> Binding | None:
    """The condition under which a quantized base is prepared with checkpointing on.

    peft 0.21, utils/other.py: it turns checkpointing on, unless its argument is false.
    """
    expr = call.argument("use_gradient_checkpointing", 1)
    own = None if expr is None else read.bind(expr, call)
    if own is not None and of_arguments.seen:
        asks = isinstance(expr, ast.Attribute) and expr.attr in _FIELDS
        if asks or (own.flag is not None and own.flag == of_arguments.flag):
            return None
    if own is not None and own.value is False and own.flag is None:
        return None
    if call.tests or not _is_quantized(read):
        return UNSEEN
    return Binding(value=True, line=call.line, code=f"{call.name}(...)") if own is None else own


def _is_quantized(read: Reader) -> bool:
    """Whether an unconditional call loads the model in 4 or 8 bits by a literal."""
    return any(
        isinstance(expr, ast.Constant) and expr.value is True and not call.tests
        for call in read.source.calls
        for name in ("load_in_4bit", "load_in_8bit")
        if (expr := read.source.keywords(call)[0].get(name)) is not None
    )


def _disables(read: Reader) -> bool:
    """Whether a call may turn it off, other than in the branch beside the one that turns it on."""
    enabling = {ast.dump(test) for call in _enabling(read) for test in call.tests[-1:]}
    return any(
        not any(
            isinstance(test, ast.UnaryOp) and ast.dump(test.operand) in enabling
            for test in call.tests[-1:]
        )
        for call in read.source.calls
        if call.method in _DISABLING
    )


def _nothing(read: Reader) -> Binding:
    """No gradient checkpointing, where the script builds a model and nothing turns it on."""
    if _mentions_checkpointing(read.source):
        return UNSEEN
    for call in read.source.calls:
        if loads(read.source, call) == "Model":
            code = _("{call}(...)` with no `gradient_checkpointing_enable()", call=call.name)
            return Binding(value=False, line=call.line, code=code)
    return UNSEEN


def _mentions_checkpointing(source: Source) -> bool:
    """Whether anything in the script could turn it on."""
    keywords = (word.arg or "" for call in source.calls for word in call.node.keywords)
    methods = (call.method for call in source.calls)
    return (
        bool(source.altered & _FIELDS)
        or any("checkpointing" in keyword for keyword in keywords)
        or any("checkpoint" in name and not name.startswith(_CHECKPOINT_FILES) for name in methods)
    )
