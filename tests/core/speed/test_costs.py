"""The constants take the speed of the host that they are asked for."""

import pytest

from zerowiz.core.machine.types import Host
from zerowiz.core.speed.costs import COSTS, on_host, product_fraction_on
from zerowiz.core.structs import replace


def _factor(call_seconds: float | None) -> float:
    host = replace(Host(), python_call_seconds=call_seconds)
    return on_host(COSTS, host).host_seconds / COSTS.host_seconds


def test_a_reading_is_pulled_towards_the_mean_of_shared_hosts() -> None:
    """Else a moment in which a host was busy would decide the whole step."""
    usual = _factor(COSTS.shared_python_call_seconds)
    assert usual == pytest.approx(COSTS.shared_python_call_seconds / COSTS.python_call_seconds)
    slow, fast = _factor(4 * 143e-9), _factor(143e-9 / 4)
    assert 1.5 < slow / usual < 4
    assert slow / usual == pytest.approx(usual / fast)


def test_a_host_that_nobody_timed_is_not_pulled() -> None:
    expected = COSTS.unknown_python_call_seconds / COSTS.python_call_seconds
    assert _factor(None) == pytest.approx(expected)


def test_a_gpu_before_hopper_reaches_more_of_its_nominal_rate() -> None:
    assert COSTS.older_product_fraction == product_fraction_on(COSTS, (8, 0))
    assert COSTS.product_fraction == product_fraction_on(COSTS, (9, 0))
    assert COSTS.product_fraction == product_fraction_on(COSTS, (10, 0))
