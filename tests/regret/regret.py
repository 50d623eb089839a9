"""Regret: how much longer the chosen setting takes than the best one that was measured."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from measured.rows import read_model
from measured.trials import encode_trial
from msgspec import Struct
from regret.settings import CHOICE, LEAST, RIVALS, TriedSetting
from regret.workloads import RegretJob, Row, says_something, seconds_of
from speed.sweep import engine_of, fresh_seconds_of, start_seconds_of, steps_seconds_of

_SHORTEST_STEP_SECONDS = 0.2
# So many runs decide between two settings, side by side: the fastest of many is partly luck.
RUNS, _CONTENDERS = 3, 2


class Regret(Struct, frozen=True, kw_only=True):
    """What was measured of a job."""

    job: RegretJob
    settings: tuple[TriedSetting, ...]
    measured: Mapping[str, float | None]
    """Seconds of a step by setting, the median of its runs; None for one that ran out of memory."""
    spread: float | None
    """The largest difference between runs of one setting, as a fraction of the shorter one."""
    runs: Mapping[str, int]
    """How often each setting was measured."""

    @property
    def choice(self) -> TriedSetting | None:
        """The setting that zerowiz takes."""
        return next((s for s in self.settings if CHOICE in s.roles), None)

    @property
    def missing(self) -> tuple[TriedSetting, ...]:
        """What has not run yet; a choice among them stands first."""
        return tuple(s for s in self.settings if s.id not in self.measured)

    @property
    def urgent(self) -> tuple[TriedSetting, ...]:
        """What is missing for a figure: the choice, and as many of the fastest as are needed."""
        known = [setting for setting in self.settings if setting.id in self.measured]
        others = [s for s in self.missing if s.runs and CHOICE not in s.roles]
        # What shares no engine with others costs most.
        others.sort(key=lambda setting: setting.is_fresh)
        choice = [s for s in self.missing if CHOICE in s.roles]
        return tuple([*choice, *others][: max(len(choice), LEAST - len(known))])

    @property
    def best(self) -> tuple[str, float] | None:
        """The fastest that was measured."""
        took = [(name, seconds) for name, seconds in self.measured.items() if seconds is not None]
        return min(took, key=lambda each: each[1], default=None)

    @property
    def contenders(self) -> tuple[TriedSetting, ...]:
        """The choice, and what seems to be faster; empty where the choice is the fastest."""
        choice = self.choice
        seconds = None if choice is None else self.measured.get(choice.id)
        if choice is None or seconds is None:
            return ()
        faster = [s for s in self.settings if (self.measured.get(s.id) or seconds) < seconds]
        faster.sort(key=lambda setting: self.measured[setting.id] or 0.0)
        return (choice, *faster[:_CONTENDERS]) if faster else ()

    def rounds(self, runs: int) -> tuple[tuple[TriedSetting, ...], ...]:
        """Runs of the contenders, side by side, until each was measured so many times."""
        return tuple(
            tuple(s for s in self.contenders if self.runs[s.id] < number)
            for number in range(2, runs + 1)
        )

    @property
    def regret(self) -> float | None:
        """None until the choice and enough others are measured, or where the choice ran out."""
        choice, best = self.choice, self.best
        if choice is None or best is None or len(self.measured) < LEAST:
            return None
        seconds = self.measured.get(choice.id)
        return None if seconds is None else seconds / best[1] - 1

    @property
    def ran_out(self) -> bool:
        """Whether the choice ran out of memory."""
        choice = self.choice
        return choice is not None and self.measured.get(choice.id, 0.0) is None

    def of_rival(self, role: str) -> str:
        """How many times the best step a rival's setting takes, in words."""
        setting = next((s for s in self.settings if role in s.roles), None)
        if setting is None:
            return "nothing fits"
        if setting.id not in self.measured or self.best is None:
            return "not measured yet"
        seconds = self.measured[setting.id]
        return "out of memory" if seconds is None else f"{seconds / self.best[1]:.2f}"

    @property
    def cost_seconds(self) -> float:
        """Of device time, for what is missing; the choice runs twice."""
        again = [setting for setting in self.missing if CHOICE in setting.roles]
        return self._cost_seconds([*self.missing, *again])

    @property
    def first_seconds(self) -> float:
        """Of device time, for a first figure."""
        return self._cost_seconds(self.urgent)

    def _cost_seconds(self, settings: Iterable[TriedSetting]) -> float:
        engines = set[str]()
        return sum(self.seconds_beside(setting, engines) for setting in settings)

    def seconds_beside(self, setting: TriedSetting, engines: set[str]) -> float:
        """Of device time, roughly.

        Args:
            setting: One of them.
            engines: Those that others pay for; gets its own.
        """
        trial, params = setting.trial, read_model(self.job.model).params
        if not setting.runs:
            return start_seconds_of(trial, params)
        if setting.is_fresh:
            return self.alone_seconds(setting)
        engine = engine_of(encode_trial(trial))
        start_seconds = 0.0 if engine in engines else start_seconds_of(trial, params)
        engines.add(engine)
        return start_seconds + steps_seconds_of(trial, _step_seconds(setting))

    def alone_seconds(self, setting: TriedSetting) -> float:
        """Of device time, roughly, in a process of its own."""
        params = read_model(self.job.model).params
        return fresh_seconds_of(setting.trial, params, _step_seconds(setting))


