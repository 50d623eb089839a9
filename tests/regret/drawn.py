"""Draw workloads by a hash, and measure what choices cost that know the host in three ways.

`python tests/regret/drawn.py` prints the table of docs/accuracy.md. On a machine,
`python tests/regret/drawn.py --run ROWS --gpus 2 --first 0 --count 8 --budget-seconds 500` measures
the workloads with these numbers: the choice for the machine by name, the one for the host as it is
read, and the fastest others; then the choice after one `measure`, where that is another one. The
rows go to `tests/measured/regret/drawn`. With `--again` the workloads that have rows are timed once
more, the choices and the fastest of the others alike: their rows go to `drawn/again`.
"""

import argparse
import hashlib
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple

# Its siblings are `regret.…`, as they are to the tests.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from measured.measure import append_line
from measured.rows import read_config, read_model
from measured.trials import Trial, encode_trial
from regret.measure import Case, Runs, measure
from regret.regret import words_of
from regret.settings import Way, choose, every_way, trial_of
from regret.workloads import (
    H200,
    ROWS,
    RegretJob,
    Row,
    by_setting,
    read_regret_rows,
    says_something,
    seconds_of,
)
from speed import run_timing

from zerowiz.app.options import Options
from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.decision.job import Job
from zerowiz.core.speed.costs import MeasuredStep, calibrate, find_rates, time_python_call
from zerowiz.core.structs import replace
from zerowiz.probe.files import read_gpu_table

DRAWN_ROWS = ROWS / "drawn"
AGAIN_ROWS = DRAWN_ROWS / "again"
# The space. Each is drawn by itself.
MODELS = (
    *("qwen2.5-0.5b", "llama-3.2-1b", "gemma-3-1b", "gemma-2-2b", "opt-350m", "opt-1.3b"),
    *("pythia-1.4b", "gpt2-medium", "phi-3-mini", "phi-3-mini-16l", "mistral-7b", "mistral-7b-8l"),
    *("llama-3.1-8b", "llama-2-7b", "qwen2.5-14b", "falcon-7b", "falcon-7b-6l", "olmo-2-7b"),
    *("olmo-2-7b-6l", "gpt-neox-20b-5l"),
)
CARDS_GIB = (16, 24, 40, 80, None)
LENGTHS = (256, 512, 1024, 2048)
SEQUENCES = (4, 8, 16, 32)
LORA_RANKS = (None, 16)
LINKS = (True, False)
# A step that is predicted to take longer costs too much of a machine that is lent for minutes.
_LONGEST_SECONDS = 2.0
_SETTINGS = 6
# A choice beside fewer has no figure.
_LEAST_SETTINGS = 4
# So many that were fastest beside the choices are timed again.
_BEST = 3
# Kept for the choices after one `measure`.
_LAST_SECONDS = 40.0


class Knowing(StrEnum):
    """What a plan knows of the host."""

    BY_NAME = "by name"
    LIVE = "read live"
    MEASURED = "after one measure"


def draw(number: int, gpus: int) -> RegretJob:
    """The workload with this number on so many GPUs."""
    digest = hashlib.sha256(f"{gpus}/{number}".encode()).digest()
    model, card, length, sequences, rank, link = digest[:6]
    return RegretJob(
        id=f"drawn-{gpus}x-{number:03}",
        model=MODELS[model % len(MODELS)],
        gpu=H200,
        gpus=gpus,
        card_gib=CARDS_GIB[card % len(CARDS_GIB)],
        tokens=LENGTHS[length % len(LENGTHS)],
        sequences=gpus * SEQUENCES[sequences % len(SEQUENCES)],
        lora_rank=LORA_RANKS[rank % len(LORA_RANKS)],
        nccl_p2p=gpus == 1 or LINKS[link % len(LINKS)],
    )


def with_host(job: RegretJob, call_seconds: float | None) -> Job:
    """The plan's input, with a host that was read, or not."""
    found = job.plan_input(read_model(job.model))
    host = replace(found.machine.host, python_call_seconds=call_seconds)
    return replace(found, machine=replace(found.machine, host=host))


def is_short(job: RegretJob) -> bool:
    """Whether something surely fits, and a step of it is short enough."""
    chosen = choose(with_host(job, None))
    return chosen is not None and chosen.evaluated.is_sure and chosen.seconds <= _LONGEST_SECONDS


def drawn(name: str) -> RegretJob:
    """The workload with this id."""
    _, gpus, number = name.split("-")
    return draw(int(number), int(gpus[0]))


def draw_short(gpus: int, first: int, count: int) -> Iterator[RegretJob]:
    """So many of those that are short enough, from the first number on."""
    number = first
    while count:
        job = draw(number, gpus)
        if is_short(job):
            yield job
            count -= 1
        number += 1


