"""The options that `init`, `plan` and `launch` share, as one table."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, get_args

import typer

from zerowiz.core.decision.flowchart import OffloadChoice
from zerowiz.core.machine.types import Accelerator
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
)
from zerowiz.errors import UsageError

# Far beyond any job; a slip of the finger is told at once instead of being planned for.
_MOST = 10_000_000

_MODEL, _MACHINE, _JOB, _CHOICE = "Model", "Machine", "Training step", "Choice"
_OUTPUT = "Output"


def _option(*names: str, text: str, panel: str) -> typer.models.OptionInfo:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the person said; None where nobody said anything."""

    model: Annotated[
        str | None,
        _option("--model", text="Folder with config.json, hub id, or size (7b)", panel=_MODEL),
    ] = None
    method: Annotated[
        Method | None, _option("--method", text="Which parameters train", panel=_MODEL)
    ] = None
    lora_rank: Annotated[
        int | None, _option("--lora-rank", text="Rank of the adapters", panel=_MODEL)
    ] = None
    lora_target_modules: Annotated[
        str | None,
        _option(
            "--lora-target-modules",
            text="Layers with adapters: all-linear, or q_proj,v_proj",
            panel=_MODEL,
        ),
    ] = None
    trace: Annotated[
        bool | None,
        _option(
            "--trace/--no-trace", text="Count by running the model without memory", panel=_MODEL
        ),
    ] = None
    machine: Annotated[
        str | None,
        _option("--machine", text="Recorded file, or a spec: 4xA100-40GB", panel=_MACHINE),
    ] = None
    accelerator: Annotated[
        Accelerator | None,
        _option("--accelerator", text="What DeepSpeed runs on", panel=_MACHINE),
    ] = None
    gpus: Annotated[
        str | None, _option("--gpus", text="NVML indices to use: 0,2,3", panel=_MACHINE)
    ] = None
    nodes: Annotated[int | None, _option("--nodes", text="Equal nodes", panel=_MACHINE)] = None
    gpus_per_node: Annotated[
        int | None,
        _option("--gpus-per-node", text="GPUs, or CPU ranks, of each node", panel=_MACHINE),
    ] = None
    hostfile: Annotated[
        Path | None,
        _option("--hostfile", text="DeepSpeed hostfile: one `host slots=N` a line", panel=_MACHINE),
    ] = None
    interconnect: Annotated[
        str | None,
        _option(
            "--interconnect",
            text="What cannot be measured: nvlink, pcie, infiniband:400Gb/s ...",
            panel=_MACHINE,
        ),
    ] = None
    memory_budget: Annotated[
        str | None,
        _option(
            "--memory-budget", text="Per GPU: 30GiB, 24GB, bytes, or a fraction", panel=_MACHINE
        ),
    ] = None
    micro_batch: Annotated[
        int | None, _option("--micro-batch", text="Sequences per GPU at a time", panel=_JOB)
    ] = None
    seq_len: Annotated[int | None, _option("--seq-len", text="Tokens per sequence", panel=_JOB)] = (
        None
    )
    grad_accum: Annotated[
        int | None, _option("--grad-accum", text="Micro-steps per optimizer step", panel=_JOB)
    ] = None
    global_batch: Annotated[
        int | None,
        _option("--global-batch", text="Sequences per optimizer step, all GPUs", panel=_JOB),
    ] = None
    precision: Annotated[
        Precision | None, _option("--precision", text="Weights and gradients", panel=_JOB)
    ] = None
    torch_autocast: Annotated[
        Precision | None,
        _option("--torch-autocast", text="Compute in bf16 or fp16, weights in fp32", panel=_JOB),
    ] = None
    optimizer: Annotated[
        Optimizer | None, _option("--optimizer", text="Whose states are counted", panel=_JOB)
    ] = None
    optimizer_state_dtype: Annotated[
        StateDtype | None,
        _option("--optimizer-state-dtype", text="Master weights and moments", panel=_JOB),
    ] = None
    gradient_checkpointing: Annotated[
        bool | None,
        _option(
            "--gradient-checkpointing/--no-gradient-checkpointing",
            text="Recompute activations in backward",
            panel=_JOB,
        ),
    ] = None
    attention: Annotated[
        Attention | None, _option("--attention", text="Attention kernel", panel=_JOB)
    ] = None
    loss: Annotated[
        Loss | None, _option("--loss", text="How the logits become a loss", panel=_JOB)
    ] = None
    packing: Annotated[
        bool | None,
        _option(
            "--packing/--no-packing", text="All sequences of a micro-batch in one row", panel=_JOB
        ),
    ] = None
    stage: Annotated[
        str | None,
        _option("--stage", text="auto, or a ZeRO stage: 0, 1, 2, 3", panel=_CHOICE),
    ] = None
    offload: Annotated[
        OffloadChoice | None, _option("--offload", text="What may live on the host", panel=_CHOICE)
    ] = None
    nvme_path: Annotated[
        Path | None,
        _option("--nvme-path", text="Offload to this folder on NVMe (stage 3)", panel=_CHOICE),
    ] = None
    hpz: Annotated[
        bool | None,
        _option(
            "--hpz/--no-hpz", text="Stage 3: each node keeps a copy of the weights", panel=_CHOICE
        ),
    ] = None
    quantized_weights: Annotated[
        bool,
        _option("--quantized-weights", text="Stage 3: gather the weights in int8", panel=_CHOICE),
    ] = False
    allow_slow: Annotated[
        bool, _option("--allow-slow", text="Take ZeRO-3 over a slow link", panel=_CHOICE)
    ] = False
    ignore_oom: Annotated[
        bool,
        _option("--ignore-oom", text="Forget what ran out of memory here before", panel=_CHOICE),
    ] = False
    accounting: Annotated[
        Accounting,
        _option("--accounting", text="What DeepSpeed allocates, or as told", panel=_CHOICE),
    ] = Accounting.REAL
    integration: Annotated[
        Integration | None,
        _option("--integration", text="Who hands the config to DeepSpeed", panel=_CHOICE),
    ] = None
    config: Annotated[
        Path | None,
        _option("--config", text="Run this ds_config as it is", panel=_CHOICE),
    ] = None
    output_dir: Annotated[
        Path | None, _option("--output-dir", text="Where configs are written", panel=_OUTPUT)
    ] = None
    yes: Annotated[bool, _option("--yes", "-y", text="Ask nothing", panel=_OUTPUT)] = False
    as_json: Annotated[bool, _option("--json", text="One JSON object on stdout", panel=_OUTPUT)] = (
        False
    )
    dry_run: Annotated[
        bool, _option("--dry-run", text="Show what would be done, do nothing", panel=_OUTPUT)
    ] = False
    force: Annotated[
        bool, _option("--force", text="Overwrite files; take what does not fit", panel=_OUTPUT)
    ] = False
    quiet: Annotated[
        bool, _option("--quiet", "-q", text="Errors and results alone", panel=_OUTPUT)
    ] = False

    def __post_init__(self) -> None:
        """Refuse what typer's types let through."""
        if self.stage not in {None, "auto", "0", "1", "2", "3"}:
            raise UsageError(
                f"`--stage {self.stage}` is no ZeRO stage", "choose auto, 0, 1, 2 or 3"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            counts = isinstance(value, int) and not isinstance(value, bool)
            if counts and not 1 <= value <= _MOST:
                raise UsageError(
                    f"`{_flag(field.type)} {value}`: it is a whole number from 1 to {_MOST}"
                )


# How a run is shown or confirmed is no part of what was answered.
MANNERS = frozenset({"yes", "as_json", "dry_run", "force", "quiet"})


def as_words(options: Options) -> list[str]:
    """The options as one would type them; only what differs from the defaults."""
    words: list[str] = []
    for field in fields(Options):
        value = getattr(options, field.name)
        if field.name in MANNERS or value == field.default:
            continue
        on, _, off = _flag(field.type).partition("/")
        words += [on] if value is True else [off] if value is False else [on, str(value)]
    return words


def _flag(annotation: object) -> str:
    """The first spelling of a field's option."""
    _, option = get_args(annotation)
    return str(option.default if isinstance(option.default, str) else option.param_decls[0])


def with_values(options: Options, values: Mapping[str, object]) -> Options:
    """The options with plain values, such as JSON has, put into these fields.

    Raises:
        UsageError: A value that its option does not take.
    """
    kinds = {field.name: _kind(field.type) for field in fields(Options)}
    try:
        typed = {name: _read(kinds[name], value) for name, value in values.items()}
    except ValueError as error:
        raise UsageError(str(error)) from None
    return replace(options, **typed)  # type: ignore[arg-type]


def with_flags(options: Options, change: Mapping[str, object]) -> Options:
    """The options with a change that names them by their flags."""
    names = {_flag(field.type).partition("/")[0]: field.name for field in fields(Options)}
    return with_values(options, {names[flag]: value for flag, value in change.items()})


def _kind(annotation: object) -> type:
    """The type of a field's values, None aside."""
    hint, _ = get_args(annotation)
    kind: type = next(iter(get_args(hint)), hint)
    return kind


def _read(kind: type, value: object) -> object:
    if kind not in (bool, int, str):
        return kind(str(value))
    if type(value) is not kind:
        raise ValueError(f"{value!r} is no {kind.__name__}")
    return value


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every field of Options as its own option, gathered into one argument."""
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "options"]
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=field.type,
        )
        for field in fields(Options)
    ]

    @functools.wraps(command)
    def gathered(**given: object) -> None:
        said = {p.name: given.pop(p.name) for p in shared}
        command(options=Options(**said), **given)  # type: ignore[arg-type]

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    signature = inspect.Signature([*parameters, *shared])
    gathered.__signature__ = signature  # type: ignore[attr-defined]
    gathered.__annotations__ = {p.name: p.annotation for p in [*parameters, *shared]}
    return gathered
