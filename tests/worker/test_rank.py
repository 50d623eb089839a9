"""What stands beside a rank keeps all of its output and its true end, and changes neither."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import pytest
from kills.harness import HERE, SHIM, read_stat

from zerowiz.probe.preflight.read_facts import find_free_port
from zerowiz.worker.rank import MEMORY_VARIABLE, POLL_S, write_all, write_whole

ALONE = {
    key: value
    for key, value in os.environ.items()
    if not re.match("ZEROWIZ_|RANK$|LOCAL_RANK|CROSS_|OMPI_|PMI_|SLURM_", key)
}


def start(folder: Path, script: str, *words: str, **env: str) -> "subprocess.Popen[bytes]":
    """Start a script as rank 3 under its watch; `ZEROWIZ_ATTEMPT=""` for none."""
    path = folder / "script.py"
    path.write_text("import os, sys, time\n" + textwrap.dedent(script))
    ranks = {"RANK": "3", "LOCAL_RANK": "1", "CROSS_RANK": "0"}
    watched = {"ZEROWIZ_ATTEMPT": str(folder / "attempt"), **ranks, **env}
    environ = {**ALONE, **{key: value for key, value in watched.items() if value}}
    return subprocess.Popen(
        [sys.executable, "-u", SHIM, *(words or ("--local_rank=1", str(path), "--lr", "0.1"))],
        env=environ,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@contextmanager
def ready(
    folder: Path, script: str, **env: str
) -> Iterator[tuple["subprocess.Popen[bytes]", IO[bytes]]]:
    """A rank that has written so, and its output."""
    with start(folder, script, **env) as process:
        assert process.stdout is not None
        assert b"ready\n" == process.stdout.readline()
        yield process, process.stdout


def run(folder: Path, script: str, *words: str, **env: str) -> tuple[int, bytes, bytes]:
    """The same to its end: the status, as `subprocess` has it, and what came out."""
    with start(folder, script, *words, **env) as process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def read(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "attempt" / name).read_text())
    return content


def wait_until(holds: Callable[[], object]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("watched", [True, False], ids=["watched", "alone"])
def test_the_training_has_the_words_that_it_would_have_without_it(
    watched: bool, tmp_path: Path
) -> None:
    script = """
    command = open('/proc/self/cmdline').read().split(chr(0))[:-1]
    print(command[:-len(sys.argv)], sys.argv, sys.path[0])
    """
    status, out, err = run(tmp_path, script, **({} if watched else {"ZEROWIZ_ATTEMPT": ""}))
    # Where zerowiz stays, this counts the steps in the process of the script.
    counts = [str(SHIM.with_name("measured_script.py"))] if watched else []
    python = [sys.executable, "-u", *counts]
    words = [str(tmp_path / "script.py"), "--local_rank=1", "--lr", "0.1"]
    assert (0, f"{python} {words} {tmp_path}\n", "") == (status, out.decode(), err.decode())
    assert watched == (tmp_path / "attempt").exists()


@pytest.mark.parametrize("local", [("--local_rank=1",), ()], ids=["local rank", "none"])
def test_a_module_is_run_as_one(local: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text(
        "import sys; print(__spec__.name, sys.argv[1:], sys.path[0])"
    )
    status, out, err = run(tmp_path, "", *local, "-m", "pkg.train", "-m", "x")
    assert (0, "") == (status, err.decode())
    assert f"pkg.train {[*local, '-m', 'x']} {tmp_path}\n" == out.decode()


@pytest.mark.parametrize(
    "module",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["script", "module"],
)
def test_on_the_cpu_accelerate_sees_the_ranks_and_the_training_is_what_it_would_be(
    module: bool, tmp_path: Path
) -> None:
    shown = """
    from accelerate import PartialState
    seen = PartialState().num_processes, PartialState().distributed_type
    print(*seen, __name__, sys.argv[1:], sys.path[0])
    """
    (tmp_path / "train.py").write_text(f"import sys\n{textwrap.dedent(shown)}")
    program = ("-m", "train") if module else (str(tmp_path / "train.py"),)
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port())}
    by_zerowiz = {"ACCELERATE_USE_DEEPSPEED": "true", "DS_ACCELERATOR": "cpu"}
    words = ("--local_rank=0", *program, "--lr", "0.1")
    status, out, err = run(tmp_path, "", *words, **ranks, **meeting, **by_zerowiz)
    assert 0 == status, err.decode()
    said = f"1 DistributedType.MULTI_CPU __main__ ['--local_rank=0', '--lr', '0.1'] {tmp_path}"
    assert said == out.decode().splitlines()[-1]


def append(path: Path, text: str) -> None:
    with path.open("a") as stream:
        stream.write(text)


SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGPIPE", "SIGXFSZ", "SIGCHLD")


def test_the_training_finds_its_signals_as_it_would_without_it(tmp_path: Path) -> None:
    script = f"import signal\nprint([signal.getsignal(getattr(signal, n)) for n in {SIGNALS}])"
    path = tmp_path / "alone.py"
    path.write_text(textwrap.dedent(script))
    alone = subprocess.run([sys.executable, path], env=ALONE, capture_output=True, check=True)
    _, out, _ = run(tmp_path, script)

    def plain(text: bytes) -> str:
        return re.sub("0x[0-9a-f]+", "", text.decode())

    assert plain(alone.stdout) == plain(out)


ENDS = {
    "well": ("pass", 0, 0),
    "with a status": ("sys.exit(85)", 85, 85),
    "with an error": ("raise SystemExit('no')", 1, 1),
    "killed": ("os.kill(os.getpid(), 9)", -9, 137),
    "aborted": ("os.abort()", -6, 134),
    "terminated": ("os.kill(os.getpid(), 15)", -15, 143),
}


@pytest.mark.parametrize("how", ENDS)
def test_its_end_is_the_trainings_own(how: str, tmp_path: Path) -> None:
    script, status, told = ENDS[how]
    assert status == run(tmp_path, script)[0]
    end = read(tmp_path, "rank-3.end.json")
    assert [3, told, None] == [end["rank"], end["status"], end["told"]]
    assert [] == [*tmp_path.glob("**/*.partial"), *tmp_path.glob("**/core*")]


def test_both_streams_pass_in_order_and_the_log_has_both(tmp_path: Path) -> None:
    script = """
    for line in range(20):
        print("out", line, file=(sys.stdout, sys.stderr)[line % 2])
        time.sleep(0.02)
    """
    _, out, err = run(tmp_path, script)
    lines = [f"out {line}" for line in range(20)]
    assert lines[::2] == out.decode().splitlines()
    assert lines[1::2] == err.decode().splitlines()
    assert lines == (tmp_path / "attempt" / "rank-3.log").read_text().splitlines()


def test_what_is_no_text_passes_as_it_is(tmp_path: Path) -> None:
    _, out, err = run(tmp_path, r"os.write(1, b'\xff\x00\xfe'); os.write(2, b'a\xff\n')")
    assert (b"\xff\x00\xfe", b"a\xff\n") == (out, err)
    assert ["a\ufffd"] == read(tmp_path, "rank-3.end.json")["tail"]


def test_a_line_that_is_not_ended_is_not_kept_back_for_long(tmp_path: Path) -> None:
    script = "print('Loading ', end=''); time.sleep(60)"
    with start(tmp_path, script) as process:
        assert process.stdout is not None
        began = time.monotonic()
        assert b"Loading " == os.read(process.stdout.fileno(), 100)
        assert time.monotonic() - began < 40
        process_of_rank = read(tmp_path, "rank-3.json")["process"]["pid"]
        os.kill(process_of_rank, signal.SIGKILL)


def test_of_a_progress_bar_the_tail_has_its_last_state(tmp_path: Path) -> None:
    script = r"""
    for step in range(300): sys.stderr.write(f"\rstep {step}")
    sys.stderr.write("\nno more\n")
    """
    _, _, err = run(tmp_path, script)
    assert b"".join(b"\rstep %d" % step for step in range(300)) + b"\nno more\n" == err
    assert ["step 299", "no more"] == read(tmp_path, "rank-3.end.json")["tail"]


def test_of_much_output_nothing_is_lost(tmp_path: Path) -> None:
    """64 MB."""
    line = "x" * 63
    script = f"for _ in range(64): sys.stdout.write(({line!r} + chr(10)) * 2**14)"
    _, out, _ = run(tmp_path, script)
    assert (f"{line}\n" * 2**20).encode() == out
    assert out == (tmp_path / "attempt" / "rank-3.log").read_bytes()


def test_a_rank_may_close_its_streams_and_go_on(tmp_path: Path) -> None:
    status, out, _ = run(
        tmp_path, "print('a'); os.close(1); os.close(2); time.sleep(0.5); os._exit(4)"
    )
    assert (4, b"a\n") == (status, out)


def test_a_child_that_holds_the_streams_open_does_not_hold_the_end_up(tmp_path: Path) -> None:
    script = """
    import subprocess
    print(subprocess.Popen(["sleep", "60"], start_new_session=True).pid)
    """
    began = time.monotonic()
    with start(tmp_path, script) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert 0 == process.wait(30)
        os.kill(child, signal.SIGKILL)
    assert time.monotonic() - began < 40


def test_what_cannot_be_written_whole_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "end.json").mkdir()
    write_whole(tmp_path / "end.json", {})
    assert ["end.json"] == [path.name for path in tmp_path.iterdir()]


def test_a_folder_that_cannot_be_written_ends_no_training(tmp_path: Path) -> None:
    (tmp_path / "attempt").write_text("in the way")
    assert (0, b"a\n", b"") == run(tmp_path, "print('a')")


def test_a_signal_to_the_whole_tree_reaches_the_rank_once_and_is_its_own_matter(
    tmp_path: Path,
) -> None:
    """DeepSpeed's launcher ends its ranks so."""
    script = """
    import signal
    signal.signal(signal.SIGTERM, lambda *_: print("asked"))
    print("ready"); time.sleep(1)
    """
    with ready(tmp_path, script) as (process, out):
        rank = read(tmp_path, "rank-3.json")["process"]["pid"]
        for pid in (rank, process.pid):
            os.kill(pid, signal.SIGTERM)
        assert (b"asked\n", 0) == (out.read(), process.wait())


