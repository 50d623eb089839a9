"""A job of axolotl: its file says the step, and takes the config."""

from zerowiz.app.ask.command import Command
from zerowiz.app.decide.decision import Plan
from zerowiz.app.options import Options, with_plain
from zerowiz.app.reporter import Reporter
from zerowiz.core.script.axolotl import AxolotlFile, list_changes
from zerowiz.core.values import replace
from zerowiz.core.workload import SETTINGS, Workload
from zerowiz.errors import UsageError
from zerowiz.probe.config.axolotl_file import names_yaml, read_axolotl_file
from zerowiz.words import _

# Counts that axolotl has no default for.
_NO_DEFAULT = frozenset({"micro_batch", "sequence_tokens"})


def find_axolotl(command: Command, reporter: Reporter) -> AxolotlFile | None:
    """The file of axolotl that was named instead of a script; None where none was.

    Args:
        command: What was typed.
        reporter: Hears what of the file is not counted.

    Raises:
        ZerowizError: A YAML file was named that cannot be read, or is not axolotl's.
    """
    path = command.script
    if path is None or command.options.module or not names_yaml(path):
        return None
    file = read_axolotl_file(path)
    if command.script_args:
        raise UsageError(
            _(
                "`{script_args}` after `{path}` has no effect",
                script_args=command.script_args[0],
                path=path,
            ),
            _("set it in `{path}`", path=path),
        )
    for key in file.not_counted:
        reporter.note(
            _("`{key}` in {path} is not counted in what is predicted", key=key, path=path)
        )
    return file


def with_axolotl(command: Command, file: AxolotlFile) -> Command:
    """The command with what the file says, where the person says nothing."""
    options = command.options
    silent = {k: v for k, v in file.settings.items() if getattr(options, k) is None}
    if options.global_batch is not None:
        silent.pop("accumulation_steps", None)
    return replace(command, script=None, options=with_plain(options, silent))


def lines_to_set(file: AxolotlFile, plan: Plan, config_path: str) -> tuple[str, ...]:
    """The lines that the file is to have, and has not."""
    step, default = plan.request.job.workload, Workload()
    planned = {"model": plan.options.model, **{name: getattr(step, name) for name in SETTINGS}}
    said = {
        name: value
        for name, value in planned.items()
        if name in file.settings or name in _NO_DEFAULT or value != getattr(default, name, None)
    }
    return tuple(list_changes(file, said, config_path))


def without_said(options: Options, file: AxolotlFile) -> Options:
    """The options but for what the file says as well."""
    same = (k for k, v in file.settings.items() if getattr(options, k) == v)
    return replace(options, **dict.fromkeys(same))  # type: ignore[arg-type]
