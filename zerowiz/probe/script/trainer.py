"""Read a script's trainer, what saves weights, and the calls that are right at some stages only."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

from msgspec import Struct

from zerowiz.core.script.arguments import ARGUMENT_CLASSES
from zerowiz.core.script.facts import (
    UNSEEN,
    ScriptCall,
    ScriptFacts,
    StageCall,
    StageKind,
    TrainerFacts,
    TrainerUse,
    ValueSource,
    WeightSave,
)
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration
from zerowiz.errors import LineEdit
from zerowiz.probe.script.model import is_after_engine, is_other, loads
from zerowiz.probe.script.reader import Reader, agree, short_code, show_argument
from zerowiz.probe.script.source import (
    HF_LIBRARIES,
    MOST_STEPS,
    OPTIMIZER,
    FunctionCall,
    Scope,
    Source,
    decide,
    follow,
    is_one_rank,
    last_name,
    nodes_of,
    unless_none,
)

# transformers 5.23, trainer.py, and trl 0.12 to 1.16: the methods that make a loss of a batch, and
# those that make the batch.
_MAKE_THE_LOSS = frozenset(
    {
        "compute_loss",
        "training_step",
        "_compute_loss",
        "concatenated_forward",
        "dpo_loss",
        "get_batch_loss_metrics",
        "_generate",
        "_generate_and_score_completions",
        "_get_per_token_logps_and_entropies",
    }
)


class BuiltTrainer(Struct, frozen=True, kw_only=True):
    """A call that builds a trainer."""

    call: FunctionCall
    use: TrainerUse


@lru_cache(maxsize=1)
def built_trainers(read: Reader) -> list[BuiltTrainer]:
    """Each call of the script that builds a Trainer of these libraries, or one of another module.

    That of another module is known by its name, and by the arguments of a Trainer.
    """
    trainers = []
    for call in read.source.calls:
        func = follow(call.node.func, call.scope)
        # `cls = MyTrainer if args.mine else Trainer`
        classes = [func.body, func.orelse] if isinstance(func, ast.IfExp) else [func]
        uses = (_use(read.source, call, each) for each in classes)
        trainers += [BuiltTrainer(call=call, use=use) for use in uses if use is not None]
    return trainers


def trainer_uses(read: Reader) -> Iterator[TrainerUse]:
    """The trainers of a script; where none is built in it, those whose arguments it has."""
    names = [
        (built_argument.arguments.name, built_argument.call.line)
        for built_argument in read.line.built
    ]
    if read.line.training is not None:
        names.append((read.line.training.name, read.line.hf_line or 1))
    of_arguments = [
        TrainerUse(name=f"{name.removesuffix('Config')}Trainer", line=line, code=name)
        for name, line in names
        if name in ARGUMENT_CLASSES and name.endswith("Config")
    ]
    built = built_trainers(read)
    yield from () if built else of_arguments
    for trainer in built:
        use = replace(trainer.use, conditions=tuple(read.conditions(trainer.call)))
        # `class MyGRPOTrainer(Trainer)`, which gets a GRPOConfig.
        is_own = use.changed is not None and use.name == "Trainer"
        yield replace(use, name=of_arguments[0].name) if is_own and of_arguments else use


def _use(source: Source, call: FunctionCall, func: ast.expr) -> TrainerUse | None:
    """What a call builds, if that is a trainer; one of the script may make the loss itself."""
    own, others = source.lineage(func)
    kinds = [(*source.imported(other), last_name(other)) for other in others]
    named = [(library, name or (last if own else "")) for library, name, last in kinds]
    library, name = next((kind for kind in named if kind[1].endswith("Trainer")), ("", ""))
    is_like_one = name != "Trainer" and bool({"args", "train_dataset"} & call.words.keys())
    if not name or not (own or library in HF_LIBRARIES or is_like_one):
        return None
    methods = (m for node in own for m in node.body if isinstance(m, ast.FunctionDef))
    changed = next((method for method in methods if method.name in _MAKE_THE_LOSS), None)
    return TrainerUse(
        name=name,
        line=call.line,
        code=f"{call.name}(...)",
        changed=None if changed is None else f"{own[0].name}.{changed.name}",
        changed_line=None if changed is None else changed.lineno,
    )


# Find where a script writes the weights of the model that it trains, as this rank has them.
#
# At stage 3 a rank has a shard of them. What gathers them first is no such place.

# A `with` block that gathers weights, and conditions that may ask for the stage, or for DeepSpeed.
_MAY_BE_GATHERED = re.compile(
    r"gather|(?<!process_)(?<!global_)(?<!rank_)zero|deepspeed|stage_?3|fsdp|distributed_type",
    re.IGNORECASE,
)
# transformers 5.23, trainer.py: the methods that a Trainer calls with weights that it gathered.
_OF_TRAINERS = frozenset({"_save", "_save_checkpoint", "save_model"})
# Functions that write what their first argument is.
_WRITERS = frozenset(
    {("torch", "save"), ("safetensors", "save_file"), ("safetensors", "save_model")}
)
# Methods of a model that write it, and of a Trainer, with the position of their `state_dict`.
_METHODS = {"save_pretrained": 2, "push_to_hub": 9, "_save": 1}
# Methods and functions whose result is the same model, or the same weights.
_UNWRAPPING = frozenset({"unwrap_model", "extract_model_from_parallel", "unwrap"})
_SAME_MODEL = frozenset({"cpu", "eval", "half", "to", "bfloat16", "float"})
_SAME_WEIGHTS = frozenset({"OrderedDict", "copy", "deepcopy", "dict", "items"})
_PARTS = frozenset({"base_model", "model", "module"})
# What is called on a model, and on nothing else that Accelerator prepares.
_OF_MODELS = frozenset({"parameters", "named_parameters"})

_Name = tuple[int, str]
"""A variable: its scope, and how it is written."""


class _Engine(Struct, frozen=True, kw_only=True):
    """The call that makes a job of DeepSpeed of the models that it gets."""

    call: FunctionCall
    models: frozenset[_Name]
    trainers: frozenset[_Name] = frozenset()


def with_weight_saves(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the places where a script saves the model that it trains by itself."""
    job, saves = trained_models(read), {}
    of_trainers = _OF_TRAINERS & read.source.methods
    for call in read.source.calls:
        if call.function in of_trainers:
            continue
        written = any(job.is_trained(*model) for model in _written(read, call))
        if written and not may_be_gathered(call):
            saves[call.line] = WeightSave(
                conditions=tuple(read.conditions(call)),
                line=call.line,
                code=short_code(call.node),
                adapters_only=call.method in {"save_pretrained", "push_to_hub"},
                instead=_instead(facts, job, call),
            )
    return replace(facts, weight_saves=tuple(saves.values()))


