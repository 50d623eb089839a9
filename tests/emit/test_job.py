"""A signal that comes before a job, or after its end, is heard; a known status stays."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kills.harness import HERE, SHIM, Job, read_stat, supervised
from kills.stand_in_ranks import PRELUDE, SAVES, SOON_S, STUBBORN, WAIT, end_of, meet, ranks, run

from zerowiz.core.launch.plan import PROGRESS_VARIABLE, LaunchPlan
from zerowiz.core.launch.provenance import PlannedFile
from zerowiz.emit.files import refuse_loss
from zerowiz.emit.job import Watch, noted_signals
from zerowiz.emit.processes import AttemptFolder, read_children, tell, watchdog
from zerowiz.errors import ZerowizError

DEAF = """
import sys, time
from zerowiz.emit.job import ignore_signals
ignore_signals()
print("deaf", flush=True)
time.sleep(1)
sys.exit(7)
"""

JUDGED = """
import os, signal
from pathlib import Path
from zerowiz.emit import job
from zerowiz.emit.job import noted_signals
from zerowiz.emit.job import Watch, supervise
judge = job.SupervisedJob.judge
def judge_and_be_told(self):
    end = judge(self)
    os.kill(os.getpid(), signal.SIGTERM)
    return end
job.SupervisedJob.judge = judge_and_be_told
watch = Watch(folder=Path({folder!r}), ranks=0, local_ranks=(), grace_s=1.0)
with noted_signals() as told:
    end = supervise(["true"], os.environ, watch)
print(end.status, told)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_asks_for_an_end_is_noted_and_its_handler_comes_back(number: signal.Signals) -> None:
    # A shell without job control has what it starts in the background ignore SIGINT.
    outside = signal.signal(number, signal.SIG_DFL)
    try:
        with noted_signals() as told:
            os.kill(os.getpid(), number)
            time.sleep(0.01)
        assert [number] == told
        assert signal.SIG_DFL is signal.getsignal(number)
    finally:
        signal.signal(number, outside)


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with noted_signals() as told:
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.01)
        assert [] == told
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_comes_when_the_job_is_judged_is_heard_after_it(tmp_path: Path) -> None:
    script = JUDGED.format(folder=str(tmp_path / "attempt"))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (0, "0 [15]\n") == (done.returncode, done.stdout), done.stderr


def test_a_signal_that_came_before_the_job_ends_it(tmp_path: Path) -> None:
    script = (
        "import os; from pathlib import *; from zerowiz.emit.job import Watch, supervise\n"
        f"watch = Watch(folder=Path({str(tmp_path / 'attempt')!r}), ranks=1, local_ranks=(0,), grace_s=9)\n"
        "end = supervise(['sleep', '60'], os.environ, watch, [15])\n"
        "print(end.status, end.cause)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=40, check=False
    )
    assert "143 stopped\n" == done.stdout, done.stderr


def test_a_known_status_stays_whatever_is_sent() -> None:
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"deaf\n" == process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert 7 == process.wait(timeout=30)


THOROUGH = pytest.mark.thorough

# A supervised job ends with its own status, in order, and leaves nothing behind.
#
# The launcher here is a stand-in that starts ranks as DeepSpeed's does; `tests/kills` has the
# real one.


def test_a_job_whose_ranks_end_well_ends_well(tmp_path: Path) -> None:
    ended = run(tmp_path, "print('done', sys.argv[1:])")
    assert (0, "finished") == end_of(ended)
    lines = [f"done ['--local_rank={rank}', '--lr', '0.1']" for rank in (0, 1)]
    assert lines == sorted(ended.stdout.decode().splitlines())
    assert () == ended.left


# Rank 1 tears down slowly; rank 0 fails for the connection that it lost, and ends before it.
SLOW_TO_END = """
if rank == 0:
    while not Path("raising-1").exists(): time.sleep(0.01)
    time.sleep(0.3)
    sys.exit("the other is gone")
import atexit
atexit.register(time.sleep, 1)
mark("raising")
raise RuntimeError("mine")
"""
OUT_OF_MEMORY = """
class OutOfMemoryError(RuntimeError): __module__ = "torch"
if rank == 0:
    sys.exit("the other is gone")
raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
"""


