"""Say which settings were measured together, and emit the fewest runs for the pairs that were not.

Run with `python tests/accuracy/grid.py` for what is missing; with `--cases PREFIX` it prints the
cases of `measured/measure.py` for it.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

# Its siblings are `accuracy.…`, as they are to the tests.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from accuracy.split import Split, split_of
from measured.rows import OPTIMIZERS, Row, family_of, read_every_row, strategy_of, workload_of
from measured.trials import OptimizerKernel

from zerowiz.core.decision.job import PairedSetting, accumulation_of
from zerowiz.core.decision.job import point_of as point_of_job
from zerowiz.core.strategies import STRATEGIES

Point = Mapping[str, str]
"""A value of each setting; of some settings alone, where a run has none of the listed values."""
Pair = tuple[tuple[str, str], tuple[str, str]]
"""Two settings with their values, in the order of SETTINGS."""

_OFFLOADS = ("zero2-offload", "zero3-offload-optimizer", "zero3-offload")
_FUSED, _FUSED_ADAM, _CPU_ADAM = (
    OptimizerKernel.ADAMW_FUSED.value,
    OptimizerKernel.FUSED_ADAM.value,
    OptimizerKernel.CPU_ADAM.value,
)
# Rule: what is compared with what; a pair is two values of two of these.
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "family": ("llama", "qwen2", "gemma3_text", "phi3", "opt", "gpt_neox", "mistral"),
    "strategy": ("ddp", "zero1", "zero2", "zero3", *_OFFLOADS),
    "accumulation": ("1", "2", "8"),
    "checkpointing": ("off", "on"),
    "method": ("full", "lora", "qlora"),
    "optimizer": (_FUSED, _FUSED_ADAM, _CPU_ADAM),
    "gpus": ("1", "2"),
    "loop": ("engine", "trainer"),
}
# What stands for a family: small, so that a run takes seconds.
MODELS: Mapping[str, str] = {
    "llama": "llama-3.2-1b",
    "qwen2": "qwen2.5-0.5b",
    "gemma3_text": "gemma-3-1b",
    "phi3": "phi-3-mini-16l",
    "opt": "opt-1.3b",
    "gpt_neox": "pythia-1.4b",
    "mistral": "mistral-7b-8l",
}
_BILLIONS: Mapping[str, float] = {
    "llama": 1.2,
    "qwen2": 0.5,
    "gemma3_text": 1.0,
    "phi3": 2.0,
    "opt": 1.3,
    "gpt_neox": 1.4,
    "mistral": 1.9,
}
# Micro-batch and sequence; some odd ones, so that no two rows are alike. In an order that the hash of
# `split.py` deals to both sides.
SHAPES = (
    *((4, 1024), (7, 320), (2, 1024), (2, 896), (5, 384), (4, 512), (6, 448), (2, 2048)),
    *((1, 2048), (1, 1920), (3, 640), (2, 1536), (1, 1152), (3, 1024), (8, 256)),
)


def _never(
    setting: str, value: str, other: str, others: Sequence[str], why: str
) -> dict[Pair, str]:
    return {_pair((setting, value), (other, each)): why for each in others}


def _pair(one: tuple[str, str], other: tuple[str, str]) -> Pair:
    first, second = sorted((one, other), key=lambda each: list(SETTINGS).index(each[0]))
    return first, second


# Rule: pairs that no job can have, each with its reason.
IMPOSSIBLE: Mapping[Pair, str] = {
    **_never(
        *("optimizer", _CPU_ADAM, "strategy", ("ddp", "zero1", "zero2", "zero3")),
        "it steps on host memory, and nothing is offloaded",
    ),
    **_never(
        *("optimizer", _FUSED_ADAM, "strategy", _OFFLOADS),
        "its kernel is CUDA's, and the states are in host memory",
    ),
    **_never(
        *("optimizer", _FUSED, "strategy", _OFFLOADS),
        "a launch steps with DeepSpeed's CPU Adam there; the Trainer's is replaced by it",
    ),
}


def pairs_of(point: Point) -> list[Pair]:
    """All pairs of a run's values."""
    known = [(name, point[name]) for name in SETTINGS if name in point]
    return list(combinations(known, 2))


