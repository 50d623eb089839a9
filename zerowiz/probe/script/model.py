"""Read a script's model: its name, sequence length, attention and gradient checkpointing."""

import ast
from collections.abc import Iterator

from zerowiz.core.script import UNSEEN, Binding, ScriptFacts
from zerowiz.core.values import replace
from zerowiz.core.workload import Integration
from zerowiz.probe.script.expressions import last_name, literal
from zerowiz.probe.script.reader import Reader, agree
from zerowiz.probe.script.source import FunctionCall, Source

# Names that scripts use for these settings; they count only where no call has the setting.
_SEQUENCE_NAMES = frozenset(
    {
        "block_size",
        "context_length",
        "cutoff_len",
        "max_len",
        "max_length",
        "max_seq_len",
        "max_seq_length",
        "max_sequence_length",
        "model_max_length",
        "seq_len",
        "seq_length",
        "sequence_length",
    }
)
_MODEL_NAMES = frozenset(
    {"base_model", "model_id", "model_name", "model_name_or_path", "model_path"}
)
_CHECKPOINTING_CALLS = frozenset(
    {"gradient_checkpointing_enable", "activation_checkpointing_enable"}
)
_CHECKPOINTING_FIELDS = frozenset({"gradient_checkpointing", "activation_checkpointing"})
# How the names of functions begin that save and load checkpoints; those do not checkpoint
# activations.
_CHECKPOINT_FILES = ("save", "load", "get", "find", "resume")


