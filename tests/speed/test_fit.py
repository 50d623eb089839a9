"""The constants of step times come from the fitted side, and are no worse than the page says."""

import math

import pytest
from accuracy.split import Split
from speed.errors import lines
from speed.fit import fit
from speed.pairs import log_error
from speed.public import read_published
from speed.samples import DISTURBED, read_samples

from zerowiz.core.speed.costs import COSTS
from zerowiz.core.structs import replace

SAMPLES = read_samples()
FREE = [each for each in SAMPLES if each.free_running]
FITTED = [each for each in FREE if each.side is Split.FITTED]


def _median(side: Split) -> float:
    return next(lines([each for each in FREE if each.side is side], COSTS)).median


@pytest.mark.parametrize(("side", "most"), [(Split.FITTED, 0.10), (Split.SET_ASIDE, 0.12)])
def test_half_of_the_steps_are_as_near_as_documented(side: Split, most: float) -> None:
    assert 0.02 < _median(side) < most


@pytest.mark.slow
def test_a_fit_of_half_of_the_samples_from_elsewhere_finds_nearly_the_same_constants() -> None:
    found = fit(FITTED[::2], replace(COSTS, product_fraction=0.5, host_seconds=300e-6))
    for name in ("product_fraction", "elementwise_fraction", "host_seconds", "core_bytes_per_s"):
        assert getattr(found, name) == pytest.approx(getattr(COSTS, name), rel=0.3), name


def test_no_disturbed_run_and_no_synchronised_step_of_stage_3_counts() -> None:
    assert not {each.row["file"] for each in SAMPLES} & DISTURBED
    assert all(each.free_running for each in SAMPLES if each.rank.strategy.stage == 3)


def test_each_timed_row_has_the_speed_of_its_host() -> None:
    read = [each.machine.host.python_call_seconds or 0 for each in FREE]
    # Shared hosts: 82 to 380 ns. A default or a missing reading is none of these.
    assert 60e-9 < min(read) < max(read) < 400e-9
    # One host is not always as fast, and its rows say so.
    on_h200 = {each.machine.host.python_call_seconds for each in FREE if "H200" in each.row["gpu"]}
    assert len(on_h200) > 20


def test_published_times_that_wait_for_the_gpu_are_near() -> None:
    near = [
        each.error
        for each in read_published()
        if each.run["sequence_tokens"] >= 2048 and "offload" not in each.run["strategy"]
    ]
    assert len(near) > 10
    assert max(map(abs, near)) < 0.37


def test_an_error_is_above_zero_where_too_much_is_predicted() -> None:
    first = SAMPLES[0]
    predicted = first.predict(COSTS)
    assert predicted is not None
    for times in (2, 0.5):
        measured = first._replace(measured_seconds=predicted.expected_seconds / times)
        assert log_error(measured, COSTS) == pytest.approx(math.log(times))