def all_pairs() -> list[Pair]:
    """Every pair of values, also those that no job can have."""
    return [
        ((one, a), (other, b))
        for one, other in combinations(SETTINGS, 2)
        for a, b in product(SETTINGS[one], SETTINGS[other])
    ]


def _strategy(row: Row) -> str:
    offload = row.get("offload")
    named = (s.name for s in STRATEGIES if (s.stage, s.offload.value) == (row["stage"], offload))
    return next(named, None) or strategy_of(row).name


def _method(row: Row) -> str:
    if row.get("lora_rank") is None:
        return "full"
    return "qlora" if row.get("quantized") else "lora"


def _loop(row: Row) -> str:
    by_trainer = row.get("kind") == "trainer" or row.get("script") == "train_hf.py"
    return "trainer" if by_trainer else "engine"


_VALUES: Mapping[str, Callable[[Row], str | None]] = {
    "family": family_of,
    "strategy": _strategy,
    "accumulation": lambda row: accumulation_of(row["accumulation_steps"]),
    "checkpointing": lambda row: "on" if row["gradient_checkpointing"] else "off",
    "method": _method,
    "optimizer": lambda row: row["optimizer"],
    "gpus": lambda row: "1" if row["gpus"] == 1 else "2",
    "loop": _loop,
}


def point_of(row: Row) -> Point:
    """The values of a measured run, of those settings whose value is listed."""
    said = {name: value(row) for name, value in _VALUES.items()}
    return {name: value for name, value in said.items() if value in SETTINGS[name]}


def is_measured(row: Row) -> bool:
    """Whether the run trained with DeepSpeed on a GPU, by the loss of one sequence, to its end."""
    trained = row["kind"] != "forward_backward" and row["stage"] is not None
    trained = trained and row.get("trainer", "sft") == "sft"
    return bool(trained and row["ok"] and row.get("accelerator") != "cpu")


def measured_points(rows: Sequence[Row]) -> list[Point]:
    """The values of every run that says something."""
    return [point_of(row) for row in rows if is_measured(row)]


def askable_points(rows: Sequence[Row]) -> list[Mapping[PairedSetting, str]]:
    """The settings of each run that a prediction can be asked for."""
    counted = (r for r in rows if is_measured(r) and r["optimizer"] in OPTIMIZERS and family_of(r))
    return [
        point_of_job(str(family_of(row)), strategy_of(row), workload_of(row), row["gpus"])
        for row in counted
    ]


def encode_measured_pairs(rows: Sequence[Row]) -> str:
    """What `plan` is told of the runs: the settings that some run had together, one pair a line."""
    points = askable_points(rows)
    pairs = {pair for point in points for pair in combinations(point.items(), 2)}
    lines = ",\n".join(json.dumps(pair) for pair in sorted(pairs))
    return f'{{"pairs": [\n{lines}\n]}}\n'


def missing_pairs(points: Sequence[Point], times: int = 1) -> Counter[Pair]:
    """The possible pairs that fewer runs had, with how many are missing; in the table's order."""
    had = Counter(pair for point in points for pair in pairs_of(point))
    possible = (pair for pair in all_pairs() if pair not in IMPOSSIBLE)
    return Counter({pair: times - had[pair] for pair in possible if had[pair] < times})


def _points(fixed: Point) -> list[Point]:
    """Every job that can be, with these values fixed; in an order that is no order."""
    values = [(fixed[name],) if name in fixed else SETTINGS[name] for name in SETTINGS]
    points = [dict(zip(SETTINGS, each, strict=True)) for each in product(*values)]
    possible = (p for p in points if not any(pair in IMPOSSIBLE for pair in pairs_of(p)))
    return sorted(possible, key=lambda p: hashlib.sha256(json.dumps(p).encode()).digest())


def seconds_of(point: Point) -> float:
    """About what a run takes on an H200, which decides between runs that cover as much."""
    billions, micro_steps = _BILLIONS[point["family"]], int(point["accumulation"])
    gathered = point["strategy"].startswith("zero3")
    quantizing = 8 * billions if point["method"] == "qlora" else 0
    on_host = 4 + (1 + gathered) * micro_steps * billions if point["strategy"] in _OFFLOADS else 0
    return 8 + quantizing + on_host


