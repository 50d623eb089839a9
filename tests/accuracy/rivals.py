"""Ask DeepSpeed's own estimators and `accelerate estimate-memory` about the measured runs."""

import contextlib
import io
from argparse import Namespace
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from accuracy.records import Record
from measured.rows import OPTIMIZERS, Row, read_every_row
from measured.traces import folder_of, model_of

from zerowiz.core.structs import replace
from zerowiz.core.workload import Optimizer

# accelerate/commands/estimate.py, estimate_command_parser: it has no bfloat16, which counts alike.
_DTYPES = {"bf16": "float16", "fp16": "float16", "fp32": "float32"}


@cache
def _largest_layer_params(model: str) -> int:
    """deepspeed/runtime/zero/stage3.py, model_to_params, on a model without memory."""
    import torch
    import transformers
    from deepspeed.runtime.zero.stage3 import model_to_params

    config = transformers.AutoConfig.from_pretrained(folder_of(model))
    (name,) = config.architectures or ("AutoModel",)
    named = getattr(transformers, name)
    with torch.device("meta"):
        empty = named.from_config(config) if name == "AutoModel" else named(config)
    return int(model_to_params(empty)[1])


def _ask_deepspeed(record: Record, row: Row) -> int | None:
    """What `estimate_zeroN_model_states_mem_needs_all_cold` prints per GPU, before it rounds.

    deepspeed/runtime/zero/stage_1_and_2.py and stage3.py, estimate_zeroN_model_states_mem_needs.
    Stages 0 and 1 have no estimator.
    """
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    stage, _, offload = record.strategy.partition("-")
    asked: dict[str, Any] = {
        "total_params": model_of(row).params,
        "num_gpus_per_node": record.gpus,
        "cpu_offload": bool(offload),
    }
    if stage == "zero2":
        return int(estimate_zero2_model_states_mem_needs(**asked)[1])
    if stage == "zero3":
        asked |= {
            "largest_layer_params": _largest_layer_params(record.model),
            "cpu_offload_params": record.strategy == "zero3-offload",
        }
        return int(estimate_zero3_model_states_mem_needs(**asked)[1])
    return None


@cache
def _ask_accelerate(model: str, dtype: str) -> int:
    """What `accelerate estimate-memory` prints below "Training using Adam", before it rounds.

    accelerate/commands/estimate.py: gather_data (create_empty_model, calculate_maximum_sizes,
    estimate_training_usage); estimate_command prints the largest of the parts. The command looks
    the model up on the hub first; here a folder of the tests stands for it.
    """
    from accelerate.commands import estimate

    asked = Namespace(
        model_name=str(folder_of(model)),
        library_name="transformers",
        trust_remote_code=False,
        dtypes=[dtype],
    )
    on_hub, estimate.verify_on_hub = estimate.verify_on_hub, lambda *_: SimpleNamespace(config={})
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            ((_, _, _, usage),) = estimate.gather_data(asked)
    finally:
        estimate.verify_on_hub = on_hub
    return int(max(usage.values()))


def _is_theirs(row: Row) -> bool:
    """Both count the whole model under Adam."""
    adam = OPTIMIZERS.get(row["optimizer"], Optimizer.ADAMW) is Optimizer.ADAMW
    return adam and row["kind"] != "forward_backward" and row["lora_rank"] is None


def with_rivals(records: Sequence[Record]) -> tuple[Record, ...]:
    """The same records with what the rivals say."""
    rows = {(row["file"], row["id"]): row for row in read_every_row()}
    return tuple(
        replace(
            record,
            deepspeed_bytes=_ask_deepspeed(record, row),
            accelerate_bytes=_ask_accelerate(record.model, _DTYPES[row["precision"]]),
        )
        if record.measured_bytes and record.family and _is_theirs(row := rows[record.key])
        else record
        for record in records
    )


def rivals_versions() -> dict[str, str]:
    """Whose figures these are."""
    import accelerate
    import deepspeed
    import transformers

    named = {"DeepSpeed": deepspeed, "accelerate": accelerate, "transformers": transformers}
    return {name: library.__version__ for name, library in named.items()}
