"""Resolve a job: options, script, config, model and machine become one Job."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from zerowiz import __version__
from zerowiz.app.options import Options
from zerowiz.app.reporter import SILENT, Reporter
from zerowiz.app.resolve.workload import (
    by_script,
    find_replicas,
    gives_way,
    list_values,
    resolve_workload,
    splits,
)
from zerowiz.core.decision.flowchart import Constraints
from zerowiz.core.decision.job import (
    Job,
    Objective,
    OpenSettings,
    list_shared,
    longest_tokens,
    why_no_bf16,
)
from zerowiz.core.dsconfig.own_config import AUTOCAST_KEY, UserConfig
from zerowiz.core.dsconfig.write import Handover
from zerowiz.core.machine.types import Accelerator, Machine, MachineSource
from zerowiz.core.memory.activations import runs_eager
from zerowiz.core.memory.buffers import (
    DEEPSPEED_DEFAULTS,
    expands_segments,
    shares_with_sleeping_vllm,
)
from zerowiz.core.memory.host import HostUse, Saving
from zerowiz.core.memory.micro_step import ReadModel, is_alike_under_autocast
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.from_name import config_of_gpt, is_unknown, made_for, parse_size
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.script.facts import ScriptFacts, ScriptValue, State, named_file
from zerowiz.core.script.settings import (
    AddedWords,
    ScriptRun,
    ScriptSettings,
    can_be_given,
    check_parallelism,
    doubtful_parallelism,
    facts_of,
    learned_by_config,
    settings_of,
    shared_by_environment,
)
from zerowiz.core.script.trainers import cut_group
from zerowiz.core.settings import (
    HYPERPARAMETERS,
    LEARNING,
    OTHER_SETTINGS,
    Hyperparameters,
    Origin,
    SettingRow,
    SettingValue,
    as_typed,
    fold,
    script_against_option,
)
from zerowiz.core.shell import quote
from zerowiz.core.speed.costs import Calibration, find_rates
from zerowiz.core.strategies import ZERO2_OFFLOAD
from zerowiz.core.strategy_types import OffloadChoice, Strategy
from zerowiz.core.structs import replace, shows
from zerowiz.core.units import parse_budget
from zerowiz.core.workload import (
    FP32_BYTES,
    SETTINGS,
    Accounting,
    Attention,
    Integration,
    Loss,
    Method,
    Precision,
    StateDtype,
    Uncounted,
    Workload,
)
from zerowiz.errors import AnswerNeededError, UsageError
from zerowiz.probe.files import read_gpu_table, read_measured_pairs, read_version
from zerowiz.probe.machine.machine_file import has_results, read_results, results_path
from zerowiz.probe.model.hf import Named, hub_name, is_near, model_of, read_config
from zerowiz.probe.output_folder import find_persons_configs

# Read the model that `--model` names.


def read_and_trace(
    text: str,
    workload: Workload,
    environ: Mapping[str, str],
    reporter: Reporter,
    *,
    trace: bool | None,
    length_is_open: bool = False,
) -> ReadModel:
    """The model that `--model` names.

    Args:
        text: What was said.
        workload: The micro-step that a trace takes.
        environ: Names the caches and the hub.
        reporter: Hears what is waited for.
        trace: Whether to trace; None traces what is not known otherwise, if that is possible.
        length_is_open: Whether a trace takes no more tokens than the model was made for.

    Raises:
        ZerowizError: There is no such model, or it can be neither counted, traced nor guessed.
    """
    with reporter.wait(f"reading config.json of `{text}`"):
        named = read_config(text, environ=environ)
    if named is None:
        untraced = (
            f"`--trace` has no effect: `{text}` is a size, and only a real model can be traced"
        )
        return ReadModel(model=model_of(text, None), notes=(untraced,) if trace else ())
    longest = made_for(named.config)
    if length_is_open and longest is not None:
        tokens = min(longest, workload.sequence_tokens)
        workload = replace(workload, sequence_tokens=tokens)
    return count_or_trace(text, named, workload, environ, reporter, trace=trace)


def count_or_trace(
    text: str,
    named: Named,
    workload: Workload,
    environ: Mapping[str, str],
    reporter: Reporter,
    *,
    trace: bool | None,
) -> ReadModel:
    """The same for a model whose config is known.

    Raises:
        ZerowizError: It can be neither counted, traced nor guessed.
    """
    if config_of_gpt(text) is not None or not (trace or is_unknown(named.config)):
        return count_model(text, named)
    from zerowiz.app.resolve.trace import trace_or_guess  # noqa: PLC0415 - takes long to load

    with reporter.wait(f"tracing `{named.name}` on the meta device"):
        read = trace_or_guess(text, named, workload, environ, trace=trace)
    return read if named.note is None else replace(read, notes=(named.note, *read.notes))


def count_model(text: str, named: Named | None) -> ReadModel:
    """The model of a config, or of a size."""
    notes = () if named is None or named.note is None else (named.note,)
    return ReadModel(model=model_of(text, named), notes=notes)


def check_model(text: str, environ: Mapping[str, str], *, trace: bool | None) -> None:
    """Whether `read_and_trace` would take this answer, as far as that is known without a trace.

    Raises:
        ZerowizError: It would not.
    """
    named = read_config(text, environ=environ)
    if named is None or not is_unknown(named.config):
        model_of(text, named)
        return
    from zerowiz.app.resolve.trace import check_unknown  # noqa: PLC0415 - takes long to load

    check_unknown(text, named, trace=trace)


def read_near(text: str, environ: Mapping[str, str], *, trace: bool | None) -> ReadModel | None:
    """The model that `--model` names; None where reading it takes the network, or a trace.

    Raises:
        ZerowizError: It cannot be read.
    """
    if trace or not text.strip() or not is_near(text, environ):
        return None
    named = read_config(text, environ=environ)
    by_sizes = config_of_gpt(text) is not None
    is_counted = named is None or by_sizes or not is_unknown(named.config)
    return count_model(text, named) if is_counted else None


def read_calibration(machine: Machine, environ: Mapping[str, str]) -> Calibration | None:
    """The calibration of this machine; None where nothing was measured on it."""
    if not has_results(environ):
        return None
    from zerowiz.core.job_end import formulas_of, machine_key  # noqa: PLC0415 - seldom needed

    kept = read_results(results_path(machine_key(machine), environ))
    return kept.calibration(formulas_of(__version__))


# Say which defaults a plan rests on.


def defaults_used(
    job: Job, decided: frozenset[str], settings: ScriptSettings, facts: ScriptFacts | None
) -> tuple[str, ...]:
    """What nobody decided and the plan rests on, one clause each.

    Args:
        job: What the plan is for.
        decided: The settings that somebody decided.
        settings: What the script shows, and what it decides without showing it.
        facts: Those of the script.
    """
    always = {name: row for name, row in SETTINGS.items() if row.assumed_always}
    unseen = {n: row for n, row in SETTINGS.items() if n in settings.unseen and n not in always}
    rows = {**always, **unseen}
    clauses = (*_clauses(rows, job, decided, settings),)
    if facts is None:
        return clauses
    where = facts.where if facts.files else facts.place
    ignored = (f"that `{b.code}` in {where(b.line)} has no effect" for b in settings.uncounted)
    if job.workload.method is not Method.FULL or not settings.freezes:
        return (*clauses, *ignored)
    first, *others = (f"`{c.code}` in {where(c.line)}" for c in settings.freezes)
    more = f" and {len(others)} more" if others else ""
    return (*clauses, *ignored, f"that all parameters train, though {first}{more} may freeze some")


def _clauses(
    rows: dict[str, SettingRow], job: Job, decided: frozenset[str], settings: ScriptSettings
) -> Iterator[str]:
    shown = job.workload.settings()
    if job.model.architecture.reads_images:
        # The size of its images decides it.
        decided |= {"sequence_tokens"}
    # What completions take has a default of its own.
    step = job.workload
    capped = not step.trainer.row.generates and step.sequence_tokens < Workload().sequence_tokens
    built = settings.positions
    if built is not None and built.value == step.sequence_tokens:
        positions = f", the positions of {built.source}"
    elif longest_tokens(job.model) is None:
        positions = ", its positions"
    else:
        positions = ", its learned positions"
    reasons = {
        "precision": why_no_bf16(job.machine, job.workload),
        "sequence_tokens": positions if capped else "",
    }
    adapts = job.workload.method is not Method.FULL
    instead = {"method": "adapters beside frozen 16-bit weights"} if adapts else {}
    for name, row in rows.items():
        assumed = instead.get(name, row.assumed)
        if assumed is not None and name not in decided and shown[name] is not None:
            why = reasons.get(name, "")
            yield f"{assumed.format(value=shown[name])}{why} (`${name}`)"


# Find what of a job's training step nobody decided, and what it can be given instead.


def find_freedom(
    options: Options,
    facts: ScriptFacts | None,
    settings: ScriptSettings,
    config: UserConfig,
    job: Job,
) -> OpenSettings:
    """What of the step can be chosen.

    A config of the person's own decides all of it but a batch that it leaves open (`"auto"`), and
    the rule of thumb knows no activations. Without a script nobody says what a job would run,
    unless it is a global batch, or a search is asked for.

    Args:
        options: What was said.
        facts: What the script shows; None without one.
        settings: What the script says.
        config: What a config of the person's own says.
        job: With the step as it would be by itself.
    """
    if job.accounting is Accounting.TEXTBOOK:
        return OpenSettings()
    if options.own_config is not None:
        return OpenSettings(split=facts is not None and splits(options, settings, config))
    if facts is None:
        is_stated = options.gradient_checkpointing is not None
        names_batch = options.global_batch is not None
        searches = names_batch or options.objective is not Objective.FLOWCHART
        return OpenSettings(
            split=names_batch and splits(options, settings, config),
            checkpointing=(True,) if searches and not is_stated else (),
        )
    return OpenSettings(
        split=splits(options, settings, config),
        checkpointing=tuple(_checkpointing(options, facts, settings, job)),
        attention=tuple(_attentions(options, settings, job)),
        losses=tuple(_losses(options, settings, job)),
    )


def _checkpointing(
    options: Options, facts: ScriptFacts, settings: ScriptSettings, job: Job
) -> Iterator[bool]:
    """Adapters need their inputs to ask for gradients then, which not every script sees to."""
    other = not job.workload.gradient_checkpointing
    trains_all = job.workload.method is Method.FULL
    # A call of the script may turn it on again, and a trace with it on shows nothing without.
    takes = trains_all if other else facts.checkpoints_too is None and job.traced is None
    is_stated = options.gradient_checkpointing is not None
    if takes and not is_stated and settings.is_open("gradient_checkpointing", other):
        yield other


def _attentions(options: Options, settings: ScriptSettings, job: Job) -> Iterator[Attention]:
    """FlashAttention takes 16-bit numbers alone."""
    step, flash = job.workload, Attention.FLASH
    half = step.precision.size_bytes < FP32_BYTES and job.traced is None
    silent = options.attention is None and settings.is_open("attention", flash)
    if silent and half and step.attention is not flash and _has("flash_attn", job):
        yield flash


def _losses(options: Options, settings: ScriptSettings, job: Job) -> Iterator[Loss]:
    family = FAMILIES.get(job.model.architecture.family)
    counted = family is not None and family.liger and job.own_trace is None
    silent = options.loss is None and settings.is_open("loss", Loss.LIGER)
    if silent and counted and job.workload.loss is Loss.PLAIN and _has("liger_kernel", job):
        yield Loss.LIGER


def _shared(options: Options, script: ScriptRun | None, job: Job) -> tuple[int, ...]:
    """How many ranks could share each sequence, with the micro-steps that keep the global batch."""
    names = ("sequence_parallel", "accumulation_steps")
    reached = script is None or all(can_be_given(script, name, 2) for name in names)
    return list_shared(job) if reached and options.own_config is None else ()


def _has(package: str, job: Job) -> bool:
    """Whether the GPUs of this host can run a package's kernels."""
    here = job.machine.source is MachineSource.NVML
    return (
        here and job.machine.accelerator is Accelerator.CUDA and read_version(package) is not None
    )


