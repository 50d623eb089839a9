"""Find the keys of a config that change what a rank holds, and that no line of the ledger counts.

They are all that DeepSpeed knows, by its schema, but for those that a plan reads and those that are
known to hold nothing: a key of a newer DeepSpeed is named before anybody has thought of it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping

from zerowiz.core.dsconfig.schema import Kind, Schema, SchemaKey

# core/dsconfig/user_config.py reads them.
_ZERO = "zero_optimization"
_COUNTED = frozenset(
    {
        *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        *("bf16.enabled", "fp16.enabled", "torch_autocast.enabled", "torch_autocast.dtype"),
        *("bf16.bf16_optimizer_states", "bf16.bf16_master_weights_and_grads"),
        *(f"{_ZERO}.{name}" for name in ("stage", "reduce_bucket_size", "overlap_comm")),
        *(f"{_ZERO}.{name}" for name in ("contiguous_gradients", "sub_group_size")),
        *(f"{_ZERO}.stage3_{name}" for name in ("prefetch_bucket_size", "max_live_parameters")),
        *(f"{_ZERO}.{name}" for name in ("zero_hpz_partition_size", "offload_optimizer.device")),
        *(f"{_ZERO}.stage3_param_persistence_threshold", f"{_ZERO}.offload_param.device"),
    }
)
# What is written, printed, compared or scaled; how files are read and saved; how ranks are sent
# what they hold anyway.
_HOLDS_NOTHING = frozenset(
    {
        *("steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state", "log_level"),
        *("tensorboard", "wandb", "csv_monitor", "comet", "comms_logger", "flops_profiler"),
        *("autotuning", "timers", "vocabulary_size", "dataloader_drop_last", "disable_python_gc"),
        *("gradient_clipping", "prescale_gradients", "gradient_predivide_factor"),
        *("gradient_allreduce_op", "optimizer", "scheduler", "disable_allgather", "allgather_size"),
        *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "data_parallel_size"),
        *("aio", "checkpoint", "nebula", "elasticity", "use_data_before_expert_parallelism"),
        *(f"fp16.{name}" for name in ("loss_scale", "loss_scale_window", "initial_scale_power")),
        *(f"fp16.{name}" for name in ("hysteresis", "consecutive_hysteresis", "min_loss_scale")),
        *("fp16.auto_cast", "bf16.check_grad_overflow"),
        *(f"{_ZERO}.{name}" for name in ("allgather_partitions", "allgather_bucket_size")),
        *(f"{_ZERO}.{name}" for name in ("reduce_scatter", "round_robin_gradients")),
        *(f"{_ZERO}.{name}" for name in ("ignore_unused_parameters", "legacy_stage1")),
        *(f"{_ZERO}.{name}" for name in ("load_from_fp32_weights", "elastic_checkpoint")),
        *(f"{_ZERO}.stage3_gather_{name}_weights_on_model_save" for name in ("16bit", "fp16")),
        *(f"{_ZERO}.{name}" for name in ("compute_grad_norm", "log_trace_cache_warnings")),
        *(f"{_ZERO}.{name}" for name in ("enable_sanity_checks", "cpu_offload_use_pin_memory")),
        *(
            f"{_ZERO}.offload_{part}.{name}"
            for part in ("optimizer", "param")
            for name in ("nvme_path", "pin_memory", "buffer_count", "buffer_size", "max_in_cpu")
        ),
        *(f"{_ZERO}.offload_optimizer.pipeline_{name}" for name in ("read", "write")),
        *(f"{_ZERO}.offload_optimizer.{name}" for name in ("fast_init", "cpuadam_cores_perc")),
    }
)
_NEVER_NAMED = _COUNTED | _HOLDS_NOTHING
# Optimizers that keep no more than AdamW, as which all are counted (runtime/engine.py,
# _configure_basic_optimizer).
_LEANER_OPTIMIZERS = frozenset({"adagrad", "lion", "muadam", "muadamw", "muon", "musgd", "sgd"})
# Named, but they never make a rank hold more: deepspeed.checkpointing reads the section, if the
# script calls it, and then keeps less; what is on NVMe is `Uncounted.NVME`.
_NEVER_MORE = (
    "activation_checkpointing",
    *(f"{_ZERO}.offload_{part}.device" for part in ("optimizer", "param")),
)


def may_hold_more(keys: Iterable[str], values: Mapping[str, object]) -> bool:
    """Whether keys that are not counted may make a rank hold more than is predicted.

    Args:
        keys: By DeepSpeed's names.
        values: The config.
    """
    section = values.get("optimizer")
    name = str(section.get("type")).lower() if isinstance(section, Mapping) else ""
    never = (*_NEVER_MORE, *(("optimizer.type",) if name in _LEANER_OPTIMIZERS else ()))
    return any(not key.startswith(never) for key in keys)


def uncounted_keys(values: Mapping[str, object], schema: Schema) -> tuple[str, ...]:
    """The keys that are set to something else than their default, by DeepSpeed's names.

    Args:
        values: The config.
        schema: Of the DeepSpeed that reads it; what that does not know changes nothing.

    Example:
        A section that is switched on by its `enabled` is named as a whole:
        `expert_parallel`, but `compile.deepcompile`.
    """
    return tuple(dict.fromkeys(_uncounted(values, schema, "")))


def _uncounted(values: Mapping[str, object], schema: Schema, above: str) -> Iterator[str]:
    for name, value in values.items():
        key = schema.find(f"{above}.{name}".lstrip(".")) if "." not in name else None
        if key is None or key.removed or key.path in _NEVER_NAMED:
            continue
        if not isinstance(value, Mapping):
            if not _is_default(key, value):
                yield key.path
        else:
            yield from _of_section(value, schema, key)


def _of_section(section: Mapping[str, object], schema: Schema, key: SchemaKey) -> Iterator[str]:
    """One that is switched on as a whole is named as a whole, any other by its keys."""
    switch = schema.keys.get(f"{key.path}.enabled")
    if switch is not None and switch.path not in _COUNTED:
        if section.get("enabled", switch.default == "true"):
            yield key.path
    elif Kind.NULL in key.takes and not _has_counted(schema, key):
        # What is off until it is there: `zenflow`, even if empty.
        yield key.path
    else:
        yield from _uncounted(section, schema, key.path)


def _has_counted(schema: Schema, section: SchemaKey) -> bool:
    return any(key.path in _NEVER_NAMED for key in schema.children(section.path))


def _is_default(key: SchemaKey, value: object) -> bool:
    """Whether it changes nothing, or is for somebody else to fill in."""
    if value is None or value is False or value == "auto":
        return True
    return key.default is not None and json.loads(key.default) == value