def known_by(
    job: RegretJob, call_seconds: float, rows: Mapping[str, Sequence[Row]]
) -> dict[Knowing, Way]:
    """The choice of each way; the last one needs the rows of the choice for the host as read."""
    by_name, live_input = choose(with_host(job, None)), with_host(job, call_seconds)
    live = choose(live_input)
    assert by_name is not None
    assert live is not None
    found = {Knowing.BY_NAME: by_name, Knowing.LIVE: live}
    seconds = median_of(rows.get(live.id, ()))
    time = live.evaluated.step_time
    if seconds is not None and time is not None:
        step = MeasuredStep(terms=time.terms, measured_seconds=seconds)
        calibration = calibrate([step], call_seconds)
        measured = choose(replace(live_input, calibration=calibration))
        assert measured is not None
        found[Knowing.MEASURED] = measured
    return found


def median_of(rows: Sequence[Row]) -> float | None:
    """Of the runs of one setting; None where one ran out of memory, or none says anything."""
    found = [seconds_of(row) for row in rows if says_something(row)]
    seconds = [each for each in found if each is not None]
    return statistics.median(seconds) if seconds and len(seconds) == len(found) else None


def rivals_of(job: RegretJob, call_seconds: float, chosen: Sequence[Way]) -> list[Way]:
    """The fastest others that surely fit, by what was read and on a fast host in turn."""
    names = {way.id for way in chosen}
    orders = [
        sorted(every_way(with_host(job, host)), key=lambda way: way.seconds)
        for host in (call_seconds, None)
    ]
    rivals: dict[str, Way] = {}
    for pair in zip(*orders, strict=True):
        for way in pair:
            runs = way.evaluated.verdict in {Verdict.FITS, Verdict.TIGHT}
            if runs and way.id not in names and len(names) + len(rivals) < _SETTINGS:
                rivals.setdefault(way.id, way)
    return list(rivals.values())


def by_job(rows: Iterable[Row]) -> dict[str, dict[str, list[Row]]]:
    """The rows of each setting, by the workload's id and the setting's."""
    found: dict[str, dict[str, list[Row]]] = {}
    for key, runs in by_setting(rows).items():
        job, _, setting = key.partition("/")
        found.setdefault(job, {})[setting] = runs
    return found


def _case(job: RegretJob, way: Way) -> Case:
    trial: Trial = trial_of(job, way.strategy, way.workload, way.id)
    return {**encode_trial(trial), "config": dict(read_config(job.model))}


def run(jobs: Sequence[RegretJob], out: Path, until: float, options: Options) -> None:
    """Measure what each way chooses, and others beside it."""
    call_seconds = time_python_call(time.perf_counter)
    fresh, swept = list[Case](), list[Case]()
    for job in jobs:
        chosen = {way.id: way for way in known_by(job, call_seconds, {}).values()}
        fresh += [_case(job, way) for way in chosen.values()]
        swept += [_case(job, way) for way in rivals_of(job, call_seconds, [*chosen.values()])]
    # Without a choice a workload has no figure.
    fresh.sort(key=lambda case: str(case["offload"]) != "none")
    measure(Runs(fresh=tuple(fresh), swept=()), out, until, options)
    measure(Runs(fresh=(), swept=tuple(swept)), out, until - _LAST_SECONDS, options)
    rows = by_job(_read(out))
    more = list[Case]()
    for job in jobs:
        mine = rows.get(job.id, {})
        last = known_by(job, call_seconds, mine).get(Knowing.MEASURED)
        if last is not None and last.id not in mine:
            more.append(_case(job, last))
    if more and time.time() < until:
        measure(Runs(fresh=tuple(more), swept=()), out, until, options)
    lines = [json.dumps({**row, "live_call_seconds": call_seconds}) + "\n" for row in _read(out)]
    out.write_text("".join(lines), encoding="utf-8")


def time_again(gpus: int, first: int, out: Path, until: float, options: Options) -> None:
    """Time the choices, and the best beside them, by the same engines and one after the other.

    The first time a choice ran in a process of its own, and most others shared one.
    """
    call_seconds = time_python_call(time.perf_counter)
    cases = list[Case]()
    every = [
        found
        for found in find_all(DRAWN_ROWS, AGAIN_ROWS)
        if found.job.gpus == gpus and int(found.job.id.rpartition("-")[2]) >= first
    ]
    # Those that lack settings get them; else those come first of which a choice was timed least.
    lacking = [found for found in every if len(found.settings) < _SETTINGS]
    for found in lacking or sorted(every, key=Found.times_timed):
        job = found.job
        chosen = {way.id: way for way in known_by(job, call_seconds, {}).values()}
        seconds = {setting: each or math.inf for setting, each in found.settings.items()}
        others = sorted(seconds.keys() - chosen.keys(), key=lambda each: seconds[each])
        ways = {way.id: way for way in every_way(with_host(job, call_seconds))} | chosen
        new = rivals_of(job, call_seconds, [ways[each] for each in seconds.keys() | chosen])
        beside = new or [ways[each] for each in others[:_BEST]]
        cases += [_case(job, way) for way in (*chosen.values(), *beside)]
    machine = run_timing.machine_of(options)
    for row in run_timing.run(cases, until, machine, find_rates(machine, read_gpu_table())):
        append_line(out, json.dumps({**row, "live_call_seconds": call_seconds}))


