"""Write the DeepSpeed config of a job: the keys that matter to it, each with a chosen value."""

import json
from collections.abc import Callable, Mapping

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.job import Job
from zerowiz.core.dsconfig.merge import Section, build_on
from zerowiz.core.memory.host import HostPhase, fit_nvme
from zerowiz.core.model.hf_config import APART, MOE_BLOCKS
from zerowiz.core.model.types import ModelSource
from zerowiz.core.settings import Hyperparameters
from zerowiz.core.strategy_types import Offload, Strategy, ZeroKey
from zerowiz.core.workload import (
    ADAMW_PARAMS,
    OPTIMIZERS,
    PRECISIONS,
    Integration,
    Optimizer,
    Precision,
    StateDtype,
)

AUTO = "auto"

# Theory. Who reads the config decides what has to be in it. The Trainer fills an "auto" from its
# own arguments and refuses a number that contradicts them, so what the script settles is left to
# it (transformers/integrations/deepspeed.py, trainer_config_process). DeepSpeed by itself fills
# nothing, so a plain loop gets numbers alone; Accelerate gets them too, as what it would fill
# comes from calls of the script that cannot always be seen. A key whose default would do the same
# in every version is left out; one whose default has changed or surprises is written.


class Handover(Struct, frozen=True, kw_only=True):
    """How the config will reach DeepSpeed, and what the script settles by itself."""

    integration: Integration = Integration.HF
    settled: frozenset[str] = frozenset()
    """Workload fields that the script was seen to set; only these may be "auto"."""
    script_has_optimizer: bool = True
    base: Section | None = None
    """A config of the person's own that this one is built on."""
    hyperparameters: Hyperparameters = Hyperparameters()
    """How the model learns, where the config says it."""

    @property
    def builds_optimizer(self) -> bool:
        """Whether DeepSpeed makes the optimizer of a plain loop."""
        return self.integration is Integration.DEEPSPEED and not self.script_has_optimizer


class _Writing(Struct, frozen=True, kw_only=True):
    """What the sections are written from."""

    job: Job
    evaluated: StrategyEstimate
    handover: Handover

    @property
    def strategy(self) -> Strategy:
        return self.evaluated.strategy

    @property
    def offloads(self) -> bool:
        return self.strategy.offload is not Offload.NONE

    @property
    def by_lightning(self) -> bool:
        """Whether Lightning's Trainer adds accumulation and clipping, and hands its optimizer over.

        lightning 2.6, pytorch/strategies/deepspeed.py: it refuses the first in the config, and
        drops what the script says of the others where the config does.
        """
        return self.handover.integration is Integration.LIGHTNING

    def filled(self, field: str, value: object) -> object:
        """The value, unless the Trainer knows it better."""
        trainer = self.handover.integration is Integration.HF
        return AUTO if trainer and field in self.handover.settled else value


def _batch(w: _Writing) -> Section:
    # Never `train_batch_size`: under zero.Init on the CPU accelerator it is checked before the
    # world size is known.
    step = w.job.workload
    section = {"train_micro_batch_size_per_gpu": w.filled("micro_batch", step.micro_batch)}
    if w.by_lightning:
        return section
    steps = w.filled("accumulation_steps", step.accumulation_steps)
    return {**section, "gradient_accumulation_steps": steps}


def _clipping(w: _Writing) -> Section:
    # DeepSpeed's default became 1.0 in 0.19.3: 0.0 is what clips nothing in every release.
    if w.by_lightning:
        return {}
    trainer = w.handover.integration is Integration.HF
    return {"gradient_clipping": AUTO if trainer else w.handover.hyperparameters.max_grad_norm}


def autocast_section(dtype: Precision) -> Section:
    """What lets torch compute in this format over weights in fp32."""
    return {"torch_autocast": {"enabled": True, "dtype": PRECISIONS[dtype].dtype_names[0]}}


