"""Say how good the chosen settings are, and measure what is missing to know it.

`python tests/regret/report.py` prints the table, what is missing and what it costs. On a machine,
`python tests/regret/report.py --run ROWS --gpu H200 --gpus 2 --budget-seconds 500` measures as much
of it as the time allows: first what each job needs for a figure, the cheapest job first. The choice,
the rivals and what is predicted not to fit run in processes of their own, all others by few engines.
With `--repeat` each choice and what seemed to be faster run again, side by side.
The rows go to `tests/measured/regret`; a run of a setting is never thrown away when predictions
change.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

# Its siblings are `regret.…`, as they are to the tests.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from measured.rows import read_config
from measured.trials import encode_trial
from regret.measure import START_SECONDS, Case, Runs, measure
from regret.regret import RUNS, Regret, table
from regret.section import make_regrets
from regret.settings import CHOICE, TriedSetting
from regret.workloads import CPU

from zerowiz.app.options import Options
from zerowiz.core.machine.types import Accelerator


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")


def cheapest_first(regrets: Iterable[Regret]) -> list[Regret]:
    """The jobs with something missing: each is one figure, so the cheap ones say most."""
    unknown = [each for each in regrets if each.missing]
    return sorted(unknown, key=lambda each: (each.first_seconds, each.cost_seconds))


def _in_order(regrets: Sequence[Regret]) -> Iterator[tuple[Regret, TriedSetting, str]]:
    """First what each job needs for a figure, then a second run of the choice and the rivals.

    What may still be better comes last.
    """
    for each in regrets:
        yield from ((each, setting, "") for setting in each.urgent)
    for each in regrets:
        missing = [setting for setting in each.missing if setting.is_fresh]
        yield from ((each, setting, "@2") for setting in missing if CHOICE in setting.roles)
        yield from ((each, setting, "") for setting in missing if setting not in each.urgent)
    for each in regrets:
        missing = [setting for setting in each.missing if not setting.is_fresh]
        yield from ((each, setting, "") for setting in missing if setting not in each.urgent)


def runs_of(regrets: Sequence[Regret], budget_seconds: float) -> Runs:
    """What to measure, as far as the time reaches; a choice runs a second time for the spread."""
    fresh, swept = list[Case](), list[Case]()
    left, engines = budget_seconds, set[str]()
    for each, setting, again in _in_order(regrets):
        left -= each.seconds_beside(setting, engines)
        if left < 0:
            break
        case = _case(each, setting, f"{setting.trial.id}{again}")
        (fresh if setting.is_fresh else swept).append(case)
    return Runs(fresh=tuple(fresh), swept=tuple(swept))


def repeats_of(regrets: Sequence[Regret], budget_seconds: float, runs: int = RUNS) -> Runs:
    """Runs that decide between each choice and what seemed to be faster, the worst regret first."""
    fresh, left = list[Case](), budget_seconds
    for each in sorted(regrets, key=lambda each: -(each.regret or 0.0)):
        for number, settings in enumerate(each.rounds(runs), 2):
            for setting in settings:
                left -= each.alone_seconds(setting)
                if left < 0:
                    return Runs(fresh=tuple(fresh), swept=())
                fresh.append(_case(each, setting, f"{setting.trial.id}@{number}"))
    return Runs(fresh=tuple(fresh), swept=())


def _case(regret: Regret, setting: TriedSetting, name: str) -> Case:
    return {
        **encode_trial(setting.trial),
        "id": name,
        "config": dict(read_config(regret.job.model)),
    }


def _missing(regrets: Sequence[Regret]) -> Iterable[str]:
    for each in cheapest_first(regrets):
        yield (
            f"{each.job.id}: {len(each.missing)} to measure in about {each.cost_seconds:.0f} s of"
            f" device time, {len(each.urgent)} of them for a first figure in {each.first_seconds:.0f} s"
        )
        for setting in each.missing:
            took = setting.predicted_seconds
            step = "no time predicted" if took is None else f"{took:.3g} s a step"
            fits = "" if setting.runs else ", does not fit as predicted"
            yield f"    {setting.id}: {step}{fits} ({', '.join(setting.roles)})"


def _costs(regrets: Sequence[Regret]) -> Iterable[str]:
    """Of each kind of machine, with the start."""
    kinds = dict.fromkeys((each.job.gpu, each.job.gpus) for each in regrets if each.missing)
    for gpu, gpus in kinds:
        jobs = [each for each in regrets if (each.job.gpu, each.job.gpus) == (gpu, gpus)]
        first = START_SECONDS + sum(each.first_seconds for each in jobs)
        whole = START_SECONDS + sum(each.cost_seconds for each in jobs)
        count = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
        yield f"{gpus} x {gpu}: {count}, first figures in {first:.0f} s, all in {whole:.0f} s"


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
    parser.add_argument("--host-memory", help="of this host, where less is read")
    parser.add_argument("--job", action="append", help="these jobs alone; repeatable")
    parser.add_argument(
        "--repeat", action="store_true", help="run what seems better than a choice, and it, again"
    )
    parser.add_argument("--runs", type=int, default=RUNS, help="of each, with `--repeat`")
    parser.add_argument("--budget-seconds", type=float, default=500.0, help="of device time")
    words = parser.parse_args()
    until = time.time() + words.budget_seconds
    regrets = [each for each in make_regrets() if words.job is None or each.job.id in words.job]
    here = _of_machine(regrets, words.gpu, words.gpus)
    find_runs = partial(repeats_of, runs=words.runs) if words.repeat else runs_of
    here = here if words.repeat else cheapest_first(here)
    if words.cases:
        runs = find_runs(here, words.budget_seconds)
        _say(json.dumps([*runs.fresh, *runs.swept], indent=1))
    elif words.run is not None:
        runs = find_runs(here, words.budget_seconds - START_SECONDS)
        _say(f"{len(runs.fresh)} fresh runs and {len(runs.swept)} others of {len(here)} jobs")
        accelerator = Accelerator.CPU if words.gpu == CPU else None
        ranks = words.gpus if accelerator else None
        options = Options(
            accelerator=accelerator, gpus_per_node=ranks, host_memory=words.host_memory
        )
        return measure(runs, words.run, until, options)
    else:
        _say(table(regrets), *_missing(regrets), *_costs(regrets))
    return 0


if __name__ == "__main__":
    sys.exit(main())
