"""Report each phase of a case, whichever loop takes its steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

from zerowiz.worker.batch_files import Iteration, Phase, Report, write_json
from zerowiz.worker.meters import Meter


class StepRecorder:
    """The report of this rank. It is written after each phase, so a killed case loses nothing."""

    def __init__(self, path: Path, meter: Meter) -> None:
        self._path = path
        self._meter = meter
        self.phase: Phase | None = None
        self.phase_name = "start"
        self.report: Report = {
            "ok": False,
            "oom_phase": None,
            "error": None,
            "phases": {},
            "step_seconds": [],
        }

    def add(self, **values: Unpack[Report]) -> None:
        """Add values to the report, and write it."""
        self.report.update(values)
        write_json(self._path, dict(self.report))

    def name_phase(self, name: str) -> None:
        """Say what is done from here on that is none of the phases, for an error that comes."""
        self.phase, self.phase_name = None, name

    @contextmanager
    def measured(self, phase: Phase, iteration: Iteration | None = None) -> Iterator[None]:
        """Measure a phase; of a repeated one, the report holds the largest peak and the last end.

        Args:
            phase: What the block does.
            iteration: Of which optimizer step; None before the first one.
        """
        self.phase = phase
        self.phase_name = phase if iteration is None else f"{iteration}_{phase}"
        self._meter.begin()
        try:
            yield
        finally:
            self._end(self.phase_name)

    def end_iteration(self, seconds: float) -> None:
        """Note how long an optimizer step took; of those in the middle nothing else is kept."""
        self.report["phases"] = {
            phase: reading
            for phase, reading in self.report["phases"].items()
            if not phase.startswith("middle_")
        }
        self.add(step_seconds=[*self.report["step_seconds"], round(seconds, 4)])

    def _end(self, name: str) -> None:
        reading, phases = self._meter.end(), self.report["phases"]
        before = phases.get(name, reading)["peak_bytes"]
        if reading["peak_bytes"] is not None and before is not None:
            reading["peak_bytes"] = max(reading["peak_bytes"], before)
        phases[name] = reading
        self.add(
            allocator_retries=self._meter.retries(),
            peak_reserved_bytes=reading["peak_reserved_bytes"],
            host_peak_rss_bytes=self._meter.host_peak_rss_bytes(),
        )

    def describe_optimizer(self, optimizer: Any) -> None:  # noqa: ANN401 - untyped libraries
        """Report the classes that DeepSpeed wraps around the optimizer."""
        wrapper: list[str] = []
        while optimizer is not None and len(wrapper) <= 1:
            wrapper.append(type(optimizer).__name__)
            optimizer = getattr(optimizer, "optimizer", None)
        self.add(wrapper=wrapper)


def name_iteration(iteration: int, steps: int) -> Iteration:
    """The first and the last optimizer step are reported."""
    if iteration == 0:
        return "first"
    return "steady" if iteration == steps - 1 else "middle"
