"""What a rank on the CPU accelerator holds is its resident set, phase by phase."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from worker.resident import resident

from zerowiz.worker import loops
from zerowiz.worker.loops import CpuMeter, parse_status

STATUS = "Name:\tpython\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n"
MIB = 2**20


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
