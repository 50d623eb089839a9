"""The row of a setting: how it is said on a command line, described, and shown; and its values.

A setting is a field of a typed class, and its row stands in the field's annotation. So the class is
the table: options, help, JSON, assumptions and comparison rows are made from it.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TypeAlias, get_args

from msgspec import Struct

from zerowiz.core.structs import shows
from zerowiz.errors import UsageError
from zerowiz.translation import N_

Written: TypeAlias = int | float | str | bool | None
"""A value as a script or a file writes it."""
Change = Mapping[str, int | str | bool]
"""Settings by the names of their fields, with the plain values that they are to have."""


class Panel(StrEnum):
    """The headings under which `--help` lists options."""

    MODEL = "Model"
    MACHINE = "Machine"
    JOB = "Training step"
    CHOICE = "Choice"
    OUTPUT = "Output"


class SettingRow(Struct, frozen=True, kw_only=True):
    """What everybody needs to know of one setting, beside its type and its default."""

    flag: str
    """On zerowiz's command line; a switch that can be off has both: `--packing/--no-packing`."""
    help: str
    panel: Panel
    value: str | None = None
    """What stands behind the flag in `--help`, where its type does not say enough."""
    short: str | None = None
    """A second spelling of one letter: `-y`."""
    default: str | None = None
    """What it is where nobody says it, for `--help`; None: its value in Workload, or nothing."""
    assumed: str | None = None
    """How a plan says that it rests on the default: `micro-batch {value}`; None: it does not."""
    assumed_always: bool = False
    """Whether a plan says so of any job, or only where a script decides it and does not show it."""
    of_adapters: bool = False
    """Whether it means something only where adapters train."""
    of_generation: bool = False
    """Whether it means something only where the trainer samples completions."""
    shown: str | None = None
    """How a plan's step says another value than the default: `{value} loss`; None: it does not."""
    least: int = 1
    """The smallest count that it can be."""
    most: int = 10_000_000
    """The largest, far beyond any job: a slip of the finger is not planned for."""
    script_names: frozenset[str] = frozenset()
    """The names that scripts give an option or a constant of their own for it."""
    trainer_fields: tuple[str, ...] = ()
    """The fields of TrainingArguments, or of a class made of it, that say it; the first that is
    seen counts."""
    config_key: str | None = None
    """Its key in DeepSpeed's config, which is also what the engine calls it."""
    program_keys: Mapping[str, str] = {}
    """Its key in the files of axolotl, LLaMA-Factory and ms-swift, by the program's name."""
    has_auto: bool = False
    """Whether it can be `auto`, for which its number is 0: zerowiz chooses it."""
    names: Mapping[Written, object] = {}
    """What each of a script's words for a value means, where it has other ones than zerowiz."""

    @property
    def key(self) -> str:
        """Its name in a record of answers: `--seq-len` is `seq_len` there."""
        return self.on.removeprefix("--").replace("-", "_")

    @property
    def on(self) -> str:
        """The spelling that sets it, or switches it on."""
        return self.flag.partition("/")[0]

    @property
    def off(self) -> str:
        """The spelling that switches it off; empty if there is none."""
        return self.flag.partition("/")[2]


def read_rows(kind: type) -> dict[str, SettingRow]:
    """The row of each field that has one, by the field's name, in the order of the fields."""
    hints = kind.__annotations__.items()
    rows = ((name, part) for name, hint in hints for part in get_args(hint))
    return {name: part for name, part in rows if isinstance(part, SettingRow)}


# What is said of a job's settings, and by what: one list, and the fold that decides each.


class Origin(StrEnum):
    """What can say a setting; what stands later counts more."""

    DEFAULT = "default"
    DETECTED = "detected"
    SCRIPT = "script"
    """Its code, or a word after it."""
    CONFIG = "config"
    """A DeepSpeed config of the person's own."""
    FILE = "file"
    """`zerowiz.toml`."""
    ENVIRONMENT = "environment"
    OPTION = "option"
    ANSWER = "answer"
    """To a question of the wizard."""
    CHOSEN = "chosen"
    """By a search, among what nobody decided."""


@shows("name", "value", "origin")
class SettingValue(Struct, frozen=True, kw_only=True):
    """A value that something says for a setting."""

    name: str
    """The field of the setting."""
    value: object
    origin: Origin
    source: str
    """What says it, for messages: a line of the script, the path of a file."""
    change_to: Callable[[object], str] = str
    """What to do so that a script has another value."""


GivesWay = Callable[[SettingValue, SettingValue], bool]
"""Whether a value of the script stands back for one that counts more."""