def _instead(facts: ScriptFacts, job: "TrainedModels", call: FunctionCall) -> LineEdit | None:
    """What saves whole weights in the place of `save_pretrained`, if all ranks come there."""
    is_plain = len(call.node.args) == 1 and not call.node.keywords
    for engine in job.engines if call.method == "save_pretrained" else ():
        if engine.call.function != call.function or is_on_one_rank(call):
            continue
        match [*engine.trainers], [*engine.models], engine.call.node.func:
            case [(_, trainer)], _, _ if is_plain:
                return facts.edit(call.line, call=call.method, func=f"{trainer}.save_model")
            case [], [(_, model)], ast.Attribute(value=accelerator, attr="prepare"):
                name = ast.unparse(accelerator)
                # Only the first rank has what is gathered.
                main = call.keyword("is_main_process") is None
                more = f", is_main_process={name}.is_main_process" if main else ""
                return facts.edit(
                    call.line,
                    call=call.method,
                    keyword="state_dict",
                    code=f"{name}.get_state_dict({model}){more}",
                )
            case _:
                pass
    return None


def is_on_one_rank(call: FunctionCall) -> bool:
    """Whether a condition around a call, or one on which its function was left, is on the rank."""
    # What a `with` block enters stands there as well, and is none of these.
    left = (e for e in call.around if isinstance(e, ast.UnaryOp | ast.Compare | ast.BoolOp))
    return any(map(is_one_rank, (*call.tests, *left)))


