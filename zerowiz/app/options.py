"""What a person says of a job: every setting once, as a typed field with its row.

Settings of the training step have their row in `Workload`; the others have theirs here.
"""

import math
import re
from collections.abc import Mapping
from enum import Enum, auto
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from msgspec import Struct, structs

from zerowiz.core import shell, workload
from zerowiz.core.command_words import canonical_choice
from zerowiz.core.decision.job import Objective
from zerowiz.core.machine.types import Accelerator, Machine, with_gpus
from zerowiz.core.script.facts import split_config_via
from zerowiz.core.settings import (
    HYPERPARAMETERS,
    OTHER_SETTINGS,
    Origin,
    SettingRow,
    SettingValue,
)
from zerowiz.core.strategy_types import OffloadChoice
from zerowiz.core.structs import replace
from zerowiz.core.units import read_count
from zerowiz.core.workload import SETTINGS, Accounting, Integration
from zerowiz.errors import (
    NoGpuHereError,
    NothingFitsError,
    PreflightError,
    UsageError,
    ZerowizError,
)

if TYPE_CHECKING:
    from zerowiz.core.dsconfig.accelerate import AccelerateFile


STAGES = ("auto", "0", "1", "2", "3")
"""The values of `--stage`."""


_LONGEST_BITS = 128


class Options(Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What a person chose; None is no choice.

    `make golden` writes the fields of the training step, whose rows are in `Workload`.
    """

    model: str | None = None
    # [[[cog
    # import cog
    # from docs import blocks
    # cog.out(blocks.step_options("Model"))
    # ]]]
    method: workload.Method | None = None
    lora_rank: int | None = None
    lora_target_modules: str | None = None
    # [[[end]]]
    trace: bool | None = None
    machine: str | None = None
    accelerator: Accelerator | None = None
    gpus: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    hostfile: Path | None = None
    interconnect: str | None = None
    host_memory: str | None = None
    probe_timeout: int | None = None
    memory_budget: str | None = None
    # [[[cog
    # import cog
    # from docs import blocks
    # cog.out(blocks.step_options("Training step", 0, 3))
    # ]]]
    micro_batch: int | None = None
    sequence_tokens: int | None = None
    accumulation_steps: int | None = None
    # [[[end]]]
    global_batch: int | None = None
    # [[[cog
    # import cog
    # from docs import blocks
    # cog.out(blocks.step_options("Training step", 3))
    # ]]]
    precision: workload.Precision | None = None
    torch_autocast: workload.Precision | None = None
    optimizer: workload.Optimizer | None = None
    optimizer_state_dtype: workload.StateDtype | None = None
    gradient_checkpointing: bool | None = None
    attention: workload.Attention | None = None
    loss: workload.Loss | None = None
    packing: bool | None = None
    trainer: workload.Trainer | None = None
    reference: workload.Reference | None = None
    completion_tokens: int | None = None
    generation_batch: int | None = None
    vllm_memory_fraction: float | None = None
    vllm_sleeps: bool | None = None
    eval_batch: int | None = None
    sequence_parallel: int | None = None
    # [[[end]]]
    lr: float | None = None
    weight_decay: float | None = None
    warmup_steps: int | None = None
    max_grad_norm: float | None = None
    objective: Objective = Objective.FLOWCHART
    stage: str | None = None
    offload: OffloadChoice | None = None
    nvme_path: Path | None = None
    hpz: bool | None = None
    quantized_weights: bool = False
    allow_slow: bool = False
    calibration: bool | None = None
    accounting: Accounting = Accounting.REAL
    integration: Integration | None = None
    config_via: str | None = None
    config: Path | None = None
    module: bool = False
    output_dir: Path | None = None
    isolated: bool = False
    yes: bool = False
    as_json: bool = False
    dry_run: bool = False
    diff: bool = False
    show_removed: bool = False
    force: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        """Refuse what the types of the fields let through."""
        generated, whole = self.completion_tokens, self.sequence_tokens
        if generated is not None and whole is not None and generated >= whole:
            raise UsageError(
                (
                    f"`$completion_tokens {generated}` leaves no token of `$sequence_tokens "
                    f"{whole}` to the prompt"
                ),
                "`$sequence_tokens` counts prompt and completion together",
            )
        if self.config_via is not None:
            split_config_via(self.config_via)
        for name, row in rows().items():
            value = getattr(self, name)
            counts = isinstance(value, int) and not isinstance(value, bool)
            if counts and not row.least <= value <= row.most:
                # Python writes no number of thousands of digits.
                said = value if value.bit_length() < _LONGEST_BITS else "..."
                raise UsageError(
                    f"`${name} {said}` must be a whole number from {row.least} to {row.most}"
                )
        for name in HYPERPARAMETERS:
            value = getattr(self, name)
            if value is not None and not (0 <= value < math.inf and (value or name != "lr")):
                raise UsageError(f"`${name} {value}` must be a number above 0")

    @property
    def base(self) -> Path | None:
        """The config that another is built on: with a stage or an offload that somebody typed."""
        return None if (self.stage, self.offload) == (None, None) else self.config

    @property
    def own_config(self) -> Path | None:
        """The config that runs as it is."""
        return None if self.base is not None else self.config


# How a run is shown or confirmed is no part of what was answered.
_PRESENTATION = frozenset({"yes", "as_json", "dry_run", "diff", "show_removed", "force", "quiet"})
# What a script is started as, and where answers are read, means nothing without either.
_OF_COMMANDS = frozenset({"module", "isolated"})


@cache
def settable() -> tuple[str, ...]:
    """The names of the settings that say what is planned, and not how a command shows it."""
    hidden = _PRESENTATION - {"force"} | _OF_COMMANDS
    return tuple(name for name in rows() if name not in hidden)


@cache
def lasting() -> Mapping[str, str]:
    """The names of the settings that can be said once for many runs, by their long options.

    Example:
        >>> lasting()["seq-len"]
        'sequence_tokens'
    """
    return {rows()[name].on.removeprefix("--"): name for name in settable() if name != "force"}


def variable_of(name: str) -> str | None:
    """The environment variable that says a setting: `ZEROWIZ_SEQ_LEN`; None where none does."""
    is_said = name == "isolated" or name in lasting().values()
    return f"ZEROWIZ_{rows()[name].key.upper()}" if is_said else None


def choices_of(kind: type, row: SettingRow) -> tuple[str, ...]:
    """The words that a setting takes; none where it takes any."""
    if issubclass(kind, Enum):
        return tuple(str(member.value) for member in kind)
    return STAGES if row is OTHER_SETTINGS["stage"] else ()


@cache
def rows() -> Mapping[str, SettingRow]:
    """The row of each field, by the field's name."""
    every = {**SETTINGS, **OTHER_SETTINGS}
    return {name: every[name] for name in Options.__annotations__}


def as_words(options: Options) -> list[str]:
    """The options as one would type them; only what differs from the defaults."""
    words: list[str] = []
    for name, value in changes(options).items():
        row = rows()[name]
        if name in _PRESENTATION:
            continue
        if isinstance(value, bool):
            words.append(row.on if value else row.off)
        else:
            words += [row.on, "auto" if row.has_auto and value == 0 else str(value)]
    return words


_SILENT = Options()


def changes(options: Options, before: Options = _SILENT) -> dict[str, Any]:
    """The settings that others say otherwise; by default, what says more than nothing.

    Example:
        >>> changes(Options(nodes=2, yes=True), Options(yes=True))
        {'nodes': 2}
    """
    old = structs.asdict(before)
    return {name: value for name, value in structs.asdict(options).items() if value != old[name]}


def with_plain(options: Options, values: Mapping[str, object]) -> Options:
    """The options with plain values, such as JSON has, put into these fields.

    Raises:
        UsageError: A value that its option does not take.
    """
    typed = {}
    for name, value in values.items():
        try:
            typed[name] = read_value(kinds()[name], rows()[name], value)
        except ValueError as error:
            raise UsageError(f"`${name}` {error}") from None
    return replace(options, **typed)  # type: ignore[arg-type]


@cache
def kinds() -> Mapping[str, type]:
    """The type of each field's values, None aside, by the field's name."""
    return {name: next(iter(get_args(h)), h) for name, h in Options.__annotations__.items()}


_TAKES: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number, such as 4096 or 4k",
    float: "a number",
    str: "a text",
}


