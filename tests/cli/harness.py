"""Run zerowiz as people do: as a process, and at a terminal of 80 columns."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import termios
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pexpect
import pyte
import pytest
from cli.forks import Fork, can_fork
from paths import ROOT
from pexpect.fdpexpect import fdspawn

# What would change the tool's answers: schedulers, CI, GPUs, somebody's own DeepSpeed settings.
_OTHERS = re.compile(
    r"CI$|(LOCAL_)?WORLD_SIZE$|(CLICOLOR_)?FORCE(_COLOR)?$|TTY_COMPATIBLE$"
    r"|(CUDA|NVIDIA|NCCL|DS|HF|GITHUB|ZEROWIZ|PYTORCH|TORCH|TORCHELASTIC|ACCELERATE|COLUMNS)(_|$)"
    r"|(SLURM|SLURMD|PBS|LSB|LSF|PET|OMPI|PMI|KUBERNETES|PDSH)(_|$)"
)

# What a person's keys send.
ENTER, TAB, ESCAPE, CTRL_C, CTRL_D = "\r", "\t", "\x1b", "\x03", "\x04"
UP, DOWN, BACKSPACE = "\x1b[A", "\x1b[B", "\x7f"

# One tiny script for each way that a config reaches one.
HF_PARSER = """\
from dataclasses import dataclass
from transformers import HfArgumentParser, Trainer, TrainingArguments

@dataclass
class Arguments(TrainingArguments):
    use_cpu: bool = True

