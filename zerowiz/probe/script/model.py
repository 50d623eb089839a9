"""Read a script's model: its name, sequence length, attention, adapters."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain, pairwise

from msgspec import Struct

from zerowiz.core.model.from_name import LENGTHS
from zerowiz.core.model.hf_config import size_keys
from zerowiz.core.script.arguments import BY_ARCHITECTURE
from zerowiz.core.script.facts import (
    UNSEEN,
    BuiltModel,
    OwnSizes,
    Placement,
    ScriptCall,
    ScriptFacts,
    ValueSource,
)
from zerowiz.core.settings import OTHER_SETTINGS
from zerowiz.core.structs import replace
from zerowiz.core.workload import SETTINGS, Integration
from zerowiz.probe.script.reader import Reader, agree, short_code, show_argument
from zerowiz.probe.script.source import (
    GENERATES,
    HF_LIBRARIES,
    HF_PARSE_CALLS,
    FunctionCall,
    Scope,
    Source,
    decide,
    entries,
    follow,
    is_complete,
    last_name,
    literal,
    nodes_of,
    unless_none,
)

# What stands beside a length that is not that of what is trained: transformers' examples of
# summarization and translation have one of the decoder, forecasts of a series one of what follows.
_BESIDE_LENGTHS = frozenset({"max_target_length", "pred_len"})
# Models that a script loads beside the one that it trains, and what it loads of its own output.
_OTHER_MODEL = re.compile(
    r"(?<![a-z])(reward|ref|teacher|critic|value|judge|draft|rm|output_dir)(?![a-z])"
)
# The part of a model that sees or hears.
_SENSE = re.compile(r"(vision|visual|image|speech|audio)_?(tower|encoder)")


_COPY = re.compile(r"(?<![a-z])(reward|ref|teacher|critic|judge|ema)(?![a-z])")


def with_model(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the model's settings, and those that the arguments classes left open.

    What diffusers loads has no `config.json` of one model, and its texts are prompts.
    """
    origins = read.source.imports.values()
    if any(origin.partition(".")[0] == "diffusers" for origin in origins):
        return facts
    lengths = (facts.sequence_tokens, _sequence(read))
    used = (length for length in lengths if length.seen and _is_used(length, facts, read))
    facts = facts.with_sources(
        sequence_tokens=next(used, UNSEEN if lengths[1].seen else lengths[1]),
        attention=_attention(read),
        model=_model(read),
        positions=_positions(read),
    )
    return replace(
        facts,
        built_model=None if facts.model.seen else _built_model(read),
        loads_16_bit=_loaded_16_bit(read),
        placements=tuple(_placements(read)),
    )


def loads(source: Source, call: FunctionCall) -> str:
    """`Model` or `Config` for a call that builds one with these libraries; empty for any other."""
    kind = _kind(call)
    return kind if kind and _is_theirs(source, call) else ""


def _is_theirs(source: Source, call: FunctionCall) -> bool:
    return source.origin(call.node.func).split(".")[0] in HF_LIBRARIES


def _kind(call: FunctionCall) -> str:
    """As `loads`, for a class of any module."""
    func = call.node.func
    if not isinstance(func, ast.Attribute) or func.attr not in {"from_pretrained", "from_config"}:
        return ""
    name = last_name(func.value)
    if name.startswith(("Lora", "Peft")):
        return ""
    return "Model" if "Model" in name or "For" in name else "Config" if "Config" in name else ""


def _model(read: Reader) -> ValueSource:
    """The hub id or folder from which the model, or else its config, is loaded."""
    by_kind: dict[str, list[ValueSource]] = {"Model": [], "Trainer": [], "Config": []}
    paths, own_lines = set(), read.source.own_lines
    for call in read.source.calls:
        is_trainer = call.method.endswith("Trainer")
        kind = "Trainer" if is_trainer else _kind(call)
        name = "model" if is_trainer else "pretrained_model_name_or_path"
        expr = call.argument(name, 0) if kind else None
        is_beside = kind == "Model" and is_other(call)
        if expr is None or call.method == "from_config" or is_beside:
            continue
        paths |= {last_name(expr)} if kind == "Model" and not _is_parameter(expr, call) else set()
        by_kind[kind].append(read.bind(expr, call, "model" if is_trainer else None))
    if not by_kind["Model"] and _is_resized(read):
        return UNSEEN
    for bindings in by_kind.values():
        seen = [b for b in bindings if b.flag is not None or isinstance(b.value, str)]
        rest = [b for b in bindings if b not in seen and b.code is not None]
        # What modules name, beside one that is not followed, may be for other words.
        is_own = not own_lines or any(b.flag or (b.line or 0) < own_lines for b in seen)
        if seen and (is_own or not rest):
            return agree(seen)
    names = OTHER_SETTINGS["model"].script_names
    named = read.named(names & paths if paths else names)
    ends = [b for bindings in by_kind.values() for b in bindings if b.code is not None]
    return named if named.seen or not ends else ends[0]


