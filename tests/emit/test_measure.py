"""A batch of cases runs under a launcher: each ends by itself, and nothing outlives the batch."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from zerowiz.core.launch.plan import LaunchPlan
from zerowiz.core.launch.provenance import PlannedFile
from zerowiz.core.structs import replace
from zerowiz.emit.files import refuse_loss
from zerowiz.emit.measure import Batch, EndedCase, append_line, run_batch, tail
from zerowiz.errors import PreflightError, ZerowizError

TESTS = Path(__file__).parents[1]
LAUNCHER = (sys.executable, str(TESTS / "worker" / "fake_deepspeed.py"))


def case(seen: Path, name: str, *parts: str) -> dict[str, object]:
    links = {"gpus": len(parts), "nccl_p2p": True, "most_timed_steps": 1, "offload": "none"}
    return {"id": name, **links, "config": {"do": parts, "seen": str(seen)}}


def batch_of(
    *cases: dict[str, object],
    launcher: tuple[str, ...] = LAUNCHER,
    deadline_s: float = 60,
    case_deadline_s: float = 30,
) -> Batch:
    return Batch(
        cases=cases,
        ops=(),
        launcher=launcher,
        env={},
        deadline_s=deadline_s,
        case_deadline_s=case_deadline_s,
    )


def run(batch: Batch) -> list[EndedCase]:
    return list(run_batch(batch, os.environ))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_each_case_ends_in_order_and_a_dead_one_ends_no_other(tmp_path: Path) -> None:
    cases = [
        case(tmp_path, "a", "run", "run"),
        case(tmp_path, "b", "die"),
        case(tmp_path, "c", "run"),
    ]
    ended = run(batch_of(*cases))
    assert [0, 1, 2] == [each.index for each in ended]
    assert [[0, 0], [-6], [0]] == [[end.status for end in each.ends] for each in ended]


def test_a_case_runs_on_its_first_ranks_as_a_world_that_meets_on_one_port(tmp_path: Path) -> None:
    both, alone = run(batch_of(case(tmp_path, "a", "run", "run"), case(tmp_path, "b", "run")))
    assert ["2", "2", "1"] == [end.report["world"] for end in (*both.ends, *alone.ends)]
    assert both.ends[0].report["port"] == both.ends[1].report["port"]
    assert {"a-0", "a-1", "b-0"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(("part", "status"), [("run_out", 3), ("fail", 1), ("die", -6)])
def test_a_rank_that_fails_ends_the_ranks_that_hang_for_it(
    tmp_path: Path, part: str, status: int
) -> None:
    cases = (case(tmp_path, "a", "hang", part), case(tmp_path, "b", "run", "run"))
    first, second = run(batch_of(*cases))
    assert [(-9, "peer"), (status, None)] == [(end.status, end.killed) for end in first.ends]
    assert [0, 0] == [end.status for end in second.ends]


def test_how_long_a_case_took_is_known_of_each_rank(tmp_path: Path) -> None:
    [ended] = run(batch_of(case(tmp_path, "a", "run", "run")))
    assert all(end.seconds is not None and 0 < end.seconds < 30 for end in ended.ends)


def test_ranks_that_offload_divide_the_cores_and_others_share_them(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("this host has one core")
    cases = [
        {**case(tmp_path, "a", "run", "run"), "offload": "all"},
        case(tmp_path, "b", "run", "run"),
    ]
    bound = replace(batch_of(*cases), cores=allowed)
    divided, shared = ([end.report["cores"] for end in each.ends] for each in run(bound))
    each = len(allowed) // 2
    assert [allowed[:each], allowed[each : 2 * each]] == divided
    assert [allowed, allowed] == shared
    unbound = run(batch_of(cases[0]))
    assert [allowed, allowed] == [end.report["cores"] for end in unbound[0].ends]


def test_links_are_measured_once_for_each_number_of_ranks(tmp_path: Path) -> None:
    """Anew where the first case did not come so far."""
    cases = [
        case(tmp_path, "alone", "run"),
        case(tmp_path, "failed", "run", "fail"),
        case(tmp_path, "first", "run", "run"),
        case(tmp_path, "again", "run", "run"),
        {**case(tmp_path, "other links", "run", "run"), "nccl_p2p": False},
        {**case(tmp_path, "wider", "run", "run", "run"), "most_timed_steps": 0},
    ]
    ended = run(batch_of(*cases))
    asked = [each.ends[0].report["bus_asked"] for each in ended]
    assert [False, True, True, False, True, False] == asked


def test_the_log_of_the_rank_that_failed_is_handed_over(tmp_path: Path) -> None:
    [ended] = run(batch_of(case(tmp_path, "a", "hang", "fail")))
    assert "what the log says" == ended.log_tail


def test_a_case_that_hangs_ends_at_its_own_deadline(tmp_path: Path) -> None:
    cases = (case(tmp_path, "a", "hang", "hang"), case(tmp_path, "b", "run"))
    first, second = run(batch_of(*cases, case_deadline_s=1))
    assert ["deadline", "deadline"] == [end.killed for end in first.ends]
    assert 0 == second.ends[0].status


def test_what_did_not_begin_before_the_deadline_is_not_there(tmp_path: Path) -> None:
    cases = (case(tmp_path, "a", "hang"), case(tmp_path, "b", "run"))
    [ended] = run(batch_of(*cases, deadline_s=2))
    assert (0, "deadline") == (ended.index, ended.ends[0].killed)


def test_leaving_early_leaves_no_process_behind(tmp_path: Path) -> None:
    cases = (case(tmp_path, "a", "run", "run"), case(tmp_path, "b", "hang", "hang"))
    with closing(run_batch(batch_of(*cases), os.environ)) as ended:
        next(ended)
        marks = [tmp_path / "b-0", tmp_path / "b-1"]
        until = time.monotonic() + 20
        while not all(mark.exists() and mark.read_text() for mark in marks):
            assert time.monotonic() < until
            time.sleep(0.02)
    assert [False, False] == [is_alive(int(mark.read_text())) for mark in marks]


def test_what_a_rank_left_in_a_session_of_its_own_ends_too(tmp_path: Path) -> None:
    [ended] = run(batch_of(case(tmp_path, "a", "stray", "run")))
    assert 0 == ended.ends[0].status
    stray = ended.ends[0].report["stray"]
    assert isinstance(stray, int)
    assert not is_alive(stray)


def test_a_terminal_that_closes_does_not_end_what_nohup_started(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        batch = batch_of(case(tmp_path, "a", "run"), case(tmp_path, "b", "run"))
        with closing(run_batch(batch, os.environ)) as ended:
            first = next(ended)
            os.kill(os.getpid(), signal.SIGHUP)
            assert [0, 1] == [first.index, *(each.index for each in ended)]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_launcher_that_ends_at_once_is_told_with_its_last_words() -> None:
    words = (sys.executable, "-c", "raise SystemExit('no slots here')")
    with pytest.raises(ZerowizError) as refused:
        run(batch_of({"gpus": 1}, launcher=words))
    assert "the ranks ended with status 1, before the first case began" == refused.value.message
    assert ("no slots here",) == refused.value.hints


def test_a_launcher_that_is_too_slow_for_the_deadline_is_given_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zerowiz.emit.measure._GRACE_S", 0.5)
    words = (sys.executable, "-c", "import time; print('starting', flush=True); time.sleep(60)")
    with pytest.raises(ZerowizError) as refused:
        run(batch_of({"gpus": 1}, launcher=words, deadline_s=0.5))
    assert "the ranks ended at the deadline, before the first case began" == refused.value.message
    (hint,) = refused.value.hints
    assert "set a longer `--deadline`" in hint


def test_a_launcher_that_is_not_there_is_a_missing_thing() -> None:
    with pytest.raises(PreflightError):
        run(batch_of({"gpus": 1}, launcher=("/no/such/deepspeed",)))


def test_lines_are_added_and_never_replace_others(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_line(path, "1")
    append_line(path, "2")
    assert "1\n2\n" == path.read_text()


def test_rows_that_cannot_be_kept_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZerowizError):
        append_line(tmp_path / "no" / "rows.jsonl", "1")


def test_a_log_that_is_not_there_has_no_tail(tmp_path: Path) -> None:
    assert "" == tail(tmp_path / "rank-0.log")


# A LaunchPlan is done as it was planned.

# Forked from the tests' own process, execute() would take pytest's place; so it runs in its own.
_DO = """
import sys
from zerowiz.core.launch.plan import LaunchPlan
from zerowiz.core.launch.provenance import PlannedFile
from zerowiz.emit.job import execute
from zerowiz.errors import ZerowizError
sys.stdout.write("before\\n")
plan = {plan!r}
try:
    execute(plan, {environ!r})
