"""Choose which settings to time next: the most that nobody timed, in the seconds that there are.

What is new is counted by pairs of values, as `accuracy/grid.py` counts them, but a pair that was
timed is still worth something: a fit needs more than one row of it. A case costs what it takes to
build its model, and its steps at the predicted time; by the root of that, as by the time itself no
large model would ever be taken. Some settings are timed twice: no prediction
can be nearer than a setting is to itself.
"""

import hashlib
import heapq
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from accuracy.grid import deal_cases
from accuracy.split import SIDES, Split
from measured.rows import family_of, read_config, read_model
from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate, evaluate
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.measure.optimizer_kernels import stepper_for
from zerowiz.core.measure.trial import PlannedTrial, decode_trial, plan_trial
from zerowiz.core.model.from_size import model_from_size, parse_size
from zerowiz.core.model.types import Model
from zerowiz.core.speed.rates import GpuRates
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy import Offload
from zerowiz.core.workload import Optimizer

Row = Mapping[str, Any]
Point = Mapping[str, str]
"""A value of each of SETTINGS."""
Pair = tuple[tuple[str, str], tuple[str, str]]

# From 0.5B to 8B, of ten families, one of them a mixture.
MODELS = (
    *("qwen2.5-0.5b", "llama-3.2-1b", "gemma-3-1b", "opt-1.3b", "pythia-1.4b", "gemma-2-2b"),
    *("qwen1.5-moe-a2.7b-4l", "phi-3-mini", "mistral-7b", "olmo-2-7b", "llama-3.1-8b"),
)
# Rule: what the time of a step may depend on.
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "strategy": tuple(strategy.name for strategy in STRATEGIES),
    "micro_batch": ("1", "2", "4", "8", "16"),
    "tokens": ("512", "1024", "2048", "4096", "8192", "16384"),
    "accumulation": ("1", "2", "8"),
    "checkpointing": ("off", "on"),
    "method": ("full", "lora"),
    "links": ("direct", "host"),
    "room": ("wide", "tight"),
    "loss": ("plain", "chunked"),
    "loop": ("engine", "trainer"),
}
# What is left of the GPU beside the predicted peak where the room is tight: near it the allocator
# flushes its cache, and steps are slower (`measured/2026-11-capped.jsonl`).
_TIGHT = 1.06
# What few jobs have says less.
_SELDOM_WORTH = 0.4
_SELDOM = frozenset({("room", "tight"), ("loss", "chunked")})
_LORA_RANK = 16

# Of a case that is forked from a rank that has loaded its libraries; its contexts, its links.
_FORK_SECONDS = 6.0
# To build a model with random weights, and to divide it; on the host its states are pinned too.
_BUILD_SECONDS_PER_BILLION, _HOST_SECONDS_PER_BILLION = 1.5, 8.0
# A first step is slower, as kernels are chosen; those whose memory is read wait after each phase.
_MEASURED_STEP, _FIRST_STEP = 1.5, 2.0
# Where no rate is known: a CPU rank.
_CPU_FLOP_PER_S = 10e9

# How many of all combinations are looked at, in an order that is no order.
LOOKED_AT = 6000
# A case that takes longer keeps several others from being timed.
LONGEST_SECONDS = 45.0
# Every so many cases one repeats another.
_REPEAT_EVERY = 6
AGAIN = "-again"
TIMING_FILE = "new-timing.jsonl"
"""A name for rows that no file holds yet."""


class Candidate(Struct, frozen=True, kw_only=True):
    """A run that could be timed."""

    point: Point
    case: Mapping[str, Any]
    """As `zerowiz measure --cases` takes it."""
    cost_seconds: float
    side: Split


def _digest(value: object) -> bytes:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()


def pairs_of(point: Point) -> list[Pair]:
    """All pairs of a point's values."""
    return list(combinations(sorted(point.items()), 2))


def _read(name: str) -> Model:
    """A model of tests/models, or one that stands for a size such as `10m`."""
    params = parse_size(name)
    return read_model(name) if params is None else model_from_size(name, params)


