"""Time optimizer steps that run freely, after those whose memory was measured.

Nothing waits for the device inside a step or between two: the boundaries of the steps are noted,
and read once the last step has ended.
"""

import statistics
import time
from itertools import pairwise
from typing import Protocol

import torch

from zerowiz.core.measure.timing import count_timed_steps
from zerowiz.core.speed.python_call import time_python_call
from zerowiz.worker.batch_files import Case
from zerowiz.worker.links.agreement import agree_on_least
from zerowiz.worker.loops.recorder import StepRecorder
from zerowiz.worker.meters import Meter


class Clock(Protocol):
    """Notes moments, and tells how far apart they are once all of them have come."""

    def note(self) -> None:
        """Note this moment of what the device does."""

    def read(self) -> list[float]:
        """The seconds between each two neighbors; the device has nothing left to do."""


class CudaClock:
    """Moments of the stream that the steps run on: when the GPU comes there."""

    def __init__(self) -> None:
        self._moments: list[torch.cuda.Event] = []

    def note(self) -> None:
        """Queue an event behind all that was queued so far."""
        moment = torch.cuda.Event(enable_timing=True)
        moment.record()
        self._moments.append(moment)

    def read(self) -> list[float]:
        """The events count milliseconds."""
        return [round(one.elapsed_time(other) / 1000, 6) for one, other in pairwise(self._moments)]


class CpuClock:
    """Moments of this process."""

    def __init__(self) -> None:
        self._moments: list[float] = []

    def note(self) -> None:
        """Read the clock."""
        self._moments.append(time.perf_counter())

    def read(self) -> list[float]:
        """They are seconds already."""
        return [round(other - one, 6) for one, other in pairwise(self._moments)]


class TimingPass:
    """The steps of a case that run freely: as many as say enough and end before the deadline."""

    def __init__(
        self,
        case: Case,
        device: torch.device,
        meter: Meter,
        recorder: StepRecorder,
        until: float,
    ) -> None:
        """Prepare it; nothing is timed before `begin`.

        Args:
            case: What is run.
            device: Of this rank.
            meter: Measures the peak of these steps, apart from those of the phases.
            recorder: Gets the times.
            until: When the case is ended, in seconds since 1970.
        """
        self._least, self._most = case["least_timed_steps"], case["most_timed_steps"]
        self._device, self._meter, self._recorder = device, meter, recorder
        self._until = until
        self._clock: Clock = CudaClock() if device.type == "cuda" else CpuClock()
        self._retries = 0
        self._call_seconds: list[float] = []

    def begin(self) -> int:
        """End the part of the run whose memory is reported; the steps that are to be taken now."""
        if self._device.type == "cuda":
            outside_bytes = self._meter.outside_bytes()
            self._recorder.add(device_used_outside_allocator_bytes=outside_bytes)
        # Each was as slow as the last one, or faster: nothing is read inside them.
        step_seconds = self._recorder.report["step_seconds"][-1]
        wanted = count_timed_steps(self._least, self._most, step_seconds)
        steps = agree_on_least(min(wanted, self._steps_left(step_seconds)), self._device)
        if steps:
            self._recorder.name_phase("timing")
            self._retries = self._meter.retries() or 0
            self._meter.begin()
            self._call_seconds.append(time_python_call(time.perf_counter))
            self._clock.note()
        return steps

    def _steps_left(self, step_seconds: float) -> int:
        """How many steps of so many seconds end before the deadline."""
        return max(0, int((self._until - time.time()) / max(step_seconds, 1e-3)))

    def end_step(self) -> None:
        """An optimizer step has been queued."""
        self._clock.note()

    def end(self) -> None:
        """Report, once the device has taken the last step."""
        reading, retries = self._meter.end(), self._meter.retries()
        self._call_seconds.append(time_python_call(time.perf_counter))
        self._recorder.add(
            timed_step_seconds=self._clock.read(),
            timed_peak_bytes=reading["peak_bytes"],
            timed_allocator_retries=None if retries is None else retries - self._retries,
            # A host that others use is not as fast at any moment.
            python_call_seconds=statistics.mean(self._call_seconds),
        )