# transformers, models/*/modeling_*.py: what makes new weights of a config.
_BUILDING = re.compile(r"(Model|For[A-Z]\w*)$")
# What a script takes from its tokenizer, and what changes the model little.
_OF_TOKENIZER = "vocab_size"


def _is_resized(read: Reader) -> bool:
    """Whether the script builds its model of a config that it makes, or changes the size of one."""
    changed = (read.source.altered & size_keys()) - {_OF_TOKENIZER}
    for call in read.source.calls:
        func, expr = call.node.func, call.argument("config", 0)
        if isinstance(func, ast.Attribute) and func.attr in {"from_config", "_from_config"}:
            func = func.value
        library = read.source.origin(func).partition(".")[0]
        if library != "transformers" or not _BUILDING.search(last_name(func)) or expr is None:
            continue
        made = read.argument(expr, call).expr
        if isinstance(made, ast.Call) and not is_other(call):
            given = {word.arg for word in made.keywords} & size_keys() - {_OF_TOKENIZER}
            is_changed = changed or (isinstance(expr, ast.Name) and expr.id in read.source.changed)
            if is_changed or given or last_name(made) != "from_pretrained":
                return True
    return False


def _is_parameter(expr: ast.expr, call: FunctionCall) -> bool:
    """Whether it is a parameter of a function, for which callers pass anything."""
    return isinstance(expr, ast.Name) and call.scope.owner(expr.id).values.get(expr.id) == [None]


# What a `dtype=` is that gives no 16-bit weights, or asks the precision of the training; `"auto"`
# is that of the file.
_NOT_16_BIT = re.compile(r"None|'auto'|(torch\.)?float(32)?|.*\b(bf|fp)16\b.*")


def _loaded_16_bit(read: Reader) -> ValueSource | None:
    """The `dtype=` with which every model that is to be trained is, or may be, loaded in 16 bits.

    What has such an argument is a model, of whatever class.
    """
    dtypes: list[ValueSource | None] = []
    for call in read.source.by_method.get("from_pretrained", []):
        name = "dtype" if call.keyword("dtype") is not None else "torch_dtype"
        expr = call.keyword(name)
        if is_other(call) or (expr is None and loads(read.source, call) != "Model"):
            continue
        dtype = "None" if expr is None else ast.unparse(read.follow(expr, call))
        code = f"{name}={'' if expr is None else short_code(expr)}"
        is_whole = _NOT_16_BIT.fullmatch(dtype)
        dtypes.append(None if is_whole else ValueSource(line=call.line, code=code))
    return dtypes[0] if dtypes and None not in dtypes else None