@lru_cache(maxsize=1)
def trained_models(read: Reader) -> "TrainedModels":
    """Where DeepSpeed gets the models of a script."""
    return TrainedModels(source=read.source, engines=tuple(_engines(read)))


def _engines(read: Reader) -> Iterator[_Engine]:
    source = read.source
    for built in built_trainers(read):
        call = built.call
        yield _Engine(
            call=call,
            models=frozenset(names_of([call.argument("model", 0)], call)),
            trainers=frozenset(_targets(call)),
        )
    for call in source.calls_to("deepspeed", "initialize"):
        names = (*names_of([call.argument("model", 1)], call), *[*_targets(call)][:1])
        yield _Engine(call=call, models=frozenset(names))
    models = {name for call in source.calls for name in _model(source, call)}
    for call in source.by_method.get("prepare", ()):
        prepared = {*names_of(call.node.args, call), *_targets(call)}
        yield _Engine(call=call, models=frozenset(prepared & models))


def names_of(exprs: Sequence[ast.expr | None], call: FunctionCall) -> Iterator[_Name]:
    """The variables among these expressions; `models[name]` is `models`."""
    whole = (expr.value if isinstance(expr, ast.Subscript) else expr for expr in exprs)
    yield from (_name(expr, call.scope) for expr in whole if _is_variable(expr))


def _is_variable(expr: ast.expr | None) -> bool:
    return isinstance(expr, ast.Name | ast.Attribute)


def _name(expr: ast.expr | None, scope: Scope) -> _Name:
    """The variable that an expression is; `self.model` is the same one everywhere."""
    if isinstance(expr, ast.Name):
        return id(scope.owner(expr.id)), expr.id
    return 0, "" if expr is None else ast.unparse(expr)


def _targets(call: FunctionCall) -> Iterator[_Name]:
    """What a call's result is assigned to."""
    for name in (word for word in call.target.split() if word != "self"):
        is_bound = name in call.scope.owner(name).values
        yield (id(call.scope.owner(name)), name) if is_bound else (0, f"self.{name}")


def _model(source: Source, call: FunctionCall) -> Iterator[_Name]:
    """The variables that a call shows to be models."""
    func = call.node.func
    if isinstance(func, ast.Attribute) and func.attr in _OF_MODELS:
        yield from names_of([func.value], call)
    if loads(source, call) == "Model" or call.method == "get_peft_model":
        yield from _targets(call)


def _written(read: Reader, call: FunctionCall) -> Iterator[tuple[ast.expr, FunctionCall]]:
    """The models whose weights a call writes, and the place where it gets them."""
    func, source = call.node.func, read.source
    base = func.value if isinstance(func, ast.Attribute) else None
    if base is not None and call.method in _METHODS:
        given = call.argument("state_dict", _METHODS[call.method])
        if given is not None:
            yield from _held(source, given, call)
        elif call.method != "_save" and None not in call.words:
            yield base, call
    if source.imported(func) in _WRITERS or (
        call.method == "save" and last_name(base and follow(base, call.scope)) == "Accelerator"
    ):
        for given in call.node.args[:1]:
            yield given, call
            yield from _held(source, given, call)


def _held(
    source: Source, expr: ast.expr, call: FunctionCall, depth: int = 0
) -> Iterator[tuple[ast.expr, FunctionCall]]:
    """The models whose `state_dict()` an expression is, or has in it, and where that is called."""
    inner: list[ast.expr] = []
    match follow(expr, call.scope):
        case ast.Call(func=ast.Attribute(value=model, attr="state_dict")) as node:
            yield model, next(other for other in source.calls if other.node is node)
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _SAME_WEIGHTS:
            inner = [value]
        case ast.Call(func=ast.Name(id=name), args=args) if name in _SAME_WEIGHTS:
            inner = args
        case ast.Dict(values=values):
            inner = values
        case ast.DictComp(generators=[ast.comprehension(iter=values)]):
            inner = [values]
        case _:
            pass
    for part in inner if depth < MOST_STEPS else ():
        yield from _held(source, part, call, depth + 1)