except ZerowizError as error:
    sys.exit(f"{{int(error.exit_code)}} {{error.message}}")
"""


def do(folder: Path, plan: LaunchPlan, **environ: str) -> subprocess.CompletedProcess[str]:
    code = _DO.format(plan=plan, environ=environ)
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_command_runs_with_its_words_and_its_environment(tmp_path: Path) -> None:
    plan = LaunchPlan(
        files=(PlannedFile(path="a.json", text="{}\n"),),
        argv=("/bin/sh", "-c", 'env; printf "<%s>" "$@"', "sh", "a b", "", "*"),
        env={"ADDED": "1", "CHANGED": "new"},
    )
    done = do(tmp_path, plan, CHANGED="old", KEPT="2")
    assert 0 == done.returncode, done.stderr
    lines = done.stdout.splitlines()
    assert "before" == lines[0]
    assert {"ADDED=1", "CHANGED=new", "KEPT=2"} <= set(lines)
    assert "<a b><><*>" == lines[-1]
    assert "{}\n" == (tmp_path / "a.json").read_text()


def test_the_status_is_the_commands_own(tmp_path: Path) -> None:
    plan = LaunchPlan(files=(), argv=("/bin/sh", "-c", "exit 9"), env={})
    assert 9 == do(tmp_path, plan).returncode


def test_a_command_that_cannot_start_is_a_preflight_failure(tmp_path: Path) -> None:
    plan = LaunchPlan(files=(), argv=(str(tmp_path / "none"),), env={})
    assert "5 cannot start" in do(tmp_path, plan).stderr


def test_a_file_that_is_refused_stops_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("mine")
    files = (PlannedFile(path="a.json", text="{}\n"),)
    done = do(tmp_path, LaunchPlan(files=files, argv=("/bin/touch", "ran"), env={}))
    assert "1 `a.json` exists" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_file_that_is_refused_keeps_all_from_being_written(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("mine")
    files = (PlannedFile(path="a.json", text="{}\n"), PlannedFile(path="b.json", text="{}\n"))
    done = do(tmp_path, LaunchPlan(files=files, argv=("/bin/touch", "ran"), env={}))
    assert "1 `b.json` exists" in done.stderr
    assert ["b.json"] == [path.name for path in tmp_path.iterdir()]


def test_the_command_holds_its_files_as_long_as_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    first, second = (PlannedFile(path=str(path), text=text) for text in ("{}\n", "[]\n"))
    plan = LaunchPlan(files=(first,), argv=("/bin/sleep", "60"), env={})
    code = _DO.format(plan=plan, environ={})
    with subprocess.Popen([sys.executable, "-c", code]) as job:
        while job.poll() is None and Path(f"/proc/{job.pid}/comm").read_text() != "sleep\n":
            time.sleep(0.01)
        with pytest.raises(ZerowizError, match=f"process {job.pid} on"):
            refuse_loss(second)
        job.kill()
    refuse_loss(second)