def _precision(w: _Writing) -> Section:
    step, row = w.job.workload, PRECISIONS[w.job.workload.precision]
    if step.torch_autocast is not None:
        return autocast_section(step.torch_autocast)
    half = w.job.state_dtype is StateDtype.BF16 and row.section == Precision.BF16
    return {
        row.section: {
            "enabled": w.filled("precision", row.enabled),
            **row.section_values,
            # runtime/config.py, get_bfloat16_config: the second needs the first.
            **(
                {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
                if half and w.strategy.stage
                else {}
            ),
        }
    }


def _gathers_on_save(w: _Writing) -> bool:
    """Whether the first rank's host can hold the weights whole, besides what trains there."""
    room_bytes, rank = w.evaluated.host_budget_bytes, w.evaluated.estimate.rank
    need_bytes = w.evaluated.host.phase_bytes[HostPhase.TRAINING]
    need_bytes += rank.trained_bytes * rank.trainable
    return room_bytes is None or need_bytes <= room_bytes


# From there on transformers holds all experts of a layer in one tensor.
_FUSED_EXPERTS = (5, 0)


def _leaf_module(w: _Writing) -> Section | None:
    """The module that has to be gathered whole, as each rank may run other experts of it."""
    family, guessed = w.job.model.architecture.family, w.job.model.source is ModelSource.GUESS
    fused = w.job.workload.transformers_version >= _FUSED_EXPERTS and family not in APART
    # A guess is counted as another family, whose block the model does not have.
    block = None if fused or guessed else MOE_BLOCKS.get(family)
    return None if block is None else {"classes": [block]}


# Rule: what a key of the section says is decided here and nowhere else; None leaves it out. Which
# keys a strategy has is a field of its row.
_ZERO: Mapping[ZeroKey, Callable[[_Writing], object]] = {
    ZeroKey.CONTIGUOUS_GRADIENTS: lambda w: w.evaluated.buffers.contiguous_gradients,
    # stage3.py gathers and reduces on streams of their own, with one bucket either way.
    ZeroKey.OVERLAP_COMM: lambda w: w.evaluated.buffers.overlap_comm or w.strategy.shards_weights,
    ZeroKey.REDUCE_BUCKET_SIZE: lambda w: w.evaluated.buffers.reduce_bucket_size,
    ZeroKey.SUB_GROUP_SIZE: lambda w: w.evaluated.buffers.sub_group_size,
    ZeroKey.PREFETCH_BUCKET_SIZE: lambda w: w.evaluated.buffers.stage3_prefetch_bucket_size,
    ZeroKey.PERSISTENCE_THRESHOLD: (
        lambda w: w.evaluated.buffers.stage3_param_persistence_threshold
    ),
    ZeroKey.MAX_LIVE_PARAMETERS: lambda w: w.evaluated.buffers.stage3_max_live_parameters,
    ZeroKey.MAX_REUSE_DISTANCE: lambda w: w.evaluated.buffers.stage3_max_live_parameters,
    ZeroKey.GATHER_ON_SAVE: _gathers_on_save,
    ZeroKey.HPZ_PARTITION_SIZE: lambda w: (
        w.evaluated.buffers.hpz_partition_size
        if w.evaluated.buffers.hpz_partition_size > 1
        else None
    ),
    ZeroKey.QUANTIZED_WEIGHTS: lambda w: True if w.job.quantized_weights else None,
    ZeroKey.LEAF_MODULE: _leaf_module,
}
_ON_HOST: Section = {"device": "cpu", "pin_memory": True}
_ON_NVME: Section = {"device": "nvme", "pin_memory": True}
# constants.py of swap_tensor: DeepSpeed's own values; ds_nvme_tune finds better ones for a drive.
_AIO: Section = {
    "block_size": 2**20,
    "queue_depth": 8,
    "intra_op_parallelism": 1,
    "single_submit": False,
    "overlap_events": True,
}


def _zero(w: _Writing) -> Section:
    section: dict[str, object] = {"stage": w.strategy.stage}
    for key in w.strategy.zero_keys:
        value = _ZERO[key](w)
        if value is not None:
            section[key.value] = value
    if w.offloads:
        section["offload_optimizer"] = dict(_ON_HOST)
    if w.strategy.offload is Offload.ALL:
        section["offload_param"] = dict(_ON_HOST)
    if w.job.nvme_path is None or not w.evaluated.buffers.on_nvme:
        return {"zero_optimization": section}
    fitted = fit_nvme(w.job.model, w.evaluated.estimate.rank)
    section["offload_optimizer"] = {
        **_ON_NVME,
        "buffer_count": fitted.optimizer_count,
        "pipeline_read": True,
        "pipeline_write": True,
        "nvme_path": w.job.nvme_path,
    }
    if fitted.param_count:
        section["offload_param"] = {
            **_ON_NVME,
            "buffer_count": fitted.param_count,
            "buffer_size": fitted.param_size,
            "max_in_cpu": fitted.max_in_cpu,
            "nvme_path": w.job.nvme_path,
        }
        section["stage3_max_reuse_distance"] = 0
    return {"zero_optimization": section, "aio": _AIO}


def _optimizer(w: _Writing) -> Section:
    """The optimizer, where the script brings none that fits."""
    half = w.job.state_dtype is StateDtype.BF16
    if w.handover.integration is Integration.HF and w.offloads and half:
        # The Trainer's own swap builds a CPU Adam with fp32 moments, which DeepSpeed then refuses.
        names = ("lr", *ADAMW_PARAMS, "weight_decay")
        return {"optimizer": {"type": "AdamW", "params": dict.fromkeys(names, AUTO)}}
    if not w.handover.builds_optimizer:
        return {}
    row, learning = OPTIMIZERS[w.job.workload.optimizer], w.handover.hyperparameters
    # torch's AdamW decays by 0.01 unasked, and DeepSpeed's by none.
    of_all: Section = {"lr": learning.lr, "weight_decay": learning.weight_decay}
    on_host = w.offloads and row is OPTIMIZERS[Optimizer.ADAMW]  # DeepSpeed's own CPU Adam
    params = {**of_all, **(ADAMW_PARAMS if on_host else row.params)}
    if learning.lr is None:  # of a plan that writes nothing
        del params["lr"]
    return {"optimizer": {"type": row.ds_type, "params": params}}


def _scheduler(w: _Writing) -> Section:
    """The warm-up of the optimizer that DeepSpeed makes; later the learning rate stays."""
    learning = w.handover.hyperparameters
    if learning.warmup_steps is None or not w.handover.builds_optimizer:
        return {}
    params: dict[str, object] = {"warmup_min_lr": 0.0, "warmup_max_lr": learning.lr}
    if learning.lr is None:  # of a base whose optimizer names none
        del params["warmup_max_lr"]
    params |= {"warmup_num_steps": learning.warmup_steps, "warmup_type": "linear"}
    return {"scheduler": {"type": "WarmupLR", "params": params}}


def _client_optimizer(w: _Writing) -> Section:
    """What lets a job have an optimizer that DeepSpeed did not make for it."""
    if w.handover.integration.row.as_written:
        tested = OPTIMIZERS[w.job.workload.optimizer].tested and w.handover.builds_optimizer
        untested = w.strategy.stage > 0 and not tested
        # A torch optimizer would be refused under offload (runtime/engine.py).
        is_clients = not w.handover.builds_optimizer
    else:
        # The Trainer and Accelerate allow any themselves, but put DeepSpeed's Adam in the place of
        # others under offload, silently (accelerate/utils/deepspeed.py).
        untested, is_clients = False, w.job.workload.optimizer is not Optimizer.ADAMW
    section = {"zero_allow_untested_optimizer": True} if untested else {}
    return (
        {**section, "zero_force_ds_cpu_optimizer": False} if is_clients and w.offloads else section
    )


_SECTIONS = (_batch, _clipping, _precision, _zero, _optimizer, _scheduler, _client_optimizer)


def write_config(job: Job, evaluated: StrategyEstimate, handover: Handover) -> dict[str, object]:
    """The config with which this job runs under the strategy that was evaluated."""
    writing = _Writing(job=job, evaluated=evaluated, handover=handover)
    written = {key: value for section in _SECTIONS for key, value in section(writing).items()}
    return written if handover.base is None else build_on(handover.base, written)


def render_config(config: Section) -> str:
    """JSON that ends in a newline; the same config gives the same bytes."""
    return json.dumps(config, indent=2) + "\n"
