"""Ask the command line about a measured run, as a person would have before it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accuracy.records import why_unpredicted
from measured.rows import Row, read_every_row, strategy_of, workload_of
from paths import TESTS
from recorded import described

from zerowiz.core.workload import Trainer

STEPS: Mapping[bool, str] = {
    True: "--gradient-checkpointing",
    False: "--no-gradient-checkpointing",
}
PACKING: Mapping[bool, str] = {True: "--packing", False: "--no-packing"}

# A run under a cap is the twin of one without.
ROWS = [
    row
    for row in read_every_row()
    if row["kind"] != "forward_backward"
    and row["memory_cap_bytes"] is None
    and why_unpredicted(row) is None
]


def config_of(row: Row) -> dict[str, Any]:
    """The ds_config that the run had."""
    zero = {**row["zero_optimization"], "stage": row["stage"]}
    precision = {} if row["precision"] == "fp32" else {row["precision"]: {"enabled": True}}
    dtype = "bfloat16" if row.get("torch_autocast") == "bf16" else None
    autocast = {"torch_autocast": {"enabled": True, "dtype": dtype}} if dtype else {}
    halves = {"bf16": {"enabled": True, **row["bf16"]}} if row["bf16"] else {}
    return {
        "train_micro_batch_size_per_gpu": row["micro_batch"],
        "gradient_accumulation_steps": row["accumulation_steps"],
        "zero_optimization": zero,
        **precision,
        **autocast,
        **halves,
    }


def words_of(row: Row, folder: Path) -> list[str]:
    """How a person would ask for the run."""
    workload = workload_of(row)
    words = ["--json", "--machine", described(f"h200-x{row['gpus']}", folder)]
    words += ["--model", str(TESTS / "models" / row["model"])]
    words += ["--micro-batch", str(row["micro_batch"]), "--seq-len", str(row["sequence_tokens"])]
    words += ["--grad-accum", str(row["accumulation_steps"]), "--precision", row["precision"]]
    words += ["--attention", row["attention"], STEPS[row["gradient_checkpointing"]]]
    words += ["--optimizer", workload.optimizer.value, "--method", workload.method.value]
    words += ["--loss", workload.loss.value, PACKING[workload.packing]]
    if row["lora_rank"] is not None:
        words += ["--lora-rank", str(row["lora_rank"])]
        words += ["--lora-target-modules", workload.lora_targets]
    if workload.trainer is not Trainer.SFT:
        words += ["--trainer", workload.trainer.value]
        words += ["--reference", workload.reference.value] if workload.reference else []
    if workload.trainer.row.generates:
        words += ["--completion-tokens", str(workload.completion_tokens)]
    config = folder / f"{row['id']}.json"
    config.write_text(json.dumps(config_of(row)), encoding="utf-8")
    return [*words, "--config", str(config)]


def said_of(row: Row, stdout: str) -> int:
    """The peak of the run's own strategy."""
    strategies = json.loads(stdout)["strategies"]
    own = next(strategy for strategy in strategies if strategy["name"] == strategy_of(row).name)
    peak_bytes: int = own["gpu"]["peak_bytes"]
    return peak_bytes
