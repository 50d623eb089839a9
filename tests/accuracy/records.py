"""Hold each measured run against its prediction, and group the errors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from accuracy.grid import is_measured, point_of
from accuracy.outcomes import Outcome, outcome_of, verdict_of
from accuracy.split import split_of
from measured.rows import (
    OPTIMIZERS,
    Row,
    family_of,
    has_bf16_states,
    host_base_bytes,
    own_config_of,
    predict,
    predict_forward_backward,
    predict_ranks,
    read_every_row,
    strategy_of,
)
from measured.traces import (
    kept_two_ways,
    predict_guessed,
    predict_traced,
    predict_traced_ranks,
    stand_in,
)
from measured.trials import measured_phases, predict_phases
from msgspec import Struct, field
from msgspec.structs import asdict, fields

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.memory.allocations import Phase, moment_bytes
from zerowiz.core.memory.estimate import Estimate
from zerowiz.core.model.families import FAMILIES

ALONE = "model alone"
"""In place of a strategy: forward and backward on one GPU, without DeepSpeed and optimizer."""


# What a verdict may not be followed by.
_WRONG = frozenset(
    {
        (Verdict.FITS.value, Outcome.DIED.value),
        (Verdict.FITS.value, Outcome.SLOW.value),
        (Verdict.DOES_NOT_FIT.value, Outcome.RAN.value),
        (Verdict.DOES_NOT_FIT.value, Outcome.SLOW.value),
    }
)


Sizes = tuple[int, int]
"""Bytes of one thing, predicted and measured, or predicted in two ways."""

HOST = "host"


class Record(Struct, frozen=True, kw_only=True):
    """One measured run and what was said of it; None is what nobody can say."""

    file: str
    id: str
    kind: str
    gpu: str
    split: str
    model: str
    family: str | None
    strategy: str
    gpus: int
    workload: str
    capped: bool
    measured_bytes: int | None
    others_bytes: tuple[int, ...] = ()
    """The peaks of the other ranks."""
    others_predicted_bytes: tuple[int, ...] = ()
    """What is said of each of them."""
    predicted_bytes: int | None
    unpredicted: str | None
    """Why there is no prediction."""
    verdict: str | None
    outcome: str | None
    point: Mapping[str, str] = field(default_factory=dict)
    """Its values of the settings that `grid.py` compares; none of a run without DeepSpeed."""
    parts: Mapping[str, Sizes] = field(default_factory=dict)
    """Each phase of a run that ended well, and the host memory of one that offloads."""
    traced_bytes: int | None = None
    """From the committed trace of its micro-step; a family without formulas is predicted by it."""
    kept: Sizes | None = None
    """What forward keeps for backward, by formulas and by the trace."""
    guessed_bytes: int | None = None
    """Of a family without formulas: what is said where torch is not installed."""
    deepspeed_bytes: int | None = None
    accelerate_bytes: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What names the run."""
        return self.file, self.id

    @property
    def compared(self) -> bool:
        """Whether there are a prediction and a measured peak that no other run repeats.

        Under a cap of the allocator a run peaks where it does without: only its verdict counts.
        """
        known = self.predicted_bytes is not None and self.measured_bytes is not None
        return known and not self.capped

    @property
    def misjudged(self) -> bool:
        """Whether the run ended otherwise than was said."""
        return (self.verdict, self.outcome) in _WRONG


def _is_counted(row: Row) -> bool:
    return row["optimizer"] in OPTIMIZERS or has_bf16_states(row)


def _has_strategy(row: Row) -> bool:
    try:
        strategy_of(row)
    except StopIteration:
        return False
    return True


_UNKNOWN_OPTIMIZER = "its optimizer is none that the ledger knows"
_UNKNOWN_FAMILY = "no family fits, and no trace of it is committed"

