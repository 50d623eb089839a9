"""Keep signals from changing the exit status once the job is over and its status is known.

A scheduler ends the zerowiz processes of the other nodes once the first has failed
(srun --kill-on-bad-exit). One that died of that signal would hide the status of the rank that
failed.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from zerowiz.emit.processes import ENDING_SIGNALS


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Collect the numbers of the signals that ask for an end, in a list that grows.

    A signal that was ignored before stays ignored.
    """
    received: list[int] = []

    def note(number: int, _frame: object) -> None:
        received.append(number)

    caught = [each for each in ENDING_SIGNALS if signal.getsignal(each) != signal.SIG_IGN]
    before = {each: signal.signal(each, note) for each in caught}
    try:
        yield received
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def ignore_signals() -> None:
    """Ignore requests to end from here to the exit: the exit status is known and stays."""
    for each in ENDING_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
