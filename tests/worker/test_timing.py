"""Steps run freely after those whose memory is measured, and end before the deadline."""

import time
from pathlib import Path
from typing import cast

import pytest

torch = pytest.importorskip("torch")

from worker.resident import resident  # noqa: E402

from zerowiz.worker import loops  # noqa: E402
from zerowiz.worker.batch_files import Case, Reading, read_report  # noqa: E402
from zerowiz.worker.loops import (  # noqa: E402  # noqa: E402
    CpuClock,
    CpuMeter,
    Meter,
    StepRecorder,
    TimingPass,
)

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("alone")


class FlushingMeter(CpuMeter):
    """Of an allocator that has flushed five times by the end, and whose peak grows by 7 bytes."""

    peak_bytes = flushes = 0

    def begin(self) -> None:
        self.peak_bytes = 0

    def end(self) -> Reading:
        self.peak_bytes, self.flushes = self.peak_bytes + 7, 5
        return {"allocated_bytes": 0, "peak_bytes": self.peak_bytes, "peak_reserved_bytes": None}

    def retries(self) -> int:
        return self.flushes


def after_steps(
    folder: Path,
    wanted: int,
    left_s: float,
    meter: Meter | None = None,
    last_seconds: float = 1.0,
    most: int | None = None,
) -> tuple[TimingPass, StepRecorder]:
    """A pass after measured steps, the last so long, and so long before the deadline."""
    meter = meter or CpuMeter()
    meter.outside_bytes()
    recorder = StepRecorder(folder / "report.json", meter)
    with recorder.measured("step", "first"):
        pass
    # The first is slow: kernels are chosen in it.
    recorder.end_iteration(100.0)
    recorder.end_iteration(last_seconds)
    case = cast("Case", {"least_timed_steps": wanted, "most_timed_steps": most or wanted})
    return TimingPass(case, CPU, meter, recorder, time.time() + left_s), recorder


@pytest.mark.parametrize(("wanted", "left_s", "taken"), [(6, 600, 6), (6, 4.5, 4), (6, -3, 0)])
def test_only_steps_that_end_before_the_deadline_are_taken(
    tmp_path: Path, wanted: int, left_s: float, taken: int
) -> None:
    timing, _ = after_steps(tmp_path, wanted, left_s)
    assert taken == timing.begin()


@pytest.mark.parametrize(("last_seconds", "taken"), [(2.0, 6), (0.25, 20), (0.01, 40)])
def test_more_of_short_steps_are_taken(tmp_path: Path, last_seconds: float, taken: int) -> None:
    timing, _ = after_steps(tmp_path, 6, 600, last_seconds=last_seconds, most=40)
    assert taken == timing.begin()


def test_each_step_is_reported_and_the_measured_phases_stay_as_they_were(tmp_path: Path) -> None:
    timing, recorder = after_steps(tmp_path, 3, 600)
    before = dict(recorder.report)
    held = []
    block_bytes = 40 * 2**20
    for _ in range(timing.begin()):
        held.append(resident(block_bytes))
        time.sleep(0.02)
        timing.end_step()
    timing.end()
    report = read_report(tmp_path / "report.json")
    assert report is not None
    assert 3 == len(report["timed_step_seconds"])
    assert min(report["timed_step_seconds"]) >= 0.02
    assert {key: report[key] for key in before} == before  # type: ignore[literal-required]
    peak_bytes = report["timed_peak_bytes"]
    # None where the kernel resets no peak (`test_meters.py`).
    assert peak_bytes is None or peak_bytes >= len(held) * block_bytes


def test_the_peak_and_the_flushes_of_the_timed_steps_alone_are_reported(tmp_path: Path) -> None:
    meter = FlushingMeter()
    timing, recorder = after_steps(tmp_path, 1, 600, meter)
    meter.peak_bytes, meter.flushes = 100, 2
    timing.begin()
    timing.end()
    report = recorder.report
    assert (7, 3) == (report["timed_peak_bytes"], report["timed_allocator_retries"])


def test_the_speed_of_python_is_the_mean_of_before_and_after_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter((1e-7, 3e-7))
    monkeypatch.setattr(loops, "time_python_call", lambda _: next(readings))
    timing, recorder = after_steps(tmp_path, 1, 600)
    timing.begin()
    timing.end()
    assert pytest.approx(2e-7) == recorder.report["python_call_seconds"]


def test_what_fails_there_is_said_to_fail_there(tmp_path: Path) -> None:
    timing, recorder = after_steps(tmp_path, 3, 600)
    timing.begin()
    assert (None, "timing") == (recorder.phase, recorder.phase_name)


def test_without_wanted_steps_nothing_is_timed(tmp_path: Path) -> None:
    timing, recorder = after_steps(tmp_path, 0, 600)
    assert 0 == timing.begin()
    assert "timed_step_seconds" not in recorder.report
    assert "step" == recorder.phase


def test_a_clock_reads_what_lies_between_neighbors() -> None:
    clock = CpuClock()
    clock.note()
    assert [] == clock.read()
    clock.note()
    clock.note()
    assert 2 == len(clock.read())