# Rule: what is not predicted is said here, with its reason, and nowhere else; the first that holds
# counts. A row goes when the estimator learns its case.
_UNPREDICTED: Sequence[tuple[str, Callable[[Row], object]]] = (
    ("it failed for another reason than memory", lambda r: not r["ok"] and not r["oom_phase"]),
    (_UNKNOWN_FAMILY, lambda r: not family_of(r)),
    ("without DeepSpeed: zerowiz plans no such run", lambda r: _engine(r) and r["stage"] is None),
    ("a CPU rank: its peak is not the allocator's", lambda r: r.get("accelerator") == "cpu"),
    (
        "its model does not keep packed sequences apart: zerowiz refuses it",
        lambda r: r.get("packing") and not FAMILIES[str(family_of(r))].packable,
    ),
    (_UNKNOWN_OPTIMIZER, lambda r: _engine(r) and not _is_counted(r)),
    ("no strategy has this stage and offload", lambda r: _engine(r) and not _has_strategy(r)),
    (
        "its config has keys that are not counted",
        lambda r: _engine(r) and own_config_of(r).uncounted,
    ),
    (
        "its peak comes before the steps, which a launch does not record",
        lambda r: r["kind"] == "launch" and predict(r).peak_phase in {Phase.MODEL, Phase.INIT},
    ),
)


def _engine(row: Row) -> bool:
    return bool(row["kind"] != "forward_backward")


def why_unpredicted(row: Row) -> str | None:
    """Why the formulas say nothing about the run, None where they do."""
    return next((reason for reason, holds in _UNPREDICTED if holds(row)), None)


def _workload(row: Row) -> str:
    """In few words; what is usual is not said."""
    unusual = {
        "checkpointed": row["gradient_checkpointing"],
        row["attention"]: row["attention"] != "sdpa",
        str(row.get("trainer")): row.get("trainer", "sft") != "sft",
        "bf16 states": has_bf16_states(row),
        f"{row['accumulation_steps']} micro-steps": row["accumulation_steps"] > 1,
        f"LoRA {row['lora_rank']}": row["lora_rank"] is not None,
        str(row["optimizer"]): _engine(row) and row["optimizer"] != "torch AdamW fused=True",
    }
    shape = f"{row['micro_batch']} x {row['sequence_tokens']} {row['precision']}"
    return ", ".join([shape, *(word for word, said in unusual.items() if said)])


def _strategy(row: Row) -> str:
    if row["stage"] is None:
        return "no DeepSpeed" if _engine(row) else ALONE
    return strategy_of(row).name if _has_strategy(row) else f"stage {row['stage']}"


def _predict(row: Row) -> Estimate:
    """By formulas; of a family without them, by the trace."""
    return _predict_ranks(row)[0]


def _predict_ranks(row: Row) -> list[Estimate]:
    return (predict_traced_ranks(row) if stand_in(row) else []) or predict_ranks(row)


def _others_predicted_bytes(row: Row) -> tuple[int, ...]:
    """Of the ranks other than 0, where their peaks were recorded."""
    recorded = _engine(row) and row["ok"] and row.get("rank_peaks")
    return tuple(each.peak_bytes for each in _predict_ranks(row)[1:]) if recorded else ()


def _predicted_bytes(row: Row) -> int:
    return _predict(row).peak_bytes if _engine(row) else predict_forward_backward(row)


def _parts(row: Row) -> dict[str, Sizes]:
    """What is predicted and measured beside the peak; `launch` records no phases."""
    if not _engine(row) or not row["ok"] or "phases" not in row:
        return {}
    estimate = _predict(row)
    predicted, measured = predict_phases(estimate), measured_phases(row)
    base_bytes = host_base_bytes(row)
    if base_bytes is not None:
        predicted[HOST] = moment_bytes(estimate.host)
        measured[HOST] = row["host_peak_rss_bytes"] - base_bytes
    known = {name: size for name, size in measured.items() if size is not None}
    return {name: (size, known[name]) for name, size in predicted.items() if name in known}


def _reason_with_error(row: Row) -> str:
    """How far off it is to count the fused optimizer."""
    if not row["peak_bytes"]:
        return _UNKNOWN_OPTIMIZER
    off = predict(row).peak_bytes / row["peak_bytes"] - 1
    return f"{_UNKNOWN_OPTIMIZER}, off by {100 * off:+.1f} %"