def with_model(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the model's settings, and those that the arguments classes left open."""
    checkpointing = _checkpointing(read, facts.gradient_checkpointing)
    if facts.integration is not Integration.HF and not checkpointing.seen:
        checkpointing = _no_checkpointing(read)
    return replace(
        facts,
        gradient_checkpointing=checkpointing,
        sequence_tokens=facts.sequence_tokens if facts.sequence_tokens.seen else _sequence(read),
        attention=_attention(read),
        model=_model(read),
    )


def _checkpointing(read: Reader, of_arguments: Binding) -> Binding:
    """Gradient checkpointing by calls such as `model.gradient_checkpointing_enable()`.

    Args:
        read: Answers what a call's arguments are.
        of_arguments: The setting of TrainingArguments, which holds where no call has another.
    """
    calls = read.source.calls
    by_condition = {call.method for call in calls if call.tests}
    prepared = [call for call in calls if call.method == "prepare_model_for_kbit_training"]
    if prepared:
        return agree(_prepared(read, call, of_arguments) for call in prepared)
    enabling = [call for call in calls if call.method in _CHECKPOINTING_CALLS]
    if any(len(call.tests) > 1 or call.function in by_condition for call in enabling):
        return UNSEEN
    if not enabling:
        return of_arguments
    return agree(_enabled(read, call, of_arguments) for call in enabling)


def _prepared(read: Reader, call: FunctionCall, of_arguments: Binding) -> Binding:
    """Gradient checkpointing by `prepare_model_for_kbit_training` with a quantized base.

    peft 0.21, utils/other.py: it turns checkpointing on, unless its argument is false.
    """
    own = read.keyword(call, "use_gradient_checkpointing")
    if own is not None and own.flag is not None and own.flag == of_arguments.flag:
        return of_arguments
    if call.tests or not _is_quantized(read):
        return UNSEEN
    if own is None:
        return Binding(value=True, line=call.line, code=f"{call.name}(...)")
    return of_arguments if own.value is False and own.flag is None else own


def _is_quantized(read: Reader) -> bool:
    """Whether an unconditional call loads the model in 4 or 8 bits by a literal."""
    return any(
        isinstance(expr, ast.Constant) and expr.value is True and not call.tests
        for call in read.source.calls
        for name in ("load_in_4bit", "load_in_8bit")
        if (expr := read.source.keywords(call)[0].get(name)) is not None
    )


def _enabled(read: Reader, call: FunctionCall, of_arguments: Binding) -> Binding:
    """Gradient checkpointing by one enabling call, which is under at most one condition."""
    if not call.tests:
        return Binding(value=True, line=call.line, code=f"{call.name}()")
    test = call.tests[0]
    found = read.bind(test, call)
    asks_arguments = of_arguments.seen and last_name(test) in _CHECKPOINTING_FIELDS
    return of_arguments if asks_arguments and not found.seen else found


def _no_checkpointing(read: Reader) -> Binding:
    """No gradient checkpointing, where the script builds a model and nothing turns it on."""
    if _mentions_checkpointing(read.source):
        return UNSEEN
    for call in read.source.calls:
        if _loads(read.source, call) == "Model":
            code = f"{call.name}(...)` with no `gradient_checkpointing_enable()"
            return Binding(value=False, line=call.line, code=code)
    return UNSEEN


def _mentions_checkpointing(source: Source) -> bool:
    """Whether anything in the script could turn it on."""
    keywords = (word.arg or "" for call in source.calls for word in call.node.keywords)
    methods = (call.method for call in source.calls)
    return (
        bool(source.altered & _CHECKPOINTING_FIELDS)
        or any("checkpointing" in keyword for keyword in keywords)
        or any("checkpoint" in name and not name.startswith(_CHECKPOINT_FILES) for name in methods)
    )


def _loads(source: Source, call: FunctionCall) -> str:
    """`Model` or `Config` for a call that builds one with transformers; empty for any other."""
    origin = source.origin(call.node.func).split(".")
    if origin[0] != "transformers" or call.method not in {"from_pretrained", "from_config"}:
        return ""
    kind = origin[-2]
    return "Model" if "Model" in kind or "For" in kind else "Config" if "Config" in kind else ""


def _model(read: Reader) -> Binding:
    """The hub id or folder from which the model, or else its config, is loaded."""
    found: dict[str, list[Binding]] = {"Model": [], "Trainer": [], "Config": []}
    for call in read.source.calls:
        is_trainer = call.method.endswith("Trainer")
        kind = "Trainer" if is_trainer else _loads(read.source, call)
        expr = call.argument("model" if is_trainer else "pretrained_model_name_or_path", 0)
        if kind and expr is not None and call.method != "from_config":
            found[kind].append(read.bind(expr, call, "model" if is_trainer else None))
    for bindings in found.values():
        seen = [b for b in bindings if b.flag is not None or isinstance(b.value, str)]
        if seen:
            return agree(seen)
    named = read.named(_MODEL_NAMES)
    ends = [b for bindings in found.values() for b in bindings if b.code is not None]
    return named if named.seen or not ends else ends[0]


def _attention(read: Reader) -> Binding:
    name = "attn_implementation"
    found = [value for call in read.source.calls if (value := read.keyword(call, name))]
    return agree(found) if found else read.named(frozenset({name}))


def _sequence(read: Reader) -> Binding:
    """The sequence length: the argument of a call, else an option or a constant by its name."""
    seen = [length for length in _lengths(read) if length.seen]
    if seen:
        return agree(seen)
    if any(option.dest in _SEQUENCE_NAMES for option in read.line.parser.options):
        return read.named(_SEQUENCE_NAMES)
    return agree(_constants(read))


def _lengths(read: Reader) -> Iterator[Binding]:
    """The arguments of calls that are the sequence length."""
    for call in read.source.calls:
        cuts = call.keyword("truncation", "padding") is not None
        for name in ("model_max_length", "max_seq_length", *(("max_length",) if cuts else ())):
            length = read.keyword(call, name)
            if length is not None:
                yield length


def _constants(read: Reader) -> Iterator[Binding]:
    """The constants of the module that are named like a sequence length."""
    module = read.source.module
    for name, values in module.values.items():
        if name.lower() in _SEQUENCE_NAMES and values[0] is not None:
            code = f"{name} = {ast.unparse(values[0])}"
            value = literal(ast.Name(id=name), module)
            yield Binding(value=value, line=values[0].lineno, code=code)