def read_value(kind: type, row: SettingRow, value: object) -> object:
    """A plain value as the setting has it.

    Args:
        kind: The type of the setting's values.
        row: The setting's.
        value: As JSON has it, or as it is typed.

    Raises:
        ValueError: It takes no such value; the error says what it takes.
    """
    choices, takes = choices_of(kind, row), _TAKES.get(kind, "")
    if row is OTHER_SETTINGS["stage"] and type(value) is int:
        value = str(value)
    if row.has_auto and value == "auto":
        return 0
    if choices:
        value = canonical_choice(row.key, value, choices) if isinstance(value, str) else value
        takes = "" if value in choices else f"one of {', '.join(choices)}"
    elif kind is int and isinstance(value, str) and (counted := read_count(value)) is not None:
        return counted
    elif type(value) is kind or (kind is float and type(value) is int):
        takes = ""
    if takes:
        raise ValueError(f"must be {takes}, not {value!r:.40}")
    return value if kind in {bool, int} else kind(str(value))


# Take the ranks that a config of Accelerate asks for, where no option says them.


def read_config_ranks(options: Options) -> "AccelerateFile | None":
    """The person's file of Accelerate, if it says how many ranks there are.

    Args:
        options: What the person said.

    Raises:
        UsageError: The config cannot be read.
    """
    if options.config is None:
        return None
    # A launch without a config of its own reads none.
    from zerowiz.probe.config_text import read_config_text  # noqa: PLC0415 - see above

    file = read_config_text(options.config).accelerate
    return None if file is None or file.ranks is None else file