@pytest.mark.parametrize(
    ("script", "more", "expected"),
    [
        pytest.param(
            "time.sleep(60 if rank == 0 else 0.1); sys.exit(3)",
            {},
            (3, "failed"),
            id="the first that failed, not who ended for it",
        ),
        pytest.param(
            SLOW_TO_END,
            {"env": {"STAND_IN_POLL_S": "3"}},
            (1, "failed"),
            id="an error shows before its process ends",
        ),
        pytest.param(
            "os.kill(os.getpid(), 9 if rank else 0); time.sleep(60)",
            {},
            (137, "killed"),
            id="killed",
        ),
        pytest.param(
            OUT_OF_MEMORY,
            {"env": {"STAND_IN_POLL_S": "2"}},
            (1, "cuda_oom"),
            id="out of memory, though another fails before it",
        ),
        pytest.param(
            "if rank: sys.exit(7)\n" + STUBBORN,
            {"grace_s": 1.0},
            (7, "failed"),
            id="the others hold out, and are killed after the grace",
        ),
    ],
)
def test_the_rank_that_decides_is(
    script: str, more: dict[str, Any], expected: tuple[int, str], tmp_path: Path
) -> None:
    ended = run(tmp_path, script, **more)
    assert (expected, 1, ()) == (end_of(ended), ended.end["first"]["rank"], ended.left)


def test_a_rank_that_stands_still_is_said_once_and_goes_on(tmp_path: Path) -> None:
    script = """
    mark("ready")
    while not Path("go").exists(): time.sleep(0.01)
    """
    with ranks(tmp_path, script, env={"STAND_IN_STOPPED_S": "0.5"}) as job:
        meet(job, tmp_path, "ready")
        pid = job.rank(1)["process"]["pid"]
        job.send(signal.SIGSTOP, pid)
        (tmp_path / "go").touch()
        job.wait_for("note", lambda: "stopped" in job.said())
        # Time to be said twice.
        time.sleep(1)
        job.send(signal.SIGCONT, pid)
        ended = job.wait()
    assert (0, "finished") == end_of(ended)
    said = f"rank 1 has been stopped for 0 s, and the job waits for it; it goes on with `kill -CONT {pid}`"
    assert [said] == [line for line in ended.stderr.decode().splitlines() if "stopped" in line]


# A process that is called ninja, as the one that torch starts in the folder of an op.
COMPILES = """
os.makedirs("ops/fused_adam", exist_ok=True)
if rank == 1:
    os.symlink(sys.executable, "ninja")
    again = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    subprocess.Popen([os.path.abspath("ninja"), "-c", again], cwd="ops/fused_adam")
"""
CHILD = """
if rank == 1: subprocess.Popen([sys.executable, "-c", "while True: pass"])
"""


@pytest.mark.parametrize(
    ("script", "waits", "said"),
    [
        (
            'print("loaded")',
            "rank == 1 or time.sleep(0.1)",
            "rank 1 computed. `py-spy dump --pid {pid}",
        ),
        ("", "rank == 1 or time.sleep(0.1)", "rank 1 computed. `py-spy dump --pid {pid}"),
        (COMPILES, "time.sleep(0.1)", "rank 1 compiled `fused_adam`. "),
        (CHILD, "time.sleep(0.1)", "rank 1 computed in its child process "),
        ('print("loaded")', "time.sleep(0.1)", "no rank computed. `py-spy dump --pid "),
    ],
    ids=["loops", "before the first line", "compiles", "has a child", "waits"],
)
def test_what_ranks_do_that_fall_silent_is_said(
    tmp_path: Path, script: str, waits: str, said: str
) -> None:
    script += f'\nmark("ready")\nwhile not Path("go").exists(): {waits}\n'
    with ranks(tmp_path, script, env={"STAND_IN_SILENT_S": "3"}) as job:
        meet(job, tmp_path, "ready")
        pid = job.rank(1)["process"]["pid"]
        job.wait_for("note", lambda: "meanwhile" in job.said())
        (tmp_path / "go").touch()
        ended = job.wait()
    assert (0, "finished") == end_of(ended)
    [line] = [line for line in ended.stderr.decode().splitlines() if "meanwhile" in line]
    assert f"3 s; meanwhile {said.format(pid=pid)}" in line


