"""A diff is short, honest about what it cannot show, and steers no terminal."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerowiz.core.launch.provenance import Incomparable, difference

WANTED = '{\n  "stage": 2,\n  "bf16": true\n}\n'


def test_a_changed_line_stands_there_twice_with_its_neighbours() -> None:
    assert (
        "--- a.json",
        "+++ a.json (by zerowiz)",
        "@@ -1,4 +1,4 @@",
        " {",
        '-  "stage": 3,',
        '+  "stage": 2,',
        '   "bf16": true',
        " }",
    ) == difference("a.json", WANTED.replace("2", "3").encode(), WANTED)


def test_the_missing_end_of_a_last_line_is_said() -> None:
    found = difference("a.json", WANTED.removesuffix("\n").encode(), WANTED)
    assert ("-}", "\\ No newline at end of file", "+}") == found[-3:]


def test_line_ends_of_windows_are_one_difference_not_one_a_line() -> None:
    crlf = WANTED.replace("\n", "\r\n")
    assert Incomparable.LINE_ENDS is difference("a.json", crlf.encode(), WANTED)
    found = difference("a.json", crlf.replace("2", "3").encode(), WANTED)
    assert ['-  "stage": 3,', '+  "stage": 2,'] == [
        line for line in found[2:] if line.startswith(("-", "+"))
    ]


def test_what_cannot_be_seen_is_spelled_out() -> None:
    found = difference("a\nb", b"\xef\xbb\xbf{\n\t\x1b[2J\n", "{\n")
    assert "-\\ufeff{" in found
    assert "-\\t\\x1b[2J" in found


@pytest.mark.parametrize("there", [b"\xff\xfe{\x00}\x00", b"\x89PNG\r\n", b"{\0}"])
def test_what_is_no_text_is_said_to_be_none(there: bytes) -> None:
    assert Incomparable.NO_TEXT is difference("a.json", there, WANTED)


@pytest.mark.parametrize("there", [b"x" * 10**6, b"\n" * 20_000])
def test_what_is_huge_is_not_compared(there: bytes) -> None:
    assert Incomparable.TOO_LARGE is difference("a.json", there, WANTED)
    assert Incomparable.TOO_LARGE is difference("a.json", WANTED.encode(), there.decode())


def test_the_worst_that_is_compared_keeps_nobody_waiting() -> None:
    """Few different lines, each of which stands nearly everywhere."""
    there = "".join(f"{i * i % 7}\n" for i in range(10_000)).encode()
    wanted = "".join(f"{i * i % 11}\n" for i in range(190))
    started = time.process_time()
    assert isinstance(difference("a.json", there, wanted), tuple)
    assert time.process_time() - started < 5


@settings(deadline=None)
@given(st.binary(max_size=200), st.text(max_size=200))
def test_nothing_that_is_shown_steers_a_terminal(there: bytes, wanted: str) -> None:
    found = difference("a.json", there, wanted.encode("utf-8", "replace").decode())
    assert isinstance(found, Incomparable) or all(line.isprintable() for line in found)


@settings(deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=30), st.lists(st.sampled_from("abc"), max_size=30))
def test_what_goes_and_what_comes_make_up_the_difference(
    there: list[str], wanted: list[str]
) -> None:
    found = difference(
        "f", "".join(f"{x}\n" for x in there).encode(), "".join(f"{x}\n" for x in wanted)
    )
    lines = () if isinstance(found, Incomparable) else found[2:]
    gone = sum(line.startswith("-") for line in lines)
    come = sum(line.startswith("+") for line in lines)
    assert len(wanted) - len(there) == come - gone