def case_of(point: Point, gpus: int) -> dict[str, Any]:
    """The run of a point, without an id and a cap."""
    strategy = next(each for each in STRATEGIES if each.name == point["strategy"])
    name = point["model"]
    config = {"config": read_config(name)} if parse_size(name) is None else {}
    return {
        "model": name,
        **config,
        "gpus": gpus,
        "stage": strategy.stage,
        "offload": strategy.offload.value,
        "micro_batch": int(point["micro_batch"]),
        "sequence_tokens": int(point["tokens"]),
        "accumulation_steps": int(point["accumulation"]),
        "gradient_checkpointing": point["checkpointing"] == "on",
        "optimizer": stepper_for(Optimizer.ADAMW, strategy.offload).value,
        "lora_rank": _LORA_RANK if point["method"] == "lora" else None,
        "nccl_p2p": point["links"] == "direct",
        "loss": point["loss"],
        "kind": point["loop"],
    }


_VALUES: Mapping[str, Callable[[Row], object]] = {
    "model": lambda row: row["model"],
    "strategy": lambda row: next(
        s.name for s in STRATEGIES if (s.stage, s.offload.value) == (row["stage"], row["offload"])
    ),
    "micro_batch": lambda row: row["micro_batch"],
    "tokens": lambda row: row["sequence_tokens"],
    "accumulation": lambda row: row["accumulation_steps"],
    "checkpointing": lambda row: "on" if row["gradient_checkpointing"] else "off",
    "method": lambda row: "full" if row["lora_rank"] is None else "lora",
    "links": lambda row: "host" if row["nccl_p2p"] is False else "direct",
    "room": lambda row: "wide" if row["memory_cap_bytes"] is None else "tight",
    "loss": lambda row: row["loss"],
    "loop": lambda row: row["kind"],
}


def point_of(row: Row) -> Point:
    """The values of a run that was timed."""
    return {name: str(value(row)) for name, value in _VALUES.items()}


def is_timed(row: Row) -> bool:
    """Whether the run has a steady step."""
    return row.get("steady_step_seconds") is not None


def _planned(case: Row, machine: Machine, rates: GpuRates | None) -> PlannedTrial:
    return plan_trial(decode_trial(case, "case"), machine, _read(case["model"]), None, rates)


def seconds_of(planned: PlannedTrial, evaluated: StrategyEstimate, model: Model) -> float:
    """About what a run takes, from its fork to its end."""
    trial, predicted = planned.trial, evaluated.step_time
    workload, billions = trial.workload, model.params / 1e9
    tokens = workload.micro_batch * workload.sequence_tokens * workload.accumulation_steps
    on_cpu = 6 * model.params * tokens / _CPU_FLOP_PER_S
    step_seconds = on_cpu if predicted is None else predicted.expected_seconds
    steps = _FIRST_STEP + _MEASURED_STEP * trial.steps + trial.free_steps
    offloaded = _HOST_SECONDS_PER_BILLION if trial.offload is not Offload.NONE else 0
    build_seconds = (_BUILD_SECONDS_PER_BILLION + offloaded) * billions
    return _FORK_SECONDS + build_seconds + steps * step_seconds


def _points(models: Sequence[str], gpus: int, count: int, *, capped: bool) -> list[Point]:
    """Some of all combinations that a machine can have."""
    settings = {"model": tuple(models), **SETTINGS}
    if gpus == 1:
        settings["links"] = ("direct",)
    if not capped:
        settings |= {"room": ("wide",), "links": ("direct",)}
    points = (dict(zip(settings, each, strict=True)) for each in product(*settings.values()))
    return heapq.nsmallest(count, points, key=_digest)


