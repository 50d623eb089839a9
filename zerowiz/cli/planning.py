"""Join what was said, what the script says and what the machine is into one job."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from zerowiz.cli.models import Read, read_and_trace
from zerowiz.cli.options import Options
from zerowiz.core.amounts import parse_budget, solve_accumulation
from zerowiz.core.attention import runs_eager
from zerowiz.core.decide import Wish
from zerowiz.core.dsconfig import Handover
from zerowiz.core.families import FAMILIES
from zerowiz.core.machine import Machine
from zerowiz.core.margins import expands_segments
from zerowiz.core.model import Model
from zerowiz.core.ownconfig import OwnConfig
from zerowiz.core.questions import Question, answer_or_default, next_question
from zerowiz.core.script import (
    ScriptFacts,
    ScriptSettings,
    Setting,
    default_targets,
    deliver,
    settle,
)
from zerowiz.core.strategy import ZERO2, Strategy
from zerowiz.core.weigh import Job
from zerowiz.core.workload import (
    Attention,
    Integration,
    Loss,
    Method,
    Optimizer,
    Precision,
    Workload,
    parse_modules,
)
from zerowiz.errors import UsageError
from zerowiz.probe.libraries import read_transformers_release
from zerowiz.probe.observed import history_path, read_history
from zerowiz.probe.script import read_script

T = TypeVar("T")
Ask = Callable[[Question], str]
"""How an open question gets its answer: from a person, or from its default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Brief:
    """Everything a command decides with."""

    job: Job
    wish: Wish
    handover: Handover
    assumed: tuple[str, ...]
    """What nobody said, one clause each."""
    unfused_adam: str | None
    """Where the script builds an Adam that holds more than is counted."""
    falls_back: str | None
    """The release of transformers that runs this model with eager attention, unasked."""
    traced: tuple[str, ...]
    """What a trace was made of, one sentence each."""
    uncounted: tuple[str, ...]
    """Keys of the person's own config that the ledger does not know."""


def _said(flag: str, option: T | None, setting: Setting[T] | None) -> T | None:
    """The option or the script's setting; one that contradicts the other is an error."""
    if option is None or setting is None or option == setting.value:
        return setting.value if setting is not None else option
    words = f"{flag} {option}" if not isinstance(option, bool) else flag
    raise UsageError(
        f"`{words}` disagrees with the script: {setting.said_by} says {setting.value}",
        setting.change_to(option),
        f"or drop `{words}`",
    )


def _own(flag: str, config: Path | None, option: T | None, own: T | None) -> T | None:
    """The option or what the person's own config says; they may not disagree."""
    if option is not None and own is not None and option != own:
        raise UsageError(f"`{flag} {option}` disagrees with `{config}`, which says {own}")
    return option if own is None else own


def _fitting_precision(options: Options, machine: Machine) -> Precision:
    if options.torch_autocast is not None:
        return Precision.FP32  # the weights stay so
    return Precision.BF16 if machine.takes_bf16 else Precision.FP16


def open_questions(options: Options, settings: ScriptSettings) -> dict[str, str | None]:
    """The answers by key, None where neither an option nor the script says."""
    known: dict[str, object] = {
        "model": options.model or settings.model,
        "micro_batch": options.micro_batch or settings.micro_batch,
        "seq_len": options.seq_len or settings.sequence_tokens,
        "gradient_checkpointing": (
            settings.gradient_checkpointing
            if options.gradient_checkpointing is None
            else str(options.gradient_checkpointing)
        ),
    }
    return {key: None if value is None else str(value) for key, value in known.items()}


def answer(options: Options, answers: dict[str, str | None], ask: Ask) -> Options:
    """Ask what is open, in order, and return the options with the answers in them."""
    given: dict[str, object] = {}
    while (question := next_question(answers)) is not None:
        text = ask(question)
        answers[question.key] = text
        given[question.key] = int(text) if question.counts else text
    if "gradient_checkpointing" in given:
        given["gradient_checkpointing"] = given["gradient_checkpointing"] == "yes"
    return replace(options, **given) if given else options  # type: ignore[arg-type]


def by_default(question: Question) -> str:
    """Nobody is asked: the default, or an error that names the flag."""
    return answer_or_default(question)


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
        by = f"`--grad-accum {said}`" if setting is None else setting.said_by
        change = "drop `--grad-accum`" if setting is None else setting.change_to(solved)
        raise UsageError(
            f"`--global-batch {whole}` takes {solved} micro-steps of {micro_batch} x {ranks} GPUs,"
            f" and {by} says {said}",
            change,
            f"or drop `--global-batch {whole}`",
        )
    return solved


