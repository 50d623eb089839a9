"""Run real DeepSpeed jobs on the CPU accelerator, and read what their ranks report."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from cli.forks import Fork

OBSERVER = Path(__file__).parent
BIN = Path(sys.executable).parent

# The first job compiles DeepSpeed's shared-memory op (about 30 s) or CPUAdam (about 50 s).
TIMEOUT_S = 280.0
# For every question to a program.
ALL_SECONDS = 1500.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletedRun:
    """What a job left behind."""

    stdout: str
    stderr: str
    returncode: int
    shared_memory_left: tuple[str, ...]
    """Buffers of DeepSpeed's CPU op that the ranks did not remove; gone now."""

    @property
    def good(self) -> "CompletedRun":
        """This one, once it is seen to have ended well."""
        assert self.returncode == 0, f"{self.stdout[-4000:]}\n{self.stderr[-4000:]}"
        return self


def rank_environ(reports: Path) -> dict[str, str]:
    """The environment of a job on the CPU accelerator whose ranks report into a folder."""
    reports.mkdir(parents=True, exist_ok=True)
    # A hidden-GPU list of two fails on the CPU accelerator, whichever way it came to be set.
    inherited = {key: os.environ[key] for key in os.environ if key != "CUDA_VISIBLE_DEVICES"}
    return {
        "TORCH_EXTENSIONS_DIR": str(Path(sys.prefix) / "torch_extensions"),
        **inherited,
        "DS_ACCELERATOR": "cpu",
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(OBSERVER), os.environ.get("PYTHONPATH")])),
        "ZEROWIZ_RANK_REPORT": str(reports),
        "OMP_NUM_THREADS": "1",
    }


def run(
    argv: Sequence[str | Path], env: Mapping[str, str], cwd: Path, timeout_s: float = TIMEOUT_S
) -> CompletedRun:
    """Run a command in its own process group, and leave nothing of the group behind."""
    with subprocess.Popen(
        [str(word) for word in argv],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            end_group(process.pid)
            stdout, stderr = process.communicate()
            message = f"no end after {timeout_s} s\n{stdout[-4000:]}\n{stderr[-4000:]}"
            raise TimeoutError(message) from None
        finally:
            end_group(process.pid)
    left = drop_shared_memory(stdout + stderr)
    return CompletedRun(
        stdout=stdout, stderr=stderr, returncode=process.returncode, shared_memory_left=left
    )


def run_loaded(
    argv: Sequence[str | Path], env: Mapping[str, str], cwd: Path, timeout_s: float = TIMEOUT_S
) -> CompletedRun:
    """As `run`, for a claim about what ranks do and not how they start (`loaded.py`)."""
    program = [str(word) for word in argv]
    program = program[program[0] == sys.executable :]
    with TemporaryFile() as out, TemporaryFile() as err, Path(os.devnull).open("rb") as nothing:
        streams = [each.fileno() for each in (nothing, out, err)]
        job = Fork(program, cwd, env, streams, ranks=True)
        ended = job.poll(timeout_s)
        end_group(job.pid)
        status = job.end()
        stdout, stderr = (os.pread(each.fileno(), 2**24, 0).decode() for each in (out, err))
    if ended is None:
        raise TimeoutError(f"no end after {timeout_s} s\n{stdout[-4000:]}\n{stderr[-4000:]}")
    left = drop_shared_memory(stdout + stderr)
    return CompletedRun(stdout=stdout, stderr=stderr, returncode=status, shared_memory_left=left)


def ask_ranks(
    program: Path, questions: Sequence[object], folder: Path
) -> list[list[dict[str, Any]]]:
    """What each rank of a program answers to each question (`forked.py`)."""
    asked, answered = folder / "questions", folder / "answers"
    asked.write_text(json.dumps(questions), encoding="utf-8")
    environ = rank_environ(folder / "reports")
    del environ["ZEROWIZ_RANK_REPORT"]
    environ["PYTHONPATH"] += f"{os.pathsep}{OBSERVER.parent}"
    # Of a rank that was ended, the log has what it wrote.
    environ["PYTHONUNBUFFERED"] = "1"
    done = run_loaded([sys.executable, program, asked, answered], environ, folder, ALL_SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    heard: list[list[dict[str, Any]]] = json.loads(answered.read_text(encoding="utf-8"))
    return heard


def drop_shared_memory(output: str) -> tuple[str, ...]:
    """Remove what DeepSpeed's CPU op leaves behind, 69 MB a rank; say what there was."""
    ports = set(re.findall(r"--master_port[= ](\d+)", output))
    folder = Path("/dev/shm")
    left = [b for port in ports for b in folder.glob(f"deepspeed_allreduce_buffer_*_{port}_*")]
    for buffer in left:
        buffer.unlink(missing_ok=True)
    return tuple(buffer.name for buffer in left)


def end_group(group: int) -> None:
    """End every process of a group that this harness started, if one is left."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """The ranks' reports, by rank."""
    reports = [json.loads(path.read_text()) for path in folder.glob("rank*.json")]
    return sorted(reports, key=lambda report: int(report["rank"]))