class TrainedModels(Struct, frozen=True, kw_only=True):
    """A script, and where DeepSpeed gets models in it."""

    source: Source
    engines: tuple[_Engine, ...]

    def is_trained(
        self, expr: ast.expr, call: FunctionCall, before: int | None = None, depth: int = 0
    ) -> bool:
        """Whether a model is one that DeepSpeed has by the time that a call is come to.

        Args:
            expr: The model.
            call: The place.
            before: The line above which the variables got their values; None for that of the place.
            depth: How many steps were followed.
        """
        before = call.line if before is None else before
        if depth == MOST_STEPS or may_be_gathered(call):
            return False
        inner = _same_models(expr)
        is_of_trainer = isinstance(expr, ast.Attribute) and self.is_trainer(expr.value, call)
        if inner and is_of_trainer:
            return True
        if inner or not _is_variable(expr):
            return any(self.is_trained(part, call, before, depth + 1) for part in inner)
        name = _name(expr, call.scope)
        engines = [e for e in self.engines if name in e.models and self._is_after(call, e)]
        value = _last_value(expr, call.scope, before)
        if value is not None and value.lineno > max([0, *(engine.call.line for engine in engines)]):
            return self.is_trained(value, call, value.lineno, depth + 1)
        return bool(engines) or any(
            self.is_trained(given, caller, None, depth + 1)
            for given, caller in self._passed(expr, call)
        )

    def is_trainer(self, expr: ast.expr, call: FunctionCall, depth: int = 0) -> bool:
        """Whether an expression is a trainer that has trained by then."""
        if not _is_variable(expr) or may_be_gathered(call) or depth == MOST_STEPS:
            return False
        name = _name(expr, call.scope)
        return any(name in e.trainers and self._is_after(call, e) for e in self.engines) or any(
            self.is_trainer(given, caller, depth + 1) for given, caller in self._passed(expr, call)
        )

    def _is_after(self, call: FunctionCall, engine: _Engine) -> bool:
        """Whether a place of the same function comes after DeepSpeed has the model."""
        if call.function != engine.call.function:
            return True
        # The Trainer hands it over when it trains.
        starts = [
            start.line
            for start in self.source.by_method.get("train", ())
            if start.function == call.function
            if _name(getattr(start.node.func, "value", None), start.scope) in engine.trainers
        ]
        return call.line > min(starts, default=engine.call.line)

    def _passed(
        self, expr: ast.expr, call: FunctionCall
    ) -> Iterator[tuple[ast.expr, FunctionCall]]:
        """What the calls of a function of the script pass for one of its parameters."""
        function = self.source.functions.get(call.function)
        if function is None or not isinstance(expr, ast.Name):
            return
        names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        for caller in self.source.callers(call.function):
            place = names.index(expr.id) if expr.id in names else len(caller.node.args)
            given = caller.keyword(expr.id) or next(iter(caller.node.args[place:]), None)
            if given is not None and call.function not in self.source.methods:
                yield given, caller


def _same_models(expr: ast.expr) -> list[ast.expr]:
    """What an expression is, or wraps, or is a part of, without a copy of the weights."""
    match expr:
        case ast.IfExp(body=chosen, orelse=other):
            return [chosen, other]
        case ast.Call(func=func, args=[model, *_]) if last_name(func) in _UNWRAPPING:
            return [model]
        case ast.Call(func=ast.Attribute(value=model, attr=name)) if name in _SAME_MODEL:
            return [model]
        case ast.Attribute(value=whole, attr=attr) if attr in _PARTS and last_name(whole) != "self":
            return [whole]
        case _:
            return []


def may_be_gathered(call: FunctionCall) -> bool:
    """Whether a place may be come to with whole weights alone, or without DeepSpeed."""
    tests = (*call.tests, *call.around)
    names = (node for test in tests for node in nodes_of(test) if isinstance(node, ast.Name))
    values = (follow(name, call.scope) for name in names)
    return any(_MAY_BE_GATHERED.search(ast.unparse(expr)) for expr in (*tests, *values))


