"""The training step of one rank, and what each of its settings can be."""

from zerowiz.core.workload.choices import (
    FP32_BYTES,
    HALF_BYTES,
    Accounting,
    Attention,
    Integration,
    Loop,
    Loss,
    Method,
    Optimizer,
    Precision,
    Reference,
    StateDtype,
    Trainer,
)
from zerowiz.core.workload.workload import (
    ALL_LINEAR,
    NEWEST_TRANSFORMERS,
    NEWEST_TRL,
    SETTINGS,
    Workload,
    parse_modules,
)

__all__ = [
    "ALL_LINEAR",
    "FP32_BYTES",
    "HALF_BYTES",
    "NEWEST_TRANSFORMERS",
    "NEWEST_TRL",
    "SETTINGS",
    "Accounting",
    "Attention",
    "Integration",
    "Loop",
    "Loss",
    "Method",
    "Optimizer",
    "Precision",
    "Reference",
    "StateDtype",
    "Trainer",
    "Workload",
    "parse_modules",
]