def _read(path: Path) -> list[Row]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


_INTRO = """\
### Workloads that nobody chose

We wrote the space down first, and fitted no constant later: 20 models, cards of 16 to 141 GiB, 256 to 2,048 tokens, 4 to 32 sequences of each GPU, full
fine-tuning or LoRA (`tests/regret/drawn.py`). A hash draws from it. We left out what does not fit, and steps of more than 2 s. Four leases of one H200, one
of two and one of four H200s ran them; we list those of which at least {least} settings ran. After the third, we changed one formula: the attention of Falcon
is multiplied in fp32. That is the same for all settings of a workload. Three plans choose: for the machine by name, with the host as it was then, and after
one `measure` of that choice. Each regret is against the best of the settings that we measured; the table says how many. A dash stands where the lease ended before a
choice ran.

A choice ran in a process of its own, and most others shared one. So later leases, five of one H200 and three of two, timed choices and the three best others again,
all by the same engines: each workload once, then those of which the choice of some way had run only once, and last, beside new settings, those of which fewer than
six had run. The last lease of two GPUs began with the workload that was worst until then. A regret of several leases is their mean, setting by setting. What
leases say of one workload differs as much as the figures do: opt-350m on two GPUs has 28.4, 8.9 and 18.9 %, each against the setting that was best in that
lease, and 14.2 % against the one that is best in all three. olmo-2-7b with LoRA has 0.0 and 26.3 %, and one choice took 0.145 and 0.188 s. The host is the cause. On an idle host, a Python call took {readings} ns as each lease began;
beside the steps the mean of each was 84 to 164 ns. So what is read at the begin says little about these hosts. One kind is left: DDP of two GPUs with LoRA took
9 % longer than predicted in the median of 44 rows, and ZeRO-1 was often faster. We have no formula for that yet.
"""


class Lease(NamedTuple):
    """What was measured of a workload in one lease of a machine."""

    chosen: Mapping[Knowing, str]
    seconds: Mapping[str, float | None]
    """Of each setting; None for one that ran out of memory."""


class Found(NamedTuple):
    """What was measured of a drawn workload, its first lease first."""

    job: RegretJob
    leases: Sequence[Lease]

    @property
    def fullest(self) -> Lease:
        """The lease that ran most settings."""
        return max(self.leases, key=lambda lease: len(lease.seconds))

    @property
    def settings(self) -> dict[str, float | None]:
        """Seconds of each that ran in any lease, of the fullest one where it did."""
        return {
            setting: seconds
            for lease in (*self.leases, self.fullest)
            for setting, seconds in lease.seconds.items()
        }

    def times_timed(self) -> int:
        """In how many leases the choice ran of the way of knowing that has the fewest."""
        return min(
            sum(
                lease.seconds.get(lease.chosen.get(knowing, "")) is not None
                for lease in self.leases
            )
            for knowing in Knowing
        )

    def times_of_each(self, knowing: Knowing) -> dict[str, float]:
        """How many times that of each setting the choice takes: the mean of the leases.

        Each is a ratio of one lease, as hosts differ. Empty where the choice did not run.
        """
        ratios = dict[str, list[float]]()
        for lease in self.leases:
            own = lease.seconds.get(lease.chosen.get(knowing, ""))
            if own is not None:
                for setting, seconds in lease.seconds.items():
                    if seconds is not None:
                        ratios.setdefault(setting, []).append(own / seconds)
        return {setting: statistics.geometric_mean(each) for setting, each in ratios.items()}

    def regret(self, knowing: Knowing) -> float | None:
        """None where the choice did not run, or ran out of memory."""
        times = self.times_of_each(knowing)
        return max(0.0, max(times.values()) - 1) if times else None