def _last_value(expr: ast.expr, scope: Scope, before: int) -> ast.expr | None:
    """What a variable was last set to above a line; None where that is not seen."""
    if not isinstance(expr, ast.Name):
        return None
    values = [value for value in scope.owner(expr.id).values.get(expr.id, []) if value is not None]
    return max((v for v in values if v.lineno < before), key=lambda v: v.lineno, default=None)


def with_trainer(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the trainer of a script that has one of transformers' or of a library on top of it."""
    if facts.integration is not Integration.HF:
        return facts
    built = built_trainers(read)
    reference = agree(_reference(read, trainer) for trainer in built) if built else UNSEEN
    return replace(
        facts.with_sources(reference=reference),
        optimizers_passed=tuple(dict.fromkeys(_optimizers_passed(read, built))),
        trainer=TrainerFacts(
            uses=tuple(trainer_uses(read)),
            # A call may build one of two trainers.
            models_beside=tuple(
                dict.fromkeys(model for trainer in built for model in _models_beside(read, trainer))
            ),
            evaluations=tuple(_evaluations(read, built)),
            metrics=next(_metrics(built), None),
        ),
    )


def _evaluations(read: Reader, built: list[BuiltTrainer]) -> Iterator[ScriptCall]:
    """The calls of a trainer's `evaluate`."""
    names = {name for trainer in built for name in trainer.call.target.split()}
    for call in read.source.by_method.get("evaluate", ()):
        name = last_name(_base(call))
        if name in names or name.lower().endswith("trainer"):
            yield ScriptCall(
                conditions=tuple(read.conditions(call)),
                line=call.line,
                code=f"{name}.evaluate()",
            )


def _metrics(built: list[BuiltTrainer]) -> Iterator[ValueSource]:
    """The `compute_metrics` of each trainer that has one."""
    for trainer in built:
        expr = unless_none(trainer.call.keyword("compute_metrics"))
        if expr is not None:
            yield ValueSource(
                line=expr.lineno, code=show_argument(trainer.call, expr, "compute_metrics")
            )


def _optimizers_passed(read: Reader, built: list[BuiltTrainer]) -> Iterator[ScriptCall]:
    """The optimizer or the scheduler that a call hands its trainer; a subclass may use them."""
    for call in (trainer.call for trainer in built):
        expr = unless_none(call.keyword("optimizers"))
        pair = None if expr is None else read.follow(expr, call)
        items = pair.elts if isinstance(pair, ast.Tuple | ast.List) else []
        given = [unless_none(read.argument(item, call).expr) for item in items]
        if expr is not None and any(given) and not read.source.methods & _MAKE_OPTIMIZERS:
            yield ScriptCall(
                conditions=tuple(read.conditions(call)),
                line=expr.lineno,
                code=show_argument(call, expr, "optimizers"),
            )


# transformers 5.23, trainer.py: the methods by which a subclass makes its own.
_MAKE_OPTIMIZERS = frozenset(
    {"create_optimizer", "create_scheduler", "create_optimizer_and_scheduler"}
)


def _reference(read: Reader, built: BuiltTrainer) -> ValueSource:
    """Whether a call passes a reference model; unseen where that depends on something."""
    call, is_second = built.call, built.use.name in _REFERRED_SECOND
    expr = call.argument("ref_model", 1) if is_second else unless_none(call.keyword("ref_model"))
    if expr is None:
        return ValueSource(value=False, line=call.line, default_of=built.use.name)
    followed = read.follow(expr, call)
    code = show_argument(call, expr, "ref_model")
    if unless_none(followed) is None:
        return ValueSource(value=False, line=expr.lineno, code=code)
    is_model = isinstance(followed, ast.Call)
    return ValueSource(value=True if is_model else None, line=expr.lineno, code=code)


# trl 0.12 to 1.16: what the second argument of a trainer is.
_REFERRED_SECOND = frozenset({"DPOTrainer", "KTOTrainer", "BCOTrainer", "OnlineDPOTrainer"})
_JUDGED_SECOND = frozenset({"GRPOTrainer", "RLOOTrainer"})
# trl 1.16, grpo_trainer.py, and trl 0.29, online_dpo_trainer.py: what may be a model, or its name.
_JUDGES = ("reward_funcs", "reward_model")


def _models_beside(read: Reader, built: BuiltTrainer) -> Iterator[ValueSource]:
    """The models that a call hands its trainer to judge completions."""
    call = built.call
    for keyword in _JUDGES:
        judges_second = built.use.name in _JUDGED_SECOND and keyword == "reward_funcs"
        given = call.argument(keyword, 1) if judges_second else unless_none(call.keyword(keyword))
        for expr in () if given is None else _items(read, given, call):
            binding = _trainer_model(read, call, expr, keyword)
            if binding is not None:
                yield binding


def _items(read: Reader, expr: ast.expr, call: FunctionCall) -> Iterator[ast.expr]:
    """The items of a list, and what is appended to it; any other expression is its only one."""
    if isinstance(expr, ast.Name):
        for other in read.source.by_method.get("append", ()):
            if last_name(_base(other)) == expr.id:
                yield from other.node.args[:1]
    followed = read.follow(expr, call)
    yield from followed.elts if isinstance(followed, ast.List | ast.Tuple) else [followed]


def _trainer_model(
    read: Reader, call: FunctionCall, expr: ast.expr, keyword: str
) -> ValueSource | None:
    """What judges, where that is a model: its name, an option, or the call that loads it."""
    code = show_argument(call, expr, keyword)
    bound = read.bind(expr, call)
    if bound.flag is not None:
        return replace(bound, line=call.line, code=code)
    followed = read.follow(expr, call)
    if isinstance(followed, ast.Call):
        loader = next((other for other in read.source.calls if other.node is followed), None)
        is_model = loader is not None and loads(read.source, loader) == "Model"
        return ValueSource(line=expr.lineno, code=code) if is_model else None
    is_name = isinstance(bound.value, str)
    return ValueSource(line=expr.lineno, code=code) if is_name else None


# Find the calls of a script that are right at some ZeRO stages only.

# What all ranks have to call: of the Trainer, of an Accelerator, of an engine or its model.
_OF_TRAINER: Mapping[str, StageKind] = {
    **dict.fromkeys(("train", "evaluate", "predict"), StageKind.ALONE),
    "save_model": StageKind.ALONE_SHARDED,
}
_OF_ACCELERATOR: Mapping[str, StageKind] = {
    "save_state": StageKind.ALONE,
    **dict.fromkeys(("get_state_dict", "save_model"), StageKind.ALONE_SHARDED),
}
_OF_MODEL: Mapping[str, StageKind] = {
    "save_checkpoint": StageKind.ALONE,
    **dict.fromkeys(("save_16bit_model", "save_fp16_model", "generate"), StageKind.ALONE_SHARDED),
}


def _base(call: FunctionCall) -> ast.expr | None:
    """What a method is called on."""
    return call.node.func.value if isinstance(call.node.func, ast.Attribute) else None


class _StageFinder:
    """Says what is found of a call."""

    def __init__(self, facts: ScriptFacts, read: Reader) -> None:
        self.read, self.source = read, read.source
        self.models = trained_models(read)
        self.is_hf = facts.integration is Integration.HF
        self.built = [built.call for built in built_trainers(read)]
        self.trainers = {name for call in self.built for name in call.target.split()}
        self.owners = (
            (_OF_TRAINER, self.is_trainer),
            (_OF_ACCELERATOR, self.is_accelerator),
            (_OF_MODEL, lambda call: self.is_trained(call, _base(call))),
        )

    @cached_property
    def loaded(self) -> list[FunctionCall]:
        """The calls that load a model for DeepSpeed."""
        loading = (c for c in self.source.calls if loads(self.source, c) == "Model")
        return [
            load
            for load in loading
            if is_after_engine(self.read, load) and not is_other(load) and not may_be_gathered(load)
        ]

    def is_trainer(self, call: FunctionCall) -> bool:
        """Whether it is a method of a Trainer of transformers."""
        name = last_name(_base(call))
        return self.is_hf and (name in self.trainers or name.lower().endswith("trainer"))

    def is_accelerator(self, call: FunctionCall) -> bool:
        """Whether it is a method of an Accelerator."""
        base = _base(call)
        name = "" if base is None else last_name(self.read.argument(base, call).expr)
        return "accelerator" in {name.lower(), last_name(base)}

    def is_trained(self, call: FunctionCall, expr: ast.expr | None) -> bool:
        """Whether DeepSpeed has a model by then."""
        return expr is not None and self.models.is_trained(expr, call)

    def is_sharded(self, call: FunctionCall, expr: ast.expr | None) -> bool:
        """Whether a model has been loaded for DeepSpeed, or handed to it, by then."""
        if expr is None or may_be_gathered(call):
            return False
        if self.is_trained(call, expr):
            return True
        argument = self.read.argument(expr, call)
        values: list[ast.expr | None] = [argument.expr]
        if isinstance(argument.expr, ast.Name):
            name = argument.expr.id
            values += argument.call.scope.owner(name).values.get(name, [])
        return any(load.node in values for load in self.loaded)

    @cached_property
    def started(self) -> dict[str, FunctionCall]:
        """The only call of each function that has one; of a method, by `self`."""
        names = {call.function for call in self.source.calls}
        callers = {name: self.source.callers(name) for name in names}
        return {
            name: calls[0]
            for name, calls in callers.items()
            if len(calls) == 1
            if name not in self.source.methods or last_name(_base(calls[0])) == "self"
        }

    def alone(self, call: FunctionCall) -> StageKind | None:
        """What all ranks have to call, under a condition on the rank."""
        func = call.node.func
        is_variable = isinstance(func, ast.Name) and func.id in call.scope.owner(func.id).values
        by_owner = ((table.get(call.method), is_owner) for table, is_owner in self.owners)
        found = [(kind, is_owner) for kind, is_owner in by_owner if kind is not None]
        places = [call, *filter(None, [self.started.get(call.function)])]
        if not (is_variable or found) or not any(map(is_on_one_rank, places)):
            return None
        if is_variable and self.is_trained(call, func):
            return StageKind.ALONE_SHARDED
        return next((kind for kind, is_owner in found if is_owner(call)), None)

    def reads(self, call: FunctionCall) -> bool:
        """Whether it uses the weights of a model that is sharded by then."""
        base, args = _base(call), call.node.args
        if call.method in {"merge_and_unload", "merge_adapter"}:
            return self.is_trained(call, base)
        if call.method in {"get_input_embeddings", "get_output_embeddings"}:
            return self._is_used(call.node, call.line) and self.is_sharded(call, base)
        if call.method == "zip":
            methods = [arg.func for arg in args if isinstance(arg, ast.Call)]
            models = [
                m.value for m in methods if isinstance(m, ast.Attribute) and m.attr == "parameters"
            ]
            return len(models) == len(args) and any(self.is_trained(call, m) for m in models)
        if call.method.endswith("_") and call.method != "requires_grad_":
            weight = base if base is not None and _weight_of(base) else next(iter(args), None)
            return self.is_sharded(call, _weight_of(weight))
        return False

    def _is_used(self, node: ast.AST, line: int) -> bool:
        """Whether an expression goes on with `.weight`, and what is in it, or how large it is."""
        # An import that stands for those of a module has no line; the others are in their order.
        above = [s for s in self.source.tree.body if getattr(s, "lineno", line + 1) <= line]
        parts = nodes_of(above[-1])
        parents = {child: part for part in parts for child in ast.iter_child_nodes(part)}
        chain = []
        while isinstance(node := parents[node], ast.Attribute):
            chain.append(node.attr)
        is_entry = isinstance(node, ast.Subscript) and chain in (["weight"], ["weight", "data"])
        is_kept = isinstance(node, ast.Assign) and chain == ["weight", "data"]
        is_used = chain[:1] == ["weight"] and not _USES.isdisjoint(chain)
        return is_entry or is_kept or is_used

    def refused(self, call: FunctionCall) -> StageKind | None:
        """What a library refuses."""
        kind = None
        match call.method:
            case "no_sync" if self.is_trained(call, _base(call)):
                kind = StageKind.NO_SYNC
            case "evaluate" | "predict" if self.is_trainer(call) and self._is_early(call):
                kind = StageKind.EVALUATES_FIRST
            case "create_reference_model" if self.source.imported(call.node.func)[0] == "trl":
                kind = StageKind.COPIES_MODEL
            case "clip_grad_value_" if self.is_accelerator(call):
                kind = StageKind.CLIPS_VALUES
            case "prepare" if self._is_of_several(call):
                kind = StageKind.TWO_MODELS
            case "prepare" if self._lacks_model(call):
                kind = StageKind.NO_MODEL
            case _ if call in self.built and self._is_second(call):
                kind = StageKind.SECOND_TRAINER
            case _:
                pass
        return kind

    def _is_of_several(self, call: FunctionCall) -> bool:
        """Whether an Accelerator gets several models by one call."""
        given = {*names_of(call.node.args, call)}
        return any(e.call is call and len(given & e.models) > 1 for e in self.models.engines)

    def _lacks_model(self, call: FunctionCall) -> bool:
        """Whether an Accelerator gets an optimizer by this call, and its model by another."""
        engines = (e for e in self.models.engines if e.call.function == call.function)
        with_models = [engine.call for engine in engines if engine.models]
        return (
            _gets_optimizer(call)
            and bool(with_models)
            and not any(map(_gets_optimizer, with_models))
        )

    def _is_second(self, call: FunctionCall) -> bool:
        """Whether every run builds another Trainer with the same arguments before."""
        args = call.argument("args", 1)
        return (
            self.is_hf
            and isinstance(args, ast.Name)
            and any(
                other.line < call.line and other.function == call.function and not other.tests
                for other in self.built
                if last_name(other.argument("args", 1)) == args.id
                if len(call.scope.owner(args.id).values.get(args.id, ())) == 1
            )
        )

    def _is_early(self, call: FunctionCall) -> bool:
        """Whether a method of a Trainer is called before its `train`."""
        name = ast.unparse(_base(call) or call.node)
        trains = [
            other.line
            for other in self.source.calls
            if other.method == "train" and other.function == call.function
            if ast.unparse(_base(other) or other.node) == name
        ]
        return bool(trains) and call.line < min(trains)


def _gets_optimizer(call: FunctionCall) -> bool:
    given = (arg.value if isinstance(arg, ast.Subscript) else arg for arg in call.node.args)
    return any(OPTIMIZER.search(last_name(arg)) for arg in given)


_USES = frozenset({"shape", "size", "mean", "std", "norm", "clone", "copy_", "normal_", "numpy"})


def _weight_of(expr: ast.expr | None) -> ast.expr | None:
    """The variable of `model.x.weight` or `model.x.weight.data`; None for anything else."""
    is_weight = False
    while isinstance(expr, ast.Attribute):
        is_weight = is_weight or expr.attr in {"weight", "bias"}
        expr = expr.value
    return expr if is_weight and isinstance(expr, ast.Name) else None


def with_stage_calls(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the calls of a script that are wrong at some stages."""
    find = _StageFinder(facts, read)
    kinds: tuple[Callable[[FunctionCall], StageKind | None], ...] = (
        find.alone,
        find.refused,
        lambda call: StageKind.READS if find.reads(call) else None,
    )
    calls = [
        StageCall(
            kind=kind,
            line=call.line,
            code=short_code(call.node),
            conditions=tuple(read.conditions(call)),
        )
        for call in read.source.calls
        for kind in filter(None, (look(call) for look in kinds))
        # What its function was left on before, such as FSDP, is asked by Accelerate itself.
        if not may_be_gathered(replace(call, around=()) if kind is StageKind.NO_MODEL else call)
        if not _is_paired(read, call, kind)
    ]
    return replace(facts, stage_calls=tuple({call.line: call for call in reversed(calls)}.values()))


def _is_paired(read: Reader, call: FunctionCall, kind: StageKind) -> bool:
    """Whether the other ranks make the same call in the other branch of the condition."""
    if not call.tests or kind not in {StageKind.ALONE, StageKind.ALONE_SHARDED}:
        return False
    tests = dict(map(decide, call.tests))
    return any(
        other.name == call.name
        and tests == {name: not holds for name, holds in map(decide, other.tests)}
        for other in read.source.calls
    )
