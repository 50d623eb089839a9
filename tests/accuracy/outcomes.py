"""Tell what a measured run says about a verdict: it ran, it ran slowly, or it ran out of memory."""

import json
import statistics
from collections.abc import Sequence
from enum import StrEnum

from measured.rows import Row, buffers_of, strategy_of, workload_of
from measured.traces import model_of, stand_in

from zerowiz.core.decision.evaluate import Verdict, evaluate
from zerowiz.core.decision.job import Job
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.machine.types import Host
from zerowiz.core.structs import replace
from zerowiz.probe.files import read_gpu_table


class Outcome(StrEnum):
    """How a run ended."""

    RAN = "ran"
    SLOW = "ran slowly"
    """Its allocator flushed, and it was over 5 % slower than uncapped, or nobody can tell."""
    DIED = "ran out of memory"


SLOWER = 1.05
_FIRST_STEADY_STEP = 2
_ANY_HOST_BYTES = 2**50

_OF_A_TWIN = (
    *("model", "stage", "gpus", "precision", "optimizer", "micro_batch", "sequence_tokens"),
    *("accumulation_steps", "gradient_checkpointing", "attention", "lora_rank", "nccl_p2p"),
    *("zero_optimization", "bf16", "offload", "zero_init"),
)


def _twin_key(row: Row) -> str:
    return json.dumps([row.get(name) for name in _OF_A_TWIN], sort_keys=True)


def _steady_seconds(rows: Sequence[Row]) -> float | None:
    """The median step once the optimizer has its states."""
    steady = [s for row in rows for s in (row["step_seconds"] or ())[_FIRST_STEADY_STEP:]]
    return statistics.median(steady) if steady else None


def outcome_of(row: Row, rows: Sequence[Row]) -> Outcome | None:
    """How the run ended; None where it failed for another reason than memory."""
    if not row["ok"]:
        return Outcome.DIED if row["oom_phase"] else None
    if not row["allocator_retries"]:
        return Outcome.RAN
    key = _twin_key(row)
    twins = [
        other
        for other in rows
        if other["ok"] and not other["allocator_retries"] and other["memory_cap_bytes"] is None
        if _twin_key(other) == key
    ]
    own_s, free_s = _steady_seconds([row]), _steady_seconds(twins)
    as_fast = own_s is not None and free_s is not None and own_s <= SLOWER * free_s
    return Outcome.RAN if as_fast else Outcome.SLOW


def _hpz(row: Row) -> int:
    return int((row["zero_optimization"] or {}).get("zero_hpz_partition_size", 1))


def _outside_bytes(row: Row, rows: Sequence[Row]) -> int:
    """The most that a run with as many NCCL groups took beside its tensors."""
    taken: list[int] = [
        other["device_used_outside_allocator_bytes"]
        for other in rows
        if other["device_used_outside_allocator_bytes"] and other["kind"] == "engine"
        if (other["gpus"] > 1, _hpz(other)) == (row["gpus"] > 1, _hpz(row))
    ]
    return max(taken, default=0)


def verdict_of(row: Row, rows: Sequence[Row]) -> Verdict:
    """What zerowiz says of the run on its GPU.

    The GPU of a run with a cap is one that holds the cap, and what a run takes beside its tensors.
    The GPU's verdict alone is asked: no row says what its host had.
    """
    machine = parse_spec(f"{row['gpus']}x{row['gpu'].removeprefix('NVIDIA ')}", read_gpu_table())
    if row["memory_cap_bytes"] is not None:
        free_bytes = row["memory_cap_bytes"] + _outside_bytes(row, rows)
        gpus = tuple(replace(gpu, free_bytes=free_bytes) for gpu in machine.gpus)
        machine = replace(machine, gpus=gpus)
    workload = workload_of(row)
    job = Job(
        machine=replace(machine, host=Host(available_bytes=_ANY_HOST_BYTES)),
        model=model_of(row),
        workload=workload,
        traced=stand_in(row),
        state_dtype=workload.optimizer_state_dtype,
        own_buffers=buffers_of(row),
        expandable_segments=row.get("expandable_segments") is not False,
    )
    return evaluate(job, strategy_of(row)).verdict
