"""What stderr says of an attempt that failed."""

import io

import pytest

from zerowiz.core.job_end import Cause, JobEnd, RankEnd
from zerowiz.core.strategies import ZERO2
from zerowiz.core.structs import replace
from zerowiz.ui.job_end import failure

FIRST = RankEnd(rank=1, host="n1", status=139, ended_at=0.0, log="rank-1.log", tail=("a", "b"))


def said(end: JobEnd) -> str:
    stream = io.StringIO()
    failure(end, ZERO2, 2, stream)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("status", "cause", "expected"),
    [
        (139, Cause.KILLED, "ended with status 139: it was killed by SIGSEGV"),
        (137, Cause.KILLED, "ended with status 137: it was killed by SIGKILL"),
        (128 + 100, Cause.KILLED, "ended with status 228: it was killed"),
        (143, Cause.STOPPED, "ended with status 143: it was asked to stop"),
        (137, Cause.HOST_OOM, "ended with status 137: the host ran out of memory"),
    ],
)
def test_the_signal_is_named_that_killed_a_rank(status: int, cause: Cause, expected: str) -> None:
    assert f"attempt 2 (ZeRO-2) {expected}" == said(JobEnd(status=status, cause=cause)).strip()


TAKE = '`parser.add_argument("--local_rank", type=int)`'
ROOM = "look at the room on its disk"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train.py: error: unrecognized arguments: --local_rank=1", TAKE),
        ("ValueError: ... not used by the HfArgumentParser: ['--local_rank=1', '--x']", TAKE),
        ("ERROR: Could not consume arg: --local_rank=1", TAKE),
        ("train.py: error: unrecognized arguments: --lr=1", None),
        ("train.py --local_rank=1", None),
        # What torch.save and Python say of a full disk.
        ("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0", ROOM),
        ("OSError: [Errno 28] No space left on device: 'checkpoint-5/optimizer.pt'", ROOM),
        ("OSError: [Errno 122] Disk quota exceeded", ROOM),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a'", None),
    ],
)
def test_an_error_with_a_known_way_out_gets_it(line: str, expected: str | None) -> None:
    end = JobEnd(status=2, cause=Cause.FAILED, first=replace(FIRST, status=2, tail=(line,)))
    words = " ".join(said(end).split())
    assert [each for each in (TAKE, ROOM) if each in words] == ([expected] if expected else [])


def test_the_rank_that_failed_first_has_the_last_word() -> None:
    text = said(JobEnd(status=139, cause=Cause.KILLED, first=FIRST))
    assert "SIGSEGV; rank 1 on n1 was first, its log is rank-1.log" in text
    assert text.endswith("  | a\n  | b\n")


def test_of_a_job_that_was_stopped_no_rank_is_to_blame() -> None:
    text = said(JobEnd(status=130, cause=Cause.STOPPED, first=FIRST))
    assert "attempt 2 (ZeRO-2) ended with status 130: it was asked to stop" == text.strip()


def test_the_last_lines_of_a_rank_steer_no_terminal_and_leave_their_colours() -> None:
    first = replace(FIRST, tail=("\x1b[1;31mE\x1b[0m\tno room", "\x1b[2J\x1b]0;title\x07"))
    text = said(JobEnd(status=1, cause=Cause.FAILED, first=first))
    assert text.endswith("  | E       no room\n  | ?[2J?]0;title?\n")