def _loss(options: Options, settings: ScriptSettings) -> Loss | None:
    """A Trainer's own loss can be computed in chunks, which none of its arguments say."""
    said = settings.loss
    chunked = options.loss is Loss.CHUNKED and said is not None and said.value is Loss.PLAIN
    return _said("--loss", options.loss, None if chunked else said)


def _said_modules(options: Options, settings: ScriptSettings) -> str | None:
    """The layers with adapters; the same names in another order are the same layers."""
    flag, own, said = (
        "--lora-target-modules",
        options.lora_target_modules,
        settings.lora_target_modules,
    )
    same = said is not None and set(parse_modules(own)) == set(parse_modules(said.value))
    return own if own is not None and same else _said(flag, own, said)


def _workload(
    options: Options, settings: ScriptSettings, own: OwnConfig, machine: Machine
) -> Workload:
    config, (own_batch, own_steps) = options.config, own.batch(machine.world_size)
    batch = _said("--micro-batch", options.micro_batch, settings.micro_batch)
    micro_batch = _own("--micro-batch", config, batch, own_batch) or 1
    steps = _said("--grad-accum", options.grad_accum, settings.accumulation_steps)
    steps = _own("--grad-accum", config, steps, own_steps)
    precision = _said("--precision", options.precision, settings.precision)
    precision = _own("--precision", config, precision, own.precision)
    packing = _said("--packing", options.packing, settings.packing)
    checkpointing = _said(
        "--gradient-checkpointing", options.gradient_checkpointing, settings.gradient_checkpointing
    )
    return Workload(
        micro_batch=micro_batch,
        sequence_tokens=_said("--seq-len", options.seq_len, settings.sequence_tokens) or 2048,
        accumulation_steps=_accumulation(options, steps, settings, micro_batch, machine.world_size),
        precision=precision or _fitting_precision(options, machine),
        torch_autocast=_own("--torch-autocast", config, options.torch_autocast, own.torch_autocast),
        optimizer=_said("--optimizer", options.optimizer, settings.optimizer) or Optimizer.ADAMW,
        method=_said("--method", options.method, settings.method) or Method.FULL,
        lora_rank=_said("--lora-rank", options.lora_rank, settings.lora_rank)
        or Workload().lora_rank,
        lora_target_modules=parse_modules(_said_modules(options, settings)),
        gradient_checkpointing=bool(checkpointing),
        attention=_said("--attention", options.attention, settings.attention) or Attention.SDPA,
        loss=_loss(options, settings) or Loss.PLAIN,
        packing=bool(packing),
        transformers_version=read_transformers_release(),
    )


def _handover(options: Options, facts: ScriptFacts | None, settings: ScriptSettings) -> Handover:
    seen = None if facts is None else facts.integration
    if options.integration is not None and seen is not None and options.integration is not seen:
        raise UsageError(
            f"`--integration {options.integration}` disagrees with the script, which is `{seen}`",
            f"drop `--integration {options.integration}`",
        )
    settled = {
        "micro_batch": settings.micro_batch,
        "accumulation_steps": settings.accumulation_steps,
        "precision": settings.precision,
    }
    # Without a script the file is for the Trainer, which fills what it is asked to.
    fields = settled if facts is None else {k: v for k, v in settled.items() if v is not None}
    return Handover(
        integration=options.integration or seen or Integration.HF,
        settled=frozenset(fields),
        script_has_optimizer=facts is None or facts.passes_optimizer,
    )


def _wish(options: Options, own: OwnConfig) -> Wish:
    stage = int(options.stage) if options.stage not in {None, "auto"} else None
    return Wish(
        stage=_own("--stage", options.config, stage, own.stage),
        offload=_own("--offload", options.config, options.offload, own.offload),
        allow_slow=options.allow_slow,
        force=options.force,
    )


def _assumed(
    options: Options, settings: ScriptSettings, own: OwnConfig, job: Job
) -> tuple[str, ...]:
    """What nobody said and the plan rests on."""
    w = job.workload
    clauses = {
        f"micro-batch {w.micro_batch} (`--micro-batch`)": (
            options.micro_batch,
            settings.micro_batch or own.micro_batch or own.train_batch_size,
        ),
        f"{w.sequence_tokens} tokens a sequence (`--seq-len`)": (
            options.seq_len,
            settings.sequence_tokens,
        ),
        f"{w.precision} (`--precision`)": (
            options.precision,
            settings.precision or own.precision,
        ),
        "no gradient checkpointing (`--gradient-checkpointing`)": (
            options.gradient_checkpointing,
            settings.gradient_checkpointing,
        ),
    }
    always = [clause for clause, said in clauses.items() if said == (None, None)]
    ignored = (f"no effect of `{b.code}` in line {b.line}" for b in settings.uncounted)
    return (*always, *_assumed_of_script(options, settings, own, w), *ignored)


