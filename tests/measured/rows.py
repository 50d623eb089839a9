"""Read the measured runs, and turn one into what the estimator is asked."""

import json
import statistics
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from measured.trials import KERNELS, stepper_for

from zerowiz.core.dsconfig.own_config import UserConfig, read_own_config
from zerowiz.core.memory.allocations import Phase
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS, Buffers
from zerowiz.core.memory.estimate import Estimate, estimate, estimate_fullest
from zerowiz.core.memory.host import HostPhase, HostUse, predict_host
from zerowiz.core.memory.rank_sizes import RankSizes, StrategyRow, rank_sizes
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.model.types import Model
from zerowiz.core.strategies import DDP, STRATEGIES, ZERO3
from zerowiz.core.strategy_types import Offload
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
from zerowiz.errors import UsageError

Row = Mapping[str, Any]

_HERE = Path(__file__).parent

# One line of zerowiz stands for each of these; `foreach` copies lists of tensors during its step.
FUSED = frozenset({"torch AdamW fused=True", "FusedAdam", "DeepSpeedCPUAdam"})
# A section of the config names these, to the Trainer too, and DeepSpeed makes them with one group.
_NAMED_BY_THE_CONFIG = frozenset({"FusedAdam", "torch AdamW via config (torch_adam)"})
# These copy lists of tensors during their step.
FOREACH = frozenset({"torch AdamW foreach=True", "torch AdamW via config (torch_adam)"})
OPTIMIZERS: Mapping[str, Optimizer] = {
    kernel.value: row.optimizer for kernel, row in KERNELS.items()
}

LAUNCHES = "launches.jsonl"
# `forward_backward` runs have no DeepSpeed and no optimizer: these lines of stage 0 are theirs.
_OF_THE_ENGINE = frozenset(
    {"master weights", "optimizer states", "fp32 gradients", "all-reduce bucket"}
)


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


def family_of(row: Row) -> str | None:
    """None for a model without a config in tests/models, or that no family fits."""
    try:
        return read_model(row["model"]).architecture.family
    except (OSError, UsageError):
        return None


def _read_lines(file: str) -> list[dict[str, Any]]:
    lines = (_HERE / file).read_text(encoding="utf-8").splitlines()
    return [{"file": file, **json.loads(line)} for line in lines]


def _named_as_others(launch: Row, number: int) -> Row:
    """A launch with the fields of the other rows."""
    strategy = next(s for s in STRATEGIES if s.name == launch["strategy"])
    first, *others = launch["peak_bytes_by_rank"]
    return {
        **launch,
        "id": f"launch-{number:02}",
        "kind": "launch",
        "stage": strategy.stage,
        "offload": strategy.offload.value,
        "optimizer": stepper_for(Optimizer.ADAMW, strategy.offload).value,
        "attention": "sdpa",
        "bf16": dict.fromkeys(
            ("bf16_master_weights_and_grads", "bf16_optimizer_states"),
            launch["optimizer_state_dtype"] == "bf16",
        ),
        "memory_cap_bytes": None,
        "nccl_p2p": True,
        "lora_rank": None,
        "ok": True,
        "oom_phase": None,
        "peak_bytes": first,
        "rank_peaks": [{"peak_bytes": size_bytes} for size_bytes in (first, *others)],
        "device_used_outside_allocator_bytes": None,
        "allocator_retries": 0,
        "step_seconds": None,
    }


@cache
def read_every_row() -> tuple[Row, ...]:
    """Every run of every file here that did not evaluate, each with the name of its `file`."""
    rows: list[Row] = []
    for path in sorted(_HERE.glob("*.jsonl")):
        # The formula of an evaluation was found on these two: they count for no figure.
        lines = [row for row in _read_lines(path.name) if not row.get("eval_batch")]
        launched = path.name == LAUNCHES
        rows += [_named_as_others(row, i) for i, row in enumerate(lines)] if launched else lines
    return tuple(rows)


