"""Read a script's model: its name, sequence length and attention."""

import ast
import re
from collections.abc import Iterator, Mapping

from zerowiz.core.script.facts import Binding, Placement, ScriptFacts
from zerowiz.core.values import replace
from zerowiz.probe.script.arguments import built_arguments
from zerowiz.probe.script.expressions import last_name, literal, unless_none
from zerowiz.probe.script.reader import Reader, agree, show_argument
from zerowiz.probe.script.source import HF_LIBRARIES, FunctionCall, Source
from zerowiz.probe.script.walk import HF_PARSE_CALLS

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
        "max_source_length",
        "model_max_length",
        "seq_len",
        "seq_length",
        "sequence_length",
    }
)
# transformers' examples/pytorch/summarization and translation: what the decoder gets.
_TARGET_NAMES = frozenset({"max_target_length"})
_MODEL_NAMES = frozenset(
    {"base_model", "model_id", "model_name", "model_name_or_path", "model_path"}
)
# Models that a script loads beside the one that it trains, and what it loads of its own output.
_OTHER_MODEL = re.compile(
    r"(?<![a-z])(reward|ref|teacher|critic|value|judge|draft|rm|output_dir)(?![a-z])"
)


def with_model(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the model's settings, and those that the arguments classes left open.

    What diffusers loads has no `config.json` of one model, and its texts are prompts.
    """
    origins = read.source.imports.values()
    if any(origin.partition(".")[0] == "diffusers" for origin in origins):
        return facts
    return replace(
        facts,
        sequence_tokens=facts.sequence_tokens if facts.sequence_tokens.seen else _sequence(read),
        target_tokens=_targets(read),
        attention=_attention(read),
        model=_model(read),
        loads_16_bit=_loaded_16_bit(read),
        placements=tuple(_placements(read)),
    )


def loads(source: Source, call: FunctionCall) -> str:
    """`Model` or `Config` for a call that builds one with these libraries; empty for any other."""
    known = source.origin(call.node.func).split(".")[0] in HF_LIBRARIES
    return _kind(call) if known else ""


def _kind(call: FunctionCall) -> str:
    """As `loads`, for a class of any module."""
    func = call.node.func
    if not isinstance(func, ast.Attribute) or func.attr not in {"from_pretrained", "from_config"}:
        return ""
    name = last_name(func.value)
    return "Model" if "Model" in name or "For" in name else "Config" if "Config" in name else ""


def _model(read: Reader) -> Binding:
    """The hub id or folder from which the model, or else its config, is loaded."""
    found: dict[str, list[Binding]] = {"Model": [], "Trainer": [], "Config": []}
    paths = set()
    for call in read.source.calls:
        is_trainer = call.method.endswith("Trainer")
        kind = "Trainer" if is_trainer else _kind(call)
        expr = call.argument("model" if is_trainer else "pretrained_model_name_or_path", 0)
        if not kind or expr is None or call.method == "from_config":
            continue
        if kind == "Model" and is_other(call):
            continue
        paths |= {last_name(expr)} if kind == "Model" and not _is_parameter(expr, call) else set()
        found[kind].append(read.bind(expr, call, "model" if is_trainer else None))
    for bindings in found.values():
        seen = [b for b in bindings if b.flag is not None or isinstance(b.value, str)]
        if seen:
            return agree(seen)
    named = read.named(_MODEL_NAMES & paths if paths else _MODEL_NAMES)
    ends = [b for bindings in found.values() for b in bindings if b.code is not None]
    return named if named.seen or not ends else ends[0]


def _is_parameter(expr: ast.expr, call: FunctionCall) -> bool:
    """Whether it is a parameter of a function, for which callers pass anything."""
    return isinstance(expr, ast.Name) and call.scope.owner(expr.id).values.get(expr.id) == [None]


_16_BIT = frozenset({"bfloat16", "float16", "half"})


def _loaded_16_bit(read: Reader) -> Binding | None:
    """The `dtype=` with which every model that is to be trained is loaded in 16 bits."""
    found: list[Binding | None] = []
    for call in read.source.calls:
        if loads(read.source, call) != "Model" or is_other(call):
            continue
        name = "dtype" if call.keyword("dtype") is not None else "torch_dtype"
        expr = call.keyword(name)
        named = None if expr is None else read.follow(expr, call)
        text = literal(named, call.scope) or last_name(named)
        code = None if expr is None else f"{name}={ast.unparse(expr)}"
        found.append(Binding(line=call.line, code=code) if text in _16_BIT else None)
    return found[0] if found and None not in found else None


def _placements(read: Reader) -> Iterator[Placement]:
    """The device maps of the models that are loaded to be trained."""
    trained = {name for call in read.source.calls for name in _trained(call)}
    for call in read.source.calls:
        expr = unless_none(read.source.keywords(call)[0].get("device_map"))
        if expr is None or loads(read.source, call) != "Model" or is_other(call):
            continue
        names = {name for each in (call, *_starts(read, call)) for name in each.target.split()}
        if not names & trained:
            continue
        expr = read.follow(expr, call)
        whole = _whole(expr)
        yield Placement(
            place=read.bind(expr if whole is None else whole, call, "device_map"),
            is_map=isinstance(expr, ast.Dict),
            conditions=tuple(read.conditions(call)),
            engine_is_known=_is_after_engine(read, call),
            line=call.line,
            code=show_argument(call, expr, "device_map"),
        )


# The position of the model in a call that trains it, or makes of it what is trained.
_TRAINING: Mapping[str, int] = {
    "get_peft_model": 0,
    "prepare_model_for_kbit_training": 0,
    "prepare_model_for_int8_training": 0,
    "initialize": 1,
}


def _trained(call: FunctionCall) -> Iterator[str]:
    """The names of what a call takes to train it."""
    given: list[ast.expr | None] = []
    if call.method in _TRAINING or call.method.endswith("Trainer"):
        given = [call.argument("model", _TRAINING.get(call.method, 0))]
    elif call.method == "prepare":
        given = [*call.node.args]
    yield from (last_name(expr) for expr in given if isinstance(expr, ast.Name | ast.Attribute))


def _starts(read: Reader, call: FunctionCall) -> Iterator[FunctionCall]:
    """The calls of the function that a call stands in."""
    return (each for each in read.source.calls if call.function and each.method == call.function)


def is_other(call: FunctionCall) -> bool:
    """Whether a call loads a model that stands beside the one that is trained."""
    expr = call.argument("pretrained_model_name_or_path", 0)
    about = f"{call.target} {ast.unparse(expr) if expr else ''}".lower()
    return _OTHER_MODEL.search(about) is not None


def _whole(expr: ast.expr) -> ast.expr | None:
    """The place of the whole model in `{"": place}`."""
    match expr:
        case ast.Dict(keys=[ast.Constant(value="")], values=[place]):
            return place
        case _:
            return None


def _is_after_engine(read: Reader, call: FunctionCall) -> bool:
    """Whether transformers knows of DeepSpeed's config when a model is loaded.

    transformers 5.23, training_args.py, __post_init__, and accelerate 1.15, utils/dataclasses.py,
    DeepSpeedPlugin: TrainingArguments and Accelerator tell it, once there are any.
    """
    name = call.argument("pretrained_model_name_or_path", 0)
    parses = read.line.training is not None and read.line.reads_words
    if parses and name is not None and read.bind(name, call).flag is not None:
        return True
    before = [built.call for built in built_arguments(read.source)]
    before += read.source.calls_to("accelerate", "Accelerator")
    if parses:
        before += [each for each in read.source.calls if each.method in HF_PARSE_CALLS]
    return any(
        each.function == call.function and each.line < call.line and not each.tests
        for each in before
    )


def _attention(read: Reader) -> Binding:
    name = "attn_implementation"
    found = [value for call in read.source.calls if (value := read.keyword(call, name))]
    return agree(found) if found else read.named(frozenset({name}))


def _sequence(read: Reader) -> Binding:
    """The sequence length: the argument of a call, else an option or a constant by its name."""
    seen = [length for is_target, length in _lengths(read) if length.seen and not is_target]
    if seen:
        return agree(seen)
    if any(option.dest in _SEQUENCE_NAMES for option in read.line.parser.options):
        return read.named(_SEQUENCE_NAMES)
    return agree(constants(read, _SEQUENCE_NAMES))


def _targets(read: Reader) -> Binding:
    """The length of what a decoder gets beside the sequence of its encoder."""
    seen = [length for is_target, length in _lengths(read) if length.seen and is_target]
    return agree(seen) if seen else read.named(_TARGET_NAMES)


def _lengths(read: Reader) -> Iterator[tuple[bool, Binding]]:
    """The arguments of calls that are a sequence length, and whether it is that of targets."""
    for call in read.source.calls:
        cuts = call.keyword("truncation", "padding") is not None
        for name in ("model_max_length", "max_seq_length", *(("max_length",) if cuts else ())):
            length = read.keyword(call, name)
            # Of a sum some tokens are dropped again: it is not the length of what is trained.
            if length is not None and not _is_sum(call.keyword(name)):
                yield _is_target(call, name), length


def _is_target(call: FunctionCall, name: str) -> bool:
    """Whether a length is that of a decoder's texts alone; one call may cut both sides."""
    alone = call.keyword("text_target") is not None and call.argument("text", 0) is None
    expr = call.keyword(name)
    return alone or (expr is not None and "target" in last_name(expr))


def _is_sum(expr: ast.expr | None) -> bool:
    return isinstance(expr, ast.BinOp) and isinstance(expr.op, ast.Add | ast.Sub)


def constants(read: Reader, names: frozenset[str]) -> Iterator[Binding]:
    """The constants of the module that have one of these names, in any case."""
    module = read.source.module
    for name, values in module.values.items():
        if name.lower() in names and values[0] is not None:
            code = f"{name} = {ast.unparse(values[0])}"
            value = literal(ast.Name(id=name), module)
            yield Binding(value=value, line=values[0].lineno, code=code)