def make_record(row: Row, rows: Sequence[Row]) -> Record:
    """One run with its prediction, without the rivals'."""
    stranger, by_trace = stand_in(row), predict_traced(row)
    family = stranger.family if stranger else family_of(row)
    reason = None if stranger else why_unpredicted(row)
    # A run with such an optimizer is weighed as AdamW, so that its verdict can be judged.
    judged = _engine(row) and reason in {None, _UNKNOWN_OPTIMIZER}
    peaks: list[int | None] = [rank["peak_bytes"] for rank in row.get("rank_peaks") or ()][1:]
    others = tuple(peak for peak in peaks if peak is not None) if row["ok"] else ()
    said_bytes = _predicted_bytes(row) if reason is None else None
    return Record(
        file=row["file"],
        id=row["id"],
        kind=row["kind"],
        gpu=row["gpu"],
        split=split_of(row, family).value,
        model=row["model"],
        family=family,
        strategy=_strategy(row),
        gpus=row["gpus"],
        workload=_workload(row),
        capped=row["memory_cap_bytes"] is not None,
        measured_bytes=row["peak_bytes"],
        others_bytes=others,
        others_predicted_bytes=() if said_bytes is None else _others_predicted_bytes(row),
        predicted_bytes=said_bytes,
        unpredicted=_reason_with_error(row) if reason == _UNKNOWN_OPTIMIZER else reason,
        point=dict(point_of(row)) if is_measured(row) else {},
        parts=_parts(row) if reason is None else {},
        traced_bytes=by_trace.peak_bytes if by_trace else None,
        kept=kept_two_ways(row),
        guessed_bytes=predict_guessed(row).peak_bytes if stranger else None,
        verdict=verdict_of(row, rows).value if judged else None,
        outcome=outcome_of(row, rows) if _engine(row) else None,
    )


def make_records() -> tuple[Record, ...]:
    """Every measured run, without the rivals' figures."""
    rows = read_every_row()
    return tuple(make_record(row, rows) for row in rows)


def encode_record(record: Record) -> dict[str, Any]:
    """As the figures hold it."""
    return asdict(record)


def decode_record(values: Mapping[str, Any]) -> Record:
    """From the figures."""
    known = {field.name: values[field.name] for field in fields(Record)}
    pairs = {
        "others_bytes": tuple(known["others_bytes"]),
        "others_predicted_bytes": tuple(known["others_predicted_bytes"]),
        "parts": {name: (said, was) for name, (said, was) in known["parts"].items()},
        "kept": known["kept"] and tuple(known["kept"]),
    }
    return Record(**{**known, **pairs})


Size = Callable[[Record], int | None]

# Whose figures stand beside each other; ours first.
TOOLS: Mapping[str, Size] = {
    "zerowiz": lambda record: record.predicted_bytes,
    "DeepSpeed": lambda record: record.deepspeed_bytes,
    "accelerate": lambda record: record.accelerate_bytes,
}


class Errors(Struct, frozen=True, kw_only=True):
    """The errors of one tool on some runs, as signed fractions of what was measured."""

    each: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Of the absolute errors."""
        return sum(map(abs, self.each)) / len(self.each)

    @property
    def worst(self) -> float:
        """The largest, with its sign."""
        return max(self.each, key=abs)


def error_of(record: Record, tool: str) -> float | None:
    """Signed, of one run."""
    said_bytes = TOOLS[tool](record)
    if said_bytes is None or not record.measured_bytes:
        return None
    return said_bytes / record.measured_bytes - 1


# How far a trace may lie from the formulas, and the families in which it lies further off: small
# models, whose peak is the backward of a block, of which the trace holds less; a Falcon and a
# GPT-NeoX where stage 3 has a full bucket in a block, of which the trace knows nothing.
TOGETHER = 0.005
KEPT_TOGETHER = 0.003
APART: Mapping[str, float] = {
    "vit": 0.045,
    "bert": 0.015,
    "gpt_neox": 0.009,
    "falcon": 0.008,
    "t5": 0.02,
}


class Difference(Struct, frozen=True, kw_only=True):
    """How far a trace lies from the formulas, as signed fractions of what they say."""

    of_kept: float
    """Of what forward keeps."""
    of_peak: float


def difference_of(record: Record) -> Difference | None:
    """None where the run is not predicted in both ways."""
    if record.kept is None or not record.predicted_bytes or not record.traced_bytes:
        return None
    said, seen = record.kept
    return Difference(
        of_kept=seen / said - 1, of_peak=record.traced_bytes / record.predicted_bytes - 1
    )


def errors_of(records: Iterable[Record], tool: str) -> Errors | None:
    """Of all that zerowiz predicts and the tool can say something about."""
    errors = [error_of(record, tool) for record in records if record.compared]
    known = tuple(error for error in errors if error is not None)
    return Errors(each=known) if known else None


def group(records: Sequence[Record]) -> dict[tuple[str, str, str], list[Record]]:
    """By split; and in it all together, by strategy, and by family. Groups that compare something."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for by in ("all", "strategy", "family"):
        for record in (record for record in records if record.compared):
            name = "all" if by == "all" else str(getattr(record, by))
            groups.setdefault((record.split, by, name), []).append(record)
    return groups


