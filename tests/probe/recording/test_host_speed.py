"""How fast this host runs Python."""

from collections.abc import Iterator

from zerowiz.probe.recording.host_speed import read_python_call_seconds


def test_a_call_takes_some_nanoseconds() -> None:
    assert 1e-9 < read_python_call_seconds() < 1e-4


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
    assert 2e-7 == read_python_call_seconds(lambda: next(clock))