@cache
def read_times() -> tuple[Row, ...]:
    """Every setting whose steps ran freely, most of them beside others of one engine."""
    return tuple(
        {"file": f"{path.parent.name}/{path.name}", **json.loads(line)}
        for path in sorted([*_HERE.glob("times/*.jsonl"), *_HERE.glob("regret/*.jsonl")])
        for line in path.read_text(encoding="utf-8").splitlines()
    )


def has_bf16_states(row: Row) -> bool:
    """Whether the optimizer kept its states in bf16."""
    return bool((row["bf16"] or {}).get("bf16_optimizer_states"))


def _version(row: Row, library: str) -> tuple[int, int]:
    """Major and minor of a library that ran."""
    major, minor, *_ = row["versions"][library].split(".")
    return int(major), int(minor)


def _of_trainer(row: Row) -> dict[str, Any]:
    """What a run of another trainer than SFT says besides."""
    trainer = Trainer(row.get("trainer", "sft"))
    if trainer is Trainer.SFT:
        return {}
    reference = Reference(row["reference"])
    return {
        "trainer": trainer,
        "reference": reference if trainer.row.compares else None,
        "completion_tokens": row["completion_tokens"],
        "generation_batch": row["generation_batch"],
        "trl_version": _version(row, "trl"),
    }


def _method(row: Row) -> Method:
    if row["lora_rank"] is None:
        return Method.FULL
    return Method.QLORA if row.get("quantized") else Method.LORA


def workload_of(row: Row) -> Workload:
    """What the run trained; an optimizer that no Workload has counts as AdamW."""
    adapters = row["lora_rank"] is not None
    return Workload(
        micro_batch=row["micro_batch"],
        sequence_tokens=row["sequence_tokens"],
        accumulation_steps=row["accumulation_steps"],
        precision=Precision(row["precision"]),
        torch_autocast=Precision(row["torch_autocast"]) if row.get("torch_autocast") else None,
        optimizer_fused=row["optimizer"] not in FOREACH,
        gradient_checkpointing=row["gradient_checkpointing"],
        every_n_layers=row.get("every_n_layers", 1),
        attention=Attention(row["attention"]),
        optimizer=OPTIMIZERS.get(row["optimizer"], Optimizer.ADAMW),
        optimizer_state_dtype=StateDtype.BF16 if has_bf16_states(row) else StateDtype.FP32,
        method=_method(row),
        loss=Loss(row.get("loss", "plain")),
        packing=row.get("packing", False),
        lora_rank=row["lora_rank"] if adapters else Workload().lora_rank,
        lora_target_modules=tuple(row.get("lora_target_modules", ())),
        transformers_version=_version(row, "transformers"),
        **_of_trainer(row),
        zero_init=row.get("zero_init") is not False,
        eval_batch=row.get("eval_batch", 0),
        **{name: row.get(name, 1) for name in ("sequence_parallel", "tensor_parallel")},
        expert_parallel=row.get("expert_parallel", 1),
    )


def own_config_of(row: Row) -> UserConfig:
    """The run's `zero_optimization`, read as a person's own config."""
    zero = {**(row["zero_optimization"] or {}), "stage": row["stage"]}
    return read_own_config({"zero_optimization": zero})


def strategy_of(row: Row) -> StrategyRow:
    """The strategy that the run had."""
    offload = Offload(row.get("offload") or own_config_of(row).offload or Offload.NONE)
    return next(s for s in STRATEGIES if (s.stage, s.offload) == (row["stage"], offload))


def buffers_of(row: Row) -> Buffers:
    """The communication buffers of the run's config."""
    buffers = own_config_of(row).buffers
    assert buffers is not None
    return buffers


def predict(row: Row) -> Estimate:
    """What zerowiz says about the run."""
    return estimate(read_model(row["model"]), rank_of(row))


def predict_ranks(row: Row) -> list[Estimate]:
    """What zerowiz says about each rank of the run."""
    return estimate_ranks(read_model(row["model"]), rank_of(row), row["gpus"])