def test_a_launcher_that_fails_by_itself_is_told_as_such(tmp_path: Path) -> None:
    with supervised(tmp_path, ("sh", "-c", "echo no such host >&2; exit 2")) as job:
        ended = job.wait()
    assert (2, "launcher") == end_of(ended)
    assert b"no such host\n" == ended.stderr


def test_a_command_that_is_not_there_is_an_error_of_the_launch(tmp_path: Path) -> None:
    with supervised(tmp_path, (tmp_path / "nothing",)) as job:
        ended = job.wait()
    assert 1 == ended.status
    assert b"PreflightError: cannot start `" in ended.stderr


def test_a_launcher_that_vanishes_does_not_end_well_though_its_caller_says_so(
    tmp_path: Path,
) -> None:
    """`deepspeed` ends with 0 when its inner launcher was killed (runner.py, 0.19.8)."""
    (tmp_path / "script.py").write_text(
        PRELUDE + "on(signal.SIGTERM, lambda: os._exit(0))\n" + WAIT
    )
    inner = f"{sys.executable} {HERE}/stand_in.py 2 {SHIM} script.py"
    hidden = ("env", f"--chdir={tmp_path}", "sh", "-c", f"{inner}; exit 0")
    with supervised(tmp_path, hidden) as job:
        meet(job, tmp_path, "ready")
        job.send(signal.SIGKILL, job.find(str(HERE / "stand_in.py")))
        ended = job.wait()
    assert (137, "launcher") == end_of(ended)
    assert () == ended.left


def test_a_rank_that_ends_before_it_is_finished_is_missed(tmp_path: Path) -> None:
    """A launcher that says 0 after it has started one rank of two."""
    (tmp_path / "script.py").write_text("")
    command = (sys.executable, HERE / "stand_in.py", "1", SHIM, tmp_path / "script.py")
    with supervised(tmp_path, command, ranks=2) as job:
        ended = job.wait()
    assert (137, "launcher") == end_of(ended)


@pytest.mark.parametrize(
    ("script", "grace_s", "numbers", "status"),
    [
        *(
            pytest.param(WAIT, 20, (number,), 128 + number, id=number.name)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        ),
        pytest.param(STUBBORN, 1.5, (signal.SIGTERM,), 143, id="killed after the grace"),
        pytest.param(
            STUBBORN, 60, (signal.SIGINT, signal.SIGINT), 130, id="a second one ends the grace"
        ),
        # It asks some schedulers to run the job again.
        pytest.param(SAVES.format(status=85), 20, (signal.SIGTERM,), 85, id="the script's own"),
    ],
)
def test_a_request_to_end_reaches_every_rank(
    script: str, grace_s: float, numbers: Sequence[int], status: int, tmp_path: Path
) -> None:
    """No launcher is needed for it."""
    with ranks(tmp_path, script, grace_s=grace_s) as job:
        meet(job, tmp_path, "ready")
        for number in numbers:
            job.send(number)
            time.sleep(0.5)
        ended = job.wait()
    assert ((status, "stopped"), ()) == (end_of(ended), ended.left)
    assert (1.5 if grace_s == 1.5 else 0) < ended.gone_after_s < SOON_S


@pytest.mark.parametrize("number", [signal.SIGUSR1, pytest.param(signal.SIGUSR2, marks=THOROUGH)])
def test_a_signal_for_the_script_is_the_scripts_alone(
    number: signal.Signals, tmp_path: Path
) -> None:
    script = f"on({number}, lambda: mark('asked'))\n" + WAIT.replace("60", "1.5")
    with ranks(tmp_path, script) as job:
        meet(job, tmp_path, "ready")
        job.send(number)
        meet(job, tmp_path, "asked")
        ended = job.wait()
    assert (0, "finished") == end_of(ended)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_before_there_is_a_rank_all_ends_at_once(number: signal.Signals, tmp_path: Path) -> None:
    with supervised(tmp_path, ("sh", "-c", "trap '' TERM; sleep 60; sleep 60")) as job:
        job.wait_for("launcher", lambda: any("sleep" in line for line in job.alive()))
        job.send(number)
        ended = job.wait()
    assert () == ended.left
    if number == signal.SIGTERM:
        assert (143, "stopped") == end_of(ended)
        assert ended.gone_after_s < SOON_S


