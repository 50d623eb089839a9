"""Say what nobody said and a plan rests on."""

from collections.abc import Iterator

from zerowiz.app.options import Options
from zerowiz.core.decision.evaluate import PlanInput
from zerowiz.core.dsconfig.user_config import UserConfig
from zerowiz.core.script import ScriptSettings
from zerowiz.core.workload import Method, Workload


def assumptions(
    options: Options, settings: ScriptSettings, own: UserConfig, job: PlanInput
) -> tuple[str, ...]:
    """What nobody said and the plan rests on."""
    w = job.workload
    clauses = {
        f"micro-batch {w.micro_batch} (`$micro_batch`)": (
            options.micro_batch,
            settings.micro_batch or own.micro_batch or own.train_batch_size,
        ),
        f"{w.sequence_tokens} tokens a sequence (`$sequence_tokens`)": (
            options.sequence_tokens,
            settings.sequence_tokens,
        ),
        f"{w.precision} (`$precision`)": (
            options.precision,
            settings.precision or own.precision,
        ),
        "no gradient checkpointing (`$gradient_checkpointing`)": (
            options.gradient_checkpointing,
            settings.gradient_checkpointing,
        ),
    }
    always = [clause for clause, said in clauses.items() if said == (None, None)]
    ignored = (f"no effect of `{b.code}` in line {b.line}" for b in settings.uncounted)
    return (*always, *_assumed_of_script(options, settings, own, w), *ignored)


def _assumed_of_script(
    options: Options, settings: ScriptSettings, own: UserConfig, w: Workload
) -> Iterator[str]:
    """The same of what only a script decides, and this one does not show."""
    adapters = w.method is not Method.FULL
    clauses = {
        "accumulation_steps": (
            options.accumulation_steps or options.global_batch or own.accumulation_steps,
            f"accumulation {w.accumulation_steps} (`$accumulation_steps`)",
        ),
        "optimizer": (options.optimizer, f"{w.optimizer} (`$optimizer`)"),
        "method": (options.method, "every parameter trains (`$method`)"),
        "lora_rank": (
            options.lora_rank or not adapters,
            f"adapters of rank {w.lora_rank} (`$lora_rank`)",
        ),
        "lora_target_modules": (
            options.lora_target_modules or not adapters,
            f"adapters on {w.lora_targets} (`$lora_target_modules`)",
        ),
    }
    return (
        clause for key, (said, clause) in clauses.items() if key in settings.unseen and not said
    )
