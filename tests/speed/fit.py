"""Fit the constants of core/speed/costs.py on measured steps, and say how right they are.

    python tests/speed/fit.py            # error tables of the constants that stand
    python tests/speed/fit.py --fit      # fit them on the fitted side, print them and the tables

Only the fitted side is looked at while constants are fitted; `--set-aside` shows the other one.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

# Its siblings are `speed.…`, as they are to the tests.
sys.path[0] = str(Path(__file__).parents[1])

from accuracy.split import Split  # noqa: E402
from speed.errors import lines, summary  # noqa: E402
from speed.pairs import log_error  # noqa: E402
from speed.samples import Sample, kind_of, read_samples  # noqa: E402

from zerowiz.core.speed.costs import COSTS, Costs  # noqa: E402
from zerowiz.core.structs import replace  # noqa: E402

# What follows from data sheets, links.json or published times is not fitted.
FITTED = (
    *("product_fraction", "attention_fraction", "masked_attention_fraction"),
    *("memory_fraction", "elementwise_fraction"),
    *("core_bytes_per_s", "host_seconds", "checkpoint_seconds"),
    *("gradient_seconds", "micro_step_seconds", "step_seconds", "fixed_seconds"),
    "reading_fraction",
)
# Nothing but free-running steps of stage 3 says how long its hooks take.
FITTED_AT_STAGE_3 = ("hook_seconds",)
# A fraction of what is nominal is no more than this, however the fit would have it.
_MOST_FRACTION = 0.95
# An error beyond this counts by its size, and not by its square: one odd run moves little.
_HUBER = 0.15
# What the constants are pulled towards, so that one which few runs depend on stays physical: a
# factor of 2 costs about half a percent of the loss.
PRIOR = replace(
    COSTS,
    product_fraction=0.7,
    attention_fraction=0.45,
    masked_attention_fraction=0.3,
    memory_fraction=0.7,
    elementwise_fraction=0.7,
    host_seconds=10e-6,
    checkpoint_seconds=1.2e-6,
    micro_step_seconds=5e-3,
    gradient_seconds=30e-6,
    step_seconds=20e-6,
    fixed_seconds=5e-3,
    core_bytes_per_s=8e9,
    reading_fraction=0.8,
)
_PRIOR = 0.002
# Rounds go on with the same step while each of them takes this part of the loss away.
_GAIN = 1e-4
_FIRST_STEP, _LAST_STEP = 0.3, 0.004


def weights(samples: Sequence[Sample]) -> list[float]:
    """Repeats of one setting count as one, and each kind of job as much as the others, nearly."""
    alike: dict[object, int] = {}
    kinds: dict[str, int] = {}
    keys = [
        (each.setting, each.rank.strategy.name, each.row["gradient_checkpointing"])
        for each in samples
    ]
    for key, each in zip(keys, samples, strict=True):
        alike[key] = alike.get(key, 0) + 1
        kinds[kind_of(each)] = kinds.get(kind_of(each), 0) + 1
    return [
        1 / math.sqrt(alike[key]) / math.sqrt(kinds[kind_of(each)])
        for key, each in zip(keys, samples, strict=True)
    ]


def _loss(samples: Sequence[Sample], given: Sequence[float], costs: Costs) -> float:
    total = 0.0
    for sample, weight in zip(samples, given, strict=True):
        size = abs(log_error(sample, costs))
        total += weight * (size**2 / 2 if size < _HUBER else _HUBER * (size - _HUBER / 2))
    for name in FITTED:
        total += _PRIOR * math.log(getattr(costs, name) / getattr(PRIOR, name)) ** 2
    return total


def fit(samples: Sequence[Sample], start: Costs = PRIOR) -> Costs:
    """The constants with the least loss, one after the other, in ever smaller steps."""
    given = weights(samples)
    at_stage_3 = any(each.rank.strategy.stage == 3 for each in samples)
    names = (*FITTED, *FITTED_AT_STAGE_3) if at_stage_3 else FITTED
    costs, best = start, _loss(samples, given, start)
    step = _FIRST_STEP
    while step > _LAST_STEP:
        before = best
        for name in names:
            for factor in (1 + step, 1 / (1 + step)):
                value = getattr(costs, name) * factor
                if name.endswith("_fraction"):
                    value = min(value, _MOST_FRACTION)
                tried = replace(costs, **{name: value})
                loss = _loss(samples, given, tried)
                if loss < best:
                    costs, best = tried, loss
        if before - best < _GAIN * before:
            step /= 2
    return costs


def _say(*words: str) -> None:
    sys.stdout.write("\n".join(words) + "\n")


def _show(samples: Sequence[Sample], costs: Costs) -> None:
    _say(f"{'':15}{'':28}{'runs':>5}{'median':>9}{'9 of 10':>9}{'signed':>9}")
    for line in lines(samples, costs):
        errors = f"{line.median:9.1%}{line.most:9.1%}{line.signed:+9.1%}"
        _say(f"{line.group:15}{line.value:28}{line.runs:5}{errors}")
    _say(summary(samples, costs))


def _show_one(sample: Sample, costs: Costs) -> None:
    found, row, step = sample.predict(costs), sample.row, sample.rank.workload
    assert found is not None
    job = (
        f"{sample.id} {sample.rank.strategy.name} {row['model']} {step.micro_batch} x"
        f" {step.sequence_tokens} x {step.accumulation_steps}, {row['optimizer']}"
    )
    parts = " ".join(f"{term.kind}={term.exposed_seconds:.3f}" for term in found.terms)
    seconds = f"{sample.measured_seconds:.3f} s, predicted {found.expected_seconds:.3f}"
    _say(f"{job}: {seconds}: {parts}")


def main() -> None:
    """Fit where it is asked for, and print."""
    parser = argparse.ArgumentParser(description="How right predicted step times are")
    parser.add_argument("--fit", action="store_true", help="fit the constants first")
    parser.add_argument("--set-aside", action="store_true", help="show the other side too")
    parser.add_argument("--free-running", action="store_true", help="take no synchronised steps")
    parser.add_argument("--worst", type=int, default=0, help="list so many that are furthest off")
    said = parser.parse_args()
    samples = [each for each in read_samples() if each.free_running or not said.free_running]
    fitted = [each for each in samples if each.side is Split.FITTED]
    costs = fit(fitted) if said.fit else COSTS
    for name in (*FITTED, *FITTED_AT_STAGE_3):
        _say(f"    {name}={getattr(costs, name):.4g},")
    _show(fitted, costs)
    by_error = sorted(fitted, key=lambda one: -abs(log_error(one, costs)))
    for sample in by_error[: said.worst]:
        _show_one(sample, costs)
    if said.set_aside:
        _say("", Split.SET_ASIDE.value)
        _show([each for each in samples if each.side is Split.SET_ASIDE], costs)


if __name__ == "__main__":
    main()
