"""Settle what a rank of the job trains with: as options, the script and a config say."""

from zerowiz.app.options import Options
from zerowiz.app.resolve.conflicts import by_config, by_script
from zerowiz.core.dsconfig.user_config import UserConfig
from zerowiz.core.machine.types import Machine
from zerowiz.core.script import ScriptSettings
from zerowiz.core.units import solve_accumulation
from zerowiz.core.workload import (
    Attention,
    Loss,
    Method,
    Optimizer,
    Precision,
    Workload,
    parse_modules,
)
from zerowiz.errors import UsageError
from zerowiz.probe.model.libraries import read_transformers_release


def _accumulation(
    options: Options, said: int | None, settings: ScriptSettings, micro_batch: int, ranks: int
) -> int:
    """Micro-steps per optimizer step; `--global-batch` is solved for them."""
    whole = options.global_batch
    if whole is None:
        return said or 1
    solved = solve_accumulation(whole, micro_batch, ranks)
    if said not in {None, solved}:
        setting = settings.accumulation_steps
        by = f"`$accumulation_steps {said}`" if setting is None else setting.said_by
        change = "drop `$accumulation_steps`" if setting is None else setting.change_to(solved)
        raise UsageError(
            f"`$global_batch {whole}` takes {solved} micro-steps of {micro_batch} x {ranks} GPUs,"
            f" and {by} says {said}",
            change,
            f"or drop `$global_batch {whole}`",
        )
    return solved


def _loss(options: Options, settings: ScriptSettings) -> Loss | None:
    """A Trainer's own loss can be computed in chunks, which none of its arguments say."""
    said = settings.loss
    chunked = options.loss is Loss.CHUNKED and said is not None and said.value is Loss.PLAIN
    return by_script("$loss", options.loss, None if chunked else said)


def _said_modules(options: Options, settings: ScriptSettings) -> str | None:
    """The layers with adapters; the same names in another order are the same layers."""
    flag, own, said = (
        "$lora_target_modules",
        options.lora_target_modules,
        settings.lora_target_modules,
    )
    same = said is not None and set(parse_modules(own)) == set(parse_modules(said.value))
    return own if own is not None and same else by_script(flag, own, said)


def make_workload(
    options: Options, settings: ScriptSettings, own: UserConfig, machine: Machine
) -> Workload:
    """The workload; a default of ours where nobody says.

    Args:
        options: What was said.
        settings: What the script says.
        own: What the person's own config says.
        machine: Its ranks share a global batch, and it takes bf16 or not.

    Raises:
        UsageError: Two of them disagree.
    """
    config, (own_batch, own_steps) = options.config, own.batch(machine.world_size)
    micro_batch = (
        by_config("$micro_batch", config, options.micro_batch, own_batch, settings.micro_batch) or 1
    )
    steps = by_config(
        "$accumulation_steps",
        config,
        options.accumulation_steps,
        own_steps,
        settings.accumulation_steps,
    )
    precision = by_config(
        "$precision", config, options.precision, own.precision, settings.precision
    )
    optimizer = by_script("$optimizer", options.optimizer, settings.optimizer)
    packing = by_script("$packing", options.packing, settings.packing)
    checkpointing = by_script(
        "$gradient_checkpointing", options.gradient_checkpointing, settings.gradient_checkpointing
    )
    return Workload(
        micro_batch=micro_batch,
        sequence_tokens=by_script(
            "$sequence_tokens", options.sequence_tokens, settings.sequence_tokens
        )
        or 2048,
        accumulation_steps=_accumulation(options, steps, settings, micro_batch, machine.world_size),
        precision=precision or _fitting_precision(options, machine),
        torch_autocast=by_config(
            "$torch_autocast", config, options.torch_autocast, own.torch_autocast
        ),
        optimizer=optimizer or Optimizer.ADAMW,
        method=by_script("$method", options.method, settings.method) or Method.FULL,
        lora_rank=by_script("$lora_rank", options.lora_rank, settings.lora_rank)
        or Workload().lora_rank,
        lora_target_modules=parse_modules(_said_modules(options, settings)),
        gradient_checkpointing=bool(checkpointing),
        attention=by_script("$attention", options.attention, settings.attention) or Attention.SDPA,
        loss=_loss(options, settings) or Loss.PLAIN,
        packing=bool(packing),
        transformers_version=read_transformers_release(),
    )


def _fitting_precision(options: Options, machine: Machine) -> Precision:
    if options.torch_autocast is not None:
        return Precision.FP32  # the weights stay so
    return Precision.BF16 if machine.takes_bf16 else Precision.FP16
