"""Each setting of a training step with another value than its default: what it changes is tested."""

from collections.abc import Mapping

from zerowiz.core.structs import replace
from zerowiz.core.workload import (
    Attention,
    Loss,
    Method,
    Optimizer,
    Precision,
    Reference,
    StateDtype,
    Trainer,
    Workload,
)

_PLAIN = Workload(sequence_tokens=256)
_BATCHED = replace(_PLAIN, micro_batch=2)
_ADAPTERS = replace(_PLAIN, method=Method.LORA)
_PAIRS = replace(_PLAIN, trainer=Trainer.DPO)
_GENERATED = replace(_PLAIN, trainer=Trainer.GRPO, completion_tokens=128)
_WITH_VLLM = replace(_GENERATED, vllm_memory_fraction=0.3)
_IN_FP32 = replace(_PLAIN, precision=Precision.FP32)

CHANGED: Mapping[str, tuple[Workload, Workload]] = {
    "micro_batch": (_PLAIN, replace(_PLAIN, micro_batch=2)),
    "sequence_tokens": (_PLAIN, replace(_PLAIN, sequence_tokens=512)),
    "accumulation_steps": (_PLAIN, replace(_PLAIN, accumulation_steps=4)),
    "precision": (_PLAIN, replace(_PLAIN, precision=Precision.FP32)),
    "torch_autocast": (_IN_FP32, replace(_IN_FP32, torch_autocast=Precision.BF16)),
    "optimizer": (_PLAIN, replace(_PLAIN, optimizer=Optimizer.LION)),
    "optimizer_state_dtype": (_PLAIN, replace(_PLAIN, optimizer_state_dtype=StateDtype.BF16)),
    "method": (_PLAIN, _ADAPTERS),
    "lora_rank": (_ADAPTERS, replace(_ADAPTERS, lora_rank=8)),
    "lora_target_modules": (_ADAPTERS, replace(_ADAPTERS, lora_target_modules=("q_proj",))),
    "gradient_checkpointing": (_PLAIN, replace(_PLAIN, gradient_checkpointing=True)),
    "attention": (_PLAIN, replace(_PLAIN, attention=Attention.EAGER)),
    "loss": (_PLAIN, replace(_PLAIN, loss=Loss.CHUNKED)),
    "packing": (_BATCHED, replace(_BATCHED, packing=True)),
    "trainer": (_PLAIN, _PAIRS),
    "reference": (_PAIRS, replace(_PAIRS, reference=Reference.PRECOMPUTED)),
    "completion_tokens": (_GENERATED, replace(_GENERATED, completion_tokens=64)),
    "generation_batch": (_GENERATED, replace(_GENERATED, generation_batch=64)),
    "vllm_memory_fraction": (_GENERATED, replace(_GENERATED, vllm_memory_fraction=0.3)),
    "vllm_sleeps": (_WITH_VLLM, replace(_WITH_VLLM, vllm_sleeps=True)),
    "eval_batch": (_PLAIN, replace(_PLAIN, eval_batch=8)),
    "sequence_parallel": (_PLAIN, replace(_PLAIN, sequence_parallel=2)),
}
"""By the setting: a step, and the same one with another value of it."""
