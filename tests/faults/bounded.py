"""One command in a process with little memory and little time, and what it owes whatever it is given."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.harness import clean_environ
from kills.harness import carries, processes

from zerowiz.errors import ExitCode

LIMIT_S = 10.0
"""Without what it waited for a core that others used; what it starts is not asked how long it waited."""
ADDRESS_BYTES = 3 << 30
MEMORY_BYTES = 1 << 30
"""Of the resident memory, where the address space may be larger: libraries map more than they use."""
LONGEST_LINE = 1_000
# What a command says on stdout as its answer, instead of an error line.
FINDINGS = {("check", ExitCode.CHECK_FOUND_ERRORS), ("doctor", ExitCode.PREFLIGHT)}
# A line break, a tab and a space are all that a terminal should get besides letters.
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")
_GONE_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a command ended."""

    words: Sequence[str]
    code: int
    stdout: str
    stderr: str
    seconds: float
    was_killed: bool
    """Whether it took more than its time."""
    memory_bytes: int
    """The largest that it had in memory."""
    left: Sequence[int]
    """What still ran after it."""
    changed: Sequence[str]
    """The files of its folder that it made, removed or wrote to."""

    @property
    def was_parsed(self) -> bool:
        """Whether it came past the options: none of them was refused, alone or beside others."""
        return self.code != ExitCode.USAGE


def _limit() -> None:
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_bounded(
    folder: Path, words: Sequence[str], program: Sequence[str] = ("-m", "zerowiz")
) -> Ended:
    """Run `zerowiz` with these words; it is killed after its time.

    Args:
        folder: Where it runs. What is beside this folder is its home, and the first of its PATH.
        words: Of the command line.
        program: What Python runs with them.
    """
    before = _list_files(folder)
    mark = f"ZEROWIZ_TEST_RUN={uuid.uuid4().hex}"
    beside = folder.parent
    environ = clean_environ(
        HOME=str(beside),
        XDG_CACHE_HOME=str(beside / "cache"),
        HF_HOME=str(beside / "hf"),
        PATH=f"{beside / 'programs'}{os.pathsep}{os.environ['PATH']}",
        COLUMNS="100",
        **{mark.partition("=")[0]: mark.partition("=")[2]},
    )
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *program, *words],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            preexec_fn=_limit,  # noqa: PLW1509 - it takes no lock
            start_new_session=True,
        )
        seconds, memory_bytes = 0.0, 0
        pid, status, _usage = os.wait4(process.pid, os.WNOHANG)
        while not pid and seconds < LIMIT_S:
            memory_bytes = max(memory_bytes, _peak_bytes(process.pid))
            time.sleep(0.005)
            seconds = time.monotonic() - began - _waited_s(process.pid)
            pid, status, _usage = os.wait4(process.pid, os.WNOHANG)
        was_killed = not pid
        if was_killed:
            os.killpg(process.pid, signal.SIGKILL)
            pid, status, _usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        left = _left(mark)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return Ended(
        words=words,
        code=process.returncode,
        stdout=texts[0],
        stderr=texts[1],
        seconds=seconds,
        was_killed=was_killed,
        memory_bytes=memory_bytes,
        left=left,
        changed=sorted(ascii(path) for path, _ in before ^ _list_files(folder)),
    )


def _peak_bytes(pid: int) -> int:
    """The most that a process had in memory since it began its program.

    `ru_maxrss` of `wait4` counts what the tests themselves had when they forked it, too.
    """
    status = Path("/proc", str(pid), "status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return 0 if found is None else int(found[1]) * 1024


def _waited_s(pid: int) -> float:
    """How long a process has been ready to run on a core that another had."""
    # proc(5): nanoseconds on a core, then those in its queue.
    return int(Path("/proc", str(pid), "schedstat").read_text().split()[1]) / 1e9


def _list_files(folder: Path) -> set[tuple[str, int]]:
    """Each file and folder below a folder, and when it was written to."""
    return {
        (os.path.relpath(path, folder), path.lstat().st_mtime_ns)
        for path in (folder, *folder.rglob("*"))
    }


def _left(mark: str) -> list[int]:
    """The processes of a command that are there some time after it; they are ended."""
    until = time.monotonic() + _GONE_S
    while (
        found := [pid for pid in processes() if carries(pid, mark)]
    ) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return found


def misses(ended: Ended) -> list[str]:
    """What a command owes, and did not do; empty where all is well."""
    found = []
    if ended.code not in {int(code) for code in ExitCode}:
        found.append(f"ends with {ended.code}")
    if ended.was_killed:
        found.append(f"takes {ended.seconds:.1f} s")
    if ended.memory_bytes > MEMORY_BYTES:
        found.append(f"holds {ended.memory_bytes / 2**20:.0f} MiB")
    if ended.left:
        found.append(f"leaves {len(ended.left)} processes")
    if "--dry-run" in ended.words[1:2] and ended.changed:
        found.append(f"writes {', '.join(ended.changed)}")
    return [*found, *_misses_of_texts(ended), *_misses_of_errors(ended)]


def _misses_of_texts(ended: Ended) -> list[str]:
    found = []
    for name, text in (("stdout", ended.stdout), ("stderr", ended.stderr)):
        if "Traceback" in text or "Exception ignored" in text:
            found.append(f"a traceback on {name}")
        if raw := RAW.search(text):
            found.append(f"{raw[0]!r} on {name}")
    return found


def _misses_of_errors(ended: Ended) -> list[str]:
    found = []
    command = ended.words[0] if ended.words else ""
    if ended.code and (command, ended.code) not in FINDINGS:
        lines = re.findall(r"^error: (.*)$", ended.stderr, re.MULTILINE)
        shape = r"(?s:.*?)(?:^|(?<=\n))error: \S[^\n]*\n(?:\n--- \S[^\n]*\n(?:[^\n]+\n)+)*(?:\n(?:hint: \S[^\n]*\n)+)?"
        if re.fullmatch(shape, ended.stderr) is None:
            found.append("stderr does not end with an error and its hints")
        elif len(lines[-1]) > LONGEST_LINE:
            found.append(f"an error of {len(lines[-1])} characters")
    if asks_for_json(ended.words):
        try:
            content = json.loads(ended.stdout)
        except (ValueError, RecursionError):
            found.append("no JSON on stdout")
        else:
            if "error" in content and content["error"]["exit_code"] != ended.code:
                found.append("JSON with another exit code")
    return found


def asks_for_json(words: Sequence[str]) -> bool:
    """Whether stdout is to be JSON; a page of help is none, and further back a script may take it."""
    pages = {"--schema", "--sarif", *(("--explain",) if words[0] in {"check", "doctor"} else ())}
    return "--json" in words[:3] and not pages & {word.partition("=")[0] for word in words}