# Rank 1 is gone, which is seen late, and the launcher sees both ends at once.
LOST_WITH_ITS_WATCHER = """
mark("ready")
while rank == 0 and not Path("killed").exists(): time.sleep(0.01)
if rank == 0: raise ConnectionResetError("the other is gone")
time.sleep(60)
"""
# It has a session of its own and ignores SIGTERM; even its environment may be empty.
DAEMON = """
if rank == 0:
    command = ["{python}", "-c", "import time, signal; signal.signal(15, signal.SIG_IGN); time.sleep(60)"]
    subprocess.Popen(command, start_new_session=True, env={env}, stdout=-3, stderr=-3)
mark("ready")
time.sleep(0.5)
"""
# Each rank waits for the loss of the job's folder.
AFTER_THE_LOSS = """
mark("ready")
while not Path("lost").exists(): time.sleep(0.02)
"""
BOTH_READY = """
mark("ready")
while not Path("ready-0").exists(): time.sleep(0.02)
"""
RANK_1_FAILS = "if rank == 1: sys.exit('mine')\ntime.sleep(60)"


def launcher(job: Job) -> int:
    return job.find(str(HERE / "stand_in.py"))


def kill_with_its_watcher(job: Job) -> None:
    job.send(signal.SIGKILL, job.rank(1)["beside"]["pid"])
    (job.output / "killed").touch()


def lose(job: Job) -> None:
    """The whole of `.zerowiz` goes, as by `git clean -fdx` while the job runs."""
    shutil.rmtree(job.folder)
    (job.output / "lost").touch()


def lose_and_kill(job: Job) -> None:
    lose(job)
    job.send(signal.SIGKILL)


