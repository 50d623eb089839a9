"""A job keeps its true status where its folder is lost, or takes no file."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from kills.harness import supervised
from kills.stand_in_ranks import SAVES, SOON_S, WAIT, end_of, meet, ranks, run

# Each rank waits for the loss, and ends as the test says.
AFTER_THE_LOSS = """
mark("ready")
while not Path("lost").exists(): time.sleep(0.02)
{then}
"""


def lose(attempt: Path) -> None:
    """The whole of `.zerowiz` goes, as by `git clean -fdx` while the job runs."""
    shutil.rmtree(attempt)
    (attempt.parent / "lost").touch()


def refuse_files(attempt: Path) -> None:
    """No file of a rank can be made, as on a disk without room."""
    for name in ("{}.json", "{}.end.json", "{}.end.partial", "{}.log"):
        for rank in (0, 1):
            (attempt / name.format(f"rank-{rank}")).mkdir(parents=True)


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        ("", (0, "finished")),
        ("if rank == 1: sys.exit('mine')\ntime.sleep(60)", (1, "failed")),
    ],
    ids=["well", "failed"],
)
def test_a_job_whose_folder_vanishes_ends_as_it_did(
    then: str, expected: tuple[int, str], tmp_path: Path
) -> None:
    with ranks(tmp_path, AFTER_THE_LOSS.format(then=then)) as job:
        meet(job, tmp_path, "ready")
        lose(tmp_path / "attempt")
        ended = job.wait()
    assert expected == end_of(ended)
    assert () == ended.left
    if expected[0]:
        assert (1, "mine") == (ended.end["first"]["rank"], ended.end["first"]["tail"][-1])


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("", (0, "finished")),
        ("if rank == 1: sys.exit('mine')\ntime.sleep(60)", (1, "failed")),
    ],
    ids=["well", "failed"],
)
def test_a_job_that_can_write_no_file_of_its_ranks_ends_as_it_did(
    script: str, expected: tuple[int, str], tmp_path: Path
) -> None:
    refuse_files(tmp_path / "attempt")
    ended = run(tmp_path, script)
    assert expected == end_of(ended)
    assert () == ended.left


def test_ranks_that_are_known_by_no_file_may_save_before_they_end(tmp_path: Path) -> None:
    refuse_files(tmp_path / "attempt")
    with ranks(tmp_path, SAVES.format(status=85)) as job:
        meet(job, tmp_path, "ready")
        job.send(signal.SIGTERM)
        ended = job.wait()
        saved = [(tmp_path / f"saved-{rank}").exists() for rank in (0, 1)]
    assert [True, True] == saved
    assert (85, "stopped") == end_of(ended)


def test_where_the_folder_is_lost_ranks_may_save_though_the_supervisor_is_killed(
    tmp_path: Path,
) -> None:
    with ranks(tmp_path, SAVES.format(status=0) + WAIT) as job:
        meet(job, tmp_path, "ready")
        lose(tmp_path / "attempt")
        job.send(signal.SIGKILL)
        ended = job.wait()
        saved = [(tmp_path / f"saved-{rank}").exists() for rank in (0, 1)]
    assert [True, True] == saved
    assert () == ended.left
    assert ended.gone_after_s < SOON_S


@pytest.fixture
def latin_1(tmp_path: Path) -> Path:
    """A folder whose name is no UTF-8, as older systems wrote it."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    return folder


def test_a_folder_whose_name_is_no_utf_8_changes_no_status(latin_1: Path) -> None:
    daemon = "[sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True"
    script = f"if rank == 0: subprocess.Popen({daemon}, stdout=-3, stderr=-3)"
    ended = run(latin_1, script)
    assert (0, "finished") == end_of(ended)
    assert () == ended.left


def test_a_request_to_end_before_there_is_a_rank_ends_a_job_of_such_a_folder(latin_1: Path) -> None:
    with supervised(latin_1, ("sleep", "60")) as job:
        job.wait_for("launcher", lambda: any("sleep" in line for line in job.alive()))
        job.send(signal.SIGTERM)
        ended = job.wait()
    assert (143, "stopped") == end_of(ended)
    assert () == ended.left
