"""The measured loops of a rank, and the meters of memory and steps."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, Unpack

import torch
from measured.ranks import (
    Case,
    Iteration,
    Phase,
    Reading,
    Report,
    write_json,
)
from measured.trials import count_timed_steps
from torch import distributed

from zerowiz.core.speed.costs import time_python_call

_STATUS = Path("/proc/self/status")
# proc(5), clear_refs: 5 resets the peak resident set to the current one.
_CLEAR_REFS, _RESET_PEAK = Path("/proc/self/clear_refs"), "5"


def parse_status(text: str, key: str) -> int:
    """A size of /proc/self/status, such as `VmHWM`, in bytes."""
    line = next(line for line in text.splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def read_status(key: str) -> int:
    """A size of this process's /proc/self/status, in bytes."""
    return parse_status(_STATUS.read_text(encoding="utf-8"), key)


class Meter(Protocol):
    """Measures the memory of each phase."""

    def begin(self) -> None:
        """Begin a phase: its peak is counted from here."""

    def end(self) -> Reading:
        """End a phase, once all that it queued on the device has run."""

    def outside_bytes(self) -> int:
        """Memory that the phases do not count."""

    def retries(self) -> int | None:
        """How often the allocator had to flush its cache; None if there is none."""

    def host_peak_rss_bytes(self) -> int:
        """The largest resident set so far."""


class CudaMeter:
    """torch's caching allocator. Its reserved peak is the largest so far, as it is never reset."""

    def __init__(self) -> None:
        self._reserved_bytes = 0

    def begin(self) -> None:
        """Reset the peaks."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def end(self) -> Reading:
        """Allocated at the end, peak in the phase, peak reserved so far."""
        torch.cuda.synchronize()
        self._reserved_bytes = max(self._reserved_bytes, torch.cuda.max_memory_reserved())
        return {
            "allocated_bytes": torch.cuda.memory_allocated(),
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": self._reserved_bytes,
        }

    def outside_bytes(self) -> int:
        """What CUDA reports as taken on the device, less what torch reserved."""
        torch.cuda.synchronize()
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        return int(total_bytes - free_bytes - torch.cuda.memory_reserved())

    def retries(self) -> int | None:
        """Flushes of the allocator's cache so far."""
        return int(torch.cuda.memory_stats()["num_alloc_retries"])

    def host_peak_rss_bytes(self) -> int:
        """The kernel's own high-water mark."""
        return read_status("VmHWM")


class CpuMeter:
    """The resident set, less what was resident before the model; nothing is reserved there."""

    def __init__(self) -> None:
        self._base_bytes = 0
        self._host_peak_bytes = 0

    def begin(self) -> None:
        """Reset the peak, where the kernel lets us."""
        self._host_peak_bytes = self.host_peak_rss_bytes()
        self._resets = True
        try:
            _CLEAR_REFS.write_text(_RESET_PEAK, encoding="utf-8")
        except OSError:
            self._resets = False

    def end(self) -> Reading:
        """Resident at the end, and the peak in the phase."""
        peak_bytes = read_status("VmHWM") - self._base_bytes if self._resets else None
        return {
            "allocated_bytes": read_status("VmRSS") - self._base_bytes,
            "peak_bytes": peak_bytes,
            "peak_reserved_bytes": None,
        }

    def outside_bytes(self) -> int:
        """All that is resident. Called before the model, it becomes the base of the phases."""
        self._base_bytes = read_status("VmRSS")
        return self._base_bytes

    def retries(self) -> int | None:
        """None: there is no caching allocator."""
        return None

    def host_peak_rss_bytes(self) -> int:
        """The kernel's high-water mark, over all resets of `begin`."""
        return max(self._host_peak_bytes, read_status("VmHWM"))


def agree_on_least(value: float, device: torch.device) -> int:
    """The least of what the ranks say, so that all of them do the same; each waits for the others."""
    least = torch.tensor(float(value), dtype=torch.float64, device=device)
    distributed.all_reduce(least, op=distributed.ReduceOp.MIN)
    return int(least.item())


