"""Read the measured runs, and turn one into what the estimator is asked."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from zerowiz.core.buffers import Buffers
from zerowiz.core.hfconfig import model_from_config
from zerowiz.core.ledger import Estimate
from zerowiz.core.memory import estimate
from zerowiz.core.model import Model
from zerowiz.core.ownconfig import read_own_config
from zerowiz.core.strategy import LADDER, Offload, Strategy
from zerowiz.core.workload import Attention, Precision, StateDtype, Workload

Row = Mapping[str, Any]

_HERE = Path(__file__).parent

# One line of zerowiz stands for each of these; `foreach` copies lists of tensors during its step.
FUSED = frozenset({"torch AdamW fused=True", "FusedAdam", "DeepSpeedCPUAdam"})


@cache
def read_rows() -> tuple[Row, ...]:
    """Every run, in the order of the file."""
    lines = (_HERE / "h200.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line) for line in lines)


def engine_rows() -> list[Row]:
    """The `deepspeed.initialize` runs whose optimizer the workload can express."""
    return [
        row
        for row in read_rows()
        if row["kind"] == "engine" and (row["optimizer"] in FUSED or row["bf16"])
    ]


@cache
def read_config(name: str) -> Mapping[str, Any]:
    """A config.json of tests/models."""
    path = _HERE.parent / "models" / name / "config.json"
    config: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return config


@cache
def read_model(name: str) -> Model:
    """A model of tests/models."""
    return model_from_config(name, read_config(name))


def workload_of(row: Row) -> Workload:
    """What the run trained."""
    return Workload(
        micro_batch=row["micro_batch"],
        sequence_tokens=row["sequence_tokens"],
        accumulation_steps=row["accumulation_steps"],
        precision=Precision(row["precision"]),
        gradient_checkpointing=row["gradient_checkpointing"],
        attention=Attention(row["attention"]),
        optimizer_state_dtype=StateDtype.BF16 if row["bf16"] else StateDtype.FP32,
    )


def strategy_of(row: Row) -> Strategy:
    """The rung that the run stood on."""
    offload = Offload.OPTIMIZER if "offload_optimizer" in row["zero_optimization"] else Offload.NONE
    return next(s for s in LADDER if (s.stage, s.offload) == (row["stage"], offload))


def buffers_of(row: Row) -> Buffers:
    """The communication buffers of the run's config."""
    zero = {**row["zero_optimization"], "stage": row["stage"]}
    buffers = read_own_config({"zero_optimization": zero}).buffers
    assert buffers is not None
    return buffers


def predict(row: Row) -> Estimate:
    """What zerowiz says about the run."""
    return estimate(
        read_model(row["model"]), workload_of(row), row["gpus"], strategy_of(row), buffers_of(row)
    )
