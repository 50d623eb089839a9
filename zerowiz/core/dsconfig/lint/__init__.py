"""Check a DeepSpeed config without DeepSpeed."""

import json
from collections.abc import Callable, Iterator

from zerowiz.core.dsconfig.hjson import Node, Object, parse, repeated
from zerowiz.core.dsconfig.hjson_tokens import Dialect, JsonTextError
from zerowiz.core.dsconfig.lint.codes import (
    AUTO_NOT_FILLED,
    DUPLICATE_KEY,
    NOT_AN_OBJECT,
    RULES,
)
from zerowiz.core.dsconfig.lint.config import Config, read_config, shown
from zerowiz.core.dsconfig.lint.context import Context
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.lint.rules.against_script import check_against_script
from zerowiz.core.dsconfig.lint.rules.auto import check_autos
from zerowiz.core.dsconfig.lint.rules.batch import check_batch
from zerowiz.core.dsconfig.lint.rules.danger import check_danger
from zerowiz.core.dsconfig.lint.rules.effects import check_effects
from zerowiz.core.dsconfig.lint.rules.keys import check_keys, is_no_config, no_config
from zerowiz.core.dsconfig.lint.rules.offload import check_offload
from zerowiz.core.dsconfig.lint.rules.optimizer import check_optimizer
from zerowiz.core.dsconfig.lint.rules.optimizer_arguments import check_optimizer_arguments
from zerowiz.core.dsconfig.lint.rules.precision import check_precision
from zerowiz.core.dsconfig.lint.rules.refused import check_refused
from zerowiz.core.dsconfig.lint.rules.values import check_values
from zerowiz.core.dsconfig.lint.source import unreadable
from zerowiz.core.dsconfig.schema import Schema
from zerowiz.core.rule import Rule, Severity
from zerowiz.core.values import replace
from zerowiz.core.workload import Integration

__all__ = ["RULES", "ConfigFinding", "Context", "Rule", "Severity", "lint"]

_OLD_BF16 = "bfloat16."
_CHECKS: tuple[Callable[[Config], Iterator[ConfigFinding]], ...] = (
    check_keys,
    check_values,
    check_autos,
    check_batch,
    check_precision,
    check_offload,
    check_optimizer,
    check_optimizer_arguments,
    check_refused,
    check_effects,
    check_against_script,
    check_danger,
)


def lint(text: str, schema: Schema, context: Context) -> tuple[ConfigFinding, ...]:
    """Everything that is to be said of a config, in the order of its text.

    Args:
        text: Of the file.
        schema: What the DeepSpeed knows that will read it.
        context: What else is known of the run.
    """
    refused = _refused_by_json(text, context)
    strict = context.integration not in {None, Integration.DEEPSPEED} and refused is None
    try:
        root = parse(text, Dialect.JSON if strict else Dialect.HJSON)
    except JsonTextError as error:
        said = refused is not None and refused.severity is Severity.ERROR
        return (refused if refused and said else unreadable(error),)
    found = [] if refused is None else [refused]
    found += _of_tree(root, text, schema, context)
    return tuple(sorted(found, key=lambda each: (each.line, each.column, each.rule.code)))


def _refused_by_json(text: str, context: Context) -> ConfigFinding | None:
    """What the Trainer and Accelerate say, which read with json; only advice if nobody said who."""
    if context.integration is Integration.DEEPSPEED:
        return None
    try:
        json.loads(text)
    except RecursionError:
        return None
    except ValueError:
        severity = Severity.INFO if context.integration is None else Severity.ERROR
        try:
            parse(text, Dialect.JSON)
        except JsonTextError as error:
            return unreadable(error, severity)
    return None


def _of_tree(root: Node, text: str, schema: Schema, context: Context) -> Iterator[ConfigFinding]:
    if not isinstance(root, Object):
        yield ConfigFinding(
            rule=NOT_AN_OBJECT,
            severity=NOT_AN_OBJECT.severity,
            key="",
            line=root.place.line,
            column=root.place.column,
            message="a config is an object, `{...}`",
        )
        return
    config = read_config(text, root, schema, context)
    if is_no_config(config):
        yield no_config(config)
        return
    yield from _repeated(config)
    for check in _CHECKS:
        yield from filter(None, (_as_read(config, finding) for finding in check(config)))


def _as_read(config: Config, finding: ConfigFinding) -> ConfigFinding | None:
    """What is left of a finding in a section that only DeepSpeed by itself reads.

    Accelerate sets a `bf16`, which DeepSpeed looks for before the old `bfloat16`
    (accelerate/utils/dataclasses.py, set_mixed_precision; runtime/precision_config.py).
    """
    if config.by_deepspeed or not finding.key.startswith(_OLD_BF16):
        return finding
    if finding.rule is AUTO_NOT_FILLED:
        return finding
    return None if config.by_accelerate else replace(finding, severity=Severity.WARNING)


def _repeated(config: Config) -> Iterator[ConfigFinding]:
    # runtime/config_utils.py, dict_raise_error_on_duplicate_keys; json takes the last one.
    severity = Severity.WARNING if config.by_accelerate else Severity.ERROR
    paths = {id(entry.member): entry for entry in config.entries}
    for earlier, member in repeated(config.root):
        entry = paths.get(id(member))
        place = member.key.place
        yield ConfigFinding(
            rule=DUPLICATE_KEY,
            severity=severity,
            key=entry.path if entry else member.key.name,
            line=place.line,
            column=place.column,
            message=f"`{shown(member.key.name)}` stands on line {earlier.key.place.line} too",
            mend="drop one of them",
        )