def errors_by_part(records: Iterable[Record]) -> dict[tuple[str, str], Errors]:
    """Of each phase, and of host memory, on each side of the split."""
    each: dict[tuple[str, str], list[float]] = {}
    for record in (record for record in records if not record.capped):
        for name, (predicted, measured) in record.parts.items():
            each.setdefault((record.split, name), []).append(predicted / measured - 1)
    return {key: Errors(each=tuple(errors)) for key, errors in each.items()}


# Rule: the kinds of runs whose errors are published apart.
KINDS: Mapping[str, Callable[[Record], object]] = {
    "all": lambda _: True,
    "one micro-step": lambda r: r.point.get("accumulation") == "1",
    "2 to 7 micro-steps": lambda r: r.point.get("accumulation") == "2",
    "8 or more micro-steps": lambda r: r.point.get("accumulation") == "8",
    "checkpointed": lambda r: r.point.get("checkpointing") == "on",
    "LoRA": lambda r: r.point.get("method") == "lora",
    "QLoRA": lambda r: r.point.get("method") == "qlora",
    "offloaded": lambda r: "offload" in r.point.get("strategy", ""),
    "four GPUs": lambda r: r.gpus == 4,
    "a plain loop": lambda r: r.point.get("loop") == "engine",
    "the Trainer": lambda r: r.point.get("loop") == "trainer",
    "TRL's other trainers": lambda r: r.file == "2026-11-trl.jsonl",
    "started by `zerowiz launch`": lambda r: r.kind == "launch",
    "one GPU": lambda r: r.point.get("gpus") == "1",
    "several GPUs": lambda r: r.point.get("gpus") == "2",
    "H100": lambda r: "H100" in r.gpu,
    "H200": lambda r: "H200" in r.gpu,
}


def _rank_0(record: Record) -> list[Sizes]:
    if not record.predicted_bytes or not record.measured_bytes:
        return []
    return [(record.predicted_bytes, record.measured_bytes)]


def _other_ranks(record: Record) -> list[Sizes]:
    if not record.predicted_bytes:
        return []
    return list(zip(record.others_predicted_bytes, record.others_bytes, strict=True))


def _first_iteration(record: Record) -> list[Sizes]:
    """The largest of its phases."""
    sizes = [size for name, size in record.parts.items() if name.startswith("first_")]
    return [(max(said for said, _ in sizes), max(was for _, was in sizes))] if sizes else []


# What of a run an error can be of.
PEAKS: Mapping[str, Callable[[Record], list[Sizes]]] = {
    "rank 0": _rank_0,
    "other ranks": _other_ranks,
    "first iteration": _first_iteration,
}


def errors_by_kind(records: Iterable[Record]) -> dict[tuple[str, str, str], Errors]:
    """Of each kind of run on each side of the split: of rank 0, the others, the first iteration."""
    each: dict[tuple[str, str, str], list[float]] = {}
    for record in (record for record in records if record.compared):
        for kind, holds in KINDS.items():
            for peak, sizes_of in PEAKS.items() if holds(record) else ():
                errors = [said / was - 1 for said, was in sizes_of(record)]
                each.setdefault((record.split, kind, peak), []).extend(errors)
    return {key: Errors(each=tuple(errors)) for key, errors in each.items() if errors}
