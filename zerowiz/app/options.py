"""What a person says of a job: every setting once, as a typed field with its row.

Settings of the training step have their row in `Workload`; the others have theirs here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, get_args

from zerowiz.core.decision.flowchart import OffloadChoice
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.settings import Panel, SettingRow, read_row, row_of
from zerowiz.core.values import replace
from zerowiz.core.workload import (
    Accounting,
    Attention,
    Integration,
    Loss,
    Method,
    Optimizer,
    Precision,
    StateDtype,
    Workload,
)
from zerowiz.errors import UsageError

# Far beyond any job: a slip of the finger is refused at once instead of being planned for.
_MOST = 10_000_000

_MODEL = SettingRow(
    flag="--model", help="Folder with config.json, hub id, or size (7b)", panel=Panel.MODEL
)
_TRACE = SettingRow(
    flag="--trace/--no-trace", help="Count by running the model without memory", panel=Panel.MODEL
)
_MACHINE = SettingRow(
    flag="--machine", help="Recorded file, or a spec: 4xA100-40GB", panel=Panel.MACHINE
)
_ACCELERATOR = SettingRow(flag="--accelerator", help="What DeepSpeed runs on", panel=Panel.MACHINE)
_GPUS = SettingRow(flag="--gpus", help="NVML indices to use: 0,2,3", panel=Panel.MACHINE)
_NODES = SettingRow(flag="--nodes", help="Equal nodes", panel=Panel.MACHINE)
_GPUS_PER_NODE = SettingRow(
    flag="--gpus-per-node", help="GPUs, or CPU ranks, of each node", panel=Panel.MACHINE
)
_HOSTFILE = SettingRow(
    flag="--hostfile", help="DeepSpeed hostfile: one `host slots=N` a line", panel=Panel.MACHINE
)
_INTERCONNECT = SettingRow(
    flag="--interconnect",
    help="What cannot be measured: nvlink, pcie, infiniband:400Gb/s ...",
    panel=Panel.MACHINE,
)
_MEMORY_BUDGET = SettingRow(
    flag="--memory-budget",
    help="Per GPU: 30GiB, 24GB, bytes, or a fraction",
    panel=Panel.MACHINE,
)
_GLOBAL_BATCH = SettingRow(
    flag="--global-batch", help="Sequences per optimizer step, all GPUs", panel=Panel.JOB
)
_STAGE = SettingRow(flag="--stage", help="auto, or a ZeRO stage: 0, 1, 2, 3", panel=Panel.CHOICE)
_OFFLOAD = SettingRow(flag="--offload", help="What may live on the host", panel=Panel.CHOICE)
_NVME_PATH = SettingRow(
    flag="--nvme-path", help="Offload to this folder on NVMe (stage 3)", panel=Panel.CHOICE
)
_HPZ = SettingRow(
    flag="--hpz/--no-hpz",
    help="Stage 3: each node keeps a copy of the weights",
    panel=Panel.CHOICE,
)
_QUANTIZED_WEIGHTS = SettingRow(
    flag="--quantized-weights", help="Stage 3: gather the weights in int8", panel=Panel.CHOICE
)
_ALLOW_SLOW = SettingRow(
    flag="--allow-slow", help="Take ZeRO-3 over a slow link", panel=Panel.CHOICE
)
_IGNORE_OOM = SettingRow(
    flag="--ignore-oom", help="Forget what ran out of memory here before", panel=Panel.CHOICE
)
_ACCOUNTING = SettingRow(
    flag="--accounting", help="What DeepSpeed allocates, or as told", panel=Panel.CHOICE
)
_INTEGRATION = SettingRow(
    flag="--integration", help="Who hands the config to DeepSpeed", panel=Panel.CHOICE
)
_CONFIG = SettingRow(flag="--config", help="Run this ds_config as it is", panel=Panel.CHOICE)
_OUTPUT_DIR = SettingRow(flag="--output-dir", help="Where configs are written", panel=Panel.OUTPUT)
_YES = SettingRow(flag="--yes", short="-y", help="Ask nothing", panel=Panel.OUTPUT)
_JSON = SettingRow(flag="--json", help="One JSON object on stdout", panel=Panel.OUTPUT)
_DRY_RUN = SettingRow(
    flag="--dry-run", help="Show what would be done, do nothing", panel=Panel.OUTPUT
)
_FORCE = SettingRow(
    flag="--force", help="Overwrite files; take what does not fit", panel=Panel.OUTPUT
)
_QUIET = SettingRow(flag="--quiet", short="-q", help="Errors and results alone", panel=Panel.OUTPUT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the person said; None where nobody said anything."""

    model: Annotated[str | None, _MODEL] = None
    method: Annotated[Method | None, row_of(Workload, "method")] = None
    lora_rank: Annotated[int | None, row_of(Workload, "lora_rank")] = None
    lora_target_modules: Annotated[str | None, row_of(Workload, "lora_target_modules")] = None
    trace: Annotated[bool | None, _TRACE] = None
    machine: Annotated[str | None, _MACHINE] = None
    accelerator: Annotated[Accelerator | None, _ACCELERATOR] = None
    gpus: Annotated[str | None, _GPUS] = None
    nodes: Annotated[int | None, _NODES] = None
    gpus_per_node: Annotated[int | None, _GPUS_PER_NODE] = None
    hostfile: Annotated[Path | None, _HOSTFILE] = None
    interconnect: Annotated[str | None, _INTERCONNECT] = None
    memory_budget: Annotated[str | None, _MEMORY_BUDGET] = None
    micro_batch: Annotated[int | None, row_of(Workload, "micro_batch")] = None
    sequence_tokens: Annotated[int | None, row_of(Workload, "sequence_tokens")] = None
    accumulation_steps: Annotated[int | None, row_of(Workload, "accumulation_steps")] = None
    global_batch: Annotated[int | None, _GLOBAL_BATCH] = None
    precision: Annotated[Precision | None, row_of(Workload, "precision")] = None
    torch_autocast: Annotated[Precision | None, row_of(Workload, "torch_autocast")] = None
    optimizer: Annotated[Optimizer | None, row_of(Workload, "optimizer")] = None
    optimizer_state_dtype: Annotated[
        StateDtype | None, row_of(Workload, "optimizer_state_dtype")
    ] = None
    gradient_checkpointing: Annotated[bool | None, row_of(Workload, "gradient_checkpointing")] = (
        None
    )
    attention: Annotated[Attention | None, row_of(Workload, "attention")] = None
    loss: Annotated[Loss | None, row_of(Workload, "loss")] = None
    packing: Annotated[bool | None, row_of(Workload, "packing")] = None
    stage: Annotated[str | None, _STAGE] = None
    offload: Annotated[OffloadChoice | None, _OFFLOAD] = None
    nvme_path: Annotated[Path | None, _NVME_PATH] = None
    hpz: Annotated[bool | None, _HPZ] = None
    quantized_weights: Annotated[bool, _QUANTIZED_WEIGHTS] = False
    allow_slow: Annotated[bool, _ALLOW_SLOW] = False
    ignore_oom: Annotated[bool, _IGNORE_OOM] = False
    accounting: Annotated[Accounting, _ACCOUNTING] = Accounting.REAL
    integration: Annotated[Integration | None, _INTEGRATION] = None
    config: Annotated[Path | None, _CONFIG] = None
    output_dir: Annotated[Path | None, _OUTPUT_DIR] = None
    yes: Annotated[bool, _YES] = False
    as_json: Annotated[bool, _JSON] = False
    dry_run: Annotated[bool, _DRY_RUN] = False
    force: Annotated[bool, _FORCE] = False
    quiet: Annotated[bool, _QUIET] = False

    def __post_init__(self) -> None:
        """Refuse what the types of the fields let through."""
        if self.stage not in {None, "auto", "0", "1", "2", "3"}:
            raise UsageError(
                f"`--stage {self.stage}` is no ZeRO stage", "choose auto, 0, 1, 2 or 3"
            )
        for name, row in rows().items():
            value = getattr(self, name)
            counts = isinstance(value, int) and not isinstance(value, bool)
            if counts and not 1 <= value <= _MOST:
                raise UsageError(f"`{row.on} {value}`: it is a whole number from 1 to {_MOST}")


