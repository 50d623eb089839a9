"""Time how fast a host runs Python: what launches a GPU's work is Python."""

from collections.abc import Callable

# Short rounds: the least of them is one that nothing interrupted.
_ROUNDS, _CALLS = 12, 1_000


class _Module:
    """Something to call as torch calls a module."""

    def __init__(self) -> None:
        self.value = 1

    def forward(self, *_args: object, **_keywords: object) -> int:
        """As cheap as a call can be."""
        return self.value


def time_python_call(now: Callable[[], float]) -> float:
    """The time of one call of a method with a keyword, in some 3 ms.

    Python, torch's dispatch and CUDA's launches slow down alike: on two rented hosts with the same
    processor by name, 83 and 92 ns beside 195 and 151 ns, a linear layer's forward and backward
    took 76 and 92 us beside 165 and 151 us (tests/measured/README.md).

    Args:
        now: A clock, in seconds, such as `time.perf_counter`.
    """
    module, least = _Module(), float("inf")
    for _ in range(_ROUNDS):
        begin = now()
        for number in range(_CALLS):
            module.forward(number, keyword=number)
        least = min(least, now() - begin)
    return round(least / _CALLS, 10)
