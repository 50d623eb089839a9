"""End as Ctrl-C does where another signal asks for it, so that nothing is left behind."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

# A terminal that is closed, and `kill` without a number.
_ENDING = (signal.SIGHUP, signal.SIGTERM)


@contextmanager
def ending_as_ctrl_c() -> Iterator[None]:
    """Within, a signal that asks for an end raises KeyboardInterrupt, once.

    A signal that was ignored before, as `nohup` does it, stays ignored.
    """
    caught = [each for each in _ENDING if signal.getsignal(each) != signal.SIG_IGN]

    def interrupt(_number: int, _frame: object) -> NoReturn:
        for each in caught:
            # What is done about the first is not to be broken off by a second.
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in caught}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