# How a run is shown or confirmed is no part of what was answered.
_PRESENTATION = frozenset({"yes", "as_json", "dry_run", "force", "quiet"})


@cache
def rows() -> Mapping[str, SettingRow]:
    """The row of each field, by the field's name."""
    return {name: read_row(hint) for name, hint in Options.__annotations__.items()}


def said(options: Options) -> Iterator[tuple[SettingRow, object]]:
    """What differs from the defaults, less how a run is shown or confirmed."""
    for field in fields(Options):
        value = getattr(options, field.name)
        if field.name not in _PRESENTATION and value != field.default:
            yield rows()[field.name], value


def as_words(options: Options) -> list[str]:
    """The options as one would type them; only what differs from the defaults."""
    words: list[str] = []
    for row, value in said(options):
        words += (
            [row.on] if value is True else [row.off] if value is False else [row.on, str(value)]
        )
    return words


def with_recorded(options: Options, recorded: Mapping[str, object]) -> Options:
    """The options with recorded answers where nobody says anything now.

    Args:
        options: What the person says.
        recorded: Plain values, by the keys of their rows; other keys are left alone.

    Raises:
        UsageError: A value that its option does not take.
    """
    silent = {
        rows()[field.name].key
        for field in fields(Options)
        if field.name not in _PRESENTATION and getattr(options, field.name) == field.default
    }
    return _with_plain(options, {k: v for k, v in recorded.items() if k in silent})


def with_flags(options: Options, change: Mapping[str, object]) -> Options:
    """The options with a change that names them by their flags."""
    keys = {row.on: row.key for row in rows().values()}
    return _with_plain(options, {keys[flag]: value for flag, value in change.items()})


def _with_plain(options: Options, values: Mapping[str, object]) -> Options:
    """The options with plain values, such as JSON has, by the keys of their rows."""
    by_key = {rows()[field.name].key: field for field in fields(Options)}
    try:
        typed = {by_key[key].name: _read(_kind(by_key[key]), each) for key, each in values.items()}
    except ValueError as error:
        raise UsageError(str(error)) from None
    return replace(options, **typed)  # type: ignore[arg-type]


def _kind(field: Field[object]) -> type:
    """The type of a field's values, None aside."""
    hint = get_args(field.type)[0]
    kind: type = next(iter(get_args(hint)), hint)
    return kind


def _read(kind: type, value: object) -> object:
    if kind not in (bool, int, str):
        return kind(str(value.value if isinstance(value, Enum) else value))
    if type(value) is not kind:
        raise ValueError(f"{value!r} is no {kind.__name__}")
    return value