# Join what was said, what the script says and what the machine is into one job.


@shows("job", "assumed")
class ResolvedJob(Struct, frozen=True, kw_only=True):
    """Everything a command decides with."""

    options: Options
    script: ScriptRun | None
    """The script as it is run; None without one."""
    config: UserConfig
    """What the person's own config says."""
    values: tuple[SettingValue, ...]
    """All that is said of its settings, and by what."""
    learning: Mapping[str, SettingValue] = {}
    """What counts of that for how the model learns, and what zerowiz writes where nobody says it;
    `optimizer` is among it, beside the names in LEARNING."""
    job: Job
    constraints: Constraints
    handover: Handover
    assumed: tuple[str, ...]
    """The defaults that the plan rests on, one clause each."""
    by_default: Mapping[str, object] = {}
    """What counts for it, and is a default of zerowiz, of the script's parser or of a library."""
    traced: tuple[str, ...]
    """What a trace was made of, one sentence each."""
    not_counted: tuple[str, ...] = ()
    """What the script was seen to hold besides, one sentence each."""
    freedom: OpenSettings = OpenSettings()
    """What of the step nobody decided."""
    settled: tuple[AddedWords, ...] = ()
    """What the script leaves open, and the words that are added after it."""

    @property
    def lacks_lr(self) -> bool:
        """Whether zerowiz is to write an optimizer whose learning rate nobody names."""
        return "lr" in self.learning and self.learning["lr"].value is None

    @property
    def read(self) -> ReadModel:
        """Its model, as it was read."""
        return ReadModel(model=self.job.model, traced=self.job.traced, notes=self.traced)

    def with_step(self, step: Workload) -> "ResolvedJob":
        """The job with this step, of which nobody decided what is chosen."""
        before = self.job.workload
        if step == before:
            return self
        changed = {n: v for n, v in self.freedom.values(step).items() if v != getattr(before, n)}
        chosen = (
            SettingValue(name=name, value=value, origin=Origin.CHOSEN, source=Origin.CHOSEN)
            for name, value in changed.items()
        )
        made = _fold_job(
            self.options,
            tuple(chosen),
            self.job.machine,
            self.script,
            self.config,
            self.read,
            self.answered,
        )
        return replace(made, job=replace(self.job, workload=step), freedom=self.freedom)

    def with_change(
        self,
        options: Options,
        machine: Machine,
        read: ReadModel | None,
        answered: Collection[str] | None = None,
    ) -> "ResolvedJob":
        """The job with other options, on another machine, of another model.

        Args:
            options: What is said now.
            machine: What the job runs on.
            read: Its model; None reads the one that the options name.
            answered: The settings that are answers of the wizard; None: those that were.

        Raises:
            UsageError: It cannot have them.
        """
        if answered is None:
            answered = self.answered
        config, reader = self.config, self.handover.integration
        if options.base != self.options.base:
            config = own_config(options, reader)
        return _fold_job(options, (), machine, self.script, config, read, answered)

    @property
    def answered(self) -> frozenset[str]:
        """The settings that a person said as answers of the wizard."""
        return frozenset(value.name for value in self.values if value.origin is Origin.ANSWER)


