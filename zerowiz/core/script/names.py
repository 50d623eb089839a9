"""The names that libraries have for values of settings."""

from collections.abc import Mapping

from zerowiz.core.script.options import Scalar
from zerowiz.core.workload.choices import Attention, Loss, Optimizer, Precision

# transformers 5.23, training_args.py, class OptimizerNames: those whose states the ledger counts.
TRAINER_OPTIMIZERS: Mapping[Scalar, Optimizer] = {
    "adamw_torch": Optimizer.ADAMW,
    "adamw_torch_fused": Optimizer.ADAMW,
    "adamw_torch_xla": Optimizer.ADAMW,
    "adamw_torch_npu_fused": Optimizer.ADAMW,
    # Before transformers 5.
    "adamw_hf": Optimizer.ADAMW,
    "adamw_apex_fused": Optimizer.ADAMW,
    # bitsandbytes' paged states are as large; that some are moved to the host is not counted.
    "paged_adamw_32bit": Optimizer.ADAMW,
    "paged_adamw": Optimizer.ADAMW,
    "adamw_8bit": Optimizer.ADAMW_8BIT,
    "adamw_bnb_8bit": Optimizer.ADAMW_8BIT,
    "adamw_torch_8bit": Optimizer.ADAMW_8BIT,
    "paged_adamw_8bit": Optimizer.ADAMW_8BIT,
    "adafactor": Optimizer.ADAFACTOR,
    "lion_32bit": Optimizer.LION,
    "lion": Optimizer.LION,
    "paged_lion_32bit": Optimizer.LION,
    "sgd": Optimizer.SGD,
}
OPTIMIZERS: Mapping[Scalar, Optimizer] = {
    **TRAINER_OPTIMIZERS,
    # The classes that a script builds in its own loop.
    "Adam": Optimizer.ADAMW,
    "AdamW": Optimizer.ADAMW,
    "FusedAdam": Optimizer.ADAMW,
    "DeepSpeedCPUAdam": Optimizer.ADAMW,
    "Adam8bit": Optimizer.ADAMW_8BIT,
    "AdamW8bit": Optimizer.ADAMW_8BIT,
    "PagedAdamW8bit": Optimizer.ADAMW_8BIT,
    "PagedAdamW32bit": Optimizer.ADAMW,
    "Adafactor": Optimizer.ADAFACTOR,
    "Lion": Optimizer.LION,
    "FusedLion": Optimizer.LION,
    "DeepSpeedCPULion": Optimizer.LION,
    "SGD": Optimizer.SGD,
}
# transformers 5.23, modeling_utils.py: the names `attn_implementation` accepts.
ATTENTIONS: Mapping[Scalar, Attention] = {
    "sdpa": Attention.SDPA,
    "eager": Attention.EAGER,
    "flash_attention_2": Attention.FLASH,
    "flash_attention_3": Attention.FLASH,
}
# transformers 5.23, training_args.py, `use_liger_kernel`.
LOSSES: Mapping[Scalar, Loss] = {True: Loss.LIGER, False: Loss.PLAIN}
# accelerate 1.x, utils/dataclasses.py, PrecisionType. With `no` DeepSpeed trains as its config says
# (DeepSpeedPlugin.set_mixed_precision), and the config says what the script does.
MIXED_PRECISIONS: Mapping[Scalar, Precision] = {
    "bf16": Precision.BF16,
    "fp16": Precision.FP16,
    "no": Precision.FP32,
}
# trl 1.16, trainer/grpo_config.py, `vllm_mode`.
COLOCATED, SERVER = "colocate", "server"