def refuse_files(folder: Path) -> None:
    """No file of a rank can be made, as on a disk without room."""
    for name in ("{}.json", "{}.end.json", "{}.log"):
        for rank in (0, 1):
            (folder / "attempt" / name.format(f"rank-{rank}")).mkdir(parents=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Supervised:
    """A job, what a test does to it once its ranks are ready, and how it ends."""

    script: str
    ended: tuple[int, str]
    """The status and the cause; none of a supervisor that was killed."""
    act: Callable[[Job], None] = lambda _: None
    prepare: Callable[[Path], None] = lambda _: None
    more: Mapping[str, Any] = field(default_factory=dict)
    """Of the stand-in."""
    saved: bool = False
    first: tuple[int, str] | None = None
    """The rank that decides, and its last line."""


SUPERVISED: Mapping[str, Supervised] = {
    "a rank that was killed with its watcher comes before who lost it": Supervised(
        script=LOST_WITH_ITS_WATCHER,
        more={"env": {"STAND_IN_POLL_S": "3"}},
        act=kill_with_its_watcher,
        ended=(137, "killed"),
        first=(1, ""),
    ),
    "ranks that save and end well have ended well": Supervised(
        script=SAVES.format(status=0),
        act=lambda job: job.send(signal.SIGTERM),
        ended=(0, "finished"),
        saved=True,
    ),
    # The ranks find it as they always do.
    "a signal that a scheduler sends to every process ends no launcher": Supervised(
        script="assert signal.getsignal(10) == signal.SIG_DFL\n" + WAIT.replace("60", "1"),
        act=lambda job: job.send(signal.SIGUSR1, launcher(job)),
        ended=(0, "finished"),
    ),
    "what was ignored stays ignored": Supervised(
        script=WAIT.replace("60", "1"),
        more={"before": ("nohup",)},
        act=lambda job: job.send(signal.SIGHUP),
        ended=(0, "finished"),
    ),
    "the end of the launcher ends its ranks": Supervised(
        script=STUBBORN,
        more={"grace_s": 1.0},
        act=lambda job: job.send(signal.SIGKILL, launcher(job)),
        ended=(137, "launcher"),
    ),
    "what a rank left behind is ended too": Supervised(
        script=DAEMON.format(python=sys.executable, env="os.environ"),
        ended=(0, "finished"),
    ),
    "even without the mark of the job": Supervised(
        script=DAEMON.format(python=sys.executable, env="{}"), ended=(0, "finished")
    ),
    "nothing outlives a supervisor that was killed": Supervised(
        script=WAIT,
        more={"grace_s": 1.0},
        act=lambda job: job.send(signal.SIGKILL),
        ended=(-signal.SIGKILL, ""),
    ),
    "not even a stubborn rank": Supervised(
        script=STUBBORN,
        more={"grace_s": 1.0},
        act=lambda job: job.send(signal.SIGKILL),
        ended=(-signal.SIGKILL, ""),
    ),
    "a job whose folder vanishes ends well": Supervised(
        script=AFTER_THE_LOSS, act=lose, ended=(0, "finished")
    ),
    "a job whose folder vanishes fails as it did": Supervised(
        script=AFTER_THE_LOSS + RANK_1_FAILS, act=lose, ended=(1, "failed"), first=(1, "mine")
    ),
    "a job that can write no file of its ranks ends well": Supervised(
        script=BOTH_READY, prepare=refuse_files, ended=(0, "finished")
    ),
    "a job that can write no file of its ranks fails as it did": Supervised(
        script=f"{BOTH_READY}{RANK_1_FAILS}", prepare=refuse_files, ended=(1, "failed")
    ),
    "ranks that are known by no file may save before they end": Supervised(
        script=SAVES.format(status=85),
        prepare=refuse_files,
        act=lambda job: job.send(signal.SIGTERM),
        ended=(85, "stopped"),
        saved=True,
    ),
    "where the folder is lost ranks may save though the supervisor is killed": Supervised(
        script=SAVES.format(status=0) + WAIT,
        act=lose_and_kill,
        ended=(-signal.SIGKILL, ""),
        saved=True,
    ),
}
ONLY_THOROUGH = {"what a rank left behind is ended too"}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=THOROUGH if name in ONLY_THOROUGH else ())
        for name, case in SUPERVISED.items()
    ],
)
def test_a_job_ends_as_it_did_and_leaves_nothing(case: Supervised, tmp_path: Path) -> None:
    case.prepare(tmp_path)
    with ranks(tmp_path, case.script, **case.more) as job:
        meet(job, tmp_path, "ready")
        case.act(job)
        ended = job.wait()
    assert case.ended == (end_of(ended) if case.ended[1] else (ended.status, ""))
    assert () == ended.left
    assert case.saved is all((tmp_path / f"saved-{rank}").exists() for rank in (0, 1))
    if case.first is not None:
        first = ended.end["first"]
        assert case.first == (first["rank"], first["tail"][-1] if case.first[1] else "")
    # Nobody waits for a script that would go on.
    assert ended.gone_after_s < SOON_S


