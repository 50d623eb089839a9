"""Regret: how much longer the chosen setting takes than the best one that was measured."""

import statistics
from collections.abc import Mapping, Sequence

from msgspec import Struct
from regret.rows import Row, says_something, seconds_of
from regret.settings import CHOICE, LEAST, RIVALS, TriedSetting
from regret.workloads import RegretJob

# Until rows say what a case takes: to fork it, to build the model, to start NCCL and to end.
_CASE_SECONDS = 12.0
# Three steps whose memory is measured, and eight that run freely.
_STEPS = 11
_SHORTEST_STEP_SECONDS = 0.2


class Regret(Struct, frozen=True, kw_only=True):
    """What was measured of a job."""

    job: RegretJob
    settings: tuple[TriedSetting, ...]
    measured: Mapping[str, float | None]
    """Seconds of a step by setting, the median of its runs; None for one that ran out of memory."""
    spread: float | None
    """The largest difference between runs of one setting, as a fraction of the shorter one."""

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
        """What is missing for a first figure: the choice, the rivals, and as many as are needed."""
        needed = [s for s in self.settings if {CHOICE, *RIVALS}.intersection(s.roles)]
        others = [s for s in self.settings if s not in needed]
        first = [*needed, *others[: max(0, LEAST - len(needed))]]
        return tuple(s for s in first if s.id not in self.measured)

    @property
    def best(self) -> tuple[str, float] | None:
        """The fastest that was measured."""
        took = [(name, seconds) for name, seconds in self.measured.items() if seconds is not None]
        return min(took, key=lambda each: each[1], default=None)

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
        """Of device time, for what is missing."""
        return sum(map(cost_seconds, self.missing))


def cost_seconds(setting: TriedSetting) -> float:
    """Of device time, roughly: what it takes to start, and its steps where it comes so far."""
    if not setting.runs:
        return _CASE_SECONDS
    step_seconds = max(setting.predicted_seconds or 0.0, _SHORTEST_STEP_SECONDS)
    return _CASE_SECONDS + _STEPS * step_seconds


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
    for key, runs in rows.items():
        name, _, setting = key.partition("/")
        answers = [run for run in runs if says_something(run)]
        if name != job.id or not answers:
            continue
        seconds = [took for run in answers if (took := seconds_of(run)) is not None]
        measured[setting] = statistics.median(seconds) if len(seconds) == len(answers) else None
        if len(seconds) > 1:
            spreads.append(max(seconds) / min(seconds) - 1)
    return Regret(
        job=job,
        settings=tuple(settings),
        measured=measured,
        spread=max(spreads, default=None),
    )


def _percent(value: float | None) -> str:
    return "not measured yet" if value is None else f"{100 * value:.1f} %"


def _words(job: RegretJob) -> str:
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
            *(_words(each.job), "nothing fits" if choice is None else f"`{choice.id}`"),
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
        summary = f"Of {len(known)} workloads: mean {mean:.1f} %, worst {worst:.1f} %"
        lines += ["", f"{summary}; {out} choices ran out of memory."]
    return "\n".join(lines) + "\n"