def model_needed(script: ScriptRun | None) -> AnswerNeededError:
    """The error where nobody says which model is trained."""
    facts = facts_of(script)
    made = None if facts is None else facts.built_model
    hints = []
    if facts is not None and made is not None:
        where = f"`{made.code}` in {facts.where(made.line)}"
        hints.append(f"{where} makes the model, and zerowiz does not read its size there")
    if facts is not None and (made is None or not made.from_library):
        hints.append(
            "if the script has a model of its own, say how large it is, such as `$model 10m` or "
            "`$model 1.3b`: it is planned as a Llama of that size "
            "(`sum(p.numel() for p in model.parameters())` counts its parameters)"
        )
    if facts is not None and (made is None or made.from_library):
        hints.append(
            "a script that builds its model itself can write a folder for `$model` once: "
            '`model.config.save_pretrained("my-model")`'
        )
    return AnswerNeededError(
        "an answer is missing: Which model? (a folder, a hub id, or a size like 7b)",
        "set it with `$model`",
        *hints,
    )


def offer_configs(facts: ScriptFacts, key: str) -> Iterator[str]:
    """How a number comes from a config that lies beside a script, as hints.

    Args:
        facts: Of the script.
        key: The number's in the config: `lr`.
    """
    number = re.compile(rb'"%s"\s*:\s*[\d.]' % key.encode())
    for path in find_persons_configs(facts):
        if number.search(path.read_bytes()):
            yield f"take it from your config: `$config {quote(path)} $stage auto`"


