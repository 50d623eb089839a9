"""Submit the generated job script to a real SLURM of two nodes, each with two CPU ranks.

Needs root, slurm-wlm and munge; run with `make test-slurm`.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from slurm.one_host import Slurm

from zerowiz.core.launch.sbatch import JobScript, render_job_script
from zerowiz.core.structs import replace

# A job asks its own nodes through a real `srun`; run with `make test-slurm`.

ROOT = Path(__file__).parents[2]
CPU = ("--accelerator", "cpu", "--gpus-per-node", "2")

IN_A_JOB = """
import json, os, sys
from zerowiz.core.machine.names import encode_machine
from zerowiz.core.machine.merge import merge_nodes
from zerowiz.probe.machine.fleet import ask_nodes
from zerowiz.probe.machine.fleet import argv_for, node_command, pick_transport
transport = pick_transport(os.environ)
argv = argv_for(transport, node_command(sys.argv[1:], limit_s=60))
fleet = merge_nodes(ask_nodes(["n1", "n2", "n9"], argv, concurrency=3, deadline_s=60, on_answer=lambda _: None))
print(json.dumps({
    "transport": transport.__name__,
    "machine": encode_machine(fleet.machine),
    "failures": {failure.host: failure.why for failure in fleet.failures},
}))
"""


@pytest.mark.slurm
@pytest.mark.parametrize(
    "memory", [(), ("--mem-per-cpu=100",), ("--mem=200",)], ids=["plain", "per CPU", "per node"]
)
def test_a_slurm_job_asks_its_own_nodes_with_srun(slurm: Slurm, memory: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", *memory]
        + [sys.executable, "-c", IN_A_JOB, *CPU],
        env={**slurm.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    told = json.loads(done.stdout)
    assert "by_srun" == told["transport"]
    assert (2, 2) == (told["machine"]["nodes"], len(told["machine"]["gpus"]))
    assert ["n9"] == list(told["failures"])
    assert "node" in told["failures"]["n9"].lower()


TEMPLATES = ROOT / "templates"
FOREVER = 100_000
OPTIONS = ("--accelerator", "cpu", "--gpus-per-node", "2", "--model", str(TEMPLATES / "model"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One that was submitted."""

    slurm: Slurm
    number: str
    folder: Path

    @property
    def output(self) -> str:
        """All that it printed."""
        paths = sorted(self.folder.glob("*.out"))
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)

    def wait(self) -> dict[str, str]:
        """What SLURM says of it in the end."""
        return self.slurm.wait(self.number, within_s=300)

    def wait_for(self, pattern: str, within_s: float = 240) -> None:
        """Until it has printed this."""
        self.wait_until(lambda: re.search(pattern, self.output) is not None, pattern, within_s)

    def wait_until(self, is_so: Callable[[], bool], what: str, within_s: float) -> None:
        """Until this is so."""
        until = time.monotonic() + within_s
        while not is_so():
            told = self.slurm.told(self.number)
            assert time.monotonic() < until, f"not so: {what}\n{told}\n{self.output}"
            time.sleep(0.2)

    def steps(self) -> list[int]:
        """The steps that it told of, in order."""
        return [int(number) for number in re.findall(r"^step (\d+)", self.output, re.MULTILINE)]

    def processes(self) -> list[int]:
        """What is alive of it on any node: its mark is in the environment."""
        return [pid for pid, environ in list_processes() if self._is_own(environ)]

    def _is_own(self, environ: dict[str, str]) -> bool:
        return environ.get("ZEROWIZ_ATTEMPT", "").startswith(str(self.folder))

    def zerowiz_on(self, node: str) -> int:
        """The copy of zerowiz on this node."""
        task = [
            pid
            for pid, environ in list_processes()
            if environ.get("SLURM_JOB_ID") == self.number
            and environ.get("SLURMD_NODENAME") == node
            and environ.get("SLURM_TASK_PID") is not None
            and "zerowiz\0launch" in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
            and "ZEROWIZ_ATTEMPT" not in environ
        ]
        return min(task)


