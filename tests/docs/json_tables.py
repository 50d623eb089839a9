"""The keys of a plan: type and meaning, of which the schemas are made.

A type is `str`, `int`, `number`, `bool`, `object` or the name of a part; `[X]` is a list of X, `{X}`
an object whose values are X, and `X?` may be null.
"""

from collections.abc import Mapping
from typing import Any

from zerowiz.core.workload import SETTINGS

Parts = Mapping[str, Mapping[str, tuple[str, str]]]

TYPES: Mapping[str, Mapping[str, str]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "number": {"type": "number"},
    "bool": {"type": "boolean"},
    "object": {"type": "object"},
}

_TIME = {
    "step_seconds": ("number?", "Predicted time of an optimizer step; null where none is."),
    "step_seconds_interval": ("Seconds?", "The bounds of that time."),
    "tokens_per_s": ("number?", "Tokens of all ranks together, divided by the time of a step."),
}
_SPLIT = {
    "micro_batch": ("int", "Sequences of a rank in one forward pass."),
    "accumulation_steps": ("int", "Micro-batches of an optimizer step."),
}
_SETTINGS = {
    "gradient_checkpointing": ("bool", "Whether forward is computed again in backward."),
    "attention": ("str", "The kernel of attention: `sdpa`, `eager`, `flash_attention_2` ..."),
    "loss": ("str", "How the loss holds its logits: `auto`, `chunked`, `liger` ..."),
}
# Those that a plan and a row do not both have.
_NAMED = ("optimizer_state_dtype", "method")
_STEP = {
    **{name: ("any", str(row.help)) for name, row in SETTINGS.items() if name not in _NAMED},
    **_SPLIT,
    "sequence_tokens": ("int", "Tokens of a sequence."),
    "precision": ("str", "Of forward and backward: `bf16`, `fp16`, `fp32`."),
    "torch_autocast": ("str?", "The precision of torch's autocast; null without it."),
    "optimizer": ("str", "The optimizer."),
    "lora_rank": ("int?", "The rank of the adapters; null without them."),
    "lora_target_modules": ("any", "The layers that get adapters."),
    **_SETTINGS,
    "packing": ("bool", "Whether several documents share a sequence."),
    "trainer": ("str", "What the trainer does: `sft`, `dpo`, `grpo` ..."),
    "reference": ("str?", "The reference model of the trainer; null where it has none."),
    "completion_tokens": ("int?", "Tokens that are generated for a prompt."),
    "generation_batch": ("int?", "Sequences that a rank generates at once."),
    "vllm_memory_fraction": ("number?", "The part of each GPU that vLLM takes."),
    "vllm_sleeps": ("bool?", "Whether vLLM frees its memory during training."),
    "eval_batch": ("int", "Sequences that a rank evaluates at once; 0: it does not evaluate."),
    "sequence_parallel": ("int", "GPUs of a node that share each sequence; 1: none do."),
}
_LINE = {
    "part": ("str", "What is held."),
    "phase": ("str", "The phase in which it is held."),
    "bytes": ("int", "Its size."),
    "formula": ("str", "How the size is worked out."),
}

