"""What a terminal shows of a wait: nothing of a short one, then how long it lasts and will last."""

import io
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pyte
import pytest
from ui.streams import TerminalStream

from zerowiz.ui.progress import TerminalWait
from zerowiz.ui.reporter import TerminalReporter

LONG_S = 0.8


def last(wait: AbstractContextManager[object]) -> None:
    with wait:
        time.sleep(LONG_S)


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "50")


def shown_by(
    during: Callable[[TerminalWait], None],
    total: int | None = None,
    label: str = "asking the nodes of a hostfile that is very long",
) -> bytes:
    """The bytes that a terminal gets of a wait in which something happens."""
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        with TerminalWait(label, stream, total) as waiting:
            during(waiting)
        stream.flush()
        os.set_blocking(ours, False)
        shown = b""
        with suppress(BlockingIOError):
            while True:
                shown += os.read(ours, 1 << 16)
        os.close(ours)
        return shown


def lines_of(shown: bytes) -> list[str]:
    screen = pyte.Screen(50, 10)
    pyte.ByteStream(screen).feed(shown)
    return [line.rstrip() for line in screen.display if line.strip()]


def test_a_short_wait_shows_nothing() -> None:
    assert b"" == shown_by(lambda _: None)


def test_a_long_wait_fits_its_line_and_leaves_nothing_behind() -> None:
    shown = shown_by(lambda _: time.sleep(LONG_S))
    before_the_end = shown[: shown.rindex(b"0:00")] + b"0:00"
    (line,) = lines_of(before_the_end)
    assert re.fullmatch(r"asking the nodes.*… 0:00:00", line)
    assert [] == lines_of(shown)


def test_what_is_done_is_counted() -> None:
    def two_of_four(waiting: TerminalWait) -> None:
        time.sleep(0.6)
        for name in ("n1", "n2"):
            waiting.done(name)
        waiting.at("n3")
        time.sleep(0.4)

    shown = shown_by(two_of_four, total=4)
    assert b"2 of 4 0:00:00" in re.sub(rb"\x1b\[[0-9;]*m", b"", shown)


def test_a_terminal_that_can_only_print_gets_one_plain_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    shown = shown_by(lambda _: time.sleep(LONG_S)).decode()
    assert re.fullmatch(r"asking the nodes of a hostfile that is very long \.\.\.\r\n", shown)


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_what_others_named_steers_no_terminal(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is waited for by the name that a file of axolotl has."""
    monkeypatch.setenv("TERM", term)
    shown = shown_by(lambda _: time.sleep(LONG_S), label="reading `a\x1b[31m\x1b]0;b\x07`").decode()
    assert "reading `a?[31m?]0;b?`" in shown
    assert "\x1b[31m" not in shown
    assert "\x07" not in shown


def test_a_log_gets_nothing() -> None:
    log = io.StringIO()
    last(TerminalWait("asking nodes", log))
    assert "" == log.getvalue()


@pytest.mark.parametrize(
    "silent", [TerminalReporter(with_waits=False), TerminalReporter(quiet=True)]
)
def test_who_wants_results_alone_sees_no_wait(
    silent: TerminalReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = TerminalStream()
    monkeypatch.setattr(sys, "stderr", stderr)
    last(silent.wait("asking nodes"))
    assert "" == stderr.getvalue()
    last(TerminalReporter().wait("asking nodes"))
    assert "asking nodes" in stderr.getvalue()


def test_results_in_a_file_stay_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "out").open("w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)

        def say(_: TerminalWait) -> None:
            time.sleep(LONG_S)
            print("a result")  # noqa: T201 - what a command does

        shown = shown_by(say)
    assert b"a result" not in shown
    assert "a result\n" == (tmp_path / "out").read_text(encoding="utf-8")