def lr_needed(facts: ScriptFacts | None = None) -> AnswerNeededError:
    """The error where zerowiz has to write an optimizer, and nobody names its learning rate.

    Args:
        facts: Of a script beside which a config may lie that names one.
    """
    hints = [] if facts is None else [*offer_configs(facts, "lr")]
    if facts is not None and facts.optimizer.code and not facts.optimizer.seen:
        own = facts.optimizer
        hints.append(
            f"`{own.code}` in {facts.where(own.line)} does not reach DeepSpeed: pass it to "
            "`deepspeed.initialize` as `optimizer=`; if it updates weights in the backward pass, "
            "there is no plan for it: `$lr` would add another optimizer"
        )
    return AnswerNeededError(
        "no learning rate: zerowiz sees no optimizer that the script passes to DeepSpeed, and"
        " follows no `lr` or `learning_rate` in it",
        *hints,
        "set it with `$lr`; zerowiz 1.0.0rc1 wrote `$lr 5e-5`",
    )


# What no config sets.
_IN_CODE = (
    *("attention", "loss", "packing", "gradient_checkpointing", "method"),
    "sequence_parallel",
)


def _trusted(options: Options, settings: ScriptSettings) -> str | None:
    """That a plan believes what options say of a script, which zerowiz cannot make come true."""
    words = []
    for name in _IN_CODE:
        value, setting = getattr(options, name), getattr(settings, name)
        default = getattr(Workload(), name) if setting is None else setting.value
        if value not in {None, default} and not settings.is_open(name, value):
            words.append(f"`{as_typed(name, value)}`")
    if not words:
        return None
    return (
        f"zerowiz cannot pass {', '.join(words)} to your script: the plan is right only if the"
        " script sets the same"
    )


def _handover(
    options: Options,
    facts: ScriptFacts | None,
    settings: ScriptSettings,
    settled: Sequence[AddedWords],
    base: Mapping[str, object] | None,
    learning: Mapping[str, Any],
) -> Handover:
    seen = None if facts is None else facts.integration
    if options.integration is not None and seen is not None and options.integration is not seen:
        raise UsageError(
            f"`$integration {options.integration}` conflicts with the script, which is `{seen}`",
            f"remove `$integration {options.integration}`",
        )
    added = {words.name for words in settled}
    # Without a script the file is for the Trainer, which fills what it is asked to.
    fields = [
        name
        for name in ("micro_batch", "accumulation_steps", "precision")
        if facts is None or name in added or getattr(settings, name) is not None
    ]
    # What a script clips to and does not show is what Accelerate has by itself.
    clipping = {"max_grad_norm": 1.0} if "max_grad_norm" in settings.unseen else {}
    return Handover(
        integration=options.integration or seen or Integration.HF,
        settled=frozenset(fields),
        script_has_optimizer=facts.passes_optimizer
        if facts
        else learning.keys() <= {"max_grad_norm"},
        hyperparameters=Hyperparameters(**{**clipping, **learning}),
        base=base,
    )


def _written_learning(
    options: Options,
    facts: ScriptFacts | None,
    settings: ScriptSettings,
    base: Mapping[str, object] | None,
) -> frozenset[str]:
    """The names in LEARNING that zerowiz writes into the config; a base keeps what it has.

    Raises:
        UsageError: An option says another one, and nothing that is seen to say it was refused.
    """
    written = settings.by_config if facts else learned_by_config(options.integration, ())
    if base is not None:
        optimizer = {"lr", "weight_decay"} if "optimizer" in base else set()
        schedule = {"warmup_steps", "schedule"} if "scheduler" in base else set()
        written -= {"max_grad_norm", *optimizer, *schedule}
    if options.own_config is not None:
        written = frozenset()
    for name in HYPERPARAMETERS:
        value, config = getattr(options, name), options.config
        if value is None or name in written or (config is None and name in settings.values):
            continue
        who, way = "a Trainer has its own arguments for it", "plain loop: `$integration deepspeed`"
        if config is not None:
            who, way = f"`{config}` decides it", "set it there"
        elif facts is not None and facts.integration is Integration.HF:
            field = OTHER_SETTINGS[name].trainer_fields[0]
            who, way = f"{facts.path} decides it", f"set `{field}` in its TrainingArguments"
        elif facts is not None:
            who, way = f"{facts.path} has an optimizer or a scheduler of its own", "set it there"
        raise UsageError(f"`${name} {value}` has no effect: {who}", way)
    return written


def _learning(
    handover: Handover, said: Mapping[str, SettingValue], names: Collection[str]
) -> dict[str, SettingValue]:
    """What says how the model learns, as a plan shows it; no lr where that has to be asked.

    Args:
        handover: How the config reaches DeepSpeed.
        said: What anybody says.
        names: Those in LEARNING that zerowiz writes.
    """
    written = handover.hyperparameters
    values: dict[str, object] = {}
    if handover.builds_optimizer and "lr" in names:
        optimizer, decay = Workload().optimizer, written.weight_decay
        values = {"optimizer": optimizer, "lr": None, "weight_decay": decay}
    if "max_grad_norm" in names:
        values["max_grad_norm"] = written.max_grad_norm
    by_us = {
        name: SettingValue(name=name, value=value, origin=Origin.DEFAULT, source="zerowiz")
        for name, value in values.items()
    }
    known = {**by_us, **said}
    return {name: known[name] for name in ("optimizer", *LEARNING) if name in known}


