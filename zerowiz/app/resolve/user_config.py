"""Lint a person's own config before a job runs with it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from zerowiz.app.options import Options
from zerowiz.app.reporter import Reporter
from zerowiz.core import shell
from zerowiz.core.dsconfig.lint.accelerate_file import check_accelerate
from zerowiz.core.dsconfig.lint.config import BATCH_KEYS
from zerowiz.core.dsconfig.lint.context import Context, on_machine
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.lint.in_file import check_config
from zerowiz.core.dsconfig.lint.rules.against_script import SCRIPT_DISAGREES
from zerowiz.core.dsconfig.lint.rules.structure import UNREADABLE, unreadable
from zerowiz.core.dsconfig.lint.source import ConfigText
from zerowiz.core.machine.types import Machine
from zerowiz.core.rule import Severity
from zerowiz.core.script.bindings import Setting
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import ScriptSettings, settle
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Integration, Precision
from zerowiz.errors import ConfigMistakeError
from zerowiz.probe.config.config_file import read_config_text
from zerowiz.probe.config.ds_schema import read_ds_schema
from zerowiz.probe.model.libraries import read_version
from zerowiz.ui import check as show_found
from zerowiz.words import _


def lint_own_config(
    path: Path,
    options: Options,
    machine: Machine,
    facts: ScriptFacts | None,
    script_args: Sequence[str],
    reporter: Reporter,
) -> None:
    """As `guards.check_own_config`, for one that there is.

    Raises:
        ConfigMistakeError: It holds an error, and nobody forces it.
    """
    config = read_config_text(path)
    of_config = _found(config, machine, facts, script_args, options.integration)
    found = [*_in_naming_file(config), *((config.path, each) for each in of_config)]
    findings = [(name, each) for name, each in found if not each.of_launcher]
    errors = [(name, each) for name, each in findings if each.severity is Severity.ERROR]
    with_script = () if facts is None else ("--script", facts.path)
    command = shell.join(["zerowiz", "check", *with_script, path])
    whole = _("see why, and how to fix it: `{command}`", command=command)
    file_keys = {} if config.accelerate is None else config.accelerate.file_keys
    is_final = any(_cannot_be_planned(each, file_keys) for _name, each in errors)
    if errors and (is_final or not options.force):
        first, *others = (show_found.in_short(name, each) for name, each in errors)
        force = () if is_final else (_("add `$force` to go on anyway"),)
        raise ConfigMistakeError(first, *others, whole, *force)
    noted = [(name, each) for name, each in findings if each.severity is not Severity.INFO]
    for name, each in noted:
        reporter.note(show_found.in_short(name, each))
    if noted:
        reporter.note(whole)


def _in_naming_file(config: ConfigText) -> Iterator[tuple[str, ConfigFinding]]:
    """What is found in the file of Accelerate that names the config, with its path."""
    if config.named_by is not None:
        for each in check_accelerate(config.named_by):
            yield config.named_by.path, each


def _found(
    config: ConfigText,
    machine: Machine,
    facts: ScriptFacts | None,
    script_args: Sequence[str],
    integration: Integration | None,
) -> tuple[ConfigFinding, ...]:
    if config.fault is not None:
        return (unreadable(config.fault),)
    if facts is None:
        context = Context(integration=integration or config.integration)
    else:
        context = Context(
            integration=integration or _reader(config, facts),
            settings=_without_open(settle(facts, tuple(script_args))),
            passed=facts.passed,
        )
    schema = read_ds_schema(read_version("deepspeed"))
    return check_config(config, schema, on_machine(context, machine))


def _reader(config: ConfigText, facts: ScriptFacts) -> Integration | None:
    """Who reads the config; a plain loop gets one of Accelerate with its numbers filled in."""
    by_accelerate = config.integration is Integration.ACCELERATE and config.places
    is_plain = facts.integration is Integration.DEEPSPEED
    return config.integration if by_accelerate and is_plain else facts.integration


def _without_open(settings: ScriptSettings) -> ScriptSettings:
    """The settings without those that take the config's value, by words added after the script."""
    names = [
        name
        for name in ("micro_batch", "accumulation_steps", "precision")
        if _takes_another(settings, name)
    ]
    return replace(settings, **dict.fromkeys(names))  # type: ignore[arg-type]


def _takes_another(settings: ScriptSettings, name: str) -> bool:
    setting: Setting[object] | None = getattr(settings, name)
    return setting is not None and settings.is_open(name, setting.value)


def _cannot_be_planned(finding: ConfigFinding, file_keys: Mapping[str, str]) -> bool:
    """Whether no plan can be made: the file is not readable, or the script trains otherwise.

    Args:
        finding: An error.
        file_keys: What the file calls keys of the config.
    """
    own = (*BATCH_KEYS, *(f"{name}.enabled" for name in (Precision.BF16, Precision.FP16)))
    in_file = {file_keys.get(key, key) for key in own}
    disagrees = finding.rule is SCRIPT_DISAGREES and finding.key in in_file
    return disagrees or finding.rule is UNREADABLE
