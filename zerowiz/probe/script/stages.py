"""Find the calls of a script that are right at some ZeRO stages only."""

import ast
from collections.abc import Callable, Mapping
from functools import cached_property

from zerowiz.core.script.facts import ScriptFacts, StageCall, StageKind
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration
from zerowiz.probe.script.model import is_after_engine, is_other, loads
from zerowiz.probe.script.reader import Reader, short_code
from zerowiz.probe.script.source import OPTIMIZER, FunctionCall, decide, last_name, nodes_of
from zerowiz.probe.script.trainer import (
    built_trainers,
    is_on_one_rank,
    may_be_gathered,
    names_of,
    trained_models,
)

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