def cover(
    missing: Counter[Pair], wanted: Sequence[Point], fixed: Point, *, cheaply: bool = False
) -> Iterator[Point]:
    """Runs that cover the missing pairs, each the one that covers the most of what is left.

    Args:
        missing: The pairs, each with how many runs it wants.
        wanted: Runs that are made in any case; what they leave open is chosen as for the others.
        fixed: Values that all other runs have.
        cheaply: Whether the most is that of a second, and not of a run.
    """
    left = Counter(missing)

    def gain(point: Point) -> float:
        covered = sum(left[pair] > 0 for pair in pairs_of(point))
        return covered / seconds_of(point) if cheaply else covered

    def take(points: Sequence[Point]) -> Point:
        best = max(points, key=gain)
        left.subtract(pairs_of(best))
        return best

    for each in wanted:
        yield take(_points({**fixed, **each}))
    points = _points(fixed)
    reachable = {pair for point in points for pair in pairs_of(point)}
    while any(left[pair] > 0 for pair in reachable):
        yield take(points)


def case_of(point: Point, name: str, number: int) -> dict[str, Any]:
    """The run as `measured/measure.py` takes it."""
    strategy = next(s for s in STRATEGIES if s.name == point["strategy"])
    micro_batch, tokens = SHAPES[number % len(SHAPES)]
    adapters = point["method"] != "full"
    return {
        "id": name,
        "model": MODELS[point["family"]],
        "gpus": int(point["gpus"]),
        "stage": strategy.stage,
        "offload": strategy.offload.value,
        "accumulation_steps": int(point["accumulation"]),
        "gradient_checkpointing": point["checkpointing"] == "on",
        "micro_batch": micro_batch,
        "sequence_tokens": tokens,
        "optimizer": point["optimizer"],
        **({"lora_rank": 16, "quantized": point["method"] == "qlora"} if adapters else {}),
        "kind": point["loop"],
    }


def deal_cases(cases: Sequence[Mapping[str, Any]], file: str) -> list[Split]:
    """The side of each case, before it is run."""
    usual = {"file": file, "id": "", "precision": "bf16", "attention": "sdpa"}
    rows = [{**usual, **case} for case in cases]
    return [split_of(row, family_of(row)) for row in rows]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main() -> None:
    """Print what is missing, or the cases that measure it."""
    parser = argparse.ArgumentParser(description="Which settings were measured together")
    parser.add_argument("--cases", metavar="PREFIX", help="print cases with these ids")
    parser.add_argument("--file", default="new.jsonl", help="where the rows will lie")
    parser.add_argument("--first", type=int, default=0, help="the number of the first of them")
    parser.add_argument("--limit", type=int, help="at most so many cases")
    parser.add_argument("--fix", action="append", default=[], metavar="SETTING=VALUE")
    parser.add_argument("--wanted", type=Path, help="a JSON list of runs that are made in any case")
    parser.add_argument("--given", type=Path, action="append", default=[], metavar="CASES")
    parser.add_argument("--cheaply", action="store_true", help="the most pairs in a second")
    parser.add_argument("--times", type=int, default=1, help="how many runs each pair should have")
    asked = parser.parse_args()
    fixed = dict(each.split("=", 1) for each in asked.fix)
    wanted = json.loads(asked.wanted.read_text(encoding="utf-8")) if asked.wanted else []
    given = [case for path in asked.given for case in json.loads(path.read_text(encoding="utf-8"))]
    points = measured_points(read_every_row()) + [point_of(case) for case in given]
    missing = missing_pairs(points, asked.times)
    if asked.cases is None:
        for one, other in missing:
            _say(f"{one[0]} {one[1]}, {other[0]} {other[1]}")
        _say(f"{len(missing)} of {len(all_pairs()) - len(IMPOSSIBLE)} possible pairs are missing")
        return
    chosen = list(cover(missing, wanted, fixed, cheaply=asked.cheaply))[: asked.limit]
    cases = [case_of(p, f"{asked.cases}-{i:03}", i) for i, p in enumerate(chosen, asked.first)]
    _say("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")
    aside = deal_cases(cases, asked.file).count(Split.SET_ASIDE)
    sys.stderr.write(f"{len(cases)} cases, of which {aside} are set aside\n")


if __name__ == "__main__":
    main()