def fold(values: Iterable[SettingValue], gives_way: GivesWay) -> dict[str, SettingValue]:
    """The value that counts, for each setting that anything is said of.

    Args:
        values: All that is said, in any order.
        gives_way: Whether a value of the script stands back for another one.

    Raises:
        UsageError: Script, config and option contradict each other.

    Example:
        >>> said = dict(name="micro_batch", source="")
        >>> script = SettingValue(value=8, origin=Origin.SCRIPT, **said)
        >>> option = SettingValue(value=4, origin=Origin.OPTION, **said)
        >>> fold([option, script], lambda script, other: True)["micro_batch"].value
        4
    """
    by_name: dict[str, dict[Origin, SettingValue]] = {}
    for value in values:
        by_name.setdefault(value.name, {})[value.origin] = value
    return {name: _settle(of_one, gives_way) for name, of_one in by_name.items()}


_ORDER = tuple(Origin)


def strongest(values: Iterable[SettingValue]) -> dict[str, SettingValue]:
    """Of each setting what counts most, and of two that count as much the later one.

    Example:
        >>> said = dict(name="packing", value=True, source="")
        >>> option = SettingValue(origin=Origin.OPTION, **said)
        >>> strongest([option, SettingValue(origin=Origin.FILE, **said)])["packing"].origin
        <Origin.OPTION: 'option'>
    """
    by_name: dict[str, SettingValue] = {}
    for value in values:
        other = by_name.get(value.name)
        if other is None or _ORDER.index(other.origin) <= _ORDER.index(value.origin):
            by_name[value.name] = value
    return by_name


def _settle(values: Mapping[Origin, SettingValue], gives_way: GivesWay) -> SettingValue:
    winner = values[max(values, key=_ORDER.index)]
    script, config = values.get(Origin.SCRIPT), values.get(Origin.CONFIG)
    if winner.origin is Origin.CHOSEN or len(values) == 1:
        return winner
    option = None if winner.origin in {Origin.CONFIG, Origin.SCRIPT} else winner
    wanted = option or config
    if script is not None and wanted is not None and gives_way(script, wanted):
        script = None
    if script is not None and option is not None and option.value != script.value:
        raise script_against_option(script, option)
    if config is not None and script is not None and config.value != script.value:
        drop = () if option is None else (_take_back(option),)
        raise UsageError(
            (
                f"the script conflicts with `{config.source}`: {script.source} says "
                f"{script.value}, the config {config.value}"
            ),
            "; ".join((script.change_to(config.value), *drop)),
        )
    if config is not None and option is not None and config.value != option.value:
        words = as_typed(option.name, option.value)
        raise UsageError(
            f"`{words}` conflicts with `{config.source}`, which says {config.value}",
            _take_back(option),
        )
    return winner


def as_typed(name: str, value: object) -> str:
    """A value as one types it: `$packing`, `$no_packing`, `$micro_batch 4`.

    Example:
        >>> as_typed("packing", False)
        '$no_packing'
    """
    if isinstance(value, bool):
        return f"${name}" if value else f"$no_{name}"
    return f"${name} {value}"


def _take_back(said: SettingValue) -> str:
    """What a person does so that a value is not said."""
    if said.origin is Origin.ANSWER:
        return "give another answer"
    return f"remove `{as_typed(said.name, said.value)}`"


def script_against_option(script: SettingValue, option: SettingValue) -> UsageError:
    """The error where a script says another value than an option."""
    words = as_typed(option.name, option.value)
    return UsageError(
        f"`{words}` conflicts with the script: {script.source} says {script.value}",
        script.change_to(option.value),
        f"or {_take_back(option)}",
    )


def not_planned(said: str, kind: str) -> UsageError:
    """The error where ranks share the work in a way that no plan counts.

    Args:
        said: What asks for it, and where.
        kind: What it is called.
    """
    return UsageError(
        f"{said}: zerowiz does not plan {kind}",
        "start this job without zerowiz: a plan without that is for another job",
    )


