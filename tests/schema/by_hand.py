"""What no config model of DeepSpeed tells of a key: written by hand, a source over each group."""

from collections.abc import Mapping
from dataclasses import dataclass

BOOLEAN, INTEGER, NUMBER, STRING = ("boolean",), ("integer",), ("number",), ("string",)
ARRAY, OBJECT = ("array",), ("object",)
NULL = ("null",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """What is known of a key beside what DeepSpeed's own config class tells."""

    types: tuple[str, ...] = ()
    choices: tuple[object, ...] = ()
    bounds: Mapping[str, int] | None = None
    alias: str | None = None
    free: bool = False
    """A section whose keys are the reader's own."""
    read_in: str | None = None
    """The file that reads a key that the config class never asks for."""
    default: object = None
    """Of such a key."""
    about: str | None = None


DTYPES = ("fp32", "fp16", "bf16")

# runtime/config.py, DtypeEnum: the names of each dtype.
DTYPE_NAMES = tuple(
    name
    for short, *others in (
        ("fp16", "float16", "half"),
        ("fp32", "float32", "float"),
        ("int8",),
        ("bf16", "bfloat16"),
    )
    for name in (short, *others, f"torch.{others[0] if others else short}")
)

CONSTANTS, PIPE = "runtime/constants.py", "runtime/pipe/engine.py"
PIPE_DEFAULTS = "runtime/config.py"
PIPELINE = "runtime/data_pipeline/constants.py"
ELASTIC = "elasticity/constants.py"
CURRICULUM = "data_efficiency.data_sampling.curriculum_learning"
RANDOM_LTD = "data_efficiency.data_routing.random_ltd"

FACTS: Mapping[str, Fact] = {
    # runtime/config.py, _configure_train_batch_size: micro x accumulation x ranks.
    "train_batch_size": Fact(
        types=INTEGER,
        bounds={"gt": 0},
        about="Samples of one optimizer step over all ranks: micro-batch x accumulation x ranks.",
    ),
    "train_micro_batch_size_per_gpu": Fact(
        types=INTEGER, bounds={"gt": 0}, about="Samples of one forward pass on one rank."
    ),
    "gradient_accumulation_steps": Fact(
        types=INTEGER,
        bounds={"gt": 0},
        about="Micro-batches whose gradients are summed before an optimizer step.",
    ),
    # runtime/constants.py, the comment over each name.
    "steps_per_print": Fact(
        types=(*INTEGER, *NULL), about="Optimizer steps between two progress lines."
    ),
    "gradient_clipping": Fact(
        types=NUMBER, about="The norm that gradients are clipped to; 0 switches it off."
    ),
    "log_level": Fact(types=(*STRING, *NULL)),
    "vocabulary_size": Fact(
        types=(*INTEGER, *NULL), about="Only warned about when no multiple of 8."
    ),
    "prescale_gradients": Fact(about="Divide the gradients before they are reduced, not after."),
    "gradient_predivide_factor": Fact(
        types=NUMBER, about="What gradients are divided by before the reduction, if prescaled."
    ),
    "wall_clock_breakdown": Fact(
        about="Time forward, backward and step; each is then synchronized."
    ),
    "memory_breakdown": Fact(about="Print the memory of the device at each phase of a step."),
    "dump_state": Fact(about="Print the state of the engine once it is built."),
    "zero_allow_untested_optimizer": Fact(
        about="Let ZeRO take an optimizer that DeepSpeed has not tested it with."
    ),
    "zero_force_ds_cpu_optimizer": Fact(
        about="Refuse an offloaded optimizer that is not DeepSpeed's own for the CPU."
    ),
    "dataloader_drop_last": Fact(about="Leave out the last batch of an epoch if it is not full."),
    "disable_allgather": Fact(about="Do not gather the parameters after a step."),
    # runtime/config.py, get_communication_data_type: lower-cased, then compared.
    "communication_data_type": Fact(
        types=(*STRING, *NULL),
        choices=DTYPES,
        about="What gradients are reduced in; by default what they are computed in.",
    ),
    "seq_parallel_communication_data_type": Fact(types=STRING, choices=DTYPES),
    # runtime/constants.py, GRADIENT_ALLREDUCE_OP_SUPPORTED.
    "gradient_allreduce_op": Fact(types=STRING, choices=("mean", "sum")),
    # __init__.py, initialize; compile/custom_ops/sp_dp_registry.py, extract_mesh_size.
    "sequence_parallel_size": Fact(
        types=INTEGER, read_in="__init__.py", about="Ranks that share one sequence."
    ),
    "data_parallel_size": Fact(
        types=INTEGER, read_in="__init__.py", about="Ranks that do not share a sequence."
    ),
    # runtime/zero/config.py, read_zero_config_deprecated: only with `"zero_optimization": true`.
    "allgather_size": Fact(
        types=NUMBER,
        read_in="runtime/zero/config.py",
        default=500000000,
        about="Read only beside `zero_optimization: true`; use `allgather_bucket_size` in it.",
    ),
    # runtime/zero/config.py, get_zero_config: `true` is stage 1.
    "zero_optimization": Fact(types=(*OBJECT, *BOOLEAN)),
    # runtime/precision_config.py, get_bfloat16_config; runtime/config.py in older versions.
    "bf16": Fact(types=OBJECT, alias="bfloat16"),
    "bf16.immediate_grad_update": Fact(types=BOOLEAN),
    "fp16": Fact(types=OBJECT),
    "fp16.enabled": Fact(types=BOOLEAN, about="Train in fp16, with loss scaling."),
    # runtime/precision_config.py, _validate_loss_scale.
    "fp16.loss_scale": Fact(types=NUMBER, bounds={"ge": 0}, about="0 scales the loss dynamically."),
    # runtime/config.py, get_dynamic_loss_scale_args, before fp16 was a model.
    "fp16.loss_scale_window": Fact(types=INTEGER, read_in=CONSTANTS, default=1000),
    "fp16.hysteresis": Fact(types=INTEGER, read_in=CONSTANTS, default=2),
    "fp16.consecutive_hysteresis": Fact(types=BOOLEAN, read_in=CONSTANTS, default=False),
    "fp16.min_loss_scale": Fact(types=INTEGER, read_in=CONSTANTS, default=1),
    # ops/adam, ops/lamb, torch.optim: the arguments of the class that `type` names.
    "optimizer": Fact(about="The optimizer to build when the script passes none."),
    "optimizer.type": Fact(
        types=STRING, about="A name of DeepSpeed's, or of a class of torch.optim."
    ),
    "optimizer.params": Fact(
        types=OBJECT, free=True, read_in=CONSTANTS, about="What its class takes."
    ),
    "optimizer.legacy_fusion": Fact(types=BOOLEAN),
    "scheduler": Fact(about="The learning-rate schedule to build when the script passes none."),
    "scheduler.type": Fact(types=STRING, about="A class of deepspeed.runtime.lr_schedules."),
    "scheduler.params": Fact(types=OBJECT, free=True, about="What its class takes."),
    # runtime/pipe/engine.py; the defaults are those of runtime/config.py, get_pipeline_config.
    "pipeline": Fact(types=OBJECT),
    "pipeline.stages": Fact(types=(*STRING, *INTEGER), read_in=PIPE_DEFAULTS, default="auto"),
    "pipeline.partition": Fact(types=STRING, read_in=PIPE_DEFAULTS, default="best"),
    "pipeline.seed_layers": Fact(types=BOOLEAN, read_in=PIPE_DEFAULTS, default=False),
    "pipeline.activation_checkpoint_interval": Fact(types=INTEGER, read_in=PIPE, default=0),
    "pipeline.pipe_partitioned": Fact(types=BOOLEAN, read_in=PIPE, default=True),
    "pipeline.grad_partitioned": Fact(types=BOOLEAN, read_in=PIPE, default=True),
    "pipeline.use_reentrant": Fact(types=BOOLEAN, read_in=PIPE, default=True),
    # runtime/activation_checkpointing/config.py.
    "activation_checkpointing": Fact(
        about="For deepspeed.checkpointing alone; a Hugging Face model never reads it."
    ),
    "activation_checkpointing.number_checkpoints": Fact(types=(*INTEGER, *NULL)),
    # runtime/config.py, get_checkpoint_parallel_write_pipeline.
    "checkpoint.parallel_write.pipeline_stage": Fact(bounds={"ge": 0, "le": 1}),
    # runtime/model_checkpointing/constants.py, the lists of allowed values.
    "checkpoint.tag_validation": Fact(types=STRING, choices=("WARN", "IGNORE", "FAIL")),
    "checkpoint.writer": Fact(types=(*OBJECT, *NULL)),
    "checkpoint.writer.type": Fact(types=STRING, choices=("MOCK", "PYTHON", "FAST")),
    "checkpoint.writer.data_parallel": Fact(
        types=(*STRING, *NULL), choices=("REPLICA", "SOCKET", "MACHINE")
    ),
    # runtime/config.py, DtypeEnum; the engine asks it, not the config class.
    "data_types.grad_accum_dtype": Fact(types=(*STRING, *NULL)),
    "data_types.param_dtype": Fact(types=(*STRING, *NULL)),
    "data_types.buffer_dtype": Fact(types=(*STRING, *NULL)),
    "data_types.keep_in_fp32_modules": Fact(types=(*STRING, *ARRAY)),
    "torch_autocast.dtype": Fact(types=STRING, choices=DTYPE_NAMES),
    "torch_autocast.lower_precision_safe_modules": Fact(types=ARRAY),
    # profiling/config.py.
    "flops_profiler.output_file": Fact(types=(*STRING, *NULL)),
    "flops_profiler.recompute_fwd_factor": Fact(types=NUMBER),
    # autotuning/config.py and constants.py.
    "autotuning.metric_path": Fact(types=(*STRING, *NULL)),
    "autotuning.arg_mappings": Fact(types=(*OBJECT, *NULL), free=True),
    "autotuning.max_train_batch_size": Fact(types=(*INTEGER, *NULL)),
    "autotuning.model_info_path": Fact(types=(*STRING, *NULL)),
    "autotuning.model_info": Fact(types=(*OBJECT, *NULL)),
    "autotuning.model_info.hidden_size": Fact(types=(*INTEGER, *NULL)),
    "autotuning.model_info.num_layers": Fact(types=(*INTEGER, *NULL)),
    "autotuning.model_info.num_params": Fact(types=(*INTEGER, *NULL)),
    # datastates/config.py: handed on as it is.
    "datastates_ckpt": Fact(types=(*OBJECT, *BOOLEAN, *NULL), free=True),
    # module_inject/auto_ep_config.py, AutoEPConfig.
    "expert_parallel.preset_model": Fact(types=(*STRING, *NULL)),
    "expert_parallel.moe_layer_pattern": Fact(types=(*STRING, *NULL)),
    "expert_parallel.expert_pattern": Fact(types=(*STRING, *NULL)),
    "expert_parallel.router_pattern": Fact(types=(*STRING, *NULL)),
    "expert_parallel.route_norm": Fact(types=(*BOOLEAN, *NULL)),
    "expert_parallel.route_scale": Fact(types=NUMBER),
    "expert_parallel.num_expert_groups": Fact(types=(*INTEGER, *NULL)),
    "expert_parallel.num_limited_groups": Fact(types=(*INTEGER, *NULL)),
    "expert_parallel.top_k": Fact(types=(*STRING, *INTEGER)),
    "expert_parallel.routed_scaling_factor": Fact(types=(*STRING, *NUMBER)),
    "expert_parallel.load_balance_coeff": Fact(
        types=(*NUMBER, *NULL), about="Only `null` is supported."
    ),
    "expert_parallel.expert_w1": Fact(types=(*STRING, *NULL)),
    "expert_parallel.expert_w2": Fact(types=(*STRING, *NULL)),
    "expert_parallel.expert_w3": Fact(types=(*STRING, *NULL)),
    "expert_parallel.num_experts_attr": Fact(types=(*STRING, *NULL)),
    "expert_parallel.top_k_attr": Fact(types=(*STRING, *NULL)),
    "expert_parallel.has_shared_experts": Fact(types=(*BOOLEAN, *NULL)),
    "expert_parallel.shared_experts_pattern": Fact(types=(*STRING, *NULL)),
    "expert_parallel.shared_experts_gate_pattern": Fact(types=(*STRING, *NULL)),
    "expert_parallel.expert_activation": Fact(types=(*STRING, *NULL)),
    # runtime/data_pipeline/config.py and constants.py; the sampler reads the rest by name.
    "data_efficiency.data_sampling.dynamic_batching.max_batch_size": Fact(types=INTEGER),
    "data_efficiency.data_sampling.dynamic_batching.max_tokens": Fact(types=INTEGER),
    "data_efficiency.data_sampling.dynamic_batching.metrics_path": Fact(
        types=STRING, read_in=PIPELINE
    ),
    f"{CURRICULUM}.curriculum_metrics": Fact(types=OBJECT, free=True),
    f"{CURRICULUM}.data_cluster_path": Fact(types=STRING, read_in=PIPELINE),
    f"{RANDOM_LTD}.total_layer_num": Fact(types=INTEGER, read_in=PIPELINE),
    f"{RANDOM_LTD}.random_ltd_layer_num": Fact(types=INTEGER, read_in=PIPELINE),
    f"{RANDOM_LTD}.random_ltd_layer_id": Fact(types=ARRAY, read_in=PIPELINE),
    f"{RANDOM_LTD}.model_mask_name": Fact(types=(*STRING, *NULL), read_in=PIPELINE),
    f"{RANDOM_LTD}.model_type": Fact(types=STRING, read_in=PIPELINE),
    f"{RANDOM_LTD}.hidden_state_order": Fact(types=STRING, read_in=PIPELINE),
    f"{RANDOM_LTD}.random_ltd_schedule": Fact(types=OBJECT, free=True, read_in=PIPELINE),
    f"{RANDOM_LTD}.layer_token_lr_schedule": Fact(types=OBJECT, free=True, read_in=PIPELINE),
    f"{RANDOM_LTD}.micro_batch_size": Fact(types=INTEGER, read_in=PIPELINE),
    f"{RANDOM_LTD}.global_batch_size": Fact(types=INTEGER, read_in=PIPELINE),
    # runtime/zenflow/zenflow_config.py, validate_fields.
    "zero_optimization.zenflow.select_strategy": Fact(choices=("auto", "step", "epoch")),
    "zero_optimization.zenflow.update_interval": Fact(bounds={"ge": 1}),
    # The sections below are of older versions: handed on, or read only when enabled.
    # runtime/config.py, get_amp_params: the arguments of apex.amp.initialize.
    "amp": Fact(types=OBJECT, free=True, about="Arguments of NVIDIA Apex's amp.initialize."),
    "amp.enabled": Fact(types=BOOLEAN),
    # compression/config.py: groups of layers, named by the user.
    "compression_training": Fact(types=OBJECT, free=True),
    "quantize_training": Fact(types=OBJECT, free=True),
    # runtime/data_pipeline/config.py, get_curriculum_params_legacy.
    "curriculum_learning": Fact(types=OBJECT, free=True),
    "curriculum_learning.enabled": Fact(types=BOOLEAN),
    # runtime/config.py, get_pld_params.
    "progressive_layer_drop": Fact(types=OBJECT, free=True),
    "progressive_layer_drop.enabled": Fact(types=BOOLEAN),
    # runtime/config.py, get_sparse_attention: which keys count depends on `mode`.
    "sparse_attention": Fact(types=OBJECT, free=True),
    "sparse_attention.mode": Fact(
        types=STRING, choices=("dense", "fixed", "variable", "bigbird", "bslongformer")
    ),
    # runtime/config.py, get_eigenvalue_config: read only beside `quantize_training`.
    "eigenvalue": Fact(types=OBJECT, free=True),
    # elasticity/config.py, ElasticityConfig; read only when enabled.
    "elasticity": Fact(types=OBJECT),
    "elasticity.max_train_batch_size": Fact(types=INTEGER),
    "elasticity.micro_batch_sizes": Fact(types=ARRAY, read_in=ELASTIC),
    "elasticity.min_gpus": Fact(types=INTEGER, read_in=ELASTIC, default=1),
    "elasticity.max_gpus": Fact(types=INTEGER, read_in=ELASTIC, default=10000),
    "elasticity.num_gpus_per_node": Fact(types=INTEGER, read_in=ELASTIC, default=1),
    "elasticity.model_parallel_size": Fact(types=INTEGER, read_in=ELASTIC, default=1),
    "elasticity.min_time": Fact(types=INTEGER, read_in=ELASTIC, default=0),
    "elasticity.version": Fact(types=NUMBER, read_in=ELASTIC, default=0.2),
    "elasticity.prefer_larger_batch": Fact(types=BOOLEAN, read_in=ELASTIC, default=True),
    "elasticity.ignore_non_elastic_batch_info": Fact(types=BOOLEAN, read_in=ELASTIC, default=False),
    # nebula/config.py.
    "nebula.nebula_load_path": Fact(types=(*STRING, *NULL)),
    "nebula.persistent_storage_path": Fact(types=(*STRING, *NULL)),
}