def _constraints(
    said: Mapping[str, SettingValue],
    options: Options,
    config: UserConfig,
    wrong: frozenset[int],
) -> Constraints:
    stage = said["stage"].value if "stage" in said else None
    if config.buffers is not None and config.buffers.keeps_gradients:
        # No strategy of its own: the one that is nearest, with more gradients.
        stage = str(ZERO2_OFFLOAD.stage)
    return Constraints(
        stage=None if stage in {None, "auto"} else int(str(stage)),
        offload=cast("OffloadChoice", said["offload"].value) if "offload" in said else None,
        allow_slow=options.allow_slow,
        force=options.force,
        wrong_stages=wrong,
    )


def own_config(options: Options, reader: Integration | None = None) -> UserConfig:
    """What the person's own config says; nothing where there is none.

    Args:
        options: What was said.
        reader: The library that reads it, where that is known.

    Raises:
        UsageError: It cannot be read, or is no config.
    """
    if options.config is None:
        return UserConfig()
    from zerowiz.probe.config_text import read_config_file  # noqa: PLC0415 - takes long to load

    return read_config_file(options.config, reader, is_base=options.base is not None)


def resolve_job(
    options: Options,
    machine: Machine,
    script: ScriptRun | None,
    read: ReadModel | None = None,
    reporter: Reporter = SILENT,
    answered: Collection[str] = (),
) -> ResolvedJob:
    """The job, the constraints on its decision, and how its config reaches DeepSpeed.

    Args:
        options: What was said.
        machine: What the job runs on.
        script: The script as it is run; None without one.
        read: The model where it was read already; None reads it, which may fetch it.
        reporter: Hears what that waits for.
        answered: The settings that a person said as answers of the wizard.

    Raises:
        UsageError: Options, script and config contradict each other, or the model or the machine.
        AnswerNeededError: Neither option nor script names a model.
    """
    facts = facts_of(script)
    reader = options.integration or (facts.integration if facts else None)
    config = own_config(options, reader)
    return _fold_job(options, (), machine, script, config, read, answered, reporter)


def _fold_job(
    options: Options,
    chosen: tuple[SettingValue, ...],
    machine: Machine,
    script: ScriptRun | None,
    config: UserConfig,
    read: ReadModel | None,
    answered: Collection[str],
    reporter: Reporter = SILENT,
) -> ResolvedJob:
    """The job of all that is said; nothing that was read is read again.

    Args:
        options: What was said.
        chosen: What a search chose of what is open.
        machine: What the job runs on.
        script: The script as it is run; None without one.
        config: What the person's own config says.
        read: The model; None reads it.
        answered: The settings that a person said as answers of the wizard.
        reporter: Hears what that waits for.
    """
    environ = os.environ
    check_parallelism(script, environ, machine.world_size)
    facts, settings = facts_of(script), settings_of(script)
    model_words = () if script is None else _model_words(options, script)
    named = _name_model(options, settings, is_loaded=bool(model_words))
    beside = (*shared_by_environment(environ), *chosen)
    replicas = find_replicas(options, settings, config, beside, machine.world_size)
    values = (*list_values(options, settings, config, replicas, answered), *beside)
    said = fold(values, partial(gives_way, settings))
    of_step = resolve_workload(said, options, settings, config, machine, replicas)
    workload = of_step.workload
    if facts is not None and facts.unfused_adam_line is not None:
        workload = replace(workload, optimizer_fused=False)
    if read is None and not named:
        raise model_needed(script)
    if read is None:
        read = read_and_trace(
            named,
            workload,
            environ,
            reporter,
            trace=options.trace,
            length_is_open="sequence_tokens" not in of_step.decided,
        )
    if "sequence_tokens" not in of_step.decided:
        workload = _within_positions(workload, read, settings)
    _refuse_length(options, settings, workload, read.model)
    if settings.targets_by_architecture and options.lora_target_modules is None:
        family = FAMILIES.get(read.model.architecture.family)
        targets = () if family is None else family.default_lora_targets
        workload = replace(workload, lora_target_modules=targets)
    lacking = _lacks_layers(options, read.model, workload)
    if lacking:
        workload = replace(workload, lora_target_modules=())
    named_trainer = options.trainer is not None
    not_counted = [e for e in settings.not_counted if not (named_trainer and e.settled_by_name)]
    if config.autocasts_half and not is_alike_under_autocast(read.model.architecture):
        config = replace(
            config,
            uncounted=(*config.uncounted, AUTOCAST_KEY),
            besides=(*config.besides, Uncounted.CONFIG),
        )
    besides = (*config.besides, *((Uncounted.ADAPTERS,) if settings.widens_adapters else ()))
    budget = options.memory_budget
    state_dtype = said.get("optimizer_state_dtype")
    job = Job(
        machine=machine,
        model=read.model,
        workload=workload,
        accounting=options.accounting,
        state_dtype=None if state_dtype is None else cast("StateDtype", state_dtype.value),
        budget_bytes=None if budget is None else parse_budget(budget, machine.total_bytes),
        own_buffers=config.buffers,
        traced=read.traced,
        expandable_segments=expands_segments(environ) and not shares_with_sleeping_vllm(workload),
        nvme_path=None if options.nvme_path is None else str(options.nvme_path),
        hpz=options.hpz,
        quantized_weights=options.quantized_weights,
        measured_pairs=read_measured_pairs(),
        rates=find_rates(machine, read_gpu_table()),
        calibration=None if options.calibration is False else read_calibration(machine, environ),
        host_use=_host_use(facts, settings),
        uncounted=tuple(dict.fromkeys((*(item.what for item in not_counted), *besides))),
    )
    freedom = find_freedom(options, facts, settings, config, job)
    if options.sequence_parallel == 0 and "sequence_parallel" not in said:
        freedom = replace(freedom, shared=_shared(options, script, job))
    # What is searched for is chosen, and not assumed.
    decided = of_step.decided | ({"gradient_checkpointing"} if freedom.checkpointing else set())
    if freedom.split or options.global_batch is not None:
        decided |= {"accumulation_steps"}
    written = _written_learning(options, facts, settings, config.base)
    learning = {n: said[n].value for n in HYPERPARAMETERS if n in said and n in written}
    handover = _handover(options, facts, settings, of_step.settled, config.base, learning)
    wrong = frozenset[int]()
    if script is not None:
        from zerowiz.core.preflight.stages import wrong_stages  # noqa: PLC0415 - many plans have no script

        wrong = wrong_stages(script, handover.integration, machine.world_size)
    return ResolvedJob(
        options=options,
        script=script,
        config=config,
        values=values,
        job=job,
        constraints=_constraints(said, options, config, wrong),
        handover=handover,
        learning=_learning(handover, said, written),
        assumed=(
            *_own_model(named, settings),
            *defaults_used(job, decided, settings, facts),
            *lacking,
        ),
        by_default=_by_default(job, decided, said, settings),
        traced=read.notes,
        not_counted=tuple(item.text for item in not_counted),
        freedom=freedom,
        settled=(*model_words, *of_step.settled, *_on_cpu(settings, machine)),
    )