def _step_seconds(setting: TriedSetting) -> float:
    return max(setting.predicted_seconds or 0.0, _SHORTEST_STEP_SECONDS)


def regret_of(
    job: RegretJob, settings: Sequence[TriedSetting], rows: Mapping[str, Sequence[Row]]
) -> Regret:
    """What the rows say of a job.

    Args:
        job: The job.
        settings: Those that are to be measured.
        rows: By `job/setting`. Those of settings that are no longer asked for count too.
    """
    measured: dict[str, float | None] = {}
    spreads: list[float] = []
    counts: dict[str, int] = {}
    for key, runs in rows.items():
        name, _, setting = key.partition("/")
        answers = [run for run in runs if says_something(run)]
        if name != job.id or not answers:
            continue
        seconds = [took for run in answers if (took := seconds_of(run)) is not None]
        measured[setting] = statistics.median(seconds) if len(seconds) == len(answers) else None
        counts[setting] = len(answers)
        if len(seconds) > 1:
            spreads.append(max(seconds) / min(seconds) - 1)
    return Regret(
        job=job,
        settings=tuple(settings),
        measured=measured,
        spread=max(spreads, default=None),
        runs=counts,
    )


def _percent(value: float | None) -> str:
    return "not measured yet" if value is None else f"{100 * value:.1f} %"


def words_of(job: RegretJob) -> str:
    """A workload in a table."""
    links = "" if job.gpus == 1 else ", NVLink" if job.nccl_p2p else ", no peer-to-peer"
    card = "" if job.card_gib is None else f", {job.card_gib} GiB"
    method = "" if job.lora_rank is None else " LoRA"
    step = f"{job.sequences} x {job.tokens}"
    return f"{job.model}{method}, {step}, {job.gpus} x {job.gpu}{links}{card}"


def table(regrets: Sequence[Regret]) -> str:
    """The table of docs/accuracy.md: of the jobs of which anything was measured."""
    regrets = [each for each in regrets if each.measured]
    if not regrets:
        return "Not measured yet.\n"
    heads = ("workload", "choice", "step in s", "best measured", "regret", "repeats", *RIVALS)
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for each in regrets:
        choice, best = each.choice, each.best
        seconds = None if choice is None else each.measured.get(choice.id)
        cells = (
            *(words_of(each.job), "nothing fits" if choice is None else f"`{choice.id}`"),
            "out of memory" if each.ran_out else "" if seconds is None else f"{seconds:.3g}",
            "" if best is None else f"`{best[0]}` {best[1]:.3g} s, of {len(each.measured)}",
            *(_percent(each.regret), "" if each.spread is None else _percent(each.spread)),
            *map(each.of_rival, RIVALS),
        )
        lines.append(f"| {' | '.join(cells)} |")
    known = [each.regret for each in regrets if each.regret is not None]
    if known:
        mean, worst = 100 * statistics.mean(known), 100 * max(known)
        out = sum(each.ran_out for each in regrets)
        workloads = "1 workload" if len(known) == 1 else f"{len(known)} workloads"
        choices = "1 choice" if out == 1 else f"{out} choices"
        summary = f"Of {workloads}: mean {mean:.1f} %, worst {worst:.1f} %"
        whole = sum(not each.missing for each in regrets)
        lines += [
            "",
            f"{summary}; {choices} ran out of memory.",
            f"In {whole} of them, we measured every setting that the list above asks for.",
        ]
    return "\n".join(lines) + "\n"