def _placements(read: Reader) -> Iterator[Placement]:
    """The device maps of the models that are loaded to be trained."""
    trained = {name for call in read.source.calls for name in _trained(call)}
    for call in read.source.calls:
        is_model = loads(read.source, call) == "Model" and not is_other(call)
        given = read.source.keywords(call)[0] if is_model else {}
        expr = unless_none(given.get("device_map"))
        if expr is None:
            continue
        starts = [o for o in read.source.calls if call.function and o.method == call.function]
        names = {name for other in (call, *starts) for name in other.target.split()}
        if not names & trained:
            continue
        expr = read.follow(expr, call)
        places = entries(expr, call.scope) or {}
        yield Placement(
            place=read.bind(places[""] if [*places] == [""] else expr, call, "device_map"),
            is_map=isinstance(expr, ast.Dict),
            conditions=tuple(read.conditions(call)),
            engine_is_known=is_after_engine(read, call),
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


def _given_models(call: FunctionCall) -> list[ast.expr]:
    """What a call takes to train it; of Accelerate's `prepare` also what is no model."""
    if call.method in _TRAINING or call.method.endswith("Trainer"):
        given = call.argument("model", _TRAINING.get(call.method, 0))
        return [] if given is None else [given]
    return [*call.node.args] if call.method == "prepare" else []


def _trained(call: FunctionCall) -> Iterator[str]:
    """The names of what a call takes to train it."""
    given = _given_models(call)
    yield from (last_name(expr) for expr in given if isinstance(expr, ast.Name | ast.Attribute))


def is_other(call: FunctionCall) -> bool:
    """Whether a call loads a model that stands beside the one that is trained."""
    expr = call.argument("pretrained_model_name_or_path", 0)
    about = f"{call.target} {ast.unparse(expr) if expr else ''}".lower()
    return (_OTHER_MODEL.search(about) or _SENSE.search(about)) is not None


def is_after_engine(read: Reader, call: FunctionCall) -> bool:
    """Whether transformers knows of DeepSpeed's config when a model is loaded.

    transformers 5.23, training_args.py, __post_init__, and accelerate 1.15, utils/dataclasses.py,
    DeepSpeedPlugin: TrainingArguments and Accelerator tell it, once there are any.
    """
    name = call.argument("pretrained_model_name_or_path", 0)
    parses = read.line.training is not None and read.line.reads_words
    if parses and name is not None and read.bind(name, call).flag is not None:
        return True
    before = [built.call for built in read.line.built]
    before += read.source.calls_to("accelerate", "Accelerator")
    if parses:
        before += [other for other in read.source.calls if other.method in HF_PARSE_CALLS]
    return any(
        other.function == call.function and other.line < call.line and not other.tests
        for other in before
    )


def _attention(read: Reader) -> ValueSource:
    names = SETTINGS["attention"].script_names
    values = [
        value for call in read.source.calls for name in names if (value := read.keyword(call, name))
    ]
    return agree(values) if values else read.named(names)


def _sequence(read: Reader) -> ValueSource:
    """The sequence length: the argument of a call, else an option or a constant by its name."""
    if any(option.dest in _BESIDE_LENGTHS for option in read.line.parser.options):
        return UNSEEN
    seen = [length for length in _lengths(read) if length.seen]
    names = SETTINGS["sequence_tokens"].script_names
    has_option = any(option.dest in names for option in read.line.parser.options)
    if has_option:
        # A constant in a module may be the length of something else.
        own_lines = read.source.own_lines
        seen = [s for s in seen if s.flag is not None or not own_lines or (s.line or 0) < own_lines]
    if seen:
        return agree(seen)
    if has_option:
        return read.named(names)
    return agree(constants(read, names))


def _is_used(length: ValueSource, facts: ScriptFacts, read: Reader) -> bool:
    """Whether the script, or a library, reads the option of a length for what is trained."""
    training, source = read.line.training, read.source
    # A Trainer whose forward pass is the script's reads no such field by itself.
    by_library = training is not None and not any(use.changed for use in facts.trainer.uses)
    if length.flag is None or (by_library and training and "max_length" in training.of_library):
        return True
    names = {option.dest for option in read.line.parser.find(length.flag)}
    bases = {base for name in names for base in source.reads.get(name, ())} & source.namespaces
    # `main(**vars(args))`, or what Fire makes options of.
    parameters = (
        arg.arg for f in source.functions.values() for arg in (*f.args.args, *f.args.kwonlyargs)
    )
    by_name = (source.fired or "vars(" in source.text) and not names.isdisjoint(parameters)
    return bool(by_name) or not all(map(GENERATES.search, bases))


def _lengths(read: Reader) -> Iterator[ValueSource]:
    """The arguments of calls that are a sequence length."""
    for call in read.source.calls:
        cuts = call.keyword("truncation", "padding") is not None
        for name in ("model_max_length", "max_seq_length", *(("max_length",) if cuts else ())):
            length, expr = read.keyword(call, name), call.keyword(name)
            is_sum = isinstance(expr, ast.BinOp) and isinstance(expr.op, ast.Add | ast.Sub)
            # Of a sum some tokens are dropped again: it is not the length of what is trained.
            if length is not None and not is_sum:
                yield length


def constants(read: Reader, names: frozenset[str]) -> Iterator[ValueSource]:
    """The constants of the module that have one of these names, in any case."""
    module = read.source.module
    for name, values in module.values.items():
        if name.lower() in names and values[0] is not None:
            code = f"{name} = {ast.unparse(values[0])}"
            value = literal(ast.Name(id=name), module)
            yield ValueSource(value=value, line=values[0].lineno, code=code)


# Read the sizes of a model that a script builds of its own classes: `GPTConfig(n_layer=12)`.

# Names of nanoGPT, llama2.c and transformers. `num_layers` is one of an LSTM as well.
_LAYERS = frozenset({"n_layer", "n_layers", "num_hidden_layers"})
_WIDTH = frozenset({"d_model", "dim", "hidden_size", "n_embd"})
_VOCABULARY = frozenset({"n_vocab", "vocab_size"})
_CONFIG = re.compile(r"(Config|Args)$")
# Models that stand beside the one that is trained.
_BESIDE = re.compile(rf"{_OTHER_MODEL.pattern}|vae|(?<![a-z])ema(?![a-z])|discriminator")
_OF_WORDS = re.compile(r"GPT|Llama|LanguageModel|LM$")


def with_own_sizes(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the sizes of a script's own model, where it shows how deep and how wide that is."""
    layers, width, named = (_size(read, names) for names in (_LAYERS, _WIDTH, _VOCABULARY))
    vocabulary = named if named.seen else _largest_embedding(read)
    calls = read.source.calls
    # A model of other things than words has no vocabulary.
    has_words = vocabulary.seen or any(_OF_WORDS.search(call.method) for call in calls)
    builds_theirs = any(
        _kind(call) == "Model" or (_BUILDING.search(call.method) and _is_theirs(read.source, call))
        for call in calls
    )
    if builds_theirs or not (layers.seen and width.seen and has_words):
        return facts
    sizes = OwnSizes(
        layers=layers,
        hidden_size=width,
        vocab_size=vocabulary,
        is_tied=bool(read.source.tied),
    )
    return replace(facts, own_sizes=sizes)


def _largest_embedding(read: Reader) -> ValueSource:
    """How many rows the largest `nn.Embedding` has: the other one may be that of positions."""
    rows = [
        read.bind(call.node.args[0], call)
        for call in read.source.by_method.get("Embedding", [])
        if call.node.args
    ]
    sizes = {binding.value: binding for binding in rows if isinstance(binding.value, int)}
    return sizes[max(sizes)] if sizes else UNSEEN


def _size(read: Reader, names: frozenset[str]) -> ValueSource:
    """What a call of a config gives one of these names, else such an option, constant or field."""
    given = [binding for binding in _given(read, names) if binding.seen]
    if given:
        return agree(given)
    named = by_name(read, names)
    return named if named.seen else agree(_fields(read, names))


def _fields(read: Reader, names: frozenset[str]) -> Iterator[ValueSource]:
    """The defaults of a config class that the script makes by name: `n_layer: int = 12`."""
    made = {name: calls for name, calls in read.source.by_method.items() if _CONFIG.search(name)}
    # `ModelArgs(**params)` may give any.
    plain = [name for name, calls in made.items() if not any(None in call.words for call in calls)]
    classes = read.source.classes
    for part in chain.from_iterable(classes[name].body for name in plain if name in classes):
        if isinstance(part, ast.AnnAssign) and part.value and ast.unparse(part.target) in names:
            value = literal(part.value, read.source.module)
            yield ValueSource(value=value, line=part.lineno, code=ast.unparse(part))


def by_name(read: Reader, names: frozenset[str]) -> ValueSource:
    """The option, or else the constant of the module, that has one of these names."""
    named = read.named(names)
    return named if named.seen else agree(constants(read, names))


def _given(
    read: Reader, names: frozenset[str], *, of_library: bool = False
) -> Iterator[ValueSource]:
    named = (calls for name, calls in read.source.by_method.items() if _CONFIG.search(name))
    for call in chain.from_iterable(named):
        if of_library or not _is_theirs(read.source, call):
            given = read.source.keywords(call)[0]
            yield from (read.bind(given[name], call, name) for name in names & given.keys())


# A layer with a row for each position: nanoGPT's `wpe`, BERT's `position_embeddings`.
_OF_POSITIONS = re.compile(r"(?<![a-z])(wpe|pos|positions?|positional)(?![a-z])")


def _positions(read: Reader) -> ValueSource:
    """How many positions the model has: in its config, else by the rows of its embedding."""
    config = [*_given(read, frozenset(LENGTHS), of_library=True)]
    rows = []
    for call in read.source.by_method.get("Embedding", []):
        names = [call.target]
        # `nn.ModuleDict(dict(wpe=nn.Embedding(...)))`.
        names += [
            word
            for made in read.source.by_method.get("dict", [])
            for word, expr in made.words.items()
            if expr is call.node and word
        ]
        expr = call.argument("num_embeddings", 0)
        if expr is not None and any(map(_OF_POSITIONS.search, names)):
            rows.append(read.bind(expr, call))
    return agree(b for b in config or rows if b.seen)


def _built_model(read: Reader) -> BuiltModel | None:
    """The call that makes what the script trains."""
    for call in read.source.calls:
        for given in _given_models(call):
            if call.method == "prepare" and "model" not in last_name(given):
                continue
            made = _made(given, call, read)
            if made is not None:
                library = read.source.origin(made.func).partition(".")[0]
                loads = last_name(made.func) in {"from_pretrained", "from_config"}
                return BuiltModel(
                    line=made.lineno,
                    code=short_code(made),
                    from_library=loads or library in HF_LIBRARIES,
                )
    return None


def _made(expr: ast.expr, call: FunctionCall, read: Reader) -> ast.Call | None:
    """The call that makes an object: that of `GPT()` in `GPT().to(device)`.

    What takes a model, such as `accelerator.prepare(model)`, makes none.
    """
    expr, call, *_ = read.argument(expr, call)
    values: list[ast.expr | None] = [expr]
    if isinstance(expr, ast.Name):
        # `model = GPT()`, then `model = model.to(device)`.
        values = call.scope.owner(expr.id).values.get(expr.id, [])
    made = next((value for value in values if isinstance(value, ast.Call)), None)
    while made and isinstance(made.func, ast.Attribute) and isinstance(made.func.value, ast.Call):
        made = made.func.value
    return None if made and made.args and last_name(made.args[0]) == "model" else made


# Read a script's adapters: whether they train, on which layers, at which rank.

# peft 0.21, tuners/lora/config.py, class LoraConfig.
_DEFAULT_RANK = 8
_ADAPTERS_CONFIG = "LoraConfig"
# The functions that take a config of peft, with the keyword and the position of that argument:
# peft 0.21, mapping_func.py; transformers 5.23, integrations/peft.py.
_TAKERS = {"get_peft_model": ("peft_config", 1), "add_adapter": ("adapter_config", 0)}
# LoraConfig's fields that make adapters larger than their rank does, or train other weights whole.
_UNCOUNTED = ("use_dora", "modules_to_save", "target_parameters", "rank_pattern")
# Libraries whose functions return no weights in 4 bits that were not asked for.
_KNOWN = frozenset({"accelerate", "deepspeed", "diffusers", "peft", "timm", "torch", "unsloth"})
_KNOWN |= HF_LIBRARIES


def with_adapters(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the adapters of a script that can train any."""
    source = read.source
    # A config of peft may come from another module of it, too.
    origins = (*source.imports.values(), *source.stars)
    names = {origin.rpartition(".")[2] for origin in origins}
    libraries = {origin.split(".")[0] for origin in origins}
    facts = replace(
        facts,
        trains_adapters=(
            "get_peft_config" in names
            or "get_reft_model" in source.by_method
            or not libraries.isdisjoint({"peft", "unsloth"})
            or any(unless_none(call.keyword("peft_config")) for call in source.calls)
        )
        # What adds them may be a module that is found at run time alone.
        or any(_LORA.search(option.dest) for option in read.line.parser.options),
        builds_elsewhere=any(_builds_elsewhere(source, call) for call in source.calls),
        freezes=tuple(_freezes(read)),
        # Those of a Trainer are its own arguments.
        copies=() if facts.integration is Integration.HF else tuple(_copies(read)),
    )
    if not facts.trains_adapters:
        return facts
    facts = replace(facts, uncounted=tuple(_uncounted(read)))
    facts = facts.with_sources(quantized=_quantized(read))
    if source.calls_to("trl", "get_peft_config"):
        return facts.with_sources(
            adapters=_by_model_config(read, "use_peft"),
            lora_rank=_by_model_config(read, "lora_r"),
            lora_target_modules=_by_model_config(read, "lora_target_modules"),
        )
    used = [*_used(read)]
    adapters = _adapters(read, used)
    only = used[0].call if len(used) == 1 and used[0].configs and not used[0].hidden else None
    if only is not None and not adapters.seen and not only.may_be_skipped:
        facts = replace(facts, adapters_if=tuple(read.conditions(only)))
    return facts.with_sources(
        adapters=adapters,
        lora_rank=agree(_rank(read, config) for use in used for config in use.configs),
        lora_target_modules=agree(
            _adapter_targets(read, config) for use in used for config in use.configs
        ),
    )


def _script_call(read: Reader, call: FunctionCall) -> ScriptCall:
    conditions = tuple(read.conditions(call))
    return ScriptCall(conditions=conditions, line=call.line, code=short_code(call.node))


def _copies(read: Reader) -> Iterator[ScriptCall]:
    """Where a loop copies the model that it trains, or has one beside it, also in an engine."""
    engines = read.source.calls_to("deepspeed", "initialize")
    for first, call in pairwise(engines):
        given = [ast.unparse(c.argument("model", 1) or c.node) for c in (first, call)]
        if first.function == call.function and given[0] != given[1]:
            yield _script_call(read, call)
    trained = {name for call in read.source.calls for name in _trained(call)}
    for call in read.source.calls:
        copied = {last_name(arg) for arg in call.node.args if call.method == "deepcopy"}
        if copied & trained or (_kind(call) == "Model" and _COPY.search(call.target.lower())):
            yield _script_call(read, call)


def _freezes(read: Reader) -> Iterator[ScriptCall]:
    """Where parameters are frozen, but for those of models that stand beside the trained one."""
    for call in read.source.by_method.get("requires_grad_", []):
        value, whose = call.argument("requires_grad", 0), ast.unparse(call.node.func)
        about = f"{whose} {read.source.parameters.get(whose.partition('.')[0], '')}".lower()
        unfreezes = value is None or literal(value, call.scope) is True
        if not unfreezes and not _BESIDE.search(about):
            yield _script_call(read, call)


def _by_model_config(read: Reader, name: str) -> ValueSource:
    """The setting that a field of TRL's ModelConfig has."""
    options = read.line.parser.of(name)
    return read.bind_option(options[0], "ModelConfig") if options else UNSEEN


_LORA = re.compile(r"(?<![a-z])q?lora(?![a-z])")


class _Use(Struct, frozen=True, kw_only=True):
    """One call that takes a config of peft, and the LoraConfigs that may be that config."""

    call: FunctionCall
    configs: tuple[FunctionCall, ...]
    hidden: bool = False
    """The config may be another one, or none."""


def _used(read: Reader) -> Iterator[_Use]:
    """The calls that add adapters to a model; without any, those that build their config."""
    source, is_used = read.source, False
    built = tuple(source.calls_to("peft", _ADAPTERS_CONFIG))
    for call in source.calls:
        expr = _taken(source, call)
        if expr is not None:
            is_used = True
            yield _resolve(source, call, expr, built)
    if not is_used:
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
    inside = {id(node) for node in nodes_of(expr)}
    name = last_name(expr)
    for configs in (
        tuple(config for config in built if id(config.node) in inside),
        tuple(c for c in built if not isinstance(expr, ast.Call) and name in c.target.split()),
        tuple(c for c in built if isinstance(expr, ast.Call) and c.function == name),
    ):
        if configs:
            # A function that returns at several places may return none.
            function = source.functions.get(name) if isinstance(expr, ast.Call) else None
            nodes = nodes_of(function) if function else ()
            returns = sum(isinstance(node, ast.Return) for node in nodes)
            return _Use(call=call, configs=configs, hidden=returns > 1)
    # A parameter of a function: its callers pass one of the configs that the file builds, if any.
    passed = isinstance(expr, ast.Name) and expr.id in call.scope.values
    return _Use(call=call, configs=built, hidden=not (passed and built))


def _condition(read: Reader, use: _Use) -> ValueSource:
    """The condition under which a model gets its adapters."""
    if use.hidden or not use.configs:
        return ValueSource(line=use.call.line, code=f"{use.call.name}(...)")
    tests = [_tests(read.source, call) for call in (use.call, *use.configs[:1])]
    if use.call.may_be_skipped or any(
        _tests(read.source, config) != tests[-1] for config in use.configs
    ):
        return UNSEEN
    return _under(read, use.call, tests)


def _adapters(read: Reader, used: list[_Use]) -> ValueSource:
    """The condition under which a model has adapters: new ones, or those of a checkpoint."""
    joined = _join([_condition(read, use) for use in used])
    if joined.seen or any(use.hidden or not use.configs for use in used):
        return joined
    calls = [*(use.call for use in used), *filter(_loads_adapters, read.source.calls)]
    tested = [_tests(read.source, call) for call in calls]
    branches = [dict(decide(_parsed(test)) for test in tests or ()) for tests in tested]
    for test in tested[0] or () if tested and None not in tested else ():
        name, holds = decide(_parsed(test))
        others = [{n: b for n, b in branch.items() if n != name} for branch in branches]
        if all(branch.get(name) is holds for branch in branches) and is_complete(others):
            return _under(read, calls[0], [(test,)])
    return joined


def _loads_adapters(call: FunctionCall) -> bool:
    """Whether a call loads adapters that train on."""
    trains = call.keyword("is_trainable")
    is_on = isinstance(trains, ast.Constant) and trains.value is True
    return is_on and call.name.endswith("PeftModel.from_pretrained")


def _parsed(test: str) -> ast.expr:
    return ast.parse(test, mode="eval").body


def _tests(source: Source, call: FunctionCall) -> tuple[str, ...] | None:
    """The conditions around a call; None where they differ."""
    tests = source.tests_of(call)
    return None if tests is None else (*map(ast.unparse, tests),)


def _under(read: Reader, call: FunctionCall, around: list[tuple[str, ...] | None]) -> ValueSource:
    """The condition under which several calls are all made; certain if there is none.

    Args:
        read: Answers what the condition depends on.
        call: The call that the binding names.
        around: The conditions of each call.

    Returns:
        A binding without a value where there is more than one condition.
    """
    certain = ValueSource(value=True, line=call.line, code=f"{call.name}(...)")
    if None in around:
        return replace(certain, value=None)
    tests = list(dict.fromkeys(test for tests in around for test in tests or ()))
    if not tests:
        return certain
    if len(tests) > 1:
        return replace(certain, value=None)
    node = _parsed(tests[0])
    condition = read.condition(ast.copy_location(node, call.node), call)
    return replace(condition, line=call.line) if condition.flag is None else condition


def _join(bindings: list[ValueSource]) -> ValueSource:
    """The condition under which one of several calls is made.

    It is certain where one call is unconditional, and where two calls are the two branches of one
    condition.
    """
    certain = [b for b in bindings if b.value is True and b.flag is None and not b.unless]
    if certain:
        return certain[0]
    if len(bindings) == 2 and bindings[0].seen:  # noqa: PLR2004 - a pair
        first, second = bindings
        same = replace(first, unless=second.unless, line=None) == replace(second, line=None)
        if same and first.unless is not second.unless:
            return ValueSource(value=True, line=first.line, code=first.code)
    return agree(bindings)


def _rank(read: Reader, config: FunctionCall) -> ValueSource:
    keywords, hidden = read.source.keywords(config)
    if "r" in keywords:
        return read.bind(keywords["r"], config, "r")
    if hidden or config.node.args:
        return ValueSource(line=config.line, code=f"{config.name}(**...)")
    return ValueSource(
        value=_DEFAULT_RANK, line=config.line, keyword="r", default_of=_ADAPTERS_CONFIG
    )


def _adapter_targets(read: Reader, config: FunctionCall) -> ValueSource:
    name = "target_modules"
    keywords, hidden = read.source.keywords(config)
    if name in keywords and unless_none(keywords[name]) is not None:
        return read.bind_words(keywords[name], config, name)
    if name not in keywords and (hidden or config.node.args):
        return ValueSource(line=config.line, code=f"{config.name}(**...)")
    return ValueSource(
        value=BY_ARCHITECTURE, line=config.line, keyword=name, default_of=_ADAPTERS_CONFIG
    )


def _uncounted(read: Reader) -> Iterator[ValueSource]:
    """What makes adapters larger, trains beside them, or lets their base hold 8 bits."""
    source = read.source
    for config in source.calls_to("peft", _ADAPTERS_CONFIG):
        keywords, _ = source.keywords(config)
        for name in _UNCOUNTED:
            expr = unless_none(keywords.get(name))
            if expr is not None:
                yield from _unless_off(read, config, expr, name)
    added = min((use.call.line for use in _used(read)), default=None)
    for node in source.unfrozen:
        # What is let train before the adapters are added is frozen by peft again.
        if added is not None and added < node.lineno:
            yield ValueSource(line=node.lineno, code=ast.unparse(node))
    for call, expr in _with_keyword(source, "load_in_8bit"):
        if not _is_off(expr):
            yield ValueSource(line=call.line, code=show_argument(call, expr, "load_in_8bit"))


def _unless_off(
    read: Reader, config: FunctionCall, expr: ast.expr, name: str
) -> Iterator[ValueSource]:
    """An argument of a LoraConfig that is on, or is where an option says so."""
    code = show_argument(config, expr, name)
    option = read.bind(expr, config)
    if option.flag is not None:
        yield replace(option, line=config.line, code=code)
    elif not all(map(_is_off, _values(expr, config.scope))):
        yield ValueSource(line=config.line, code=code)


def _values(expr: ast.expr, scope: Scope) -> list[ast.expr]:
    """The values that an expression may have, as far as they stand in the script."""
    if isinstance(expr, ast.IfExp):
        return [*_values(expr.body, scope), *_values(expr.orelse, scope)]
    if isinstance(expr, ast.Name):
        return [
            value for value in scope.owner(expr.id).values.get(expr.id, []) if value is not None
        ]
    return [expr]


def _is_off(expr: ast.expr) -> bool:
    """Whether it is a false literal, or an expression whose value is not known."""
    return not isinstance(expr, ast.List | ast.Dict | ast.Tuple) and not (
        isinstance(expr, ast.Constant) and bool(expr.value)
    )


def _with_keyword(source: Source, name: str) -> Iterator[tuple[FunctionCall, ast.expr]]:
    """Every call that has this keyword, also in a dict behind `**`, with the keyword's value."""
    for call in source.calls:
        if call.method != "dict" and (name in call.words or None in call.words):
            expr = source.keywords(call)[0].get(name)
            if expr is not None:
                yield call, expr


def _quantized(read: Reader) -> ValueSource:
    """Whether the frozen weights are loaded in 4 bits."""
    source, name = read.source, "load_in_4bit"
    if source.calls_to("trl", "get_quantization_config"):
        return _by_model_config(read, name)
    conditions = [_guarded(read, call, expr, name) for call, expr in _with_keyword(source, name)]
    if conditions:
        return _join([b for b in conditions if b.value is not False or b.flag] or conditions)
    hidden = next((call for call in source.calls if _may_quantize(source, call)), None)
    if hidden is not None and _builds_elsewhere(source, hidden) and read.line.parser.of(name):
        return _by_model_config(read, name)
    if hidden is None or [*_with_keyword(source, "load_in_8bit")]:
        return ValueSource(value=False, line=1, code="no `load_in_4bit`")
    return ValueSource(line=hidden.line, code=f"{hidden.name}(...)")


def _may_quantize(source: Source, call: FunctionCall) -> bool:
    """Whether a call may return quantized weights, or takes them.

    It has a quantization config that cannot be followed, or is of a module that is not seen.
    """
    # peft 0.21, utils/other.py: it is for weights in 4 or in 8 bits.
    kbit = call.method == "prepare_model_for_kbit_training"
    config = unless_none(call.keyword("quantization_config"))
    return kbit or config is not None or _builds_elsewhere(source, call)


@lru_cache(maxsize=1)
def _given_as_model(source: Source) -> frozenset[ast.expr | None]:
    return frozenset(call.words.get("model") for call in source.calls)


def _builds_elsewhere(source: Source, call: FunctionCall) -> bool:
    """Whether a function of a module that is not seen builds the model."""
    is_named = isinstance(call.node.func, ast.Name) and call.method in source.imports
    if not is_named or source.imported(call.node.func)[0] in _KNOWN:
        return False
    is_model = "model" in call.target.split() or call.node in _given_as_model(source)
    return is_model and not any(isinstance(a, ast.Name) and a.id == "model" for a in call.node.args)


def _guarded(read: Reader, call: FunctionCall, expr: ast.expr, name: str) -> ValueSource:
    """A boolean argument of a call, together with the condition that the call itself is under."""
    condition = read.condition(expr, call, name)
    under = _under(read, call, [_tests(read.source, call)])
    literal = condition.flag is None and isinstance(condition.value, bool) and not condition.unless
    if literal and condition.value is False:
        return condition
    certain = under.value is True and under.flag is None and not under.unless
    if certain or (under.flag is not None and under.flag == condition.flag):
        return condition
    return under if literal else ValueSource(line=call.line, code=show_argument(call, expr, name))