def predict_fullest(row: Row) -> Estimate:
    """What a plan says about the run: of the fullest rank, whatever groups its optimizer has."""
    model = read_model(row["model"])
    sizes = rank_sizes(model, workload_of(row), row["gpus"], strategy_of(row), buffers_of(row))
    return estimate_fullest(model, sizes)


def estimate_ranks(model: Model, sizes: RankSizes, ranks: int) -> list[Estimate]:
    """What each rank holds; they are alike where no shares are cut."""
    each = [estimate(model, replace(sizes, cut=cut)) for cut in sizes.cuts]
    return each if sizes.strategy.cuts_shares else each * ranks


def is_decay_apart(row: Row) -> bool:
    """Whether the optimizer had two groups: the Trainer's has, one that the config names has not."""
    by_trainer = row["kind"] == "trainer" or row.get("script") == "train_hf.py"
    return by_trainer and row.get("optimizer") not in _NAMED_BY_THE_CONFIG


def rank_of(row: Row) -> RankSizes:
    """One rank of the run."""
    return rank_sizes(
        read_model(row["model"]),
        workload_of(row),
        row["gpus"],
        strategy_of(row),
        buffers_of(row),
        decay_apart=is_decay_apart(row),
    )


def is_offloaded(row: Row) -> bool:
    """Whether the optimizer stepped on the host."""
    return row["stage"] is not None and strategy_of(row).offload is not Offload.NONE


@cache
def resident_bytes(family: str | None, precision: str, kind: str = "engine") -> int | None:
    """What a process takes with its libraries and kernels: the median of a family at stage 0.

    Runs of one family agree within 0.1 GB, families do not. Stages 1 and 2 take 0.1 GB more, for
    their own step on the GPU, and a model in 4 bits can pass through the host. The Trainer and what
    it loads take 0.4 GB more than a plain loop.
    """
    sizes = [
        row.get("host_peak_rss_bytes")
        for row in read_every_row()
        if row["stage"] == 0
        and row["kind"] == kind
        and row["precision"] == precision
        and not row.get("quantized")
        and family_of(row) == family
    ]
    known = [size for size in sizes if size is not None]
    return int(statistics.median(known)) if known else None


def host_base_bytes(row: Row) -> int | None:
    """The part of an offload run's resident set that no estimate counts; None for other runs.

    None where adapters train, too: their states are less than what passes through a host while the
    model is built, so no step decides.
    """
    adapters = row["lora_rank"] is not None
    if not is_offloaded(row) or adapters or row.get("host_peak_rss_bytes") is None:
        return None
    return resident_bytes(family_of(row), row["precision"], row["kind"])


def host_at_stage_3(row: Row) -> tuple[int, int] | None:
    """Predicted and measured: the resident set of a rank at stage 3 that offloads nothing.

    Its share of the weights passes through the host before its kernels are loaded, which take as
    much as those of a run at stage 0. None for other runs, for models in 4 bits, and for adapters:
    peft loads bitsandbytes where it is installed, which takes 0.3 GB.
    """
    sharded = row["stage"] == ZERO3.stage and row["ok"] and row["lora_rank"] is None
    measured_bytes = row.get("host_peak_rss_bytes")
    base_bytes = resident_bytes(family_of(row), row["precision"], row["kind"])
    if not sharded or is_offloaded(row) or measured_bytes is None or base_bytes is None:
        return None
    alone = predict_host(read_model(row["model"]), rank_of(row), (), 1, HostUse(), on_cuda=True)
    return max(alone.phase_bytes[HostPhase.INIT], base_bytes), measured_bytes


def predict_forward_backward(row: Row) -> int:
    """The peak of a model that trains alone: weights, gradients, activations, cuBLAS.

    The moments are those of stage 0 on one rank, without what belongs to the engine.
    """
    model, workload = read_model(row["model"]), workload_of(row)
    whole = estimate(model, rank_sizes(model, workload, 1, DDP, DEEPSPEED_DEFAULTS))
    return max(
        sum(size for kind, size, _ in moment if kind not in _OF_THE_ENGINE)
        for phase in (Phase.FORWARD, Phase.BACKWARD)
        for moment in whole.moments[phase]
    )