(args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
Trainer(model=None, args=args).train()
"""
HF_IN_CODE = """\
from transformers import Trainer, TrainingArguments

args = TrainingArguments(output_dir="out", per_device_train_batch_size=4, bf16=True, use_cpu=True)
Trainer(model=None, args=args).train()
"""
HF_IN_CODE_WITH_WORDS = f"import sys\n\nprint(sys.argv)\n{HF_IN_CODE}"
HF_LITERAL = """\
from transformers import Trainer, TrainingArguments

args = TrainingArguments(
    "out", per_device_train_batch_size=4, deepspeed="ds_config_zero0.json", use_cpu=True
)
Trainer(model=None, args=args).train()
"""
CONFIG_ARGUMENTS = """\
import argparse

import deepspeed

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--lr", type=float, default=6e-4)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
engine, *_ = deepspeed.initialize(args=args, model=None)
"""
UNREACHABLE = """\
import deepspeed

engine, *_ = deepspeed.initialize(model=None, config={"train_batch_size": 8})
"""


def clean_environ(**extra: str) -> dict[str, str]:
    """An environment in which nothing is set that zerowiz reads."""
    environ = {name: value for name, value in os.environ.items() if not _OTHERS.match(name)}
    paths = [str(ROOT), environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return {**environ, "HF_HUB_OFFLINE": "1", "LANGUAGE": "en", **extra}


def enter(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Let this process work in a folder, with nothing set that zerowiz reads."""
    patch.chdir(folder)
    for name in [name for name in os.environ if _OTHERS.match(name)]:
        patch.delenv(name)
    patch.setenv("HF_HUB_OFFLINE", "1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a run ended."""

    stdout: str
    stderr: str
    code: int

    @property
    def good(self) -> "Result":
        """This one, once it is seen to have ended well."""
        assert self.code == 0, self.stderr
        return self

    @property
    def content(self) -> dict[str, Any]:
        """The JSON of one that ended well."""
        content: dict[str, Any] = json.loads(self.good.stdout)
        return content

    @property
    def problem(self) -> str:
        """The error line, once the whole of stderr is seen to have the one shape of errors."""
        diffs = r"(?:\n--- \S[^\n]*\n(?:[^\n]+\n)+)*"
        hints = r"(?:\n(?:hint: \S[^\n]*\n)+)?"
        shape = r"(?s:.*?)(?:^|(?<=\n))error: (?P<what>\S[^\n]*)\n" + diffs + hints
        match = re.fullmatch(shape, self.stderr)
        assert match is not None, self.stderr
        assert "Traceback" not in self.stderr, self.stderr
        return match["what"]

    @property
    def hints(self) -> str:
        """What the error says to do next."""
        return "\n".join(re.findall(r"^hint: (.*)$", self.stderr, re.MULTILINE))


COLUMNS, LINES = 80, 120
_PATIENCE_SECONDS = 60.0

Run = Callable[..., Result]
"""Run the tool with these words."""


def run_process(
    folder: Path, *words: str, python: str = sys.executable, env: Mapping[str, str] | None = None
) -> Result:
    """Run the tool in a process of its own, without a terminal."""
    environ = clean_environ(**(env or {}))
    if python == sys.executable and can_fork(environ):
        return _run_fork(folder, words, environ)
    done = subprocess.run(
        [python, "-m", "zerowiz", *words],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Result(stdout=done.stdout, stderr=done.stderr, code=done.returncode)


def _run_fork(folder: Path, words: Sequence[str], environ: Mapping[str, str]) -> Result:
    with TemporaryFile() as out, TemporaryFile() as err, Path(os.devnull).open("rb") as nothing:
        streams = [each.fileno() for each in (nothing, out, err)]
        fork = Fork(("-m", "zerowiz", *words), folder, environ, streams)
        fork.poll(300)
        code = fork.end()
        stdout, stderr = (os.pread(each.fileno(), 2**24, 0).decode() for each in (out, err))
    return Result(stdout=stdout, stderr=stderr, code=code)


class _ForkAtTerminal(fdspawn):  # type: ignore[misc]
    """A fork at a new terminal, with what is used of `pexpect.spawn`."""

    def __init__(
        self,
        program: Sequence[str],
        folder: Path,
        environ: Mapping[str, str],
        dimensions: tuple[int, int],
        *,
        ranks: bool,
    ) -> None:
        master, slave = os.openpty()
        super().__init__(master, timeout=_PATIENCE_SECONDS)
        self.setwinsize(*dimensions)
        self._fork = Fork(program, folder, environ, [slave] * 3, ranks=ranks)
        os.close(slave)
        self.pid = self._fork.pid
        self.kill = self._fork.kill

    def setwinsize(self, rows: int, columns: int) -> None:
        termios.tcsetwinsize(self.child_fd, (rows, columns))

    def isalive(self) -> bool:
        return self._fork.poll() is None

    def wait(self) -> None:
        self._fork.poll(None)

    def close(self, force: bool = True) -> None:
        assert force
        if not self.closed:
            super().close()
        status = self._fork.end()
        self.exitstatus = status if status >= 0 else None
        self.signalstatus = -status if status < 0 else None


def _start_at_terminal(
    program: Sequence[str],
    folder: Path,
    environ: Mapping[str, str],
    dimensions: tuple[int, int],
) -> Any:
    is_program = program[0] == "-m" or program[0].endswith(".py")
    # Whoever asks for reports of ranks trains them.
    ranks = "ZEROWIZ_RANK_REPORT" in environ
    if is_program and (ranks or can_fork(environ)):
        return _ForkAtTerminal(program, folder, environ, dimensions, ranks=ranks)
    child = pexpect.spawn(
        sys.executable,
        [*program],
        cwd=str(folder),
        env=environ,
        dimensions=dimensions,
        timeout=_PATIENCE_SECONDS,
    )
    # What ended needs no pause to end.
    child.ptyproc.delayafterclose = 0
    return child


def make_interpreter(folder: Path, deepspeed: str) -> tuple[str, dict[str, str]]:
    """A Python beside which this shell script lies as `deepspeed`, and what the tool needs to run in it.

    Args:
        folder: A new one.
        deepspeed: The text of the script.
    """
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    (folder / "deepspeed").write_text(deepspeed)
    (folder / "deepspeed").chmod(0o755)
    libraries = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])
    return str(folder / "python"), {"PYTHONPATH": libraries}


class Terminal:
    """A person's terminal: a real pseudo-terminal, and the screen that they see.

    Args:
        folder: Where the program runs.
        words: Those of `zerowiz`, or of another Python program.
        env: What stands in the environment besides.
        program: What Python runs.
        columns: How wide it is.
        lines: How high it is.
    """

    def __init__(
        self,
        folder: Path,
        words: Sequence[str],
        env: Mapping[str, str],
        *,
        program: Sequence[str] = ("-m", "zerowiz"),
        columns: int = COLUMNS,
        lines: int = LINES,
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.received = b""
        environ = clean_environ(**{"TERM": "xterm-256color", **env})
        self.child = _start_at_terminal((*program, *words), folder, environ, (lines, columns))
        # People's keys need no pause before them.
        self.child.delaybeforesend = None
        self.quiet = False

    def resize(self, columns: int, lines: int) -> None:
        """Another size; the program hears of it."""
        self.screen.resize(lines, columns)
        self.child.setwinsize(lines, columns)

    @property
    def lines(self) -> list[str]:
        """What stands on the screen."""
        rows = (self.screen.buffer.get(y, {}) for y in range(self.screen.lines))
        # pyte's own `display` measures every character; a wide one has an empty cell beside it.
        return [
            "".join(row[x].data for x in range(max(row, default=-1) + 1)).rstrip() for row in rows
        ]

    @property
    def text(self) -> str:
        """The screen, without the empty lines at its end."""
        return "\n".join(self.lines).rstrip()

    def _works(self) -> bool:
        """Whether the program computes, or waits for a core to do it: more may come."""
        try:
            stats = [
                each.read_text() for each in Path(f"/proc/{self.child.pid}/task").glob("*/stat")
            ]
        except OSError:  # a thread has just ended
            return True
        return any(stat.rpartition(")")[2].split()[0] in "RD" for stat in stats)

    def look(self) -> bool:
        """Take in what came; whether more may come."""
        self.quiet = False
        try:
            got = self.child.read_nonblocking(65536, timeout=0.05)
        except pexpect.TIMEOUT:
            self.quiet = not self._works()
            return True
        except pexpect.EOF:
            return False
        self.stream.feed(got)
        self.received += got
        return True

    def wait_for(self, words: str) -> None:
        """Read on until these words stand below all that was answered so far."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while words not in self.text:
            more = self.look()
            seen = words in self.text
            assert seen or more, f"it ended, and {words!r} never came:\n{self.text}"
            assert seen or time.monotonic() < until, f"{words!r} never came:\n{self.text}"

    def reply(self, question: str, keys: str) -> None:
        """Wait for a question until it is drawn, then press keys."""
        self.talk((question, keys))

    def talk(self, *turns: Sequence[str]) -> None:
        """A conversation: each turn is what is waited for, the keys that follow, and what is gone by then."""
        for question, keys, *gone in turns:
            self.wait_for(question)
            self.settle()
            assert not [words for words in gone if words in self.text], self.text
            if keys:
                self.child.send(keys)
                self.quiet = False

    def finish(self, *turns: Sequence[str], patience_seconds: float = _PATIENCE_SECONDS) -> None:
        """A conversation after which the program ends well."""
        self.talk(*turns)
        assert 0 == self.end(patience_seconds), self.text

    def settle(self) -> None:
        """Read on until the program waits for keys: nothing came for a moment, and it computes nothing."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while not self.quiet:
            assert self.look(), f"it ended:\n{self.text}"
            assert time.monotonic() < until, f"it never waits:\n{self.text}"

    def end(self, patience_seconds: float = _PATIENCE_SECONDS) -> int:
        """Wait for the end; the exit code."""
        until = time.monotonic() + patience_seconds
        while self.look():
            assert time.monotonic() < until, f"it did not end:\n{self.text}"
        self.child.wait()
        self.child.close()
        code = self.child.exitstatus
        assert isinstance(code, int), f"killed by signal {self.child.signalstatus}"
        return code


def cpu_seconds(pid: int) -> float:
    """The processor time of a process so far, which other programs hardly lengthen."""
    # clock_getcpuclockid(3): what Linux makes of the number of a process.
    return time.clock_gettime(~pid << 3 | 2)


Open = Callable[..., Terminal]
"""Run the tool with these words at a terminal."""


def answers_of(folder: Path) -> dict[str, Any]:
    """What the answers file of a folder says, by its keys."""
    return tomllib.loads((folder / "zerowiz.toml").read_text())