def _by_default(
    job: Job,
    decided: frozenset[str],
    said: Mapping[str, SettingValue],
    settings: ScriptSettings,
) -> dict[str, object]:
    """The settings that a plan assumes where nobody says them, by their names."""
    values = {"lr": said["lr"].value if "lr" in said else None, **job.workload.settings()}
    by_parser = {
        name
        for name, value in settings.values.items()
        if value.state is State.OPEN and name in said and said[name].origin is Origin.SCRIPT
    }
    assumed = {name for name, row in SETTINGS.items() if row.assumed_always}
    assumed |= {"method", "attention"}
    of_images = {"sequence_tokens"} if job.model.architecture.reads_images else set[str]()
    named = ((assumed - decided) | (by_parser & (assumed | {"lr"}))) - of_images
    return {n: value for n, value in values.items() if n in named and value is not None}


def longest_sequence(model: Model, settings: ScriptSettings) -> int | None:
    """The longest sequence that a job's model was made for; None where that is not known.

    A model that the script builds has the positions that the script gives it, whatever stands for
    it in the plan.
    """
    built = None if settings.model is not None else settings.positions
    known = (model.made_for_tokens, None if built is None else built.value)
    return min((length for length in known if length is not None), default=None)


def _within_positions(workload: Workload, read: ReadModel, settings: ScriptSettings) -> Workload:
    """The step with no longer a sequence than the model was made for, or with that of its images.

    A trace took no more, and completions that are generated have their own length.
    """
    longest = longest_sequence(read.model, settings)
    image_tokens = read.model.architecture.image_tokens
    if read.traced is not None:
        longest = read.traced.runs[0].sequence_tokens
    if longest is None or workload.trainer.row.generates:
        return workload
    tokens = image_tokens or min(workload.sequence_tokens, longest)
    return replace(workload, sequence_tokens=tokens)


def _refuse_length(
    options: Options, settings: ScriptSettings, workload: Workload, model: Model
) -> None:
    """See that the model has positions for a length that its script decides.

    Raises:
        UsageError: It has fewer.
    """
    length, positions = settings.sequence_tokens, longest_tokens(model)
    if options.sequence_tokens is not None or length is None or positions is None:
        return
    if positions < length.value == workload.sequence_tokens:
        raise UsageError(
            (
                f"{length.source} says {length.value}: `{model.name}` has only {positions} "
                "learned positions"
            ),
            length.change_to(positions),
        )


def _host_use(facts: ScriptFacts | None, settings: ScriptSettings) -> HostUse:
    """What the script does with the memory of its nodes; without one, what the Trainer does."""
    if facts is None or facts.integration is None:
        return HostUse()
    saving = Saving.ENGINE if facts.integration.row.as_written else Saving.TRAINER
    workers = settings.loader_workers
    return HostUse(
        saving=Saving.PORTABLE if facts.saves_portably else saving,
        builds_on_host=facts.builds_on_host,
        workers=0 if workers is None else workers.value,
        is_seen=True,
    )


def _lacks_layers(options: Options, model: Model, workload: Workload) -> tuple[str, ...]:
    """What is assumed where the script adapts layers by names that a mere size does not have."""
    modules = workload.lora_target_modules
    is_size = model.source is ModelSource.SIZE and options.lora_target_modules is None
    if not is_size or not modules or workload.method is Method.FULL:
        return ()
    try:
        model.adapted(modules)
    except UsageError:
        return (
            f"adapters on every linear layer, as a size has no layer names `{','.join(modules)}`",
        )
    return ()


def _own_model(named: str, settings: ScriptSettings) -> tuple[str, ...]:
    """What stands for a model of the script's own classes."""
    own = settings.own_model
    if own is None or named != own.name:
        return ()
    return (f"a GPT of the script's own sizes ({own.source}; `$model`)",)


