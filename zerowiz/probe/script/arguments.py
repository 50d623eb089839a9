"""Find a script's arguments classes, such as TrainingArguments, and the calls that build them."""

import ast
import re
from collections.abc import Mapping

from msgspec import Struct, field

from zerowiz.core.script.arguments import (
    ARGUMENT_CLASSES,
    FIELD_ALIASES,
    TRAINING_CLASSES,
    field_options,
)
from zerowiz.core.script.options import Option
from zerowiz.core.values import replace
from zerowiz.probe.script.options import dataclass_options
from zerowiz.probe.script.source import HF_LIBRARIES, FunctionCall, Source


class Arguments(Struct, frozen=True, kw_only=True):
    """A dataclass of arguments, of a library or of the script."""

    name: str
    is_training: bool = False
    """Whether it is TrainingArguments or a subclass."""
    complete: bool = True
    """Whether every field is known with its default."""
    fields: Mapping[str, tuple[Option, ...]] = field(default_factory=dict)


def find_arguments(
    source: Source, expr: ast.expr, seen: frozenset[str] = frozenset()
) -> Arguments | None:
    """The arguments class that an expression names; None where it is not a known one."""
    if isinstance(expr, ast.Name) and expr.id in source.classes and expr.id not in seen:
        return _local_arguments(source, source.classes[expr.id], seen | {expr.id})
    if isinstance(expr, ast.Name) and expr.id in source.elsewhere:
        found = _module_arguments(source, expr)
        if found is not None:
            return found
    library, name = source.imported(expr)
    is_one = name not in _ONCE_NONE or _has_trainer(source, name)
    if library in HF_LIBRARIES and name in ARGUMENT_CLASSES and is_one:
        return _library_arguments(source, name, defaults_seen=True)
    name = source.origin(expr).rpartition(".")[2]
    if name in TRAINING_CLASSES and is_one:
        return _library_arguments(source, name, defaults_seen=False)
    if _HIDDEN_NAME.search(name) or _has_trainer(source, name):
        hidden = _library_arguments(source, "TrainingArguments", defaults_seen=False)
        return replace(hidden, name=name)
    return None


# Before trl 0.12 it was no TrainingArguments, and its Trainer took it as the first argument.
_ONCE_NONE = frozenset({"PPOConfig"})
# What a subclass of another module is called; transformers' examples name the data's arguments
# DataTrainingArguments.
_HIDDEN_NAME = re.compile(r"(?<!Data)Training(Arguments|Args)$")


def _has_trainer(source: Source, name: str) -> bool:
    """Whether `XConfig` has an `XTrainer(args=...)` in the script, as those of TRL."""
    trainer = f"{name.removesuffix('Config')}Trainer"
    return name.endswith("Config") and any(
        call.method == trainer and call.keyword("args") is not None for call in source.calls
    )


def _library_arguments(source: Source, name: str, *, defaults_seen: bool) -> Arguments:
    release = source.trl_release
    return Arguments(
        name=name,
        is_training=name in TRAINING_CLASSES,
        complete=defaults_seen,
        fields={
            key: field_options(key, row.reads, row.default_in(release) if defaults_seen else None)
            for key, row in ARGUMENT_CLASSES[name].items()
        },
    )


def _module_arguments(source: Source, expr: ast.Name) -> Arguments | None:
    """The arguments class of a module beside the script; its lines are not the script's."""
    name = source.origin(expr).rpartition(".")[2]
    found = find_arguments(source.elsewhere[expr.id], ast.Name(id=name))
    if found is None:
        return None
    fields = {
        key: tuple(replace(option, line=None) for option in options)
        for key, options in found.fields.items()
    }
    return replace(found, fields=fields)


def _local_arguments(source: Source, node: ast.ClassDef, seen: frozenset[str]) -> Arguments:
    bases = [find_arguments(source, base, seen) for base in node.bases]
    known = [base for base in bases if base is not None]
    fields: dict[str, tuple[Option, ...]] = {}
    for base in reversed(known):
        fields |= base.fields
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = _field_name(statement.target.id, fields)
            fields[name] = dataclass_options(name, statement, source.module)
    return Arguments(
        name=node.name,
        is_training=any(base.is_training for base in known),
        complete=len(known) == len(bases) and all(base.complete for base in known),
        fields=fields,
    )


def _field_name(name: str, fields: Mapping[str, tuple[Option, ...]]) -> str:
    """The inherited field that this name is an alias of, or the name itself."""
    same = (own for own, also in FIELD_ALIASES.items() if name in also and own in fields)
    return next(same, name)


class Built(Struct, frozen=True, kw_only=True):
    """One call of the script that builds TrainingArguments."""

    call: FunctionCall
    arguments: Arguments
    keywords: Mapping[str, ast.expr]
    hidden: bool
    """Whether it has positional arguments, or a `**` whose keys are not known."""


def built_arguments(source: Source) -> list[Built]:
    """Every call that builds TrainingArguments or a subclass."""
    found = []
    for call in source.calls:
        arguments = find_arguments(source, call.node.func)
        if arguments is None or not arguments.is_training:
            continue
        keywords, hidden = source.keywords(call)
        hidden = hidden or len(call.node.args) > 1
        found.append(Built(call=call, arguments=arguments, keywords=keywords, hidden=hidden))
    return found