def _assumed_of_script(
    options: Options, settings: ScriptSettings, own: OwnConfig, w: Workload
) -> Iterator[str]:
    """The same of what only a script decides, and this one does not show."""
    adapters = w.method is not Method.FULL
    clauses = {
        "accumulation_steps": (
            options.grad_accum or options.global_batch or own.accumulation_steps,
            f"accumulation {w.accumulation_steps} (`--grad-accum`)",
        ),
        "optimizer": (options.optimizer, f"{w.optimizer} (`--optimizer`)"),
        "method": (options.method, "every parameter trains (`--method`)"),
        "lora_rank": (
            options.lora_rank or not adapters,
            f"adapters of rank {w.lora_rank} (`--lora-rank`)",
        ),
        "lora_target_modules": (
            options.lora_target_modules or not adapters,
            f"adapters on {w.lora_targets} (`--lora-target-modules`)",
        ),
    }
    return (
        clause for key, (said, clause) in clauses.items() if key in settings.unseen and not said
    )


def _unfused_adam(facts: ScriptFacts | None) -> str | None:
    line = None if facts is None else facts.unfused_adam_line
    return None if facts is None or line is None else f"{facts.path} line {line}"


def _falls_back(job: Job) -> str | None:
    w, known = job.workload, job.model.architecture.family in FAMILIES
    asked = w.attention is Attention.SDPA and job.own_trace is None
    if not known or not asked or not runs_eager(job.model.architecture, w):
        return None
    return ".".join(map(str, w.transformers_version))


def _own_config(options: Options, reader: Integration | None) -> OwnConfig:
    if options.config is None:
        return OwnConfig()
    from zerowiz.probe.config_file import read_config_file  # noqa: PLC0415 - takes long to load

    return read_config_file(options.config, reader)


def make_brief(
    options: Options,
    machine: Machine,
    facts: ScriptFacts | None,
    script_args: Sequence[str],
    model: Model | None = None,
) -> Brief:
    """The job, what is wished for it, and how its config will travel.

    Args:
        options: What was said.
        machine: What the job runs on.
        facts: What the script shows; None without one.
        script_args: The words after the script.
        model: The model where it was read already; None reads it, which may fetch it.
    """
    environ = os.environ
    settings = ScriptSettings() if facts is None else settle(facts, tuple(script_args))
    reader = options.integration or (facts.integration if facts else None)
    own = _own_config(options, reader)
    named = _said("--model", options.model, settings.model) or ""
    workload = _workload(options, settings, own, machine)
    if _unfused_adam(facts) is not None:
        workload = replace(workload, optimizer_fused=False)
    read = (
        read_and_trace(named, workload, environ, trace=options.trace)
        if model is None
        else Read(model=model)
    )
    if settings.targets_by_architecture and options.lora_target_modules is None:
        targets = default_targets(read.model.architecture.family)
        workload = replace(workload, lora_target_modules=targets)
    budget = options.memory_budget
    flag, said = "--optimizer-state-dtype", options.optimizer_state_dtype
    state_dtype = _own(flag, options.config, said, own.state_dtype)
    job = Job(
        machine=machine,
        model=read.model,
        workload=workload,
        accounting=options.accounting,
        state_dtype=state_dtype,
        budget_bytes=None if budget is None else parse_budget(budget, machine.total_bytes),
        own_buffers=own.buffers,
        traced=read.traced,
        expandable_segments=expands_segments(environ),
        nvme_path=None if options.nvme_path is None else str(options.nvme_path),
        hpz=options.hpz,
        quantized_weights=options.quantized_weights,
    )
    if not options.ignore_oom:
        job = replace(job, ran_out=read_history(history_path(job.key, environ)).ran_out)
    return Brief(
        job=job,
        wish=_wish(options, own),
        handover=_handover(options, facts, settings),
        assumed=_assumed(options, settings, own, job),
        unfused_adam=_unfused_adam(facts),
        falls_back=_falls_back(job),
        traced=read.notes,
        uncounted=own.uncounted,
    )


def config_file(options: Options, strategy: Strategy) -> str:
    """The config that the job runs with: the person's own, or where the strategy's is written."""
    own = options.config
    return str((options.output_dir or Path()) / strategy.config_name if own is None else own)


def read_reachable(path: str, script_args: Sequence[str], options: Options) -> ScriptFacts:
    """The facts of a script, once it is sure that some config can reach it.

    Raises:
        ZerowizError: It cannot be read, or no config can reach it; nobody is asked anything then.
    """
    facts = read_script(Path(path))
    if facts.obstacle is not None:
        deliver(facts, tuple(script_args), config_file(options, ZERO2))
    return facts