def _name_model(options: Options, settings: ScriptSettings, *, is_loaded: bool) -> str:
    """The model that option or script name; the script's own spelling where both mean one.

    Args:
        options: What was said.
        settings: What the script says.
        is_loaded: Whether words make the script load the model that `--model` names.

    Raises:
        UsageError: They mean two.
    """
    option = options.model
    setting: ScriptValue[str] | None = settings.model
    if is_loaded or _is_stated(options, setting):
        setting = None
    if option is None or setting is None:
        return option or settings.model_name or ""
    if parse_size(option) is not None:
        raise UsageError(
            (
                f"`$model {option}` conflicts with the script: {setting.source} says "
                f"{setting.value}, which can be read"
            ),
            f"remove `$model {option}`",
        )
    loaded = hub_name(option, os.environ)
    if loaded == hub_name(setting.value, os.environ) or option == setting.value:
        return setting.value
    if loaded != option:
        setting = replace(setting, spellings={option: loaded})
    typed = SettingValue(name="model", value=option, origin=Origin.OPTION, source="")
    raise script_against_option(by_script("model", setting), typed)


def _is_stated(options: Options, setting: ScriptValue[str] | None) -> bool:
    """Whether `--model` is a size, which says how large the script's model is: none can load it.

    A name contradicts no size: it may be one of a hub that is out of reach. A folder can be read.
    """
    if options.model is None or parse_size(options.model) is None or setting is None:
        return False
    return setting.state is not State.SAID or not Path(setting.value).is_dir()


def _size_only(options: Options, settings: ScriptSettings) -> str | None:
    """That a size says how large a model is, and that the script loads its own."""
    loaded, only = settings.model, f"`$model {options.model}` is only a size"
    if loaded is not None:
        loads = f"{only}; the script loads `{loaded.value}`, {loaded.source}"
        return loads if _is_stated(options, loaded) else None
    is_size = options.model is not None and parse_size(options.model) is not None
    if not (is_size and settings.is_open("model", options.model)):
        return None
    return (
        f"{only}, and the script still loads its own model: name a folder or a hub id, and zerowiz"
        " passes it to the script"
    )


def _model_words(options: Options, script: ScriptRun) -> tuple[AddedWords, ...]:
    """The words by which the script loads the model that `--model` names."""
    if options.model is None or parse_size(options.model) is not None:
        return ()
    model, loaded = hub_name(options.model, os.environ), script.settings.model
    if loaded is not None and hub_name(loaded.value, os.environ) == model:
        return ()
    given = script.said.values()
    # Such as `--config_name`, for a script that makes new weights.
    if any(value.value == model for value in given):
        return ()
    return script.settings.settled("model", model)


def _on_cpu(settings: ScriptSettings, machine: Machine) -> tuple[AddedWords, ...]:
    """The word without which a Trainer on the CPU accelerator does not see its other ranks."""
    use_cpu = settings.use_cpu
    if machine.accelerator is not Accelerator.CPU or (use_cpu is not None and use_cpu.value):
        return ()
    return settings.settled("use_cpu", value=True)


def _in_fp32(
    facts: ScriptFacts | None, precision: ScriptValue[Precision] | None, job: Job
) -> str | None:
    """Why a script whose precision nobody sets is planned in fp32, and what takes less."""
    w, machine = job.workload, job.machine
    if precision is None or precision.state is not State.OPEN or facts is None:
        return None
    in_fp32 = w.precision is precision.value is Precision.FP32 and w.torch_autocast is None
    if not in_fp32:
        return None
    on_gpu = not machine.accelerator.row.on_host and machine.takes_bf16
    floats = facts.float_batches
    if floats.seen and f"`{floats.code}`" in precision.source:
        half = Precision.BF16 if machine.takes_bf16 else Precision.FP16
        return (
            f"{precision.source}, so it is planned in fp32: 16-bit weights refuse floats;"
            f" {precision.change_to(half)} takes less memory"
        )
    if not on_gpu:
        return None
    loaded, change = facts.loads_16_bit, precision.change_to(Precision.BF16)
    if loaded is None:
        return (
            "your script sets no precision, so the plan is in fp32; bf16 takes half the memory for"
            f" weights and is several times faster on these GPUs: {change}"
        )
    return (
        f"`{loaded.code}` in {facts.where(loaded.line)} may load 16-bit weights, and your script"
        f" sets no precision: below stage 3 they stay 16-bit, and the plan counts fp32; {change}"
    )


def _falls_back(job: Job) -> str | None:
    w, family = job.workload, job.model.architecture.family
    asked = w.attention is Attention.SDPA and job.own_trace is None
    if family not in FAMILIES or not asked or not runs_eager(job.model.architecture, w):
        return None
    release = ".".join(map(str, w.transformers_version))
    return (
        f"transformers {release} runs `{family}` with eager attention, which stores all attention"
        " scores"
    )


def beyond_positions(model: Model, step: Workload) -> str | None:
    """That a sequence is longer than any that the model was made for; None where it is not."""
    tokens, positions = step.sequence_tokens, model.made_for_tokens
    if positions is None or tokens <= positions:
        return None
    return (
        f"sequences of {tokens} tokens are longer than the {positions} positions that"
        f" `{model.name}` was made for (`$sequence_tokens`)"
    )


