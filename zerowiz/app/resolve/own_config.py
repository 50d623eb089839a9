"""A person's own config, DeepSpeed's or Accelerate's: checked, and with what a plan needs of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from zerowiz.app.options import Options
from zerowiz.app.reporter import Reporter
from zerowiz.core import shell
from zerowiz.core.dsconfig.accelerate import fill
from zerowiz.core.dsconfig.write import render_config
from zerowiz.core.findings import Finding, Severity
from zerowiz.core.launch.provenance import PlannedFile
from zerowiz.core.lint.config import ConfigText, Context, on_machine
from zerowiz.core.lint.keys import UNREADABLE, unreadable
from zerowiz.core.lint.linter import check_accelerate, check_config
from zerowiz.core.lint.releases import SCRIPT_DISAGREES
from zerowiz.core.machine.types import Machine
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.settings import HYPERPARAMETERS, OF_ADAM
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration, Workload
from zerowiz.errors import ConfigMistakeError
from zerowiz.probe.config_text import is_yaml, read_config_text, read_config_values
from zerowiz.probe.files import read_ds_schema, read_version

# Without what they say no plan is right, or the Trainer ends the job.
_FINAL = frozenset({SCRIPT_DISAGREES, UNREADABLE})


def lint_own_config(
    path: Path,
    options: Options,
    machine: Machine,
    script: ScriptRun | None,
    reporter: Reporter,
) -> None:
    """As `guards.check_own_config`, for one that there is.

    Raises:
        ConfigMistakeError: It holds an error, and nobody forces it.
    """
    config = read_config_text(path)
    # What is built on a base is linted when it is built.
    is_base = options.base is not None
    of_config = () if is_base else _found(config, machine, script, options.integration)
    # The file of Accelerate that names the config has findings of its own.
    naming = config.accelerate if is_base or config.root is None else None
    of_naming = (
        () if naming is None else ((naming.path, e) for e in check_accelerate(naming, Context()))
    )
    named = [*of_naming, *((config.path, finding) for finding in of_config)]
    findings = [(name, finding) for name, finding in named if not finding.of_launcher]
    with_script = () if script is None else ("--script", script.facts.path)
    command = shell.join(["zerowiz", "check", *with_script, path])
    how = f"see why, and how to fix it: `{command}`"
    _refuse_errors(findings, options, how, reporter)


def lint_built_config(
    path: str,
    values: Mapping[str, object],
    options: Options,
    machine: Machine,
    script: ScriptRun | None,
    reporter: Reporter,
) -> None:
    """See that DeepSpeed takes a config in which a person's keys and the plan's are together.

    Args:
        path: Where it is written.
        values: What it says.
        options: What was said.
        machine: What the job runs on.
        script: The script as it is run; None without one.
        reporter: Hears what may go wrong.

    Raises:
        ConfigMistakeError: It holds an error, and nobody forces it.
    """
    config = ConfigText(path=path, text=render_config(values))
    # It may not be there yet.
    found = [replace(e, line=0) for e in _found(config, machine, script, options.integration)]
    theirs = options.base or path
    how = f"change it in `{theirs}`"
    if not any(finding.rule is SCRIPT_DISAGREES for finding in found):
        how += f", or use that unchanged: `$config {shell.quote(theirs)}`"
    _refuse_errors([(path, finding) for finding in found], options, how, reporter)


def _refuse_errors(
    findings: Sequence[tuple[str, Finding]],
    options: Options,
    how: str,
    reporter: Reporter,
) -> None:
    """Refuse errors that nobody forces; what else is found is noted, with how to fix it."""
    errors = [(name, finding) for name, finding in findings if finding.severity is Severity.ERROR]
    is_final = any(finding.rule in _FINAL for _name, finding in errors)
    if errors and (is_final or not options.force):
        first, *others = (finding.in_short(name) for name, finding in errors)
        force = () if is_final else ("add `$force` to go on anyway",)
        agree = (fix for _, each in errors if each.rule is SCRIPT_DISAGREES for fix in each.fixes)
        raise ConfigMistakeError(first, *others, *dict.fromkeys(agree), how, *force)
    noted = [(name, finding) for name, finding in findings if finding.severity is not Severity.INFO]
    for name, finding in noted:
        reporter.note(finding.in_short(name))
    if noted:
        reporter.note(how)


def _found(
    config: ConfigText,
    machine: Machine,
    script: ScriptRun | None,
    integration: Integration | None,
) -> tuple[Finding, ...]:
    if config.fault is not None:
        return (unreadable(config.fault),)
    if script is None:
        context = Context(integration=integration or config.integration)
    else:
        # Without those that take the config's value, by words added after the script.
        names = ("micro_batch", "accumulation_steps", "precision", *HYPERPARAMETERS, *OF_ADAM)
        decided = {
            name: setting
            for name, setting in script.settings.values.items()
            if not (name in names and script.settings.is_open(name, setting.value))
            and not (name == "micro_batch" and script.settings.draws_batch)
        }
        context = Context(
            integration=integration or _reader(config, script.facts),
            settings=replace(script.settings, values=decided),
            passed=script.facts.passed,
        )
    schema = read_ds_schema(read_version("deepspeed"))
    return check_config(config, schema, on_machine(context, machine))


def _reader(config: ConfigText, facts: ScriptFacts) -> Integration | None:
    """Who reads the config; a plain loop gets one of Accelerate with its numbers filled in."""
    by_accelerate = config.integration is Integration.ACCELERATE and config.root is not None
    is_plain = facts.integration is not None and facts.integration.row.as_written
    return config.integration if by_accelerate and is_plain else facts.integration


# Run a job with a config that stands in YAML, which DeepSpeed itself does not read.

# Each setting that Accelerate leaves open in a config, and the options that say it.
_SAID_BY = {
    "micro_batch": ("micro_batch",),
    "accumulation_steps": ("accumulation_steps", "global_batch"),
    "precision": ("precision",),
}


class YamlConfig(Struct, frozen=True, kw_only=True):
    """What a job runs with when a YAML file is its config."""

    path: str
    """The JSON file: the person's own, the one that YAML names, or the one to be written of it."""
    is_written: bool
    env: Mapping[str, str] = field(default_factory=dict)
    """What Accelerate hands to the ranks beside it."""


