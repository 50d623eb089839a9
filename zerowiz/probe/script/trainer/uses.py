"""Find the trainer that a script builds: a library's class, or a class of its own."""

import ast
from collections.abc import Iterator

from msgspec import Struct

from zerowiz.core.script.arguments import ARGUMENT_CLASSES
from zerowiz.core.script.facts import TrainerUse
from zerowiz.probe.script.arguments import built_arguments
from zerowiz.probe.script.expressions import last_name
from zerowiz.probe.script.reader import Reader
from zerowiz.probe.script.source import HF_LIBRARIES, FunctionCall, Source

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


def built_trainers(read: Reader) -> list[BuiltTrainer]:
    """Each call of the script that builds a Trainer of these libraries, or one of another module.

    That of another module is known by its name, and by the arguments of a Trainer.
    """
    found = []
    for call in read.source.calls:
        use = _use(read.source, call)
        if use is not None:
            found.append(BuiltTrainer(call=call, use=use))
    return found


def trainer_uses(read: Reader) -> Iterator[TrainerUse]:
    """The trainers of a script; where none is built in it, those whose arguments it has."""
    built = [each.use for each in built_trainers(read)]
    yield from built
    if built:
        return
    names = [(each.arguments.name, each.call.line) for each in built_arguments(read.source)]
    if read.line.training is not None:
        names.append((read.line.training.name, read.line.hf_line or 1))
    for name, line in names:
        if name in ARGUMENT_CLASSES and name.endswith("Config"):
            trainer = f"{name.removesuffix('Config')}Trainer"
            yield TrainerUse(name=trainer, line=line, code=name)


def _use(source: Source, call: FunctionCall) -> TrainerUse | None:
    """What a call builds, if that is a trainer."""
    func = call.node.func
    own = source.classes.get(func.id) if isinstance(func, ast.Name) else None
    if own is not None:
        return _own_use(source, call, own)
    library, name = source.imported(func)
    if not name.endswith("Trainer") or (name == "Trainer" and library not in HF_LIBRARIES):
        return None
    given = {word.arg for word in call.node.keywords}
    if library in HF_LIBRARIES or {"args", "train_dataset"} & given:
        return TrainerUse(name=name, line=call.line, code=f"{call.name}(...)")
    return None


def _own_use(source: Source, call: FunctionCall, node: ast.ClassDef) -> TrainerUse | None:
    """A class of the script that is a Trainer, and the method of its own that makes the loss."""
    methods: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
    seen: set[str] = set()
    while node.name not in seen:
        seen.add(node.name)
        methods += [each for each in node.body if isinstance(each, ast.FunctionDef)]
        names = [(last_name(base), base) for base in node.bases]
        base = next((b for n, b in names if n.endswith("Trainer") or n in source.classes), None)
        if base is None:
            return None
        inner = source.classes.get(base.id) if isinstance(base, ast.Name) else None
        if inner is None or inner.name in seen:
            name = source.imported(base)[1] or last_name(base)
            changed = next((each for each in methods if each.name in _MAKE_THE_LOSS), None)
            return TrainerUse(
                name=name,
                line=call.line,
                code=f"{call.name}(...)",
                changed=None if changed is None else f"{call.name}.{changed.name}",
                changed_line=None if changed is None else changed.lineno,
            )
        node = inner
    return None
