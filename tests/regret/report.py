"""Say how good the chosen settings are, and measure what is missing to know it.

`python tests/regret/report.py` prints the table, what is missing and what it costs. On a machine,
`python tests/regret/report.py --run ROWS --gpu H200 --gpus 2 --budget-seconds 500` measures as much
of it as the time allows: first what each job needs for a figure, the cheapest job first. The rows
go to `tests/measured/regret`; a run of a setting is never thrown away when predictions change.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

# Its siblings are `regret.…`, as they are to the tests.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from measured.rows import read_config
from regret.regret import Regret, cost_seconds, table
from regret.section import make_regrets
from regret.settings import CHOICE, TriedSetting
from regret.workloads import CPU
from speed.run_timing import START_SECONDS, run

from zerowiz.core.measure.trial import encode_trial


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")


def cheapest_first(regrets: Iterable[Regret]) -> list[Regret]:
    """The jobs with something missing: each is one figure, so the cheap ones say most."""
    unknown = [each for each in regrets if each.missing]
    return sorted(unknown, key=lambda each: (first_seconds(each), each.cost_seconds))


def first_seconds(regret: Regret) -> float:
    """Of device time, for a first figure."""
    return sum(map(cost_seconds, regret.urgent))


def _in_order(regrets: Sequence[Regret]) -> Iterator[tuple[Regret, TriedSetting]]:
    """First what each job needs for a figure, then what may still be better."""
    for each in regrets:
        yield from ((each, setting) for setting in each.urgent)
    for each in regrets:
        yield from ((each, setting) for setting in each.missing if setting not in each.urgent)


def cases_of(regrets: Sequence[Regret], budget_seconds: float) -> list[dict[str, object]]:
    """What to measure, as far as the time reaches; a choice runs a second time for the spread."""
    cases: list[dict[str, object]] = []
    left = budget_seconds
    for each, setting in _in_order(regrets):
        again = [f"{setting.trial.id}@2"] if CHOICE in setting.roles else []
        for name in (str(setting.trial.id), *again):
            left -= cost_seconds(setting)
            if left < 0:
                return cases
            cases.append(_case(each, setting, name))
    return cases


def _case(regret: Regret, setting: TriedSetting, name: str) -> dict[str, object]:
    return {
        **encode_trial(setting.trial),
        "id": name,
        "config": dict(read_config(regret.job.model)),
    }


def _missing(regrets: Sequence[Regret]) -> Iterable[str]:
    for each in cheapest_first(regrets):
        yield (
            f"{each.job.id}: {len(each.missing)} to measure in about {each.cost_seconds:.0f} s of"
            f" device time, {len(each.urgent)} of them for a first figure in {first_seconds(each):.0f} s"
        )
        for setting in each.missing:
            took = setting.predicted_seconds
            step = "no time predicted" if took is None else f"{took:.3g} s a step"
            fits = "" if setting.runs else ", does not fit as predicted"
            yield f"    {setting.id}: {step}{fits} ({', '.join(setting.roles)})"


def _of_machine(regrets: Iterable[Regret], gpu: str, gpus: int) -> list[Regret]:
    """The jobs that this machine can run."""
    return [each for each in regrets if each.job.gpu == gpu and each.job.gpus <= gpus]


def main() -> int:
    """Print the table and what is missing, or measure it."""
    parser = argparse.ArgumentParser(description="How good the chosen settings are")
    parser.add_argument("--run", type=Path, metavar="ROWS", help="measure here; append rows")
    parser.add_argument("--cases", action="store_true", help="print what `--run` would measure")
    parser.add_argument("--gpu", default="H200", help="of this machine, as in a spec")
    parser.add_argument("--gpus", type=int, default=2, help="how many of them")
    parser.add_argument("--job", action="append", help="these jobs alone; repeatable")
    parser.add_argument("--budget-seconds", type=float, default=500.0, help="of device time")
    words = parser.parse_args()
    regrets = [each for each in make_regrets() if words.job is None or each.job.id in words.job]
    here = cheapest_first(_of_machine(regrets, words.gpu, words.gpus))
    if words.cases:
        _say(json.dumps(cases_of(here, words.budget_seconds), indent=1))
    elif words.run is not None:
        cases = cases_of(here, words.budget_seconds - START_SECONDS)
        _say(f"{len(cases)} cases of {len(here)} jobs")
        return run(cases, words.run, words.budget_seconds, cpu=words.gpu == CPU)
    else:
        _say(table(regrets), *_missing(regrets))
    return 0


if __name__ == "__main__":
    sys.exit(main())
