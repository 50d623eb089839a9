"""Read a script's trainer: which it is, its reference, what it generates, and by which engine."""

import ast
from collections.abc import Iterator

from zerowiz.core.script.facts import UNSEEN, Binding, ScriptCall, ScriptFacts, TrainerFacts
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Integration
from zerowiz.probe.script.expressions import last_name, unless_none
from zerowiz.probe.script.model.model import loads
from zerowiz.probe.script.reader import Reader, agree, show_argument
from zerowiz.probe.script.source import FunctionCall
from zerowiz.probe.script.trainer.uses import BuiltTrainer, built_trainers, trainer_uses
from zerowiz.probe.script.training import field_reader


def with_trainer(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the trainer of a script that has one of transformers' or of a library on top of it."""
    if facts.integration is not Integration.HF:
        return facts
    field, built = field_reader(facts, read), built_trainers(read)
    completion = field("max_completion_length")
    return replace(
        facts,
        optimizers_passed=tuple(_optimizers_passed(read, built)),
        trainer=TrainerFacts(
            uses=tuple(trainer_uses(read)),
            reference=agree(_reference(read, each) for each in built) if built else UNSEEN,
            precomputed=field("precompute_ref_log_probs"),
            beta=field("beta"),
            prompt_tokens=field("max_prompt_length"),
            completion_tokens=completion if completion.seen else field("response_length"),
            group=field("num_generations"),
            steps_per_generation=field("steps_per_generation"),
            whole_generation=field("generation_batch_size"),
            use_vllm=field("use_vllm"),
            vllm_mode=field("vllm_mode"),
            vllm_fraction=field("vllm_gpu_memory_utilization"),
            vllm_sleep=field("vllm_enable_sleep_mode"),
            models_beside=tuple(found for each in built for found in _models_beside(read, each)),
            eval_batch=field("per_device_eval_batch_size"),
            eval_strategy=field("eval_strategy"),
            do_eval=field("do_eval"),
            evaluations=tuple(_evaluations(read, built)),
            metrics=next(_metrics(built), None),
        ),
    )


def _evaluations(read: Reader, built: list[BuiltTrainer]) -> Iterator[tuple[Binding, ...]]:
    """What has to hold for each call of a trainer's `evaluate`."""
    names = {name for each in built for name in each.call.target.split()}
    for call in read.source.calls:
        match call.node.func:
            case ast.Attribute(value=base, attr="evaluate"):
                name = last_name(base)
                if name in names or name.lower().endswith("trainer"):
                    yield tuple(read.conditions(call))
            case _:
                pass


def _metrics(built: list[BuiltTrainer]) -> Iterator[Binding]:
    """The `compute_metrics` of each trainer that has one."""
    for each in built:
        expr = unless_none(each.call.keyword("compute_metrics"))
        if expr is not None:
            yield Binding(line=expr.lineno, code=show_argument(each.call, expr, "compute_metrics"))


def _optimizers_passed(read: Reader, built: list[BuiltTrainer]) -> Iterator[ScriptCall]:
    """The optimizer or the scheduler that a call hands its trainer; a subclass may use them."""
    for call in (each.call for each in built):
        expr = unless_none(call.keyword("optimizers"))
        pair = None if expr is None else read.follow(expr, call)
        items = pair.elts if isinstance(pair, ast.Tuple | ast.List) else []
        given = [unless_none(read.argument(each, call).expr) for each in items]
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


def _reference(read: Reader, built: BuiltTrainer) -> Binding:
    """Whether a call passes a reference model; unseen where that depends on something."""
    call, is_second = built.call, built.use.name in _REFERRED_SECOND
    expr = call.argument("ref_model", 1) if is_second else unless_none(call.keyword("ref_model"))
    if expr is None:
        return Binding(value=False, line=call.line, default_of=built.use.name)
    followed = read.follow(expr, call)
    code = show_argument(call, expr, "ref_model")
    if unless_none(followed) is None:
        return Binding(value=False, line=expr.lineno, code=code)
    is_model = isinstance(followed, ast.Call)
    return Binding(value=True if is_model else None, line=expr.lineno, code=code)


# trl 0.12 to 1.16: what the second argument of a trainer is.
_REFERRED_SECOND = frozenset({"DPOTrainer", "KTOTrainer", "BCOTrainer", "OnlineDPOTrainer"})
_JUDGED_SECOND = frozenset({"GRPOTrainer", "RLOOTrainer"})
# trl 1.16, grpo_trainer.py, and trl 0.29, online_dpo_trainer.py: what may be a model, or its name.
_JUDGES = ("reward_funcs", "reward_model")


def _models_beside(read: Reader, built: BuiltTrainer) -> Iterator[Binding]:
    """The models that a call hands its trainer to judge completions."""
    call = built.call
    for keyword in _JUDGES:
        judges_second = built.use.name in _JUDGED_SECOND and keyword == "reward_funcs"
        given = call.argument(keyword, 1) if judges_second else unless_none(call.keyword(keyword))
        for expr in () if given is None else _items(read, given, call):
            found = _model(read, call, expr, keyword)
            if found is not None:
                yield found


def _items(read: Reader, expr: ast.expr, call: FunctionCall) -> Iterator[ast.expr]:
    """The items of a list, and what is appended to it; any other expression is its only one."""
    if isinstance(expr, ast.Name):
        for each in read.source.calls:
            match each.node.func:
                case ast.Attribute(value=base, attr="append") if last_name(base) == expr.id:
                    yield from each.node.args[:1]
                case _:
                    pass
    followed = read.follow(expr, call)
    yield from followed.elts if isinstance(followed, ast.List | ast.Tuple) else [followed]


def _model(read: Reader, call: FunctionCall, expr: ast.expr, keyword: str) -> Binding | None:
    """What judges, where that is a model: its name, an option, or the call that loads it."""
    code = show_argument(call, expr, keyword)
    bound = read.bind(expr, call)
    if bound.flag is not None:
        return replace(bound, line=call.line, code=code)
    followed = read.follow(expr, call)
    if isinstance(followed, ast.Call):
        loader = next((each for each in read.source.calls if each.node is followed), None)
        is_model = loader is not None and loads(read.source, loader) == "Model"
        return Binding(line=expr.lineno, code=code) if is_model else None
    is_name = isinstance(bound.value, str)
    return Binding(line=expr.lineno, code=code) if is_name else None