def read_yaml_config(path: Path, output_dir: Path | None) -> YamlConfig:
    """What a job runs with.

    Args:
        path: A config of a person.
        output_dir: Where zerowiz writes.

    Raises:
        UsageError: It cannot be read, or holds no config.
    """
    if not is_yaml(path):
        return YamlConfig(path=str(path), is_written=False)
    read = read_config_text(path)
    env = {} if read.accelerate is None else read.accelerate.env
    if read.root is None:
        return YamlConfig(path=read.path, is_written=False, env=env)
    written = (output_dir or Path()) / f"{path.stem}.ds_config.json"
    return YamlConfig(path=str(written), is_written=True, env=env)


def ready_values(
    path: Path, options: Options, workload: Workload, integration: Integration
) -> dict[str, object]:
    """The config as its reader gets it.

    Args:
        path: A config of a person.
        options: What was said.
        workload: The step that is planned.
        integration: Who reads it.
    """
    read, values = read_config_text(path), read_config_values(path)
    if read.root is None or read.accelerate is None:
        return values
    names = [
        name
        for name, fields in _SAID_BY.items()
        if any(getattr(options, field) is not None for field in fields)
    ]
    return fill(values, workload, integration, names)


def plan_yaml_config(
    path: Path, options: Options, workload: Workload, integration: Integration
) -> tuple[PlannedFile, ...]:
    """The file to write; none where the YAML file names one.

    Args:
        path: A config of a person.
        options: What was said.
        workload: The step that is planned.
        integration: Who reads it.
    """
    config = read_yaml_config(path, options.output_dir)
    if not config.is_written:
        return ()
    text = render_config(ready_values(path, options, workload, integration))
    return (PlannedFile(path=config.path, text=text),)
