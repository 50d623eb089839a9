"""Take signals that come when the job is over, and only its status is left to tell.

A scheduler ends the other copies once the first has ended badly (srun --kill-on-bad-exit); a copy
that died of that would hide the status of the rank that failed.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from zerowiz.emit.processes import ENDING


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """The numbers of those that ask for an end meanwhile, in a list that grows.

    What was ignored stays ignored.
    """
    told: list[int] = []

    def note(number: int, _frame: object) -> None:
        told.append(number)

    heard = [each for each in ENDING if signal.getsignal(each) != signal.SIG_IGN]
    before = {each: signal.signal(each, note) for each in heard}
    try:
        yield told
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def ignore_signals() -> None:
    """From here to the exit: the status is known, and is not to become another."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