def choose_config_ranks(options: Options) -> "AccelerateFile | None":
    """As `read_config_ranks`; None where options say how many there are, and where."""
    values = (options.gpus, options.gpus_per_node, options.nodes, options.hostfile)
    return read_config_ranks(options) if all(value is None for value in values) else None


def with_config_ranks(machine: Machine, asked: "AccelerateFile | None") -> Machine:
    """The machine with as many of its GPUs as the config asks for.

    Raises:
        UsageError: It has fewer.
    """
    if asked is None or asked.ranks_per_node == len(machine.gpus):
        return machine
    here = len(machine.gpus)
    if asked.ranks_per_node > here:
        raise UsageError(
            (
                f"`{asked.path}` asks for {asked.ranks_per_node} processes per node, and "
                f"this machine has room for {here}"
            ),
            f"use what is here: `$gpus_per_node {here}`",
        )
    return with_gpus(machine, asked.ranks_per_node)


def note_config_ranks(machine: Machine, asked: "AccelerateFile | None") -> Machine:
    """The machine, with a note where it has other ranks than the config asks for."""
    if asked is None or asked.ranks == machine.world_size:
        return machine
    return machine.with_notes(
        f"`{asked.path}` asks for {asked.ranks} processes; the plan is for {machine.world_size}"
    )


# Take as many GPUs of a machine as was said.


def with_count(machine: Machine, options: Options) -> Machine:
    """The machine with as many of its GPUs as `--gpus-per-node` says."""
    count = options.gpus_per_node
    return machine if count is None else with_gpus(machine, count)


def refuse_gpus(options: Options) -> None:
    """See that no GPUs are named for ranks on the CPU."""
    if options.gpus is not None:
        raise UsageError(
            f"`$gpus {options.gpus}` selects GPUs, and the CPU accelerator has none",
            "set the number of CPU ranks: `$gpus_per_node 2`",
        )


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


class Layers(Struct, frozen=True, kw_only=True):
    """All that is said of a job, and by what."""

    options: Options
    script: str | None
    script_args: tuple[str, ...]
    values: Mapping[str, SettingValue]
    """What is said, by the name of its setting; `script` is among them if the file names it."""
    planned_for: SettingValue | None = None
    """The machine of the file, where the job starts on this one instead."""
    notes: tuple[str, ...] = ()

    def typed(self) -> tuple[Options, str | None, tuple[str, ...]]:
        """What stands on the command line alone; an empty script is the one of the file."""
        given = {
            name: getattr(self.options, name)
            for name, value in self.values.items()
            if value.origin is Origin.OPTION and name in Options.__struct_fields__
        }
        if "script" in self.values:
            return Options(**given), "", ()
        return Options(**given), self.script, self.script_args

    def hints(self, error: ZerowizError, command: str, typed: str) -> tuple[str, ...]:
        """Those of an error, with what it cannot know: what these layers say, and where.

        Args:
            error: What ended the command.
            command: As it was typed, without its options.
            typed: The whole of it.
        """
        elsewhere: tuple[str, ...] = ()
        if self.planned_for is not None and isinstance(error, NoGpuHereError | NothingFitsError):
            elsewhere = (
                (
                    f"{self.planned_for.source} plans for `{self.planned_for.value}`, and "
                    f"`{command}` starts on this machine: copy this folder there, and run "
                    f"`{command}`"
                ),
                "to see that plan from here: `zerowiz plan`",
            )
        hints = error.hints
        if isinstance(error, PreflightError) and error.login_node_of is not None:
            hints = (*self._in_a_job(error.login_node_of, command, typed), *hints[1:])
        return (*elsewhere, *hints, *self._said_elsewhere(error.message))

    def _in_a_job(self, scheduler: str, command: str, typed: str) -> tuple[str, ...]:
        """How the same command is run from a login node."""
        from zerowiz.probe.machine.read_machine import run_inside  # noqa: PLC0415 - few commands end so

        now = run_inside(scheduler, typed, self.options.gpus_per_node or 1)
        if scheduler != "SLURM" or command not in {"zerowiz launch", "zerowiz init"}:
            return (now,)
        script = (self.script,) if self.script else ()
        return (
            now,
            (
                "or write a job for `sbatch` here, for the GPUs of a node: `zerowiz init "
                f"{shell.join(['--slurm', '--machine', '8xH100-80GB', *script])}`"
            ),
        )

    def _said_elsewhere(self, message: str) -> tuple[str, ...]:
        """Where the settings of an error are said, where that is not the command line."""
        named = re.findall(r"\$([a-z][a-z_]*)", message)
        names = dict.fromkeys(name.removeprefix("no_") for name in named)
        elsewhere = {
            name: value.source
            for name, value in self.values.items()
            if value.origin is not Origin.OPTION
        }
        hints = [f"`${name}` is set by {elsewhere[name]}" for name in names if name in elsewhere]
        if any(self.values[name].origin is Origin.FILE for name in names if name in elsewhere):
            hints.append("to leave the answers file out: `--isolated`")
        if "script" in elsewhere and f"`{self.script}`" in message:
            hints.append(f"`{self.script}` is named by {elsewhere['script']}")
        return tuple(hints)