def find_all(*folders: Path) -> list[Found]:
    """Of every workload of which one lease ran enough settings."""
    found = dict[str, Found]()
    for path in (path for folder in folders for path in sorted(folder.glob("*.jsonl"))):
        for name, settings in by_job(_read(path)).items():
            job = drawn(name)
            (row, *_), *_ = settings.values()
            chosen = known_by(job, row["live_call_seconds"], settings)
            seconds = {
                setting: median_of(runs)
                for setting, runs in settings.items()
                if any(says_something(row) for row in runs)
            }
            lease = Lease({knowing: way.id for knowing, way in chosen.items()}, seconds)
            before = found.get(name, Found(job, ()))
            found[name] = Found(job, (*before.leases, lease))
    return [each for each in found.values() if len(each.settings) >= _LEAST_SETTINGS]


def step_errors(folder: Path = DRAWN_ROWS) -> Iterator[list[float]]:
    """Of each machine, by what fraction each step was predicted too long, with the mean reading."""
    for path in sorted(folder.glob("*.jsonl")):
        rows = _read(path)
        call_seconds = statistics.geometric_mean(
            row["python_call_seconds"] for row in rows if row["python_call_seconds"]
        )
        errors = []
        for name, settings in by_job(rows).items():
            ways = every_way(with_host(drawn(name), call_seconds))
            predicted = {way.id: way.seconds for way in ways}
            for setting, runs in settings.items():
                seconds = median_of(runs)
                errors += [] if seconds is None else [predicted[setting] / seconds - 1]
        yield errors


def _sums_of(every: Sequence[Found]) -> str:
    sums = []
    for knowing in Knowing:
        known = [regret for each in every if (regret := each.regret(knowing)) is not None]
        mean, worst = 100 * statistics.mean(known), 100 * max(known)
        sums.append(f"{knowing}: mean {mean:.1f} %, worst {worst:.1f} % of {len(known)}")
    return "; ".join(sums)


@cache
def drawn_section() -> str:
    """Of docs/accuracy.md."""
    first, every = find_all(DRAWN_ROWS), find_all(DRAWN_ROWS, AGAIN_ROWS)
    rows = [*read_regret_rows(DRAWN_ROWS), *read_regret_rows(AGAIN_ROWS)]
    readings = dict.fromkeys(f"{1e9 * row['live_call_seconds']:.0f}" for row in rows)
    intro = _INTRO.format(readings=", ".join(readings), least=_LEAST_SETTINGS)
    heads = (
        "workload",
        *(f"regret {knowing}" for knowing in Knowing),
        "choice by name",
        "best",
        "leases",
    )
    lines = [intro, f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for each in every:
        regrets = (each.regret(knowing) for knowing in Knowing)
        times = each.times_of_each(Knowing.BY_NAME)
        seconds = {name: found for name, found in each.settings.items() if found is not None}
        # As fast as no other in the mean of the leases; of one lease, where the choice did not run.
        best = max(seconds, key=lambda name: (times.get(name, 0.0), -seconds[name]))
        cells = (
            words_of(each.job),
            *("-" if regret is None else f"{100 * regret:.1f} %" for regret in regrets),
            f"`{each.fullest.chosen[Knowing.BY_NAME]}`",
            f"`{best}` {seconds[best]:.3g} s, of {len(each.settings)}",
            str(len(each.leases)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    out = sum(None in lease.seconds.values() for each in every for lease in each.leases)
    of_machines = []
    for errors in step_errors():
        sizes = sorted(map(abs, errors))
        half, most = 100 * statistics.median(sizes), 100 * sizes[int(0.9 * len(sizes))]
        signed = 100 * statistics.median(errors)
        of_machines.append(f"{half:.1f} %, nine in ten {most:.1f} %, signed {signed:+.1f} %")
    alone = f"Without the later leases: {_sums_of(first)}."
    summary = f"{_sums_of(every)}. {out} settings ran out of memory. {alone}"
    of_steps = f"Errors of the steps on each machine, median: {'; '.join(of_machines)}."
    return "\n".join([*lines, "", summary, "", of_steps, ""])


def main() -> int:
    """Print the table, or measure."""
    parser = argparse.ArgumentParser(description="What choices cost that know the host differently")
    parser.add_argument("--run", type=Path, metavar="ROWS", help="measure here; append rows")
    parser.add_argument("--gpus", type=int, default=1, help="how many of this machine")
    parser.add_argument("--first", type=int, default=0, help="the first number")
    parser.add_argument("--count", type=int, default=6, help="how many that are short enough")
    parser.add_argument("--again", action="store_true", help="those with rows, once more")
    parser.add_argument("--budget-seconds", type=float, default=500.0)
    words = parser.parse_args()
    until = time.time() + words.budget_seconds
    if words.again and words.run is not None:
        time_again(words.gpus, words.first, words.run, until, Options())
    elif words.run is not None:
        jobs = list(draw_short(words.gpus, words.first, words.count))
        run(jobs, words.run, until, Options())
    else:
        sys.stdout.write(drawn_section())
    return 0


if __name__ == "__main__":
    sys.exit(main())
