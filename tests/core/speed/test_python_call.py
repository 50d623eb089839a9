"""How fast this host runs Python."""

import time
from collections.abc import Iterator

from zerowiz.core.speed.costs import time_python_call


def test_a_call_takes_some_nanoseconds() -> None:
    assert 1e-9 < time_python_call(time.perf_counter) < 1e-4


def test_the_least_of_all_rounds_counts() -> None:
    def ticks() -> Iterator[float]:
        now = 0.0
        for took in (3e-4, 2e-4, 5e-4):
            yield now
            now += took
            yield now
        while True:
            yield now
            now += 1.0

    clock = ticks()
    assert 2e-7 == time_python_call(lambda: next(clock))
