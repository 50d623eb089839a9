"""What is said of a job, and by what: the command line, the environment, the answers file."""

import re
from collections.abc import Mapping
from enum import Enum, auto

from msgspec import Struct

from zerowiz.app.options import Options
from zerowiz.core import shell
from zerowiz.errors import NoGpuHereError, NothingFitsError, PreflightError, ZerowizError
from zerowiz.probe.answers_file import FILE_NAME
from zerowiz.words import _


class TakesScript(Enum):
    """When a command that names no script takes that of the file."""

    ALWAYS = auto()
    WITHOUT_MODEL = auto()
    """With `--model` it is about a model that stands alone."""
    NEVER = auto()


class FileUse(Struct, frozen=True, kw_only=True):
    """What a command does with an answers file."""

    takes_script: TakesScript
    starts_here: bool
    """Whether its job starts on this machine, whatever other one was planned for."""


class Typed(Struct, frozen=True, kw_only=True):
    """What is said on the command line, and by variables of the environment."""

    options: Options
    origins: Mapping[str, str]
    """What says each setting, by its name."""
    script: str | None
    script_args: tuple[str, ...]


class PlannedMachine(Struct, frozen=True, kw_only=True):
    """Another machine, which the answers file names."""

    name: str
    place: str
    """Where it is said."""

    def hints(self, error: ZerowizError, command: str) -> tuple[str, ...]:
        """Where the job was meant to run, where this machine cannot run it."""
        if not isinstance(error, NoGpuHereError | NothingFitsError):
            return ()
        return (
            _(
                "{place} plans for `{machine}`, and `{command}` starts on this machine: copy this"
                " folder there, and run `{command}`",
                place=self.place,
                machine=self.name,
                command=command,
            ),
            _("to see that plan from here: `zerowiz plan`"),
        )


class Layers(Struct, frozen=True, kw_only=True):
    """All that is said of a job, and by what."""

    typed: Typed
    options: Options
    script: str | None
    script_args: tuple[str, ...]
    origins: Mapping[str, str]
    """What says each setting, by its name; `script` is among them where the file names it."""
    planned_for: PlannedMachine | None = None
    """What the file plans for, where the job starts on this machine instead."""
    notes: tuple[str, ...] = ()

    def hints(self, error: ZerowizError, command: str, typed: str) -> tuple[str, ...]:
        """Those of an error, with what it cannot know: what these layers say, and where.

        Args:
            error: What ended the command.
            command: As it was typed, without its options.
            typed: The whole of it.
        """
        elsewhere = () if self.planned_for is None else self.planned_for.hints(error, command)
        own = error.hints
        if isinstance(error, PreflightError) and error.login_node_of is not None:
            own = (*self._in_a_job(error.login_node_of, command, typed), *own[1:])
        return (*elsewhere, *own, *self._said_elsewhere(error.message))

    def _in_a_job(self, scheduler: str, command: str, typed: str) -> tuple[str, ...]:
        """How the same command is run from a login node."""
        from zerowiz.probe.machine.read import run_inside  # noqa: PLC0415 - few commands end so

        now = run_inside(scheduler, typed, self.options.gpus_per_node or 1)
        if scheduler != "SLURM" or command not in {"zerowiz launch", "zerowiz init"}:
            return (now,)
        script = (self.script,) if self.script else ()
        return (
            now,
            _(
                "or write a job for `sbatch` here, for the GPUs of a node: `zerowiz init {words}`",
                words=shell.join(["--slurm", "--machine", "8xH100-80GB", *script]),
            ),
        )

    def _said_elsewhere(self, message: str) -> tuple[str, ...]:
        """Where the settings of an error are said, where that is not the command line."""
        names = dict.fromkeys(re.sub(r"^no_", "", name) for name in _NAMED.findall(message))
        elsewhere = {n: o for n, o in self.origins.items() if not o.startswith("-")}
        hints = [
            _("`${name}` is set by {elsewhere}", name=name, elsewhere=elsewhere[name])
            for name in names
            if name in elsewhere
        ]
        if any(FILE_NAME in elsewhere.get(name, "") for name in names):
            hints.append(_("to leave the answers file out: `--isolated`"))
        if "script" in elsewhere and f"`{self.script}`" in message:
            hints.append(
                _(
                    "`{script}` is named by {variable}",
                    script=self.script,
                    variable=elsewhere["script"],
                )
            )
        return tuple(hints)


_NAMED = re.compile(r"\$([a-z][a-z_]*)")
