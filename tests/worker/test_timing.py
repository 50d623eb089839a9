"""Steps run freely after those whose memory is measured, and end before the deadline."""

import time
from pathlib import Path
from typing import cast

import pytest

torch = pytest.importorskip("torch")

from worker.resident import resident  # noqa: E402

from zerowiz.worker.batch_files import Case, read_report  # noqa: E402
from zerowiz.worker.loops.recorder import StepRecorder  # noqa: E402
from zerowiz.worker.loops.timing import CpuClock, TimingPass  # noqa: E402
from zerowiz.worker.meters import CpuMeter  # noqa: E402

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("alone")


def after_one_step(folder: Path, wanted: int, left_s: float) -> tuple[TimingPass, StepRecorder]:
    """A pass after a measured step of one second, so long before the deadline."""
    meter = CpuMeter()
    meter.outside_bytes()
    recorder = StepRecorder(folder / "report.json", meter)
    with recorder.measured("step", "first"):
        pass
    recorder.end_iteration(1.0)
    case = cast("Case", {"timed_steps": wanted})
    return TimingPass(case, CPU, meter, recorder, time.time() + left_s), recorder


@pytest.mark.parametrize(("wanted", "left_s", "taken"), [(6, 600, 6), (6, 4.5, 4), (6, -3, 0)])
def test_only_steps_that_end_before_the_deadline_are_taken(
    tmp_path: Path, wanted: int, left_s: float, taken: int
) -> None:
    timing, _ = after_one_step(tmp_path, wanted, left_s)
    assert taken == timing.begin()


def test_each_step_is_reported_and_the_measured_phases_stay_as_they_were(tmp_path: Path) -> None:
    timing, recorder = after_one_step(tmp_path, 3, 600)
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


def test_what_fails_there_is_said_to_fail_there(tmp_path: Path) -> None:
    timing, recorder = after_one_step(tmp_path, 3, 600)
    timing.begin()
    assert (None, "timing") == (recorder.phase, recorder.phase_name)


def test_without_wanted_steps_nothing_is_timed(tmp_path: Path) -> None:
    timing, recorder = after_one_step(tmp_path, 0, 600)
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
