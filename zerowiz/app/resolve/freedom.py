"""Find what of a job's training step nobody decided, and what it can be given instead."""

from collections.abc import Iterator

from zerowiz.app.options import Options
from zerowiz.app.resolve.workload import splits
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.dsconfig.user_config import UserConfig
from zerowiz.core.machine.types import Accelerator, MachineSource
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import ScriptSettings
from zerowiz.core.search.freedom import Freedom, Objective
from zerowiz.core.workload.choices import Accounting, Attention, Loss, Method, Precision
from zerowiz.probe.model.libraries import read_version


def find_freedom(
    options: Options,
    facts: ScriptFacts | None,
    settings: ScriptSettings,
    own: UserConfig,
    job: PlanInput,
) -> Freedom:
    """What of the step can be chosen.

    A config of the person's own decides all of it but a batch that it leaves open (`"auto"`), and
    the rule of thumb knows no activations. Without a script nobody says what a job would run,
    unless it is a global batch, or a search is asked for.

    Args:
        options: What was said.
        facts: What the script shows; None without one.
        settings: What the script says.
        own: What a config of the person's own says.
        job: With the step as it would be by itself.
    """
    if job.accounting is Accounting.TEXTBOOK:
        return Freedom()
    if options.config is not None:
        return Freedom(split=facts is not None and splits(options, settings, own))
    if facts is None:
        said = options.gradient_checkpointing is not None
        names_batch = options.global_batch is not None
        searches = names_batch or options.objective is not Objective.FLOWCHART
        return Freedom(
            split=names_batch and splits(options, settings, own),
            checkpointing=(True,) if searches and not said else (),
        )
    return Freedom(
        split=splits(options, settings, own),
        checkpointing=tuple(_checkpointing(options, facts, settings, job)),
        attention=tuple(_attentions(options, settings, job)),
        losses=tuple(_losses(options, settings, job)),
    )


def _checkpointing(
    options: Options, facts: ScriptFacts, settings: ScriptSettings, job: PlanInput
) -> Iterator[bool]:
    """Adapters need their inputs to ask for gradients then, which not every script sees to."""
    other = not job.workload.gradient_checkpointing
    trains_all = job.workload.method is Method.FULL
    # A call of the script may turn it on again, and a trace with it on shows nothing without.
    takes = trains_all if other else facts.checkpoints_too is None and job.traced is None
    said = options.gradient_checkpointing is not None
    if takes and not said and settings.is_open("gradient_checkpointing", other):
        yield other


def _attentions(options: Options, settings: ScriptSettings, job: PlanInput) -> Iterator[Attention]:
    """FlashAttention takes 16-bit numbers alone."""
    step, flash = job.workload, Attention.FLASH
    half = step.precision is not Precision.FP32 and job.traced is None
    silent = options.attention is None and settings.is_open("attention", flash)
    if silent and half and step.attention is not flash and _has("flash_attn", job):
        yield flash


def _losses(options: Options, settings: ScriptSettings, job: PlanInput) -> Iterator[Loss]:
    family = FAMILIES.get(job.model.architecture.family)
    counted = family is not None and family.liger and job.own_trace is None
    silent = options.loss is None and settings.is_open("loss", Loss.LIGER)
    if silent and counted and job.workload.loss is Loss.PLAIN and _has("liger_kernel", job):
        yield Loss.LIGER


def _has(package: str, job: PlanInput) -> bool:
    """Whether the GPUs of this host can run a package's kernels."""
    here = job.machine.source is MachineSource.NVML
    return (
        here and job.machine.accelerator is Accelerator.CUDA and read_version(package) is not None
    )