# The settings that are no part of a training step, by the names of their fields. Those that are
# have their row in `Workload`.
OTHER_SETTINGS: Mapping[str, SettingRow] = {
    "model": SettingRow(
        flag="--model",
        help="Folder, hub id, name (llama-3.1-8b) or size (7b)",
        panel=Panel.MODEL,
        value="<model>",
        script_names=frozenset(
            {"base_model", "model_id", "model_name", "model_name_or_path", "model_path"}
        ),
        program_keys={
            "axolotl": "base_model",
            "LLaMA-Factory": "model_name_or_path",
            "ms-swift": "model",
        },
        default="the one that your script names",
    ),
    "trace": SettingRow(
        flag="--trace/--no-trace",
        help="Run the model on the meta device to count it exactly",
        panel=Panel.MODEL,
        default="for a family that zerowiz does not know",
    ),
    "machine": SettingRow(
        flag="--machine",
        help="File, spec (4xA100-40GB) or instance (p5.48xlarge); `plan` also takes `all`",
        panel=Panel.MACHINE,
        value="<machine>",
        default="this one",
    ),
    "accelerator": SettingRow(
        flag="--accelerator",
        help="Accelerator that DeepSpeed uses",
        panel=Panel.MACHINE,
        default="cuda, or what your script or DS_ACCELERATOR says",
    ),
    "gpus": SettingRow(
        flag="--gpus",
        help="NVML indices to use: 0,2,3",
        panel=Panel.MACHINE,
        value="<list>",
        default="all that are visible",
    ),
    "nodes": SettingRow(
        flag="--nodes",
        help="Number of nodes, all alike",
        panel=Panel.MACHINE,
        default="1, or those of the scheduler's job",
        most=100_000,
    ),
    "gpus_per_node": SettingRow(
        flag="--gpus-per-node",
        help="GPUs (or CPU ranks) per node",
        panel=Panel.MACHINE,
        default="all GPUs, or 1 CPU rank",
        most=1024,
    ),
    "hostfile": SettingRow(
        flag="--hostfile",
        help="DeepSpeed hostfile: one `host slots=N` per line",
        panel=Panel.MACHINE,
    ),
    "interconnect": SettingRow(
        flag="--interconnect",
        help="Links that zerowiz cannot detect: nvlink, infiniband:400Gb/s",
        panel=Panel.MACHINE,
        value="<links>",
        default="detected",
    ),
    "host_memory": SettingRow(
        flag="--host-memory",
        help="Memory of each node's host: 1TiB, 512GB",
        panel=Panel.MACHINE,
        value="<amount>",
        default="what is available",
    ),
    "probe_timeout": SettingRow(
        flag="--probe-timeout",
        help="Timeout of a call to the NVIDIA driver, in seconds",
        value="<seconds>",
        default="30",
        panel=Panel.MACHINE,
    ),
    "memory_budget": SettingRow(
        flag="--memory-budget",
        help="Memory per GPU: 30GiB, 24GB, bytes, or a fraction",
        panel=Panel.MACHINE,
        value="<amount>",
        default="what is free",
    ),
    "global_batch": SettingRow(
        flag="--global-batch",
        help="Sequences per optimizer step, over all GPUs",
        panel=Panel.JOB,
        default="micro-batch x accumulation x GPUs",
    ),
    "lr": SettingRow(
        flag="--lr",
        help="Learning rate, where the config makes the optimizer",
        panel=Panel.JOB,
        default="your script's",
        shown=N_("lr {value}"),
        script_names=frozenset({"learning_rate", "lr"}),
        trainer_fields=("learning_rate",),
    ),
    "weight_decay": SettingRow(
        flag="--weight-decay",
        help="Weight decay, where the config makes the optimizer",
        panel=Panel.JOB,
        default="your script's, else 0",
        shown=N_("weight decay {value}"),
        script_names=frozenset({"weight_decay"}),
        trainer_fields=("weight_decay",),
    ),
    "warmup_steps": SettingRow(
        flag="--warmup-steps",
        help="Steps of linear warm-up, where the config makes the optimizer",
        panel=Panel.JOB,
        default="none",
        shown=N_("warm-up {value}"),
        trainer_fields=("warmup_steps",),
    ),
    "max_grad_norm": SettingRow(
        flag="--max-grad-norm",
        help="Norm that gradients are clipped to, by the config; 0: no clipping",
        panel=Panel.JOB,
        default="your script's, else 0",
        shown=N_("clipping {value}"),
        script_names=frozenset({"grad_clip", "gradient_clipping", "max_grad_norm"}),
        trainer_fields=("max_grad_norm",),
    ),
    "objective": SettingRow(
        flag="--objective",
        help="How to choose: by the flowchart, the fastest step, or the least memory",
        panel=Panel.CHOICE,
        default="flowchart",
    ),
    "stage": SettingRow(
        flag="--stage",
        help="ZeRO stage",
        panel=Panel.CHOICE,
        default="auto",
    ),
    "offload": SettingRow(
        flag="--offload",
        help="What to offload to host memory",
        panel=Panel.CHOICE,
        default="as the flowchart says; none with --stage",
    ),
    "nvme_path": SettingRow(
        flag="--nvme-path",
        help="Offload to this folder on NVMe (stage 3)",
        panel=Panel.CHOICE,
    ),
    "hpz": SettingRow(
        flag="--hpz/--no-hpz",
        help="Stage 3: each node keeps a copy of the weights",
        panel=Panel.CHOICE,
        default="where it pays",
    ),
    "quantized_weights": SettingRow(
        flag="--quantized-weights", help="Stage 3: gather the weights in int8", panel=Panel.CHOICE
    ),
    "allow_slow": SettingRow(
        flag="--allow-slow", help="Allow ZeRO-3 over a slow link", panel=Panel.CHOICE
    ),
    "calibration": SettingRow(
        flag="--calibration/--no-calibration",
        help="Scale times by what `measure` found on this machine",
        panel=Panel.CHOICE,
        default="on",
    ),
    "accounting": SettingRow(
        flag="--accounting",
        help="Count what DeepSpeed allocates, or use the rule of thumb",
        panel=Panel.CHOICE,
        default="real",
    ),
    "integration": SettingRow(
        flag="--integration",
        help="Which library passes the config to DeepSpeed",
        panel=Panel.CHOICE,
        default="detected in your script",
    ),
    "config_via": SettingRow(
        flag="--config-via",
        help="How the script gets the config: flag:NAME, key:NAME, env, file:PATH, none",
        panel=Panel.CHOICE,
        value="<way>",
        default="detected in your script",
    ),
    "config": SettingRow(
        flag="--config",
        help="Your DeepSpeed config: used unchanged, or with --stage or --offload as the base",
        panel=Panel.CHOICE,
    ),
    "module": SettingRow(
        flag="--module",
        short="-m",
        help="Run SCRIPT as a module, like `python -m`",
        panel=Panel.CHOICE,
    ),
    "price": SettingRow(
        flag="--price",
        help="Price of a GPU hour in dollars, with --machine all: 2.50, or NAME=2.50",
        panel=Panel.MACHINE,
        value="<price>",
    ),
    "output_dir": SettingRow(
        flag="--output-dir",
        help="Folder for the configs",
        panel=Panel.OUTPUT,
        default="this folder",
    ),
    "isolated": SettingRow(
        flag="--isolated", help="Ignore zerowiz.toml, the answers file", panel=Panel.OUTPUT
    ),
    "origins": SettingRow(
        flag="--origins", help="Show where each setting comes from", panel=Panel.OUTPUT
    ),
    "yes": SettingRow(flag="--yes", short="-y", help="Ask nothing", panel=Panel.OUTPUT),
    "limits": SettingRow(
        flag="--limits",
        help="Show the largest micro-batch and the longest sequence that fit",
        panel=Panel.OUTPUT,
    ),
    "compare": SettingRow(
        flag="--compare",
        help="Compare with a plan in which these options differ: --compare --machine 8xH100-80GB",
        value="<options>...",
        panel=Panel.OUTPUT,
    ),
    "explain": SettingRow(
        flag="--explain",
        value="[<strategy>]",
        help="Show what takes time and memory in the chosen strategy, or in another: zero2",
        panel=Panel.OUTPUT,
    ),
    "verbose": SettingRow(
        flag="--verbose",
        short="-v",
        help="Show more columns for each strategy",
        panel=Panel.OUTPUT,
    ),
    "html": SettingRow(
        flag="--html",
        help="Also write an HTML page of the plan, which opens offline",
        panel=Panel.OUTPUT,
    ),
    "as_json": SettingRow(
        flag="--json", help="Print one JSON object on stdout", panel=Panel.OUTPUT
    ),
    "dry_run": SettingRow(
        flag="--dry-run", help="Show what would happen, and change nothing", panel=Panel.OUTPUT
    ),
    "diff": SettingRow(
        flag="--diff",
        help="Show how the config differs from yours, or from the file there",
        panel=Panel.OUTPUT,
    ),
    "show_removed": SettingRow(
        flag="--show-removed",
        help="Show which keys of your config the new one does not have, and why",
        panel=Panel.OUTPUT,
    ),
    "force": SettingRow(
        flag="--force",
        help="Overwrite files, and use a strategy that does not fit",
        panel=Panel.OUTPUT,
    ),
    "quiet": SettingRow(
        flag="--quiet", short="-q", help="Show errors and results only", panel=Panel.OUTPUT
    ),
}


class Hyperparameters(Struct, frozen=True, kw_only=True):
    """How a model learns, where the config says it and no script; each has its row above."""

    lr: float | None = None
    """None: nobody names one."""
    weight_decay: float = 0.0
    warmup_steps: int | None = None
    """Optimizer steps in which the learning rate rises from 0; None: it is the same in all."""
    max_grad_norm: float = 0.0
    """0 clips no gradient."""


HYPERPARAMETERS = Hyperparameters.__struct_fields__
"""Their names."""
OF_ADAM = ("adam_beta1", "adam_beta2", "adam_epsilon")
"""What a Trainer compares with a config besides, by the names of its arguments."""
LEARNING = (*HYPERPARAMETERS, "schedule")
"""What is shown of how a model learns: the schedule is the script's, or a config's."""