# Report each phase of a case, whichever loop takes its steps.


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
            name = self.phase_name
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

    def end_iteration(self, seconds: float) -> None:
        """Note how long an optimizer step took; of those in the middle nothing else is kept."""
        self.report["phases"] = {
            phase: reading
            for phase, reading in self.report["phases"].items()
            if not phase.startswith("middle_")
        }
        self.add(step_seconds=[*self.report["step_seconds"], round(seconds, 4)])

    def describe_optimizer(self, optimizer: Any) -> None:
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


# Time optimizer steps that run freely, after those whose memory was measured.
#
# Nothing waits for the device inside a step or between two: the boundaries of the steps are
# noted, and read once the last step has ended.


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
        return [round(start.elapsed_time(end) / 1000, 6) for start, end in pairwise(self._moments)]


class CpuClock:
    """Moments of this process."""

    def __init__(self) -> None:
        self._moments: list[float] = []

    def note(self) -> None:
        """Read the clock."""
        self._moments.append(time.perf_counter())

    def read(self) -> list[float]:
        """They are seconds already."""
        return [round(end - start, 6) for start, end in pairwise(self._moments)]


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
        steps_left = max(0, int((self._until - time.time()) / max(step_seconds, 1e-3)))
        steps = agree_on_least(min(wanted, steps_left), self._device)
        if steps:
            self._recorder.name_phase("timing")
            self._retries = self._meter.retries() or 0
            self._meter.begin()
            self._call_seconds.append(time_python_call(time.perf_counter))
            self._clock.note()
        return steps

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


# Train a case by a plain loop over DeepSpeed's engine.


def train_by_engine(
    case: Case,
    model: Any,
    device: torch.device,
    recorder: StepRecorder,
    timing: TimingPass,
) -> None:
    """Initialize, and take every optimizer step of the case on one batch."""
    from measured.models import make_batch

    engine = initialize(case, model, recorder)
    # Ranks that cut layers between them train the same tokens; `zero.Init` drew unlike on each.
    torch.manual_seed(0)
    batch = make_batch(model, case, device)
    for iteration in range(case["steps"]):
        _measure_step(engine, batch, case, iteration, recorder)
    steps = timing.begin()
    for _ in range(steps):
        take_step(engine, batch, case)
        timing.end_step()
    if steps:
        timing.end()


def initialize(case: Case, model: Any, recorder: StepRecorder) -> Any:
    """The engine of DeepSpeed with the model in it."""
    # The ranks have loaded both; who asks for a meter alone does without.
    import deepspeed
    from measured.models import build_optimizer

    with recorder.measured("init"):
        trainable = [p for p in model.parameters() if p.requires_grad]
        config = dict(case["ds_config"])
        optimizer = build_optimizer(case["optimizer"], trainable, config)
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=trainable, optimizer=optimizer, config=config
        )
    recorder.describe_optimizer(engine.optimizer)
    return engine


def take_step(
    engine: Any,
    batch: dict[str, torch.Tensor],
    case: Case,
) -> None:
    """Take one optimizer step, as a script does."""
    for _ in range(case["accumulation_steps"]):
        loss = engine(**batch).loss
        engine.backward(loss)
        del loss
        engine.step()


def _measure_step(
    engine: Any,
    batch: dict[str, torch.Tensor],
    case: Case,
    iteration: int,
    recorder: StepRecorder,
) -> None:
    """Take one optimizer step, and measure each of its phases."""
    name = name_iteration(iteration, case["steps"])
    began = time.perf_counter()
    for _ in range(case["accumulation_steps"]):
        with recorder.measured("forward", name):
            loss = engine(**batch).loss
        with recorder.measured("backward", name):
            engine.backward(loss)
        del loss
        with recorder.measured("step", name):
            engine.step()
    recorder.end_iteration(time.perf_counter() - began)