def test_a_rank_whose_watcher_is_killed_dies_with_it(tmp_path: Path) -> None:
    with start(tmp_path, "time.sleep(60)") as process:
        wait_until((tmp_path / "attempt" / "rank-3.json").exists)
        rank = read(tmp_path, "rank-3.json")["process"]["pid"]
        process.kill()
        wait_until(lambda: read_stat(rank) is None)


SAYS = """
import signal
def say(number, _):
    print("signal", number)
    if number == 15: sys.exit(5)
for number in (10, 15): signal.signal(number, say)
print("ready")
time.sleep(60)
"""


def test_on_another_host_signals_arrive_through_the_folder(tmp_path: Path) -> None:
    """Those that were sent before this rank was started are not for it."""
    (tmp_path / "attempt").mkdir()
    orders = tmp_path / "attempt" / "orders"
    orders.write_text("12\n")
    with ready(tmp_path, SAYS, ZEROWIZ_SUPERVISOR="elsewhere") as (process, out):
        append(orders, "10\n")
        assert b"signal 10\n" == out.readline()
        append(orders, "15\n")
        assert (b"signal 15\n", 5) == (out.read(), process.wait())
    assert read(tmp_path, "rank-3.end.json")["told"] is None


def test_on_another_host_no_signal_arrives_twice_or_before_it_is_written(tmp_path: Path) -> None:
    """A folder over a network may be gone for a while, and show the half of a line."""
    (tmp_path / "attempt").mkdir()
    orders, away = tmp_path / "attempt" / "orders", tmp_path / "away"
    orders.write_text("12\n")
    with ready(tmp_path, SAYS, ZEROWIZ_SUPERVISOR="elsewhere") as (process, out):
        orders.rename(away)
        time.sleep(2 * POLL_S)
        append(away, "1")
        away.rename(orders)
        time.sleep(2 * POLL_S)
        append(orders, "0\n15\n")
        assert b"signal 10\nsignal 15\n" == out.read()
        assert 5 == process.wait()