def _of_parallelism(step: Workload, integration: Integration) -> Iterator[str]:
    """What is different for what a model learns, or for its memory, where GPUs share a step.

    transformers 5.23, integrations/deepspeed.py, deepspeed_sp_compute_loss: each rank has the loss
    of all, so its gradient comes as often as ranks share; deepspeed 0.19.8 divides by the groups
    alone (stage_1_and_2.py, average_tensor), and at stage 3 by all ranks (stage3.py,
    __avg_scatter_grads). Seen on a GPU: twice the norm at stage 2 with 2 and 2 x 2 ranks, the same
    at stage 3.
    """
    shared = step.sequence_parallel
    if shared > 1:
        learns = (
            "and the loop weights the losses of their parts itself"
            if integration is Integration.DEEPSPEED
            else "the loss is the mean over micro-steps, and below ZeRO-3 the gradient's norm,"
            f" which is clipped, is {shared} times as large as without"
        )
        yield (
            f"{shared} GPUs share each sequence: a batch has to have a multiple of {shared} tokens,"
            f" {learns}"
        )
    if step.tensor_parallel > 1:
        yield (
            f"AutoTP of the config cuts the linear layers between {step.tensor_parallel} GPUs,"
            " which train the same sequences; activations between the layers are not cut"
        )
    elif step.expert_parallel > 1:
        yield (
            f"AutoEP of the config deals out the experts to {step.expert_parallel} GPUs, in equal"
            " parts if tokens come to all alike"
        )


def config_file(options: Options, strategy: Strategy) -> str:
    """The config that the job runs with: the person's own, or where the strategy's is written."""
    config, named = options.own_config, named_file(options.config_via)
    if config is not None:
        from zerowiz.app.resolve.own_config import read_yaml_config  # noqa: PLC0415 - takes long to load

        return read_yaml_config(config, options.output_dir).path
    base = options.base
    if named is not None and (base is None or not is_same(base, named)):
        return named
    path = (options.output_dir or Path()) / strategy.config_name
    if base is not None and is_same(base, path):
        return str(path.with_name(f"{path.stem}{_BESIDE_BASE}{path.suffix}"))
    return str(path)


_BESIDE_BASE = "_on_base"
"""What the name of a config ends in, where a person's base has the name without it."""


def is_same(path: Path, other: Path | str) -> bool:
    """Whether two paths name one file."""
    return os.path.realpath(path) == os.path.realpath(other)


# Say what a plan rests on.

_UNFUSED_ADAM = (
    "this Adam is not fused: it needs up to 4 more bytes per trainable parameter during the step,"
    " which the plan counts; `fused=True` avoids that"
)
_METRICS = (
    "keeps the logits of a whole evaluation on the GPU, unless `eval_accumulation_steps` is set:"
    " not counted"
)
_KEEPS_OPTIMIZER = (
    "has no `offload_optimizer`: master weights and optimizer states are counted on the GPU"
)
_KEEPS_GRADIENTS = (
    "is planned as ZeRO-2 with the optimizer offloaded, and all gradients are counted on each GPU,"
    " where stage 1 keeps them until backward is over"
)
_VLLM_ELSEWHERE = "vLLM runs as a server on other GPUs, which this plan does not include"


def find_basis(resolved: ResolvedJob, known: Collection[str] = ()) -> tuple[str, ...]:
    """What a plan rests on, one sentence each.

    Args:
        resolved: What was planned.
        known: Clauses on what is assumed that need no other note.
    """
    job, options, step = resolved.job, resolved.options, resolved.job.workload
    facts, settings = facts_of(resolved.script), settings_of(resolved.script)
    clauses = [clause for clause in resolved.assumed if clause not in known]
    keys = ", ".join(f"`{key}`" for key in resolved.config.uncounted)
    buffers = job.own_buffers or DEEPSPEED_DEFAULTS
    unfused_adam_line = None if facts is None else facts.unfused_adam_line
    measured = 0 if job.calibration is None else job.calibration.measured_steps
    learned_from = "1 setting" if measured == 1 else f"{measured} settings"
    notes = (
        *job.machine.notes,
        *resolved.traced,
        f"step times are scaled by {learned_from} measured on this machine" if measured else None,
        _size_only(options, settings),
        None if facts is None else _trusted(options, settings),
        f"assumed {', '.join(clauses)}" if clauses else None,
        f"{facts.where(unfused_adam_line)}: {_UNFUSED_ADAM}"
        if facts is not None and unfused_adam_line is not None
        else None,
        _in_fp32(facts, settings.precision, job),
        beyond_positions(job.model, step),
        f"`every_n_layers`: one layer in {step.every_n_layers} is checkpointed, and the others keep"
        " their activations"
        if step.checkpointed_each > 1
        else None,
        *_of_parallelism(step, resolved.handover.integration),
        _falls_back(job),
        f"`{options.config}`: {keys} not counted" if keys else None,
        f"`{options.config}` {_KEEPS_OPTIMIZER}" if buffers.keeps_optimizer else None,
        f"`{options.config}` {_KEEPS_GRADIENTS}" if buffers.keeps_gradients else None,
        *resolved.not_counted,
        *doubtful_parallelism(resolved.script),
        f"{settings.vllm_server}: {_VLLM_ELSEWHERE}" if settings.vllm_server else None,
        f"{settings.metrics}: {_METRICS}" if settings.metrics and step.eval_batch else None,
        f"`--eval-batch 0` does not keep the job from evaluating: {settings.evaluated_by} does"
        if options.eval_batch == 0 and settings.evaluated_by
        else None,
        cut_group(settings.group, step, job.machine.world_size),
    )
    return tuple(note for note in notes if note is not None)
