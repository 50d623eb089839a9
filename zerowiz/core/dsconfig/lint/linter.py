"""Check a DeepSpeed config without DeepSpeed."""

import json
from collections.abc import Callable, Iterator

from zerowiz.core.dsconfig.hjson import Node, Object, parse
from zerowiz.core.dsconfig.hjson_tokens import Dialect, JsonTextError
from zerowiz.core.dsconfig.lint.config import Config, read_config
from zerowiz.core.dsconfig.lint.context import Context
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.lint.rules import (
    against_script,
    auto,
    batch,
    danger,
    effects,
    keys,
    offload,
    optimizer,
    optimizer_arguments,
    precision,
    refused,
    structure,
    values,
    versions,
)
from zerowiz.core.dsconfig.schema import Schema
from zerowiz.core.rule import Severity, rules_of
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Integration

# In the order in which they look at a config.
_CHECKS: tuple[Callable[[Config], Iterator[ConfigFinding]], ...] = (
    structure.check_structure,
    keys.check_keys,
    values.check_values,
    auto.check_auto,
    batch.check_batch,
    precision.check_precision,
    offload.check_offload,
    optimizer.check_optimizer,
    optimizer_arguments.check_optimizer_arguments,
    refused.check_refused,
    effects.check_effects,
    against_script.check_against_script,
    danger.check_danger,
    versions.check_versions,
)

RULES = rules_of(
    (
        structure,
        keys,
        values,
        auto,
        batch,
        precision,
        offload,
        optimizer,
        optimizer_arguments,
        refused,
        effects,
        against_script,
        danger,
        versions,
    )
)

_OLD_BF16 = "bfloat16."


def lint(text: str, schema: Schema, context: Context) -> tuple[ConfigFinding, ...]:
    """Everything that is found in a config, in the order of its text.

    Args:
        text: Of the file.
        schema: What the DeepSpeed knows that will read it.
        context: What else is known of the run.
    """
    refused_by_json = _refused_by_json(text, context)
    strict = context.integration not in {None, Integration.DEEPSPEED} and refused_by_json is None
    try:
        root = parse(text, Dialect.JSON if strict else Dialect.HJSON)
    except JsonTextError as error:
        if refused_by_json is not None and refused_by_json.severity is Severity.ERROR:
            return (refused_by_json,)
        return (structure.unreadable(error),)
    findings = [] if refused_by_json is None else [refused_by_json]
    findings += _of_tree(root, text, schema, context)
    return tuple(sorted(findings, key=lambda each: (each.line, each.column, each.rule.code)))


def _refused_by_json(text: str, context: Context) -> ConfigFinding | None:
    """What the Trainer and Accelerate refuse, which read with json.

    It is only advice where the integration is not known.
    """
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
            return structure.unreadable(error, severity)
    return None


def _of_tree(root: Node, text: str, schema: Schema, context: Context) -> Iterator[ConfigFinding]:
    if not isinstance(root, Object):
        yield structure.not_an_object(root)
        return
    config = read_config(text, root, schema, context)
    if keys.is_no_config(config):
        yield keys.no_config(config)
        return
    for check in _CHECKS:
        yield from filter(None, (_as_read(config, finding) for finding in check(config)))


def _as_read(config: Config, finding: ConfigFinding) -> ConfigFinding | None:
    """What is left of a finding in a section that only DeepSpeed by itself reads.

    Accelerate sets a `bf16`, which DeepSpeed looks for before the old `bfloat16`
    (accelerate/utils/dataclasses.py, set_mixed_precision; runtime/precision_config.py).
    """
    if config.by_deepspeed or not finding.key.startswith(_OLD_BF16):
        return finding
    if finding.rule in (auto.AUTO_NOT_FILLED, structure.DUPLICATE_KEY):
        return finding
    return None if config.by_accelerate else replace(finding, severity=Severity.WARNING)