def list_processes() -> Iterator[tuple[int, dict[str, str]]]:
    """Each with its environment, as far as they live."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            text = path.read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        yield (
            int(path.parent.name),
            dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair),
        )


@pytest.fixture
def submit(slurm: Slurm, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Write the job script of a training and submit it; in the end it is gone."""
    jobs: list[Job] = []

    def run(
        *words: str,
        script: Path = TEMPLATES / "train_deepspeed.py",
        edit: Callable[[str], str] = lambda text: text,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Job:
        job = JobScript(
            nodes=2,
            ranks=2,
            has_gpus=False,
            cores=2,
            options=(*OPTIONS, "--output-dir", "out", *options),
            script=str(script),
            script_args=("--output_dir", "out", "--seq_len", "32", *words, "--resume"),
        )
        path = tmp_path / "job.sbatch"
        path.write_text(edit(render_job_script(job)), encoding="utf-8")
        environ = {**slurm.environ, "PATH": environment_path(slurm), **(env or {})}
        own = replace(slurm, environ=environ)
        number = own.submit(path, cwd=tmp_path)
        jobs.append(Job(slurm=slurm, number=number, folder=tmp_path))
        return jobs[-1]

    yield run
    for job in jobs:
        slurm.ask("scancel", "--quiet", job.number)
        slurm.wait(job.number)
        assert [] == job.processes()


def environment_path(slurm: Slurm) -> str:
    """The programs of this interpreter's environment first."""
    return f"{Path(sys.executable).parent}:{slurm.environ['PATH']}"


def ranks_by_host(folder: Path) -> dict[str, list[int]]:
    """Which ranks of the first attempt ran where."""
    hosts: dict[str, list[int]] = {}
    for path in sorted(folder.glob("out/.zerowiz/runs/*/attempt-1/rank-*.json")):
        if not path.name.endswith(".end.json"):
            content = json.loads(path.read_text(encoding="utf-8"))
            hosts.setdefault(content["host"], []).append(content["rank"])
    return hosts


@pytest.mark.slurm
def test_the_job_script_trains_on_two_nodes(submit: Callable[..., Job]) -> None:
    job = submit("--steps", "6")
    told = job.wait()
    assert ("COMPLETED", "0:0") == (told["JobState"], told["ExitCode"]), job.output
    assert {"n1": [0, 1], "n2": [2, 3]} == ranks_by_host(job.folder)
    assert 6 == job.steps()[-1]
    assert 1 == len(re.findall("^eval_loss", job.output, re.MULTILINE))
    assert [] == job.processes()


@pytest.mark.slurm
def test_scancel_leaves_nothing_behind(submit: Callable[..., Job]) -> None:
    job = submit("--steps", str(FOREVER))
    job.wait_for("\nstep 5 ")
    assert 8 <= len(job.processes())
    job.slurm.ask("scancel", job.number)
    assert "CANCELLED" == job.wait()["JobState"]
    job.wait_until(lambda: not job.processes(), "nothing is left", 5)


@pytest.mark.slurm
def test_a_requeued_job_goes_on_from_its_checkpoint(submit: Callable[..., Job]) -> None:
    job = submit("--steps", "100", "--save_steps", "10")
    job.wait_for("\nstep 25 ")
    job.slurm.ask("scontrol", "requeue", job.number)
    told = job.wait()
    assert ("COMPLETED", "1") == (told["JobState"], told["Restarts"]), job.output
    steps = job.steps()
    restart = next(at for at in range(1, len(steps)) if steps[at] <= steps[at - 1])
    assert 20 < steps[restart]
    assert 100 == steps[-1]


@pytest.mark.slurm
def test_a_rank_that_fails_on_the_second_node_ends_the_step_with_its_status(
    submit: Callable[..., Job], tmp_path: Path
) -> None:
    folder = tmp_path / "templates"
    shutil.copytree(TEMPLATES, folder)
    script = folder / "train_deepspeed.py"
    text, start = script.read_text(encoding="utf-8"), "    args = parse_args()\n"
    assert start in text
    bad = f'{start}    if os.environ["RANK"] == "2":\n        sys.exit(7)\n'
    script.write_text(text.replace(start, bad), encoding="utf-8")
    job = submit("--steps", str(FOREVER), script=script)
    told = job.wait()
    assert ("FAILED", "7:0") == (told["JobState"], told["ExitCode"]), job.output
    assert "rank 2 on n2 was first" in job.output
    job.wait_until(lambda: not job.processes(), "nothing is left", 5)


@pytest.mark.slurm
@pytest.mark.thorough
def test_a_rank_of_the_second_node_runs_out_and_all_nodes_go_one_strategy_up(
    submit: Callable[..., Job], tmp_path: Path
) -> None:
    env = {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'ranks'}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "ZEROWIZ_RANK_RUNS_OUT": "2,5,2",
    }
    options = ("--stage", "2", "--allow-slow", "--escalate")
    job = submit("--steps", "6", "--save_steps", "3", options=options, env=env)
    told = job.wait()
    assert ("COMPLETED", "0:0") == (told["JobState"], told["ExitCode"]), job.output
    first, second = json.loads((tmp_path / "out/zerowiz-run.json").read_text())["attempts"]
    assert ("zero2", "host_oom", "n2") == (
        first["strategy"],
        first["end"]["cause"],
        first["end"]["host"],
    )
    assert ("zero3", "finished") == (second["strategy"], second["end"]["cause"])
    assert "checkpoint" == second["goes_on_from"]["what"]
    assert [1, 4, 5, 6] == sorted({*job.steps()})


@pytest.mark.slurm
@pytest.mark.thorough
def test_a_copy_that_is_killed_ends_the_others(submit: Callable[..., Job]) -> None:
    job = submit("--steps", str(FOREVER))
    job.wait_for("\nstep 5 ")
    os.kill(job.zerowiz_on("n2"), signal.SIGKILL)
    told = job.wait()
    assert "FAILED" == told["JobState"]
    assert "0:0" != told["ExitCode"]
    job.wait_until(lambda: not job.processes(), "nothing is left", 5)


@pytest.mark.slurm
@pytest.mark.thorough
def test_a_job_whose_time_is_up_is_queued_again_where_the_script_says_so(
    submit: Callable[..., Job],
) -> None:
    def with_requeue(text: str) -> str:
        assert "# if [" in text
        return text.replace("# if [", "if [")

    job = submit("--steps", "80", "--save_on_signal", edit=with_requeue)
    job.wait_for("\nstep 10 ")
    job.slurm.ask("scancel", "--signal=TERM", job.number)
    told = job.wait()
    assert ("COMPLETED", "1") == (told["JobState"], told["Restarts"]), job.output
    # It saved where it stood: no step was taken twice, the first one neither.
    assert sorted(set(job.steps())) == job.steps()
    assert 80 == job.steps()[-1]


@pytest.mark.slurm
def test_a_job_script_without_srun_is_told_of_it(submit: Callable[..., Job]) -> None:
    def without_srun(text: str) -> str:
        lines = text.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("srun "))

    job = submit("--steps", "6", edit=without_srun)
    told = job.wait()
    assert ("FAILED", "2:0") == (told["JobState"], told["ExitCode"]), job.output
    assert "srun --nodes=2 --ntasks=2 --ntasks-per-node=1" in job.output