def find_candidates(
    models: Sequence[str], machine: Machine, rates: GpuRates | None, looked_at: int = LOOKED_AT
) -> Iterator[Candidate]:
    """The runs that fit on this machine, and are short.

    Args:
        models: Names of tests/models, or sizes.
        machine: What they run on, all of its GPUs.
        rates: Of each GPU, for the time of a step.
        looked_at: How many of all combinations.
    """
    gpus, on_cuda = machine.world_size, machine.accelerator is Accelerator.CUDA
    for point in _points(models, gpus, looked_at, capped=on_cuda):
        model, case = _read(point["model"]), case_of(point, gpus)
        positions = model.architecture.positions
        if positions and int(point["tokens"]) > positions:
            continue
        planned = _planned(case, machine, rates)
        if planned.job is None or planned.strategy is None:
            continue
        evaluated = evaluate(planned.job, planned.strategy)
        if not evaluated.is_sure:
            continue
        cost_seconds = seconds_of(planned, evaluated, model)
        if cost_seconds > LONGEST_SECONDS:
            continue
        if point["room"] == "tight":
            case["memory_cap_bytes"] = int(_TIGHT * evaluated.estimate.peak_bytes)
        [side] = deal_cases([case], TIMING_FILE)
        yield Candidate(point=point, case=case, cost_seconds=cost_seconds, side=side)


def scale_costs(rows: Sequence[Row], machine: Machine, rates: GpuRates | None) -> float:
    """How much longer runs took than was thought: the median of those that said it, else 1."""
    ratios = []
    for row in rows:
        known = parse_size(row["model"]) is not None or family_of(row) is not None
        if not known or not row["ok"] or row["gpus"] > machine.world_size:
            continue
        planned = _planned({**row, "config": {}}, machine, rates)
        if planned.job is not None and planned.strategy is not None:
            evaluated = evaluate(planned.job, planned.strategy)
            thought = seconds_of(planned, evaluated, planned.job.model)
            ratios.append(row["case_seconds"] / thought)
    return statistics.median(ratios) if ratios else 1.0


def choose(
    candidates: Sequence[Candidate],
    timed: Sequence[Point],
    budget_seconds: float,
    scale: float = 1.0,
) -> list[Candidate]:
    """The runs that are worth most, until the time is spent; repeats follow what they repeat.

    Args:
        candidates: Those that can be run.
        timed: What was timed already.
        budget_seconds: For all of them together.
        scale: How much longer a run takes than its cost says.
    """
    had = Counter(pair for point in timed for pair in pairs_of(point))
    left, chosen = list(candidates), list[Candidate]()
    left_seconds = budget_seconds

    def worth(candidate: Candidate) -> float:
        new = sum(0.5 ** had[pair] for pair in pairs_of(candidate.point))
        seldom = len(_SELDOM & candidate.point.items())
        return _SELDOM_WORTH**seldom * new / math.sqrt(candidate.cost_seconds)

    while True:
        again = _to_repeat(chosen) if len(chosen) % _REPEAT_EVERY == _REPEAT_EVERY - 1 else None
        affordable = [each for each in left if each.cost_seconds * scale <= left_seconds]
        side = _short_side(chosen)
        wanted = [each for each in affordable if each.side is side] or affordable
        if again is not None and again.cost_seconds * scale <= left_seconds:
            best = again
        elif wanted:
            best = max(wanted, key=worth)
            left.remove(best)
        else:
            return chosen
        left_seconds -= best.cost_seconds * scale
        had.update(pairs_of(best.point))
        chosen.append(best)


def _short_side(chosen: Sequence[Candidate]) -> Split:
    """The side that has less of these than the hash gives it of all: a third is set aside."""
    aside = sum(each.side is Split.SET_ASIDE for each in chosen)
    return Split.SET_ASIDE if SIDES * aside < len(chosen) else Split.FITTED


def _to_repeat(chosen: Sequence[Candidate]) -> Candidate | None:
    """One of those that stand there once, whichever; dealt by a hash."""
    times = Counter(id(each) for each in chosen)
    once = [each for each in chosen if times[id(each)] == 1]
    return min(once, key=lambda each: _digest(each.point), default=None)


def with_ids(chosen: Sequence[Candidate], prefix: str, first: int) -> list[dict[str, Any]]:
    """The cases by name; a repeat has the name of what it repeats, and AGAIN."""
    names: dict[int, str] = {}
    cases = []
    for candidate in chosen:
        known = names.get(id(candidate))
        name = f"{prefix}-{first + len(names):03}" if known is None else f"{known}{AGAIN}"
        names.setdefault(id(candidate), name)
        cases.append({"id": name, **candidate.case})
    return cases
