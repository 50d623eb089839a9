"""A job of a program that starts its own ranks: its file says the step, and takes the config."""

import os

from zerowiz.app.ask.command import Command
from zerowiz.app.decide.decision import Plan
from zerowiz.app.options import Options, as_words, with_plain
from zerowiz.app.reporter import Reporter
from zerowiz.core import shell
from zerowiz.core.model.types import ModelSource
from zerowiz.core.script.programs.file import ProgramFile, list_changes
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Method
from zerowiz.core.workload.workload import SETTINGS, Workload
from zerowiz.errors import UsageError
from zerowiz.probe.config.program_file import names_yaml, read_program_file
from zerowiz.probe.model.hf import hub_name
from zerowiz.words import _

# What the config says, and the file need not.
_OF_CONFIG = frozenset({"optimizer_state_dtype", "torch_autocast"})
_OF_ADAPTERS = frozenset(name for name, row in SETTINGS.items() if row.of_adapters)


def find_program_file(command: Command, reporter: Reporter) -> ProgramFile | None:
    """The file of a program that was named instead of a script; None where none was.

    Args:
        command: What was typed.
        reporter: Hears what of the file is not counted.

    Raises:
        ZerowizError: A YAML file was named that cannot be read, or is of no known program; or it
            has no key for an option.
    """
    path = command.script
    if path is None or command.options.module or not names_yaml(path):
        return None
    file = read_program_file(path)
    if command.script_args:
        raise UsageError(
            _(
                "`{script_args}` after `{path}` has no effect",
                script_args=command.script_args[0],
                path=path,
            ),
            _("set it in `{path}`", path=path),
        )
    _refuse_unsayable(command.options, file)
    for key in file.job.not_counted:
        reporter.note(
            _("`{key}` in {path} is not counted in what is predicted", key=key, path=path)
        )
    return file


def _refuse_unsayable(options: Options, file: ProgramFile) -> None:
    """Refuse an option that the file has no key for: the job would not have it."""
    for name in SETTINGS:
        value = getattr(options, name)
        if value is None or name in _OF_CONFIG or file.takes(name, value):
            continue
        words = shell.join(as_words(with_plain(Options(), {name: value})))
        raise UsageError(
            _(
                "zerowiz knows no key of {program} for `{words}`",
                program=file.program.name,
                words=words,
            ),
            _("remove `{words}`: the plan takes what `{path}` says", words=words, path=file.path),
        )


def with_program_file(command: Command, file: ProgramFile) -> Command:
    """The command with what the file says, where the person says nothing."""
    options = command.options
    silent = {k: v for k, v in file.job.settings.items() if getattr(options, k) is None}
    if options.global_batch is not None:
        silent.pop("accumulation_steps", None)
    if options.method is Method.FULL:
        silent = {k: v for k, v in silent.items() if k not in _OF_ADAPTERS}
    return replace(command, script=None, options=with_plain(options, silent))


def lines_to_set(file: ProgramFile, plan: Plan, config_path: str) -> tuple[str, ...]:
    """The lines that the file is to have, and has not."""
    step, default = plan.request.job.workload, Workload()
    has_adapters = step.method is not Method.FULL
    said = {
        name: getattr(step, name)
        for name in SETTINGS
        if (has_adapters or name not in _OF_ADAPTERS)
        and (
            name in file.job.settings
            or name in file.program.without_default
            or getattr(step, name) != getattr(default, name)
        )
    }
    if "lora_target_modules" in said:
        said["lora_target_modules"] = step.lora_targets
    # A size describes the model of the file, and names no other.
    model = plan.options.model
    if model is not None and plan.request.job.model.source is not ModelSource.SIZE:
        said["model"] = hub_name(model, os.environ)
    return tuple(list_changes(file, said, config_path))


def without_said(options: Options, file: ProgramFile) -> Options:
    """The options but for what the file says as well."""
    same = (k for k, v in file.job.settings.items() if getattr(options, k) == v)
    return replace(options, **dict.fromkeys(same))  # type: ignore[arg-type]
