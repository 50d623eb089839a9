"""Read a script's training loop: micro-batch, accumulation, precision, checkpointing."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from zerowiz.core.script.arguments import FIELD_ALIASES, MIXED_PRECISIONS, Scalar
from zerowiz.core.script.facts import (
    RELEASE_CALLS,
    TRAINER_FIELDS,
    UNSEEN,
    Convention,
    ScriptFacts,
    ValueSource,
)
from zerowiz.core.settings import OTHER_SETTINGS
from zerowiz.core.structs import replace
from zerowiz.core.workload import OPTIMIZERS, SETTINGS, SWITCHED, Integration
from zerowiz.probe.script.commandline import Built
from zerowiz.probe.script.engine_config import CONFIG_POSITIONS, lightning_word
from zerowiz.probe.script.model import by_name, loads
from zerowiz.probe.script.reader import Reader, agree, asks_config, short_code
from zerowiz.probe.script.source import (
    ACCELERATOR,
    FunctionCall,
    Source,
    children,
    conjuncts,
    follow,
    last_name,
    literal,
)

# Loaders that nothing is trained from directly, and options that are their batch.
_OTHER_LOADER = re.compile(r"(?<![a-z])(eval|val|test)")
_OTHER_BATCH = re.compile(r"(?<![a-z])(eval|val|test|gen_|generat|sample_|rollout|infer|predict)")
_TRAINING_BATCH = re.compile(r"(?<![a-z])(train|micro)")
# Names of a batch of all ranks, or of all steps until the optimizer's.
_WHOLE_BATCH = re.compile(r"(?<![a-z])(global|total|effective|macro)")
# deepspeed 0.19.8, __init__.py, initialize: the position of its argument.
_TRAINING_DATA = 4
# What makes an engine of a model whose loop the script has.
_STARTS: Mapping[Integration | None, tuple[str, str]] = {
    Integration.DEEPSPEED: ("deepspeed", "initialize"),
    Integration.ACCELERATE: ACCELERATOR,
}


def with_training(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the settings of the library that trains."""
    facts = replace(facts, calls=(RELEASE_CALLS | {"backward"}) & read.source.by_method.keys())
    if facts.integration is Integration.HF:
        return _with_arguments(facts, read)
    steps = facts.integration is not Integration.DEEPSPEED or facts.passes_optimizer
    built = list(_own_optimizers(read))
    bindings = [binding for _, binding in built]
    facts = facts.with_sources(
        micro_batch=_loader_batch(read, facts.integration),
        loader_workers=agree(_loader_workers(read)),
        # One that is built under a condition may not be the one that steps.
        optimizer=UNSEEN if len(built) == 1 and built[0][0].tests else agree(bindings),
        lr=_of_optimizer(read, built, "lr"),
        weight_decay=_of_optimizer(read, built, "weight_decay"),
        max_grad_norm=_clipping(read),
    )
    facts = replace(
        facts,
        own_optimizers=tuple(
            dict.fromkeys(str(binding.value) for binding in bindings if binding.value)
        ),
        # Of an engine that gets none the config makes the optimizer.
        unfused_adam_line=_unfused_adam_line(read) if steps else None,
    )
    if facts.integration is Integration.DEEPSPEED:
        counts = _STEPS_OF_ENGINE in read.source.by_method
        facts = replace(facts, counts_micro_steps=counts)
        facts = facts.with_sources(accumulation_steps=ValueSource(from_config=True))
        if facts.convention is Convention.CONFIG_DICT:
            return facts.with_sources(**_of_built_config(facts, read))
        set_keys = {key for keys in read.source.changed.values() for key in keys}
        if not set_keys & _BATCH_KEYS:
            return facts
        # What it puts into the config that it gets is not followed.
        by_loader = UNSEEN if facts.micro_batch.from_config else facts.micro_batch
        return facts.with_sources(micro_batch=by_loader, accumulation_steps=UNSEEN)
    if facts.integration is Integration.LIGHTNING:
        trainers = read.source.lightning_trainers()
        words = _OF_LIGHTNING if trainers else {}
        return facts.with_sources(
            **{name: lightning_word(read, trainers[0], *word) for name, word in words.items()}
        )
    calls = read.source.calls_to(*ACCELERATOR)
    chosen = _chosen_precision(read, calls[0]) if len(calls) == 1 else {}
    named = agree(read.keyword(call, "mixed_precision") or UNSEEN for call in calls)
    return facts.with_sources(
        **{"mixed_precision": UNSEEN if chosen else named, **chosen},
        accumulation_steps=agree(_accelerated_steps(read, call) for call in calls),
    )


