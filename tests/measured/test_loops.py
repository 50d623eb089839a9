"""The ranks agree on a number, and measure steps that run freely, and what is resident."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from mmap import mmap
from pathlib import Path
from typing import Any, cast

import pytest
from measured import loops
from measured.loops import (
    CpuClock,
    CpuMeter,
    Meter,
    StepRecorder,
    TimingPass,
    parse_status,
)
from measured.ranks import Case, Reading, read_report

torch = pytest.importorskip("torch")


CPU = torch.device("cpu")
MIB = 2**20
TESTS = Path(__file__).parents[1]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank."""
    from torch import distributed

    store = f"file://{tmp_path / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def resident(size_bytes: int) -> Any:
    """So many bytes, mapped anew and touched: malloc may hand out what an earlier test freed."""
    return torch.frombuffer(mmap(-1, size_bytes), dtype=torch.uint8).fill_(1)


TWO_RANKS = """
import os, sys, torch
from torch import distributed
from measured.loops import agree_on_least
rank, store = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
print(agree_on_least(5 + rank, torch.device("cpu")), flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_two_ranks_agree_on_the_least(tmp_path: Path) -> None:
    words = [sys.executable, "-c", TWO_RANKS]
    ranks = [
        subprocess.Popen(
            [*words, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"},
        )
        for rank in range(2)
    ]
    # DeepSpeed logs on stdout, too.
    said = [rank.communicate(timeout=120)[0].splitlines()[-1] for rank in ranks]
    assert [b"5", b"5"] == said


# Steps run freely after those whose memory is measured, and end before the deadline.


TIMING_CPU = torch.device("cpu")


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
    return TimingPass(case, TIMING_CPU, meter, recorder, time.time() + left_s), recorder


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("wanted", "most", "left_s", "last_seconds", "taken"),
    [
        (6, 6, 600, 1.0, 6),
        # Those that end before the deadline.
        (6, 6, 4.5, 1.0, 4),
        (6, 6, -3, 1.0, 0),
        # More of short ones.
        (6, 40, 600, 2.0, 6),
        (6, 40, 600, 0.25, 20),
        (6, 40, 600, 0.01, 40),
    ],
)
def test_as_many_steps_are_taken_as_say_enough_and_end_in_time(
    tmp_path: Path, wanted: int, most: int, left_s: float, last_seconds: float, taken: int
) -> None:
    timing, _ = after_steps(tmp_path, wanted, left_s, last_seconds=last_seconds, most=most)
    assert taken == timing.begin()


@pytest.mark.usefixtures("alone")
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
    # None where the kernel resets no peak (below).
    assert peak_bytes is None or peak_bytes >= len(held) * block_bytes


@pytest.mark.usefixtures("alone")
def test_the_peak_and_the_flushes_of_the_timed_steps_alone_are_reported(tmp_path: Path) -> None:
    meter = FlushingMeter()
    timing, recorder = after_steps(tmp_path, 1, 600, meter)
    meter.peak_bytes, meter.flushes = 100, 2
    timing.begin()
    timing.end()
    report = recorder.report
    assert (7, 3) == (report["timed_peak_bytes"], report["timed_allocator_retries"])


@pytest.mark.usefixtures("alone")
def test_the_speed_of_python_is_the_mean_of_before_and_after_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter((1e-7, 3e-7))
    monkeypatch.setattr(loops, "time_python_call", lambda _: next(readings))
    timing, recorder = after_steps(tmp_path, 1, 600)
    timing.begin()
    timing.end()
    assert pytest.approx(2e-7) == recorder.report["python_call_seconds"]


@pytest.mark.usefixtures("alone")
def test_what_fails_there_is_said_to_fail_there(tmp_path: Path) -> None:
    timing, recorder = after_steps(tmp_path, 3, 600)
    timing.begin()
    assert (None, "timing") == (recorder.phase, recorder.phase_name)


@pytest.mark.usefixtures("alone")
def test_without_wanted_steps_nothing_is_timed(tmp_path: Path) -> None:
    timing, recorder = after_steps(tmp_path, 0, 600)
    assert 0 == timing.begin()
    assert "timed_step_seconds" not in recorder.report
    assert "step" == recorder.phase


@pytest.mark.usefixtures("alone")
def test_a_clock_reads_what_lies_between_neighbors() -> None:
    clock = CpuClock()
    clock.note()
    assert [] == clock.read()
    clock.note()
    clock.note()
    assert 2 == len(clock.read())


# What a rank on the CPU accelerator holds is its resident set, phase by phase.

STATUS = "Name:\tpython\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n"


def test_a_status_counts_in_kibibytes() -> None:
    assert (2 * MIB, MIB) == (parse_status(STATUS, "VmHWM"), parse_status(STATUS, "VmRSS"))


def test_a_phase_holds_what_is_resident_beyond_the_start() -> None:
    meter = CpuMeter()
    base_bytes = meter.outside_bytes()
    meter.begin()
    held = resident(64 * MIB)
    reading = meter.end()
    assert base_bytes > 0
    assert 64 * MIB == pytest.approx(reading["allocated_bytes"], rel=0.1)
    assert held.numel() == 64 * MIB
    assert None is reading["peak_reserved_bytes"]
    assert meter.host_peak_rss_bytes() >= 64 * MIB


def test_a_phase_has_a_peak_where_the_kernel_resets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_CLEAR_REFS", tmp_path / "clear_refs")
    meter = CpuMeter()
    meter.outside_bytes()
    meter.begin()
    held = resident(64 * MIB)
    peak_bytes = meter.end()["peak_bytes"]
    assert "5" == (tmp_path / "clear_refs").read_text(encoding="utf-8")
    assert peak_bytes is not None
    assert 0.9 * held.numel() <= peak_bytes


def test_a_phase_has_no_peak_where_the_kernel_does_not_reset_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_CLEAR_REFS", tmp_path)
    meter = CpuMeter()
    meter.begin()
    assert None is meter.end()["peak_bytes"]


def test_a_host_peak_outlives_the_phase_that_had_it() -> None:
    meter = CpuMeter()
    meter.begin()
    held = resident(256 * MIB)
    high_bytes = meter.host_peak_rss_bytes()
    del held
    meter.begin()
    # The kernel counts pages in batches.
    assert meter.host_peak_rss_bytes() >= high_bytes - MIB