def test_on_another_host_a_rank_ends_with_the_connection(tmp_path: Path) -> None:
    """Though it writes nothing: an ssh that is gone leaves nobody to read."""
    with ready(tmp_path, SAYS, ZEROWIZ_SUPERVISOR="elsewhere") as (process, out):
        out.close()
        assert process.stderr is not None
        process.stderr.close()
        assert 5 == process.wait(10)
    assert "connection" == read(tmp_path, "rank-3.end.json")["told"]


def test_a_rank_ends_when_it_is_ordered_and_is_killed_after_the_grace(tmp_path: Path) -> None:
    script = "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint('ready')\ntime.sleep(60)"
    with ready(tmp_path, script, ZEROWIZ_GRACE_S="0.5") as (process, _):
        (tmp_path / "attempt" / "orders").write_text("end\n")
        assert -9 == process.wait(10)
    assert "supervisor" == read(tmp_path, "rank-3.end.json")["told"]


def test_an_error_is_dated_by_its_first_line(tmp_path: Path) -> None:
    script = "import atexit\natexit.register(time.sleep, 0.7)\nraise ValueError('no')"
    assert 1 == run(tmp_path, script)[0]
    end = read(tmp_path, "rank-3.end.json")
    assert 0.6 < end["ended_at"] - end["failed_at"]