def _of_built_config(facts: ScriptFacts, read: Reader) -> dict[str, ValueSource]:
    """What a dict in the code says that is the config of the only engine."""
    engine, *others = read.source.calls_to("deepspeed", "initialize")
    given = (engine.argument(*place) for place in CONFIG_POSITIONS.items())
    config = next(filter(None, given), None)
    if config is None or others:
        return {}
    written = read.source.entries(config, engine.scope)
    if written is None:
        return {}
    by_loader = facts.micro_batch.seen and not facts.micro_batch.from_config
    keys = {
        "accumulation_steps": _STEPS_OF_ENGINE,
        "max_grad_norm": "gradient_clipping",
        **({} if by_loader else {"micro_batch": _MICRO_BATCH_OF_ENGINE}),
    }
    exprs = {name: written[str(key)] for name, key in keys.items() if key in written}
    # deepspeed 0.19.8, runtime/precision_config.py: without this key a precision is off.
    off = ast.copy_location(ast.Constant(value=False), follow(config, engine.scope))
    for name in SWITCHED:
        section = read.source.entries(written[name], engine.scope) if name in written else {}
        if section is not None:
            exprs[name] = section.get("enabled", off)
    sources = {name: read.condition(expr, engine) for name, expr in exprs.items()}
    return {
        name: replace(source, from_config=True, code=source.code and short_code(exprs[name]))
        for name, source in sources.items()
        if source.seen
    }


# lightning 2.6, pytorch/trainer/trainer.py: the arguments of a Trainer, and their defaults.
_OF_LIGHTNING: Mapping[str, tuple[str, Scalar]] = {
    "accumulation_steps": ("accumulate_grad_batches", 1),
    "mixed_precision": ("precision", "32-true"),
    "devices": ("devices", "auto"),
}


def _chosen_precision(read: Reader, call: FunctionCall) -> dict[str, ValueSource]:
    """The conditions of `mixed_precision="bf16" if args.bf16 else "no"`, by what they choose.

    None leaves it to the config (accelerate 1.15, utils/dataclasses.py, set_mixed_precision).
    """
    expr = call.keyword("mixed_precision")
    if expr is None:
        return {}
    expr, call, *_ = read.argument(expr, call)
    chosen: dict[Scalar, ValueSource] = {}
    rest = UNSEEN
    while isinstance(expr, ast.IfExp):
        condition, word = read.condition(expr.test, call), literal(expr.body, call.scope)
        rest, expr = replace(condition, unless=not condition.unless), expr.orelse
        if word not in MIXED_PRECISIONS or not condition.seen:
            return {}
        chosen[word] = condition
    leaves_open = isinstance(expr, ast.Constant) and expr.value is None
    word = None if leaves_open else literal(expr, call.scope)
    chosen[word] = rest
    # Of two switches that are on, bf16 counts.
    *before_last, _ = chosen
    in_turn = before_last[1:] == [] or before_last == [*SWITCHED]
    if not (rest.seen and in_turn and (leaves_open or word in MIXED_PRECISIONS)):
        return {}
    switches = {name.value: chosen[name] for name in SWITCHED if name in chosen}
    return switches | {"mixed_precision": ValueSource(from_config=leaves_open)}