def test_a_job_goes_on_when_nobody_reads_its_output_any_more(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    script = """
    mark("ready")
    while not Path("unread").exists(): time.sleep(0.02)
    for line in range(2000): print("line", line)
    """
    with ranks(tmp_path, script, stdout=writer) as job:
        os.close(writer)
        meet(job, tmp_path, "ready")
        os.close(reader)
        (tmp_path / "unread").touch()
        ended = job.wait()
    assert (0, "finished") == end_of(ended)
    # The log has all of it.
    text = (tmp_path / "attempt" / "rank-1.log").read_text()
    assert "line 1999" == text.splitlines()[-1]


def test_a_rank_of_another_node_that_failed_ends_those_of_this_one(tmp_path: Path) -> None:
    with ranks(tmp_path, WAIT) as job:
        meet(job, tmp_path, "ready")
        start = job.rank(1)
        elsewhere = {"rank": 2, "host": "node2", "space": "another"}
        (tmp_path / "attempt" / "rank-2.json").write_text(json.dumps({**start, **elsewhere}))
        end = dict.fromkeys(("failed_at", "told", "told_at", "accelerator", "oom_killed"))
        end |= {**elsewhere, "status": 9, "exited": True, "ended_at": time.time(), "tail": ["no"]}
        partial = tmp_path / "end.json"
        partial.write_text(json.dumps(end))
        partial.replace(tmp_path / "attempt" / "rank-2.end.json")
        job.done_at = time.monotonic()
        ended = job.wait()
    assert (9, "failed") == end_of(ended)
    assert ["node2", ["no"]] == [ended.end["first"]["host"], ended.end["first"]["tail"]]
    assert () == ended.left
    assert ended.gone_after_s < SOON_S


def test_one_of_many_nodes_whose_launcher_fails_ends_the_ranks_of_the_others(
    tmp_path: Path,
) -> None:
    """It may have started none, of whose end they could read."""
    folder = tmp_path / "attempt"
    watch = Watch(folder=folder, ranks=2, local_ranks=(1,), grace_s=1.0)
    script = f"import os; supervise(('sh', '-c', 'exit 4'), os.environ, {watch!r})"
    prelude = "from math import inf; from pathlib import *; from zerowiz.emit.job import Watch, supervise; "
    subprocess.run([sys.executable, "-c", prelude + script], check=True, timeout=60)
    assert "end\n" == (folder / "orders").read_text()


def test_a_watchdog_that_was_killed_is_not_missed(tmp_path: Path) -> None:
    """Its pipe is broken then, and to write to it is no error."""
    before = read_children(os.getpid())
    with watchdog("ZEROWIZ_ATTEMPT=none", AttemptFolder(tmp_path), 1.0) as pipe:
        [other] = read_children(os.getpid()) - before
        os.kill(other, signal.SIGKILL)
        while read_stat(other) is not None:
            time.sleep(0.01)
        tell(pipe, b"1\n")


MEMORY_GROUPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
LIMITS = ("memory.limit_in_bytes", "memory.max")


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A group of processes that may hold 200 MiB together; skips where none can be made."""
    # cgroup v1 has a folder for each controller; v2 has one for all.
    parent = next((path for path in MEMORY_GROUPS if path.exists()), MEMORY_GROUPS[0])
    group = parent / f"zerowiz-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no group of processes can be made here: {error}")
    try:
        limit = next((group / name for name in LIMITS if (group / name).exists()), None)
        if limit is None:
            pytest.skip("groups of processes have no limit of memory here")
        limit.write_text(str(200 << 20))
        yield group
    finally:
        group.rmdir()


def test_a_rank_that_the_kernel_killed_for_memory_is_told_as_such(
    memory_group: Path, tmp_path: Path
) -> None:
    script = """
    if rank == 0: time.sleep(60)
    held = [b"x" * (1 << 24) for _ in range(64)]
    """
    enter = f'echo $$ > {memory_group}/cgroup.procs; exec "$@"'
    ended = run(tmp_path, script, before=("sh", "-c", enter, "sh"))
    assert (137, "host_oom") == end_of(ended)


def test_a_folder_of_runs_that_cannot_be_written_is_said_and_the_job_runs(tmp_path: Path) -> None:
    (tmp_path / "attempt").touch()
    ended = run(tmp_path, RANK_1_FAILS)
    assert (1, "failed") == end_of(ended)
    assert b"the output of the ranks is not kept in files: [Errno 17]" in ended.stderr


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
        start_new_session=True,
    )


def test_ctrl_c_before_there_are_ranks_ends_a_launcher_that_ignores_it(tmp_path: Path) -> None:
    typed = "while :; do kill -INT 0; sleep 0.1; done"
    plan = LaunchPlan(files=(), argv=("/bin/sh", "-c", typed), env={PROGRESS_VARIABLE: "1:"})
    done = do(tmp_path, plan)
    assert -signal.SIGTERM == done.returncode
    assert done.stderr.endswith("interrupted\n")


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
