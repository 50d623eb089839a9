"""Bind what a script says of its model: its name, length, attention and checkpointing."""

import ast
from collections.abc import Iterator

from zerowiz.core.script import UNSEEN, Binding, ScriptFacts
from zerowiz.core.values import replace
from zerowiz.core.workload import Integration
from zerowiz.probe.script.expressions import last_name, literal
from zerowiz.probe.script.reader import Reader, agree
from zerowiz.probe.script.source import FunctionCall, Source

# Names that scripts give to these settings; read only where no call shows the setting itself.
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
# How the names of methods begin that save and load a checkpoint, which is another matter.
_CHECKPOINT_FILES = ("save", "load", "get", "find", "resume")


def with_model(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add what is said of the model, and what the arguments classes left open."""
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


def _checkpointing(read: Reader, said: Binding) -> Binding:
    """What `model.gradient_checkpointing_enable()` adds to what the arguments say."""
    calls = read.source.calls
    by_condition = {call.method for call in calls if call.tests}
    prepared = [call for call in calls if call.method == "prepare_model_for_kbit_training"]
    if prepared:
        return agree(_prepared(read, call, said) for call in prepared)
    enabling = [call for call in calls if call.method in _CHECKPOINTING_CALLS]
    if any(len(call.tests) > 1 or call.function in by_condition for call in enabling):
        return UNSEEN
    return agree(_enabled(read, call, said) for call in enabling) if enabling else said


def _prepared(read: Reader, call: FunctionCall, said: Binding) -> Binding:
    """What `prepare_model_for_kbit_training` does with a base that is quantized for certain.

    peft 0.21, utils/other.py: it turns checkpointing on, unless it is told not to.
    """
    told = read.keyword(call, "use_gradient_checkpointing")
    if told is not None and told.flag is not None and told.flag == said.flag:
        return said
    if call.tests or not _is_quantized(read):
        return UNSEEN
    if told is None:
        return Binding(value=True, line=call.line, code=f"{call.name}(...)")
    return said if told.value is False and told.flag is None else told


def _is_quantized(read: Reader) -> bool:
    """Whether some call says so in a literal, under no condition."""
    return any(
        isinstance(expr, ast.Constant) and expr.value is True and not call.tests
        for call in read.source.calls
        for name in ("load_in_4bit", "load_in_8bit")
        if (expr := read.source.keywords(call)[0].get(name)) is not None
    )


def _enabled(read: Reader, call: FunctionCall, said: Binding) -> Binding:
    """What one enabling call says, under at most one condition."""
    if not call.tests:
        return Binding(value=True, line=call.line, code=f"{call.name}()")
    test = call.tests[0]
    found = read.bind(test, call)
    asks_arguments = said.seen and last_name(test) in _CHECKPOINTING_FIELDS
    return said if asks_arguments and not found.seen else found


def _no_checkpointing(read: Reader) -> Binding:
    """A model of transformers that is built here checkpoints nothing until it is told to."""
    if _mentions_checkpointing(read.source):
        return UNSEEN
    for call in read.source.calls:
        if _loads(read.source, call) == "Model":
            code = f"{call.name}(...)` with no `gradient_checkpointing_enable()"
            return Binding(value=False, line=call.line, code=code)
    return UNSEEN


def _mentions_checkpointing(source: Source) -> bool:
    """Whether anything could turn it on."""
    keywords = (word.arg or "" for call in source.calls for word in call.node.keywords)
    methods = (call.method for call in source.calls)
    return (
        bool(source.altered & _CHECKPOINTING_FIELDS)
        or any("checkpointing" in keyword for keyword in keywords)
        or any("checkpoint" in name and not name.startswith(_CHECKPOINT_FILES) for name in methods)
    )


def _loads(source: Source, call: FunctionCall) -> str:
    """`Model` or `Config` where a call builds one with transformers, else nothing."""
    origin = source.origin(call.node.func).split(".")
    if origin[0] != "transformers" or call.method not in {"from_pretrained", "from_config"}:
        return ""
    kind = origin[-2]
    return "Model" if "Model" in kind or "For" in kind else "Config" if "Config" in kind else ""


def _model(read: Reader) -> Binding:
    """The id or the folder that the model, or else its config, is loaded from."""
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
    found = [said for call in read.source.calls if (said := read.keyword(call, name))]
    return agree(found) if found else read.named(frozenset({name}))


def _sequence(read: Reader) -> Binding:
    """The length that texts are cut to: in a call, else an option or a constant so named."""
    seen = [said for said in _lengths(read) if said.seen]
    if seen:
        return agree(seen)
    if any(option.dest in _SEQUENCE_NAMES for option in read.line.parser.options):
        return read.named(_SEQUENCE_NAMES)
    return agree(_constants(read))


def _lengths(read: Reader) -> Iterator[Binding]:
    """The keywords of calls that are the sequence length."""
    for call in read.source.calls:
        cuts = call.keyword("truncation", "padding") is not None
        for name in ("model_max_length", "max_seq_length", *(("max_length",) if cuts else ())):
            said = read.keyword(call, name)
            if said is not None:
                yield said


def _constants(read: Reader) -> Iterator[Binding]:
    """Constants of the module whose name says that they are the sequence length."""
    module = read.source.module
    for name, values in module.values.items():
        if name.lower() in _SEQUENCE_NAMES and values[0] is not None:
            code = f"{name} = {ast.unparse(values[0])}"
            value = literal(ast.Name(id=name), module)
            yield Binding(value=value, line=values[0].lineno, code=code)