# What a script says that casts its batches, or has 16 bits to cast them to, or sets a config; what
# shows that they are token ids, or go into a model of transformers, which casts images and sounds
# itself; and what makes integers.
_CASTS = re.compile(
    r"\.(half|type_as|dtype)\b|\bb?float16\b|(?<!')\b(bf|fp)16\b(?!')|autocast|\w16_enabled"
)
_SECTIONS = re.compile(r"'(bf|fp)16'")
_TOKENS = re.compile(
    r"input_ids|[Tt]okeni[sz]|Embedding\b|vocab|\bAutoModel|LMHead|LM\b|[a-z]For[A-Z]|from_pretrained"
)
_INTEGERS = re.compile(r"randint|arange|\.long\b|\bint(8|16|32|64)\b|(Long|Int)Tensor")
# What makes floats: functions of torch and numpy, and of torchvision's transforms.
_MAKES_FLOATS = frozenset(
    {"rand", "randn", "normal", "standard_normal", "uniform", "FloatTensor", "ToTensor"}
)


def with_float_batches(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add what makes the batches of a loop floats, unless something casts them.

    A loop whose batches nothing shows counts as well: but for token ids they are floats.
    """
    source, by = read.source, facts.integration
    starts = source.calls_to(*_STARTS[by]) if by in _STARTS else []
    steps_here = "backward" in source.by_method
    text = source.text.replace('"', "'") if starts and steps_here else ""
    by_engine, named = by is Integration.DEEPSPEED, facts.mixed_precision
    is_set = _SECTIONS.search(text) if by_engine else named.code is not None and not named.seen
    if not text or is_set or _CASTS.search(text) or _TOKENS.search(text):
        return facts
    made = next((call for call in source.calls if _makes_floats(source, call)), None)
    if made is None and (not by_engine or _INTEGERS.search(text)):
        return facts
    code = f"{starts[0].name}(...)" if made is None else short_code(made.node)
    floats = ValueSource(value=made is not None, line=(made or starts[0]).line, code=code)
    return facts.with_sources(float_batches=floats)


def _makes_floats(source: Source, call: FunctionCall) -> bool:
    """Whether a call makes floats, or turns what it is called on into them."""
    library, name = source.imported(call.node.func)
    of_arrays = name in _MAKES_FLOATS and library in {"torch", "numpy", "torchvision"}
    given = (*call.node.args, *(word.value for word in call.node.keywords))
    dtypes = {getattr(expr, "attr", None) or getattr(expr, "value", None) for expr in given}
    by_method = call.method == "float" and isinstance(call.node.func, ast.Attribute)
    return of_arrays or by_method or bool(dtypes & {"float", "float32"})


# The classes whose states the ledger counts, with their library.
_OPTIMIZERS = {
    (library, name)
    for row in OPTIMIZERS.values()
    for library, names in row.classes.items()
    for name in names
}


_OF_OPTIM = re.compile(r"(torch|bitsandbytes|torchao|apex|timm)\.optim(izers)?\.\w+$")


def _own_optimizers(read: Reader) -> Iterator[tuple[FunctionCall, ValueSource]]:
    """Each call that builds an optimizer, with its class; without one where it is not counted."""
    for call in read.source.calls:
        library, name = read.source.imported(call.node.func)
        _own, kinds = read.source.lineage(call.node.func)
        if (library, name) in _OPTIMIZERS:
            yield call, ValueSource(value=name, line=call.line, code=f"{call.name}(...)")
        elif (library, name) == ("accelerate", "DummyOptim"):
            # accelerate 1.x, utils/deepspeed.py: it stands for the config's.
            yield call, ValueSource(from_config=True, line=call.line, code=f"{call.name}(...)")
        elif any(_OF_OPTIM.match(read.source.origin(kind)) for kind in kinds):
            yield call, ValueSource(line=call.line, code=f"{call.name}(...)")


def _of_optimizer(
    read: Reader, built: list[tuple[FunctionCall, ValueSource]], name: str
) -> ValueSource:
    """An argument of the optimizers that a script builds; else what it calls by this name."""
    if not built:
        return by_name(read, OTHER_SETTINGS[name].script_names)
    return agree(read.keyword(call, name) or UNSEEN for call, _ in built)


def _clipping(read: Reader) -> ValueSource:
    """The norm to which a script clips; else what it calls by such a name."""
    given = [
        read.bind(norm, call, "max_norm")
        for call in read.source.by_method.get("clip_grad_norm_", ())
        if (norm := call.argument("max_norm", 1)) is not None
    ]
    return agree(given) if given else by_name(read, OTHER_SETTINGS["max_grad_norm"].script_names)


def _unfused_adam_line(read: Reader) -> int | None:
    """The line of the first Adam of torch without `fused=True`; on CUDA the default is foreach."""
    adams = (call for name in ("Adam", "AdamW") for call in read.source.calls_to("torch", name))
    plain = (a.line for a in adams if getattr(a.keyword("fused"), "value", None) is not True)
    return min(plain, default=None)


def _with_arguments(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the settings of a Trainer, which are fields of TrainingArguments and its subclasses."""
    field = field_reader(facts, read)
    fields = {name: [*map(field, names)] for name, names in TRAINER_FIELDS.items()}
    return facts.with_sources(
        **{
            name: next((source for source in sources if source.seen), sources[0])
            for name, sources in fields.items()
        }
    )


def field_reader(facts: ScriptFacts, read: Reader) -> Callable[[str], ValueSource]:
    """A function that reads a field: filled by a parser, or built in code where all calls agree."""
    arguments = read.line.training
    if facts.convention is Convention.HF_PARSER and arguments is not None:
        return lambda name: (
            read.bind_option(options[0], arguments.name)
            if (options := arguments.fields.get(name))
            else UNSEEN
        )
    built = read.line.built
    return lambda name: agree(_built_field(read, built_call, name) for built_call in built)


def _built_field(read: Reader, built: Built, name: str) -> ValueSource:
    options = built.arguments.fields.get(name)
    spellings = (*FIELD_ALIASES.get(name, ()), name)
    if not options or read.source.altered & set(spellings):
        return UNSEEN
    for spelling in spellings:
        if spelling in built.keywords:
            expr = built.keywords[spelling]
            condition = read.condition(expr, built.call, spelling)
            return condition if condition.seen else read.bind(expr, built.call, spelling)
    if built.hidden:
        return ValueSource(line=built.call.line, code=f"{built.call.name}(**...)")
    return ValueSource(
        value=options[0].default,
        line=built.call.line,
        keyword=name,
        default_of=built.arguments.name,
    )


# deepspeed 0.19.8, runtime/engine.py: the engine's methods that return the config's values.
_MICRO_BATCH_OF_ENGINE = SETTINGS["micro_batch"].config_key
_STEPS_OF_ENGINE = SETTINGS["accumulation_steps"].config_key
_BATCH_KEYS = {_MICRO_BATCH_OF_ENGINE, _STEPS_OF_ENGINE, "train_batch_size"}


def _loaders(source: Source) -> list[FunctionCall]:
    """The calls that make a DataLoader of torch, or of a class that is named so."""
    loaders = (calls for name, calls in source.by_method.items() if name.endswith("DataLoader"))
    return [*chain.from_iterable(loaders)]


def _loader_batch(read: Reader, by: Integration | None) -> ValueSource:
    """The micro-batch of a loop: `batch_size=` of the training DataLoader, else the config's."""
    # deepspeed 0.19.8, __init__.py, initialize: it makes a loader of it.
    if any(
        engine.argument("training_data", _TRAINING_DATA)
        for engine in read.source.calls_to("deepspeed", "initialize")
    ):
        return ValueSource(from_config=True)
    sizes = []
    for call in _loaders(read.source):
        size = call.argument("batch_size", 1)
        if size is None:
            continue
        about = f"{call.target} {ast.unparse(call.node.args[0]) if call.node.args else ''}".lower()
        if not _OTHER_LOADER.search(about) and not _OTHER_BATCH.search(ast.unparse(size).lower()):
            sizes.append(read.bind(size, call, "batch_size"))
    if sizes:
        return _unless_ambiguous(agree(sizes), read)
    named = read.named(SETTINGS["micro_batch"].script_names)
    if named.seen:
        return named
    if f"{_MICRO_BATCH_OF_ENGINE}" in read.source.text and _is_drawn_by(
        read.source.tree, set(), drawn=False
    ):
        return ValueSource(from_config=True)
    # A loop that draws its batches itself; to DeepSpeed the other one is the batch of all ranks.
    steps_here = by is Integration.ACCELERATE and "backward" in read.source.by_method
    names = {"batch_size"} | ({"train_batch_size"} if steps_here else set())
    return UNSEEN if _loaders(read.source) else read.named(frozenset(names))


# Functions that show what they get, or keep it, and those that return it as a number.
_SHOWS = re.compile(
    r"print|log|info|debug|warn|error|format|write|scalar|record|report|dump|append|update"
    r"|set_(post|desc)|^(str|repr|dict|isinstance|init)$"
)
_CONVERTS = frozenset({"int", "float", "abs", "max", "min", "round"})


def _is_drawn_by(node: ast.AST, names: set[str], *, drawn: bool) -> bool:
    """Whether a batch is drawn by the config's micro-batch, as the engine says it, under a node.

    It has to come, by names that it was assigned to before, into a slice or into a call that does
    more with it than to show it. What is divided by it is no batch.

    Args:
        node: A part of the script.
        names: Those that stand for it; others that it is assigned to are added.
        drawn: Whether what stands there directly draws a batch.
    """
    is_named = isinstance(node, ast.Name | ast.Attribute) and last_name(node) in names
    if is_named or asks_config(node, {_MICRO_BATCH_OF_ENGINE}):
        return drawn
    match node:
        case ast.Assign(value=ast.expr() as value) | ast.AugAssign(value=value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not drawn and _is_drawn_by(value, set(names), drawn=True):
                names.update(last_name(target) for target in targets)
        case ast.Call():
            if _is_drawn_by(node.func, names, drawn=False):
                return True
            given = [*node.args, *(word.value for word in node.keywords)]
            if last_name(node) not in _CONVERTS:
                drawn = _SHOWS.search(last_name(node)) is None
            return any(_is_drawn_by(part, names, drawn=drawn) for part in given)
        case (
            ast.JoinedStr()
            | ast.Compare()
            | ast.Dict()
            | ast.BinOp(op=ast.Div() | ast.FloorDiv() | ast.Mod())
        ):
            drawn = False
        case ast.Slice() | ast.Return():
            drawn = True
        case _:
            pass
    return any(_is_drawn_by(child, names, drawn=drawn) for child in children(node))


def _loader_workers(read: Reader) -> Iterator[ValueSource]:
    """`num_workers=` of each DataLoader that may be the training one."""
    for call in _loaders(read.source):
        workers = call.keyword("num_workers")
        if workers is not None:
            about = f"{call.target} {ast.unparse(call.node)}".lower()
            if not _OTHER_LOADER.search(about):
                yield read.bind(workers, call, "num_workers")


def _unless_ambiguous(batch: ValueSource, read: Reader) -> ValueSource:
    """The batch of a loader; unseen where another option rather has the name of that setting.

    A loader of 1 may be handed batches that its dataset makes.
    """
    names = {option.dest for option in read.line.parser.find(batch.flag or "")}
    is_sure = batch.flag is None and batch.value != 1
    if is_sure or any(map(_TRAINING_BATCH.search, names)):
        return batch
    others = {option.dest for option in read.line.parser.options} - names
    rather = [name for name in others if "batch" in name and _TRAINING_BATCH.search(name)]
    told = [n for n in rather if not _WHOLE_BATCH.search(n) and not _OTHER_BATCH.search(n)]
    return UNSEEN if told else batch


_PLUGIN, _DS_PLUGIN = "GradientAccumulationPlugin", "DeepSpeedPlugin"


def _accelerated_steps(read: Reader, call: FunctionCall) -> ValueSource:
    """`Accelerator(gradient_accumulation_steps=)`, or the value of one of its plugins."""
    (name,) = SETTINGS["accumulation_steps"].trainer_fields
    if name in read.source.altered:
        return UNSEEN
    values = [
        read.keyword(call, name),
        *(read.keyword(plugin, name) for plugin in read.source.calls_to("accelerate", _DS_PLUGIN)),
        *(
            read.bind(steps, plugin, "num_steps")
            for plugin in read.source.calls_to("accelerate", _PLUGIN)
            if (steps := plugin.argument("num_steps", 0)) is not None
        ),
    ]
    known = [value for value in values if value is not None]
    if known:
        return agree(known)
    if any(word is None or "plugin" in word for word in call.words):
        return UNSEEN
    if "prepare" not in read.source.by_method:
        # Whatever trains has an Accelerator of its own.
        return UNSEEN
    # accelerate 1.x, accelerator.py, Accelerator.__init__.
    return ValueSource(value=1, line=call.line, keyword=name, default_of="Accelerator")


# Read what turns gradient checkpointing on: TrainingArguments, the script's calls, or both.

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
# A forward pass of a module, which may be left out, that checkpoints by torch.
_CHECKPOINTS = re.compile(r"utils\.checkpoint\b.*\bcheckpoint\(", re.DOTALL)


def with_checkpointing(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add what turns gradient checkpointing on.

    A Trainer turns it on where its arguments say so (transformers 5.23, trainer.py), whatever the
    script does; a call of the script can turn it on as well.
    """
    if facts.every_n_layers.flag is None:
        every = ValueSource(code="every_n_layers") if _EVERY.search(read.source.text) else UNSEEN
        facts = facts.with_sources(every_n_layers=every)
    of_arguments, trains = facts.gradient_checkpointing, facts.integration is Integration.HF
    if not trains and _disables(read):
        return facts
    by_calls = list(_by_calls(read, of_arguments))
    for binding in by_calls:
        if binding.value is True and binding.flag is None:
            return facts.with_sources(gradient_checkpointing=binding)
    if trains:
        # Where the arguments are not seen, neither is whether the Trainer turns it on.
        known = by_calls and of_arguments.seen
        return replace(facts, checkpoints_too=agree(by_calls)) if known else facts
    if by_calls:
        condition = agree(by_calls)
        if not condition.when and not condition.unless:
            return facts.with_sources(gradient_checkpointing=condition)
        off = ValueSource(value=False, line=condition.line, code=condition.code)
        return replace(facts, checkpoints_too=condition).with_sources(gradient_checkpointing=off)
    return facts.with_sources(gradient_checkpointing=_nothing(read))


# What a script says of it is not counted, as a word that says it is.
_EVERY = re.compile(r"every_n_layers[\"']? *[:=]")


def _by_calls(read: Reader, of_arguments: ValueSource) -> Iterator[ValueSource]:
    """The condition of each call that turns it on, apart from what the arguments say themselves."""
    for call in read.source.calls:
        condition: ValueSource | None = None
        # A model that wraps another passes on what a Trainer calls.
        if call.method in _ENABLING and call.function not in _ENABLING:
            condition = _condition(read, call, of_arguments)
        elif call.method in _PREPARING:
            condition = _prepared(read, call, of_arguments)
        if condition is not None:
            yield condition


def _condition(read: Reader, call: FunctionCall, of_arguments: ValueSource) -> ValueSource | None:
    """The condition of a call; None for one that needs that the arguments say it too."""
    around = read.source.tests_of(call)
    if around is None:
        return UNSEEN
    parts = (part for test in around for part in conjuncts(test))
    tests = [part for part in parts if not _asks_ability(part)]
    conditions = [read.condition(test, call) for test in tests]
    if of_arguments.seen:
        asked = {last_name(test) for test in tests if isinstance(test, ast.Attribute)}
        flags = {
            condition.flag
            for condition in conditions
            if not condition.when and not condition.unless
        }
        if asked & _FIELDS or (of_arguments.flag is not None and of_arguments.flag in flags):
            return None
    if not conditions:
        return ValueSource(value=True, line=call.line, code=f"{call.name}()")
    return conditions[0] if len(conditions) == 1 else UNSEEN


def _asks_ability(test: ast.expr) -> bool:
    """Whether a condition only asks if the model can do it."""
    if isinstance(test, ast.Attribute):
        return test.attr == _ABILITY
    if last_name(test) not in {"getattr", "hasattr"} or not isinstance(test, ast.Call):
        return False
    names = [arg.value for arg in test.args if isinstance(arg, ast.Constant)]
    return any(name == _ABILITY or name in _ENABLING for name in names)


def _prepared(read: Reader, call: FunctionCall, of_arguments: ValueSource) -> ValueSource | None:
    """The condition under which a quantized base is prepared with checkpointing on.

    peft 0.21, utils/other.py: it turns checkpointing on, unless its argument is false.
    """
    expr = call.argument("use_gradient_checkpointing", 1)
    argument = None if expr is None else read.bind(expr, call)
    if argument is not None and of_arguments.seen:
        asks = isinstance(expr, ast.Attribute) and expr.attr in _FIELDS
        if asks or (argument.flag is not None and argument.flag == of_arguments.flag):
            return None
    if argument is not None and argument.value is False and argument.flag is None:
        return None
    if call.tests or not _is_quantized(read):
        return UNSEEN
    return (
        ValueSource(value=True, line=call.line, code=f"{call.name}(...)")
        if argument is None
        else argument
    )


def _is_quantized(read: Reader) -> bool:
    """Whether an unconditional call loads the model in 4 or 8 bits by a literal."""
    return any(
        isinstance(expr, ast.Constant) and expr.value is True and not call.tests
        for call in read.source.calls
        for name in ("load_in_4bit", "load_in_8bit")
        if name in call.words or None in call.words
        if (expr := read.source.keywords(call)[0].get(name)) is not None
    )


def _disables(read: Reader) -> bool:
    """Whether a call may turn it off, other than in the branch beside the one that turns it on."""
    enabling = {
        ast.dump(test)
        for call in read.source.calls
        if call.method in _ENABLING
        for test in call.tests[-1:]
    }
    return any(
        not any(
            isinstance(test, ast.UnaryOp) and ast.dump(test.operand) in enabling
            for test in call.tests[-1:]
        )
        for call in read.source.calls
        if call.method in _DISABLING and call.function not in _DISABLING
    )


def _nothing(read: Reader) -> ValueSource:
    """No gradient checkpointing, where the script builds a model and nothing turns it on."""
    if _mentions_checkpointing(read.source):
        return UNSEEN
    for call in read.source.calls:
        if loads(read.source, call) == "Model":
            code = f"{call.name}(...)` with no `gradient_checkpointing_enable()"
            return ValueSource(value=False, line=call.line, code=code)
    return UNSEEN


def _mentions_checkpointing(source: Source) -> bool:
    """Whether anything in the script could turn it on."""
    return (
        bool(source.altered & _FIELDS)
        or _CHECKPOINTS.search(source.text) is not None
        or any("checkpointing" in (word or "") for call in source.calls for word in call.words)
        or any(
            "checkpoint" in name and not name.startswith(_CHECKPOINT_FILES)
            for name in source.by_method
        )
    )
