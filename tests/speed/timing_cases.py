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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from accuracy.grid import deal_cases
from accuracy.split import SIDES, Split
from measured.rows import read_config, read_model
from measured.trials import (
    PlannedTrial,
    decode_trial,
    measured_step,
    plan_trial,
    stepper_for,
)
from msgspec import Struct
from speed.sweep import engine_of, start_seconds_of, steps_seconds_of

from zerowiz.core.decision.evaluate import StrategyEstimate, evaluate
from zerowiz.core.machine.names import GpuModel
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.model.from_name import config_of_size, model_from_size, parse_size
from zerowiz.core.model.types import Model
from zerowiz.core.strategies import STRATEGIES
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
    "loss": ("plain", "chunked"),
    "precision": ("bf16", "fp32"),
}
# What few jobs have says less; adapters are cheap, and would be taken too often.
_SELDOM_WORTH = 0.3
_SELDOM = frozenset({("precision", "fp32"), ("loss", "chunked")})
_LORA_WORTH = 0.6
_LORA_RANK = 16

# Where no time is predicted: a CPU rank.
_CPU_FLOP_PER_S = 10e9

# How many of all combinations are looked at, in an order that is no order; so many of one engine.
LOOKED_AT, _OF_AN_ENGINE = 9000, 20
# What changes from step to step, as one engine takes it.
_VARIED = ("micro_batch", "accumulation", "tokens", "checkpointing")
# A case that takes longer keeps several others from being timed.
LONGEST_SECONDS = 30.0
# Every so many cases one repeats another.
_REPEAT_EVERY = 8
AGAIN = "-again"
TIMING_FILE = "new-timing.jsonl"
"""A name for rows that no file holds yet."""


class Candidate(Struct, frozen=True, kw_only=True):
    """A run that could be timed."""

    point: Point
    case: Mapping[str, Any]
    """As `measured/measure.py` takes it."""
    engine: str
    """What it shares with others that one engine can take."""
    start_seconds: float
    """Until that engine is there."""
    cost_seconds: float
    """Of its own steps."""
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
    sized = parse_size(name) is not None
    return {
        "model": name,
        "config": config_of_size(_read(name)) if sized else read_config(name),
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
        "precision": point["precision"],
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
    "loss": lambda row: row["loss"],
    "precision": lambda row: row["precision"],
}


def point_of(row: Row) -> Point:
    """The values of a run that was timed."""
    return {name: str(value(row)) for name, value in _VALUES.items()}


def is_timed(row: Row) -> bool:
    """Whether the run has a steady step."""
    return measured_step(row) is not None


def plan_case(case: Row, machine: Machine, rates: GpuModel | None) -> PlannedTrial:
    """The case with its config, and the job that is predicted."""
    return plan_trial(decode_trial(case, "case"), machine, _read(case["model"]), None, rates)


def _step_seconds(planned: PlannedTrial, evaluated: StrategyEstimate, model: Model) -> float:
    """About what a step takes, also where no time is predicted."""
    predicted, workload = evaluated.step_time, planned.trial.workload
    if predicted is not None:
        return predicted.expected_seconds
    tokens = workload.micro_batch * workload.sequence_tokens * workload.accumulation_steps
    return 6 * model.params * tokens / _CPU_FLOP_PER_S


def _points(models: Sequence[str], gpus: int, count: int, *, on_cuda: bool) -> list[Point]:
    """Some of all combinations that a machine can have."""
    settings = {"model": tuple(models), **SETTINGS}
    if gpus == 1 or not on_cuda:
        settings["links"] = ("direct",)
    varied = {name: settings.pop(name) for name in _VARIED}
    engines = heapq.nsmallest(count // _OF_AN_ENGINE, _all_of(settings), key=_digest)
    return [
        point
        for engine in engines
        for point in heapq.nsmallest(
            _OF_AN_ENGINE, ({**engine, **each} for each in _all_of(varied)), key=_digest
        )
    ]


def _all_of(settings: Mapping[str, Sequence[str]]) -> Iterator[Point]:
    """Every combination."""
    for each in product(*settings.values()):
        yield dict(zip(settings, each, strict=True))


def find_candidates(
    models: Sequence[str], machine: Machine, rates: GpuModel | None, looked_at: int = LOOKED_AT
) -> Iterator[Candidate]:
    """The runs that fit on this machine, and are short.

    Args:
        models: Names of tests/models, or sizes.
        machine: What they run on, all of its GPUs.
        rates: Of each GPU, for the time of a step.
        looked_at: How many of all combinations.
    """
    gpus, on_cuda = machine.world_size, machine.accelerator is Accelerator.CUDA
    for point in _points(models, gpus, looked_at, on_cuda=on_cuda):
        model, case = _read(point["model"]), case_of(point, gpus)
        positions = model.architecture.positions
        if positions and int(point["tokens"]) > positions:
            continue
        planned = plan_case(case, machine, rates)
        if planned.job is None or planned.strategy is None:
            continue
        evaluated = evaluate(planned.job, planned.strategy)
        if not evaluated.is_sure:
            continue
        start_seconds = start_seconds_of(planned.trial, model.params)
        cost_seconds = steps_seconds_of(planned.trial, _step_seconds(planned, evaluated, model))
        if start_seconds + cost_seconds > LONGEST_SECONDS:
            continue
        [side] = deal_cases([case], TIMING_FILE)
        yield Candidate(
            point=point,
            case=case,
            engine=engine_of(case),
            start_seconds=start_seconds,
            cost_seconds=cost_seconds,
            side=side,
        )


def choose(
    candidates: Sequence[Candidate], timed: Sequence[Point], budget_seconds: float
) -> list[Candidate]:
    """The runs that are worth most, until the time is spent; repeats follow what they repeat.

    Args:
        candidates: Those that can be run.
        timed: What was timed already.
        budget_seconds: For all of them together.
    """
    had = Counter(pair for point in timed for pair in pairs_of(point))
    left = [each for each in candidates if each.point not in timed]
    chosen, engines = list[Candidate](), set[str]()
    left_seconds = budget_seconds

    def cost_seconds(candidate: Candidate) -> float:
        start_seconds = 0.0 if candidate.engine in engines else candidate.start_seconds
        return start_seconds + candidate.cost_seconds

    def worth(candidate: Candidate) -> float:
        new = sum(0.5 ** had[pair] for pair in pairs_of(candidate.point))
        seldom = len(_SELDOM & candidate.point.items())
        new *= _LORA_WORTH if candidate.point["method"] == "lora" else 1.0
        return _SELDOM_WORTH**seldom * new / math.sqrt(cost_seconds(candidate))

    while True:
        again = _to_repeat(chosen) if len(chosen) % _REPEAT_EVERY == _REPEAT_EVERY - 1 else None
        affordable = [each for each in left if cost_seconds(each) <= left_seconds]
        side = _short_side(chosen)
        wanted = [each for each in affordable if each.side is side] or affordable
        if again is not None and again.start_seconds + again.cost_seconds <= left_seconds:
            # In a process of its own.
            best, best_seconds = again, again.start_seconds + again.cost_seconds
        elif wanted:
            best = max(wanted, key=worth)
            best_seconds = cost_seconds(best)
            left.remove(best)
        else:
            return chosen
        left_seconds -= best_seconds
        had.update(pairs_of(best.point))
        engines.add(best.engine)
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
