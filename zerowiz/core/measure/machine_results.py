"""Keep what was measured on one machine, so that later plans are calibrated by it."""

import hashlib
import json
import re
import statistics
from collections.abc import Mapping

from msgspec import Struct

from zerowiz.core.codec import encode
from zerowiz.core.machine.types import Machine
from zerowiz.core.speed.calibration import Calibration, MeasuredStep, calibrate
from zerowiz.core.speed.costs import COSTS, Costs
from zerowiz.core.speed.terms import StepTime, Term, TermKind

# More runs of one machine move a calibration by less than a step repeats.
_MOST_RUNS = 100


class KeptRun(Struct, frozen=True, kw_only=True):
    """One measured setting, and what was predicted of it from the machine's data alone."""

    setting: Mapping[str, object]
    """By the names of a measured row."""
    strategy: str
    formulas: str
    """Which predicted the terms, as `formulas_of` names them."""
    measured_seconds: float
    """Of a steady optimizer step."""
    predicted_seconds: Mapping[str, float]
    """Of each kind of term; empty where no time was predicted."""
    python_call_seconds: float | None = None
    """How fast the host ran Python beside these steps."""

    @property
    def step(self) -> MeasuredStep | None:
        """The prediction beside the measured time; None where these formulas had no such terms."""
        kinds = {kind.value for kind in TermKind}
        if not self.predicted_seconds or not kinds.issuperset(self.predicted_seconds):
            return None
        terms = tuple(
            Term(kind=TermKind(kind), exposed_seconds=seconds, formula="")
            for kind, seconds in self.predicted_seconds.items()
        )
        seconds = sum(self.predicted_seconds.values())
        predicted = StepTime(
            terms=terms,
            expected_seconds=seconds,
            low_seconds=seconds,
            high_seconds=seconds,
            tokens=0,
        )
        return MeasuredStep(predicted=predicted, measured_seconds=self.measured_seconds)


class MachineResults(Struct, frozen=True, kw_only=True):
    """The runs of one machine: of each setting the latest."""

    runs: tuple[KeptRun, ...] = ()

    def mean_call_seconds(self, also: float | None = None) -> float | None:
        """How fast the host runs Python, on average; None where nobody read it.

        Args:
            also: One more reading.
        """
        read = (*(run.python_call_seconds for run in self.runs), also)
        known = [seconds for seconds in read if seconds is not None]
        return statistics.fmean(known) if known else None

    def plus(self, run: KeptRun) -> "MachineResults":
        """The results with one more run in them; beyond a hundred the oldest goes."""
        others = [one for one in self.runs if one.setting != run.setting]
        return MachineResults(runs=(*others, run)[-_MOST_RUNS:])

    def calibration(self, formulas: str) -> Calibration | None:
        """What the runs say of this machine; None where these formulas predicted none of them.

        Args:
            formulas: Those of the plan. Others may have predicted the same runs differently.
        """
        runs = (run.step for run in self.runs if run.formulas == formulas)
        return calibrate([step for step in runs if step is not None], self.mean_call_seconds())


def formulas_of(version: str, costs: Costs = COSTS) -> str:
    """A name for the formulas of a version of zerowiz, which changes with their constants."""
    digest = hashlib.sha256(json.dumps(encode(costs)).encode()).hexdigest()[:8]
    return f"{version}+{digest}"


def machine_key(machine: Machine) -> str:
    """What tells a machine from others with other speeds: its GPUs, how many, and their link."""
    gpus = "+".join(dict.fromkeys(gpu.name for gpu in machine.gpus))
    total_bytes = machine.total_bytes or 0
    link = machine.interconnect.link_class.value
    words = f"{machine.nodes}x{len(machine.gpus)} {gpus} {total_bytes >> 30}gib {link}"
    return re.sub(r"[^a-z0-9.+]+", "-", words.lower())
