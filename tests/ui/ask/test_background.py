"""What an answer leads to is worked out beside the keyboard."""

import threading
import time

from zerowiz.ui.menu import PENDING, Background


def test_no_key_waits_and_what_was_typed_over_is_not_worked_out() -> None:
    begun, goes_on, drawn, asked = threading.Event(), threading.Event(), threading.Event(), []

    def slowly(answer: str) -> str:
        asked.append(answer)
        begun.set()
        goes_on.wait(10)
        return f"leads to {answer}"

    consequence = Background(slowly, drawn.set)
    assert consequence("7") == PENDING
    assert begun.wait(10)
    began = time.perf_counter()
    assert [PENDING] * 2 == [consequence(answer) for answer in ("70", "70b")]
    assert time.perf_counter() - began < 1
    goes_on.set()
    assert drawn.wait(10)
    assert "leads to 70b" == consequence("70b")
    assert ["7", "70b"] == asked


def test_what_is_known_at_once_is_shown_at_once() -> None:
    consequence = Background(str.upper, lambda: None)
    for answer in ("a", "b", "a"):
        until = time.monotonic() + 5
        while consequence(answer) == PENDING:
            assert time.monotonic() < until
        assert answer.upper() == consequence(answer)