PLAN: Parts = {
    "Plan": {
        "schema_version": ("int", "1."),
        "zerowiz_version": ("str", "The release of zerowiz that planned."),
        "machine": ("object", "A machine, as `machine --json` has it."),
        "model": ("Model", "The model that is trained."),
        "workload": ("Workload", "The training step."),
        "flowchart": ("[Answer]", "The questions that were asked, in their order."),
        "strategies": ("[Strategy]", "Each strategy with its prediction."),
        "chosen": ("str?", "The name of the chosen strategy; null where nothing fits."),
        "choice": ("Choice?", "The chosen strategy with its step; null where nothing fits."),
        "candidates": ("Candidates?", "What the choice was made among."),
        "limits": ("[Limit]?", "The largest step of each strategy; null without `--limits`."),
        "reasons": ("[str]", "Why the strategy was chosen, in words."),
        "remedies": ("[Remedy]", "Changes after which the job fits; empty where it fits."),
        "settled": ("[AddedWords]", "Settings that zerowiz adds after the script."),
        "config_path": ("str?", "The config of DeepSpeed; null where none is written."),
        "command": ("[str]?", "What starts the job; null where it is not known."),
        "env": ("{str}?", "Variables that are set for the job; null as `command`."),
    },
    "PlanFile": {
        "config": ("ConfigFile", "The config that the plan belongs to."),
        "plan_sha256": ("str", "SHA-256 of this file with an empty text here."),
        "reproduce": ("Command", "The command that makes the plan again."),
        "versions": ("{str?}", "The release of each library; null where it is not installed."),
    },
    "ConfigFile": {
        "name": ("str", "Its name, without the folder."),
        "sha256": ("str", "SHA-256 of its content. `launch` uses it to see an edit of yours."),
        "written": ("object", "The config as zerowiz wrote it, without your edits."),
    },
    "Command": {
        "shell": ("str", "The command as you can paste it."),
        "argv": ("[str]", "The same, a text for each word."),
    },
    "Model": {
        "name": ("str", "What you called it."),
        "params": ("int", "All its parameters."),
        "trainable_params": ("int", "Those that are trained, adapters included."),
        "source": ("str", "Where its shape is from: `config`, `size`, `trace` ..."),
    },
    "Workload": {
        **_STEP,
        "global_batch": ("int", "Sequences of an optimizer step, on all ranks."),
        "method": ("str", "`full`, `lora` or `qlora`."),
        "optimizer_state_dtype": ("str", "The format of the optimizer's states."),
        "accounting": ("str", "`real`, or `textbook` for the rule of thumb."),
    },
    "Answer": {
        "question": ("str", "The question's name: `fits_one_gpu`, `is_the_sequence` ..."),
        "answer": ("bool", "Whether the answer is yes."),
        "strategy": ("str?", "The strategy that the question is about."),
        "need_bytes": ("int?", "What that strategy takes of a GPU."),
        "have_bytes": ("int?", "What the GPU has for it."),
    },
    "Strategy": {
        "name": ("str", "Such as `zero2`."),
        "stage": ("int", "ZeRO's stage: 0 to 3."),
        "offload": ("str", "`none`, `optimizer`, `all` or `nvme`."),
        "verdict": ("str", "`fits`, `tight`, `uncertain` or `does_not_fit`."),
        "settled_by": ("str?", "What would show whether an `uncertain` strategy fits."),
        "ran_out": ("object?", "The attempt that ran out of memory; null where none did."),
        "gpu": ("GpuMemory", "The memory of one rank's GPU."),
        "buffers": ("[Buffer]", "The sizes that the config sets, and what they take."),
        "host": ("HostMemory", "The memory of all ranks of a node together."),
        **_TIME,
        "step_terms": ("[Term]?", "The parts of the time of a step."),
        "wire_bytes_per_step": ("int", "What a rank sends in an optimizer step."),
    },
    "GpuMemory": {
        "peak_bytes": ("int", "The most that torch has allocated: the largest of `phases`."),
        "interval": ("Bytes?", "The bounds of that peak; null for `textbook`."),
        "device_bytes": ("int", "The peak, and what the job takes beside torch's allocator."),
        "high_device_bytes": ("int", "The same with the upper bound of the peak."),
        "vllm_bytes": ("int?", "What a vLLM on the same GPU takes; null without one."),
        "budget_bytes": ("int?", "What the job may take of the GPU."),
        "headroom_bytes": ("int?", "What is left of that; negative where it does not fit."),
        "peak_phase": ("str", "The phase with the peak."),
        "phases": ("{int}", "The most that is held in each phase."),
        "first_iteration": ("{int}?", "The same in the first iteration; null for `textbook`."),
        "lines": ("[Line]", "What is held at the peak of each phase."),
    },
    "HostMemory": {
        "peak_bytes": ("int", "The most that is held: the largest of `phases`."),
        "budget_bytes": ("int?", "What the job may take of the host."),
        "peak_phase": ("str", "The phase with the peak."),
        "phases": ("{int}", "The most that is held in each phase."),
        "lines": ("[Line]", "What is held in each phase."),
    },
    "Line": _LINE,
    "Bytes": {
        "low_bytes": ("int", "The lower bound."),
        "expected_bytes": ("int", "The prediction."),
        "high_bytes": ("int", "The upper bound."),
        "assumptions": ("[str]", "What the prediction assumes."),
        "heaviest_bytes": ("int?", "For a size: the most that a model of it takes."),
        "uncounted": ("[str]", "What the prediction does not count."),
        "never_measured_together": ("[object]", "Pairs of settings that no measured run had."),
    },
    "Seconds": {
        "low_seconds": ("number", "The lower bound."),
        "expected_seconds": ("number", "The prediction."),
        "high_seconds": ("number", "The upper bound."),
        "calibrated": ("bool", "Whether steps measured on this machine scale it."),
    },
    "Term": {
        "part": ("str", "What the time is for: `matrix_products`, `exchange` ..."),
        "seconds": ("number", "What it adds to the step."),
        "formula": ("str", "How it is worked out."),
    },
    "Buffer": {
        "key": ("str", "The key in `zero_optimization`."),
        "value": ("int", "Its value, in elements."),
        "bytes": ("int", "What the value takes of a GPU."),
    },
    "Choice": {
        "strategy": ("str", "The strategy's name."),
        "offload": ("str", "As of a strategy."),
        **_SPLIT,
        **_SETTINGS,
        "verdict": ("str", "As of a strategy."),
        "headroom_bytes": ("int?", "What is left of the GPU's budget."),
        **_TIME,
    },
    "Candidates": {
        "objective": ("str", "`flowchart`, `fastest` or `smallest`."),
        "count": ("int", "How many candidates there were."),
        "pareto": ("[Choice]", "Those that no other beats in both time and memory."),
        "clearly_faster": ("Choice?", "One that is at least 10 % faster than the flowchart's."),
    },
    "Limit": {
        "strategy": ("str", "The strategy's name."),
        "gradient_checkpointing": ("bool", "With it, or without."),
        "micro_batch": ("int", "The largest micro-batch that surely fits."),
        "sequence_tokens": ("int", "The longest sequence that surely fits."),
        "by_positions": ("bool", "Whether the positions of the model end it, not memory."),
    },
    "Remedy": {
        "change": ("object", "The options to type, with their values."),
        "strategy": ("str", "The strategy that it leads to."),
        "verdict": ("str", "The verdict on that one."),
        "frees_bytes": ("int", "What it frees of each GPU."),
        "device_bytes": ("int", "What the job then takes of each GPU."),
        "budget_bytes": ("int", "What it may take."),
        "step_seconds": ("number?", "The time of a step then."),
        "time_fraction": ("number?", "The time of a token, divided by that of today's job."),
        "costs": ("[str]", "What it costs besides time."),
        "more_host_bytes": ("int?", "The memory to add to each node; null where none is."),
        "global_batch": ("int?", "Of the script, on other GPUs; null where it stays."),
        "edit": ("str?", "What to change in the script first."),
    },
    "AddedWords": {
        "setting": ("str", "The setting's name."),
        "value": ("any", "Its value."),
        "words": ("[str]", "The words that tell the script."),
    },
}


def schema_of(said: str) -> dict[str, Any]:
    """The JSON Schema of a type."""
    if said.startswith("["):
        inner, _, optional = said[1:].rpartition("]")
        schema: dict[str, Any] = {"type": "array", "items": schema_of(inner)}
    elif said.startswith("{"):
        inner, _, optional = said[1:].rpartition("}")
        schema = {"type": "object", "additionalProperties": schema_of(inner)}
    else:
        name, optional = said.rstrip("?"), "?" if said.endswith("?") else ""
        schema = {} if name == "any" else dict(TYPES.get(name, {"$ref": f"#/$defs/{name}"}))
    return {"anyOf": [schema, {"type": "null"}]} if optional else schema


def definitions(parts: Parts) -> dict[str, Any]:
    """The `$defs` of these parts; every key is there, and others may come."""
    return {
        name: {
            "type": "object",
            "properties": {
                key: {**schema_of(said), "description": meaning}
                for key, (said, meaning) in keys.items()
            },
            "required": [*keys],
        }
        for name, keys in parts.items()
    }
