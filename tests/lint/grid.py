"""List every key of a config with values of the wrong kind, for each reader of a config."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerowiz.core.dsconfig.merge import BATCH_KEYS, ZERO
from zerowiz.core.dsconfig.schema import Schema, SchemaKey
from zerowiz.core.workload import Integration
from zerowiz.probe.files import read_ds_schema

KEPT = Path(__file__).with_name("grid.json")
"""The kinds of values with which a reader raises, by reader and key: `make truth` compares it."""
READERS = (Integration.DEEPSPEED, Integration.HF, Integration.ACCELERATE)
# What the Trainer and Accelerate look into; they hand on all else as it is.
LOOKED_AT = (
    *(
        *BATCH_KEYS,
        "gradient_clipping",
        "steps_per_print",
        "fp16",
        "bf16",
        "optimizer",
        "scheduler",
    ),
    *("zero_allow_untested_optimizer", f"{ZERO}.stage", f"{ZERO}.offload_"),
    *(f"{ZERO}.reduce_bucket_size", f"{ZERO}.overlap_comm", f"{ZERO}.stage3_prefetch_bucket_size"),
    *(f"{ZERO}.stage3_param_persistence", f"{ZERO}.stage3_gather_16bit"),
)
# Sections that no step of a plain model reads: the config class is asked alone.
NOT_TRAINED = frozenset(
    {
        *("activation_checkpointing", "aio", "autotuning", "checkpoint", "comet", "comms_logger"),
        *("compile", "compression_training", "csv_monitor", "data_efficiency", "datastates_ckpt"),
        *("elasticity", "expert_parallel", "flops_profiler", "hybrid_engine", "nebula", "pipeline"),
        *("tensor_parallel", "tensorboard", "timers", "wandb", "weight_quantization"),
    }
)
# Keys that the schema has as arguments of classes.
ARGUMENTS: Mapping[str, object] = {
    "optimizer.params.lr": 0.001,
    "optimizer.params.betas": [0.9, 0.999],
    "optimizer.params.eps": 1e-8,
    "optimizer.params.weight_decay": 0.01,
    "optimizer.params.torch_adam": False,
    "scheduler.params.warmup_min_lr": 0,
    "scheduler.params.warmup_max_lr": 0.001,
    "scheduler.params.warmup_num_steps": 1,
    "scheduler.params.warmup_type": "log",
    "scheduler.params.total_num_steps": 10,
}
# The Trainer compares these with its arguments, which can be any number.
COMPARED = frozenset(
    {
        *(*BATCH_KEYS, "gradient_clipping", "fp16.enabled", "bf16.enabled"),
        *(f"optimizer.params.{name}" for name in ("lr", "betas", "eps", "weight_decay")),
        *(f"scheduler.params.{name}" for name in ("warmup_max_lr", "warmup_num_steps")),
        "scheduler.params.total_num_steps",
    }
)
NUMBERS = frozenset({"boolean", "huge", "negative", "zero"})
# What a CPU does not have.
NEEDS_CUDA = frozenset(
    {
        "aio.use_gds",
        *(f"{ZERO}.zero_quantized_{name}" for name in ("weights", "nontrainable_weights")),
    }
)
OTHER_TRAINING = frozenset(
    {
        # DeepSpeed by itself drops the word, and trains in fp32, without ZeRO, or without clipping.
        *((key, "auto") for key in ("bf16.enabled", "fp16.enabled", f"{ZERO}.stage")),
        *((f"{ZERO}.offload_{part}.device", "auto") for part in ("optimizer", "param")),
        # The loss rises.
        ("optimizer.params.lr", "negative"),
        # No data set has so many samples.
        ("train_batch_size", "huge"),
    }
)
"""Keys and kinds of values with which something else trains than was asked for."""
STAGE_3 = ("stage3_", "offload_param", "zero_", "sub_group_size", "leaf_module", "max_", "param_")
HUGE = 1e20


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One key with one value, for one reader."""

    reader: Integration
    key: str
    kind: str
    config: Mapping[str, Any]

    @property
    def asked(self) -> str:
        """What is asked of `ask.py`."""
        is_trained = self.key.partition(".")[0] not in NOT_TRAINED
        return self.reader.value if is_trained else "config"

    @property
    def text(self) -> str:
        """The config."""
        return json.dumps(self.config)


def cells(schema: Schema) -> Iterator[Cell]:
    """Every cell of the table, those of a key and a reader one after the other."""
    known = {path: _right(key) for path, key in schema.keys.items() if path and not key.removed}
    for reader in READERS:
        for path, right in {**known, **ARGUMENTS}.items():
            if reader is Integration.DEEPSPEED or path.startswith(LOOKED_AT) or path == ZERO:
                for kind, value in _values(right).items():
                    is_compared = path in COMPARED and kind in NUMBERS
                    if path in NEEDS_CUDA or (is_compared and reader is Integration.HF):
                        continue
                    config = _with(_base(path, reader), path, value)
                    yield Cell(reader=reader, key=path, kind=kind, config=config)


def _right(key: SchemaKey) -> object:
    """A value that the key is meant to have."""
    value = None if key.default is None else json.loads(key.default)
    if value is None and key.choices:
        value = json.loads(key.choices[0])
    first = key.types[0] if key.types else "string"
    examples = {"boolean": True, "integer": 1, "number": 1.0, "array": [], "object": {}}
    return examples.get(first, "word") if value is None else value


def _values(right: object) -> Mapping[str, object]:
    switch, listed = isinstance(right, bool), isinstance(right, list)
    plain = str(right).lower() if switch else json.dumps(right)
    quoted = [str(item) for item in right] if isinstance(right, list) else plain
    word = isinstance(right, str | dict)
    return {
        "null": None,
        "quoted": "unheard-of" if word else "true" if switch else quoted,
        "boolean": 2 if switch else True,
        "huge": HUGE,
        "negative": -1,
        "zero": 0,
        "list": 1 if listed else [right],
        "auto": "auto",
    }


def _base(path: str, reader: Integration) -> dict[str, Any]:
    """A config that trains, in which the key of the path counts."""
    section, _, rest = path.partition(".")
    config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 2}
    config[ZERO] = {"stage": 3 if section == ZERO and rest.startswith(STAGE_3) else 2}
    if path == "train_batch_size":
        del config["train_micro_batch_size_per_gpu"]
    if section in {"fp16", "bf16"}:
        config[section] = {"enabled": True}
    if rest.startswith("offload_"):
        config[ZERO][rest.partition(".")[0]] = {"device": "cpu"}
    if section == "scheduler":
        total = "auto" if reader is Integration.HF else 10
        config[section] = {"type": "WarmupDecayLR", "params": {"total_num_steps": total}}
    if section in {"optimizer", "scheduler"} or (
        reader is Integration.DEEPSPEED and rest.startswith(("offload_", "cpu_offload"))
    ):
        config["optimizer"] = {"type": "AdamW", "params": {}}
    return config


def _with(config: dict[str, Any], path: str, value: object) -> Mapping[str, Any]:
    *sections, name = path.split(".")
    holder = config
    for section in sections:
        holder = holder.setdefault(section, {})
    holder[name] = value
    return config


CELLS = tuple(cells(read_ds_schema("0.19.8")))
"""Every cell of the table."""