def test_an_error_that_ends_nothing_does_not_date_the_end(tmp_path: Path) -> None:
    script = """
    import atexit
    def finish():
        time.sleep(0.7)
        raise OSError("not there")
    atexit.register(finish)
    raise ValueError("no")
    """
    status, _, err = run(tmp_path, script)
    assert (1, True) == (status, b"not there" in err)
    end = read(tmp_path, "rank-3.end.json")
    assert 0.6 < end["ended_at"] - end["failed_at"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[None]:
    """The attempt's folder, with a room of 200 kB; skips where none can be made."""
    folder = tmp_path / "attempt"
    folder.mkdir()
    words = ("-t", "tmpfs", "-o", "size=200k", "none", str(folder))
    if subprocess.run(["mount", *words], check=False, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.usefixtures("small_disk")
def test_a_rank_that_filled_the_disk_still_says_how_it_ended(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    reports.touch()
    script = """
    print("." * 1900, file=sys.stderr)
    sys.stderr.flush()
    try:
        with open("attempt/checkpoint", "wb", buffering=0) as stream:
            while True: stream.write(bytes(4096))
    except OSError as error:
        print(error)
    """
    status, out, _ = run(tmp_path, script, **{MEMORY_VARIABLE: str(reports)})
    assert (0, b"[Errno 28] No space left on device\n") == (status, out)
    end = json.loads(reports.read_text().splitlines()[-1])
    assert (0, 1) == (end["status"], len(end["tail"]))


def test_a_disk_that_is_full_ends_no_stream() -> None:
    log = os.open("/dev/full", os.O_WRONLY)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert (True, False) == (write_all(log, b"lost\n"), write_all(writer, b"unread\n"))
    finally:
        os.close(log)
        os.close(writer)


def test_a_rank_is_gone_when_it_is_and_not_when_its_children_fall_silent(tmp_path: Path) -> None:
    child = "for _ in range(30): print('.', flush=True); time.sleep(0.05)"
    script = (
        f"import subprocess\nsubprocess.Popen([sys.executable, '-c', 'import time\\n' {child!r}])"
    )
    assert 0 == run(tmp_path, script)[0]
    written_at = (tmp_path / "attempt" / "rank-3.end.json").stat().st_mtime
    assert 1 < written_at - read(tmp_path, "rank-3.end.json")["ended_at"]


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="its own lock is held")


def build(folder: Path, seconds: float) -> "subprocess.Popen[bytes]":
    """A rank that builds an op in the folder, met once its supervisor has seen that."""
    words = ("--local_rank=1", str(HERE / "baton.py"), str(folder / "cpu_adam"), str(seconds))
    process = start(folder, "", *words, TORCH_EXTENSIONS_DIR=str(folder))
    wait_until((folder / "cpu_adam" / "lock").exists)
    # It looks four times a second.
    time.sleep(1)
    return process


def end_compilers(folder: Path) -> None:
    """End what runs in the folder of the op."""
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if (process / "cwd").readlink() == folder / "cpu_adam":
                os.kill(int(process.name), signal.SIGKILL)


@needs_torch
def test_the_lock_of_a_rank_that_is_killed_while_it_builds_is_removed(tmp_path: Path) -> None:
    with build(tmp_path, 60) as process:
        os.kill(read(tmp_path, "rank-3.json")["process"]["pid"], signal.SIGKILL)
        process.communicate(timeout=30)
    end_compilers(tmp_path)
    assert -signal.SIGKILL == process.returncode
    assert [] == [*(tmp_path / "cpu_adam").iterdir()]


def test_the_lock_of_a_rank_that_closes_its_files_before_it_is_gone_is_removed(
    tmp_path: Path,
) -> None:
    """The kernel closes them first, and a rank of many threads on a busy host takes a while then."""
    script = """
    lock = os.open("cpu_adam/lock", os.O_CREAT | os.O_EXCL)
    print("ready")
    time.sleep(1.2)
    os.close(lock)
    print("closed")
    time.sleep(60)
    """
    (tmp_path / "cpu_adam").mkdir()
    with ready(tmp_path, script, TORCH_EXTENSIONS_DIR=str(tmp_path)) as (process, output):
        assert b"closed\n" == output.readline()
        # Its supervisor looks four times a second.
        time.sleep(1)
        os.kill(read(tmp_path, "rank-3.json")["process"]["pid"], signal.SIGKILL)
        process.communicate(timeout=30)
    assert [] == [*(tmp_path / "cpu_adam").iterdir()]


@needs_torch
def test_a_lock_that_was_taken_over_meanwhile_stays(tmp_path: Path) -> None:
    with build(tmp_path, 60) as process:
        lock = tmp_path / "cpu_adam" / "lock"
        lock.unlink()
        # Another file, though its inode may be the same one.
        lock.touch()
        os.kill(read(tmp_path, "rank-3.json")["process"]["pid"], signal.SIGKILL)
        process.communicate(timeout=30)
    end_compilers(tmp_path)
    assert [lock] == [*lock.parent.iterdir()]
