"""Render a DeepSpeed config: a shipped template with this job's values in it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from zerowiz.core.strategy import Offload, Part, Strategy
from zerowiz.core.weigh import Job
from zerowiz.core.workload import Integration, Precision, StateDtype
from zerowiz.errors import UsageError

Scalar = bool | int | float | str
AUTO = "auto"

# transformers TrainingArguments: learning_rate 5e-5, betas, epsilon and weight decay of AdamW.
_ADAMW: Mapping[str, object] = {
    "lr": 5e-5,
    "betas": [0.9, 0.999],
    "eps": 1e-8,
    "weight_decay": 0.0,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Handover:
    """How the config will reach DeepSpeed, and what the script settles by itself."""

    integration: Integration = Integration.HF
    settled: frozenset[str] = frozenset()
    """Workload fields that the script was seen to set; only these may be "auto"."""
    script_has_optimizer: bool = True


def _buffer_values(job: Job, strategy: Strategy) -> dict[str, Scalar]:
    buffers = job.buffers
    if strategy.stage == 0:
        return {}
    values: dict[str, Scalar] = {
        "zero_optimization.reduce_bucket_size": buffers.reduce_bucket_size,
    }
    if Part.PARAMETERS in strategy.sharded:
        persistence = buffers.stage3_param_persistence_threshold
        values |= {
            "zero_optimization.sub_group_size": buffers.sub_group_size,
            "zero_optimization.stage3_prefetch_bucket_size": buffers.stage3_prefetch_bucket_size,
            "zero_optimization.stage3_param_persistence_threshold": persistence,
            "zero_optimization.stage3_max_live_parameters": buffers.stage3_max_live_parameters,
        }
    return values


def _precision_values(job: Job, strategy: Strategy, handover: Handover) -> dict[str, Scalar]:
    precision = job.workload.precision
    filled = handover.integration is Integration.HF and "precision" in handover.settled
    values: dict[str, Scalar] = {
        "bf16.enabled": AUTO if filled else precision is Precision.BF16,
        "fp16.enabled": AUTO if filled else precision is Precision.FP16,
    }
    if strategy.stage > 0:
        half = job.state_dtype is StateDtype.BF16
        # DeepSpeed: the states' switch needs the master weights' one (runtime/config.py).
        values |= {
            "bf16.bf16_master_weights_and_grads": half,
            "bf16.bf16_optimizer_states": half,
        }
    return values


def config_values(job: Job, strategy: Strategy, handover: Handover) -> dict[str, Scalar]:
    """The values, by dotted key, that this job puts into the strategy's template."""
    # The Trainer fills these from its own arguments (transformers/integrations/deepspeed.py,
    # HfTrainerDeepSpeedConfig.trainer_config_process); nobody else does.
    trainer = handover.integration is Integration.HF
    values: dict[str, Scalar] = {
        key: AUTO if trainer and field in handover.settled else count
        for field, key, count in (
            ("micro_batch", "train_micro_batch_size_per_gpu", job.workload.micro_batch),
            ("accumulation_steps", "gradient_accumulation_steps", job.workload.accumulation_steps),
        )
    }
    values["gradient_clipping"] = AUTO if trainer else 1.0
    values |= _precision_values(job, strategy, handover)
    values |= _buffer_values(job, strategy)
    if strategy.offload is not Offload.NONE:
        # A raw script's own torch optimizer would be refused under offload (engine.py).
        values["zero_force_ds_cpu_optimizer"] = not (
            handover.integration is Integration.DEEPSPEED and handover.script_has_optimizer
        )
    return values


def config_sections(job: Job, strategy: Strategy, handover: Handover) -> dict[str, object]:
    """Sections that no template holds: the optimizer, where the script brings none that fits."""
    offloaded = strategy.offload is not Offload.NONE
    half = job.state_dtype is StateDtype.BF16
    if handover.integration is Integration.HF and offloaded and half:
        # The Trainer's own swap builds a CPU Adam with fp32 moments, which DeepSpeed then refuses.
        return {"optimizer": {"type": "AdamW", "params": dict.fromkeys(_ADAMW, AUTO)}}
    if handover.integration is not Integration.DEEPSPEED or handover.script_has_optimizer:
        return {}
    # torch's fused AdamW needs no compiler; under offload DeepSpeed builds its own CPU Adam.
    torch_adam = {} if offloaded else {"torch_adam": True, "fused": True}
    return {"optimizer": {"type": "AdamW", "params": {**_ADAMW, **torch_adam}}}


def render_config(
    template: str, values: Mapping[str, Scalar], sections: Mapping[str, object] | None = None
) -> str:
    """Put values into a template; the same input gives the same bytes.

    Args:
        template: JSON text that is a usable config by itself.
        values: By dotted key; every key must stand in the template.
        sections: Top-level sections to add, which the template must not hold.

    Returns:
        JSON that ends in a newline.

    Raises:
        UsageError: A key that the template lacks, or a section that it holds.
    """
    config: dict[str, object] = json.loads(template)
    for dotted, value in values.items():
        section: object = config
        *parents, key = dotted.split(".")
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        if not isinstance(section, dict) or key not in section:
            raise UsageError(f"the template has no key `{dotted}`")
        section[key] = value
    for name, content in (sections or {}).items():
        if name in config:
            raise UsageError(f"the template has a section `{name}` already")
        config[name] = content
    return json.dumps(config, indent=2) + "\n"
