"""A job's status and cause are those of who ended it, whoever else ended after."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.outcome import Cause, JobEnd, RankEnd, judge, parse_end, plain_status
from zerowiz.core.structs import replace


def end(rank: int, status: int | None, at: float = 0.0, **settings: Any) -> RankEnd:
    return RankEnd(**{"host": "a", **settings}, rank=rank, status=status, ended_at=at)


def said(judged: JobEnd) -> tuple[int, str]:
    return judged.status, judged.cause.value


WELL, TERMINATED = end(0, 0), end(0, 143, at=9)

# What there was to see, and how it is to be told: the ends, the launcher's status, a stop and when.
# fmt: off
TABLE: dict[str, tuple[tuple[RankEnd, ...], int, int | None, float | None, tuple[int, str]]] = {
    "all ended well": ((WELL, end(1, 0)), 0, None, None, (0, "finished")),
    "all ended well though told to end": ((WELL, end(1, 0)), 0, 15, 1.0, (0, "finished")),
    "one failed, the launcher ended the other": ((TERMINATED, end(1, 3, at=5)), 3, None, None, (3, "failed")),
    "two failed, the first counts": ((end(0, 1, at=6), end(1, 3, at=5)), 1, None, None, (3, "failed")),
    "killed from outside": ((TERMINATED, end(1, 137, at=5)), 247, None, None, (137, "killed")),
    "killed for memory": ((TERMINATED, end(1, 137, at=5, host_oom=True)), 247, None, None, (137, "host_oom")),
    "killed, its peer's error showed before": ((end(0, 1, at=6, failed_at=4.5), end(1, 137, at=5)), 247, None, None, (137, "killed")),
    "killed with its watcher, its peer's error showed before": ((end(0, 1, at=6, failed_at=4.5), end(1, None, at=5.2)), 247, None, None, (137, "killed")),
    "killed with its watcher, and missed only when its peer was gone": ((end(0, 1, at=6, failed_at=5.2), end(1, None, at=6.3)), 247, None, None, (137, "killed")),
    "killed with its watcher, the launcher saw its peer's end": ((end(0, 1, at=6, failed_at=5.2), end(1, None, at=5.2)), 1, None, None, (137, "killed")),
    "killed with its watcher, long after another's error": ((end(0, 1, at=6, failed_at=5.2), end(1, None, at=8.1)), 1, None, None, (1, "failed")),
    "failed where nothing could be written": ((TERMINATED, end(1, None, at=9)), 3, None, None, (3, "failed")),
    "killed by a person, long after another's error": ((end(0, 1, at=12, failed_at=4), end(1, 137, at=9)), 247, None, None, (1, "failed")),
    "killed after another's error, and stopped": ((end(0, 3, at=6, failed_at=2), end(1, 139, at=5.2)), 3, 15, 5.0, (3, "failed")),
    "killed as soon as another was gone": ((end(0, 1, at=5.2, failed_at=5), end(1, 137, at=5.4)), 1, None, None, (1, "failed")),
    "told to end while it unwound": ((end(0, 143, at=9, failed_at=4), end(1, 1, at=6, failed_at=5)), 1, None, None, (1, "failed")),
    "told to end while it unwound for memory": ((end(0, 143, at=9, failed_at=6, cuda_oom=True), end(1, 1, at=6, failed_at=5)), 1, None, None, (1, "cuda_oom")),
    "killed after the grace, for another's error": ((end(0, 1, at=6, failed_at=5), end(1, 137, at=7)), 1, None, None, (1, "failed")),
    "aborted, as it ended for its error": ((end(0, 1, at=6, failed_at=5.1), end(1, 134, at=5, failed_at=4)), 250, None, None, (134, "failed")),
    "aborted, for a peer's error": ((end(0, 1, at=6, failed_at=4), end(1, 134, at=5)), 1, None, None, (1, "failed")),
    "aborted": ((TERMINATED, end(1, 134, at=5)), 250, None, None, (134, "killed")),
    "memory, after another lost its peer": ((end(0, 1, at=4), end(1, 1, at=5, cuda_oom=True)), 1, None, None, (1, "cuda_oom")),
    "killed with its watcher": ((TERMINATED, end(1, None, at=9)), 247, None, None, (137, "killed")),
    "killed with its watcher, the launcher told to end": ((TERMINATED, end(1, None, at=9)), 241, None, None, (143, "killed")),
    "lost, and the launcher lost with it": ((end(0, None), end(1, None)), 0, None, None, (137, "killed")),
    "SIGTERM to a rank": ((TERMINATED, end(1, 143, at=5)), 241, None, None, (143, "killed")),
    "deepspeed killed": ((end(0, 143, asked_at=0), end(1, 143, asked_at=0)), -9, None, None, (137, "launcher")),
    "deepspeed killed, the ranks saved": ((end(0, 0, asked_at=0), end(1, 0, asked_at=0)), -9, None, None, (137, "launcher")),
    "deepspeed killed, a peer lost its connection before it was told": ((end(0, 143, at=5.3, asked_at=5.1), end(1, 1, at=5.4, failed_at=5.2)), -9, None, None, (137, "launcher")),
    "deepspeed killed, a peer lost its connection and was told then": ((end(0, 143, at=5.3, asked_at=5.1), end(1, 1, at=5.4, failed_at=5.2, asked_at=5.3)), -9, None, None, (137, "launcher")),
    "told to end for another, after it had run out": ((end(0, 1, at=5), end(1, 1, at=9, failed_at=4, asked_at=5.2, cuda_oom=True)), 1, None, None, (1, "cuda_oom")),
    "killed after the grace, for its launcher": ((end(0, None, at=9, asked_at=8), end(1, 137, at=8.1, asked_at=8)), 2, None, None, (2, "launcher")),
    "all ended well, and the launcher's output was not read": ((WELL, end(1, 0)), 120, None, None, (0, "finished")),
    "killed with its watcher on another host, whose others were told": ((TERMINATED, end(2, None, at=30, host="b"), end(3, 143, at=9, asked_at=8, host="b")), 247, None, None, (137, "killed")),
    "launch.py killed": ((end(0, 143, asked_at=0), end(1, 143, asked_at=0)), 0, None, None, (137, "launcher")),
    "launch.py killed, the ranks saved": ((end(0, 0, asked_at=0), end(1, 0, asked_at=0)), 0, None, None, (137, "launcher")),
    "launch.py killed before it started all": ((WELL,), 0, None, None, (137, "launcher")),
    "no such host": ((), 1, None, None, (1, "launcher")),
    "ssh failed": ((), 255, None, None, (255, "launcher")),
    "stopped before there was a rank": ((), -9, 15, 1.0, (143, "stopped")),
    "stopped": ((end(0, 143, at=5.1), end(1, 143, at=5.1)), 241, 15, 5.0, (143, "stopped")),
    "stopped, and faster than the news of it": ((end(0, 130, at=4.8), end(1, 130, at=4.8)), 1, 2, 5.0, (130, "stopped")),
    "stopped, a peer was lost": ((end(0, 1, at=5.1, raised=True), TERMINATED), 1, 15, 5.0, (143, "stopped")),
    "stopped, killed after the grace": ((end(0, 137, at=35), end(1, 137, at=35)), -9, 15, 5.0, (143, "stopped")),
    "stopped, answered by a status": ((end(0, 85, at=6), TERMINATED), 85, 15, 5.0, (85, "stopped")),
    "stopped after it had failed": ((end(0, 3, at=2), TERMINATED), 3, 15, 5.0, (3, "failed")),
}
# fmt: on


@pytest.mark.parametrize("name", TABLE)
def test_the_status_and_the_cause_are_those_of_who_ended_the_job(name: str) -> None:
    ends, launcher_status, stopped_by, stopped_at, expected = TABLE[name]
    judged = judge(
        ends,
        launcher_status=launcher_status,
        ranks=2,
        stopped_by=stopped_by,
        stopped_at=stopped_at,
    )
    assert expected == said(judged)
    assert [launcher_status, stopped_by] == [judged.launcher_status, judged.stopped_by]


STATUSES = st.one_of(st.none(), st.integers(0, 255))
ENDS = st.lists(
    st.builds(
        end,
        st.integers(0, 7),
        STATUSES,
        st.floats(0, 100),
        asked_at=st.none() | st.floats(0, 100),
        raised=st.booleans(),
        cuda_oom=st.booleans(),
        host_oom=st.booleans(),
        failed_at=st.none() | st.floats(0, 100),
    ),
    max_size=4,
)


@given(
    ends=ENDS,
    launcher_status=st.integers(-15, 255),
    ranks=st.integers(1, 4),
    stopped_by=st.one_of(st.none(), st.sampled_from((1, 2, 15))),
)
def test_only_a_job_whose_ranks_all_ended_well_by_themselves_ends_well(
    ends: list[RankEnd], launcher_status: int, ranks: int, stopped_by: int | None
) -> None:
    judged = judge(
        ends,
        launcher_status=launcher_status,
        ranks=ranks,
        stopped_by=stopped_by,
        stopped_at=None if stopped_by is None else 50.0,
    )
    well = [each.status == 0 and each.asked_at is None for each in ends]
    ended_well = launcher_status in {0, 120} and all(well) and len(well) >= ranks
    assert ended_well == (judged.status == 0) == (judged.cause is Cause.FINISHED)
    assert 0 <= judged.status <= 255


@given(ends=ENDS.filter(bool))
def test_the_order_in_which_the_ends_are_read_does_not_matter(ends: list[RankEnd]) -> None:
    distinct = [replace(each, rank=place, ended_at=place) for place, each in enumerate(ends)]
    forth = judge(distinct, launcher_status=1, ranks=1)
    assert forth == judge(distinct[::-1], launcher_status=1, ranks=1)


WRAPPED = {0: 0, 1: 1, 3: 3, 128: 128, 241: 143, 247: 137, 250: 134, 255: 255, -9: 137, -15: 143}


@pytest.mark.parametrize("launcher_status", WRAPPED)
def test_a_signal_that_deepspeed_subtracts_from_256_is_added_to_128(launcher_status: int) -> None:
    assert WRAPPED[launcher_status] == plain_status(launcher_status)


CONTENT: dict[str, object] = {
    "rank": 1,
    "host": "a",
    "status": 1,
    "ended_at": 20.0,
    "failed_at": 15.0,
    "told": None,
    "told_at": None,
    "oom_killed": False,
    "accelerator": None,
    "tail": ["Traceback (most recent call last):", "torch.OutOfMemoryError: CUDA out of memory."],
}


def parsed(**changes: object) -> RankEnd:
    return parse_end({**CONTENT, **changes}, "rank-1.log")


def test_an_end_is_dated_by_the_error_that_it_came_of() -> None:
    assert 10.0 == parsed(failed_at=10.0).since
    assert 20.0 == parsed(status=137).since
    assert 20.0 == parsed(failed_at=None).since
    # A child of the rank was the one that said it.
    assert 20.0 == parsed(failed_at=21.0).since


def test_an_error_of_long_ago_was_caught() -> None:
    """The script said so, and went on."""
    ended = parsed(status=85, ended_at=5000.0)
    assert (5000.0, None, False, False) == (
        ended.since,
        ended.failed_at,
        ended.raised,
        ended.cuda_oom,
    )
    assert parsed(status=1, ended_at=200.0).cuda_oom


@pytest.mark.parametrize("status", [134, 139, 143])
def test_who_is_ended_while_it_unwinds_has_failed(status: int) -> None:
    crashed = [*cast("list[str]", CONTENT["tail"]), "terminate called after throwing an instance"]
    ended = parsed(status=status, tail=crashed)
    assert (15.0, True, True) == (ended.since, ended.raised, ended.cuda_oom)
    assert not parsed(status=status, tail=crashed, told_at=14.0).cuda_oom
    # Long before, it was caught.
    assert (20.0, None) == (
        parsed(status=status, failed_at=5.0).since,
        parsed(status=status, failed_at=5.0).failed_at,
    )


@pytest.mark.parametrize("status", [0, 129, 130, 137, 143])
def test_who_was_ended_from_outside_did_not_die_of_what_it_had_said(status: int) -> None:
    """A script may catch the error, say so, and go on."""
    ended = parsed(status=status, failed_at=5.0)
    assert (False, False) == (ended.cuda_oom, ended.host_oom)


def test_who_aborts_without_an_error_of_pythons_is_dated_by_its_end() -> None:
    died = ["terminate called after throwing an instance of 'c10::DistBackendError'"]
    assert 20.0 == parsed(status=134, tail=died, failed_at=None).since


def test_a_kill_is_for_memory_where_the_kernel_counted_one() -> None:
    assert parsed(status=137, oom_killed=True).host_oom
    assert not parsed(status=137).host_oom
    assert not parsed(status=1, oom_killed=True).host_oom


def test_of_the_lines_the_last_are_kept() -> None:
    assert tuple(map(str, range(160, 200))) == parsed(tail=[str(n) for n in range(200)]).tail
    assert parsed().cuda_oom
