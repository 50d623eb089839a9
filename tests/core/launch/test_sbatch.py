import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from zerowiz.core.launch.sbatch import (
    JobScript,
    render_job_script,
)
from zerowiz.core.structs import replace

Golden = Callable[[str, str], None]

EXAMPLE = JobScript(
    nodes=2,
    ranks=8,
    has_gpus=True,
    options=("--output-dir", "out", "--model", "model"),
    script="train_deepspeed.py",
    script_args=("--output_dir", "out", "--resume", "--save_on_signal"),
)
KNOWN = replace(EXAMPLE, cores=128, activate="/shared/my env/bin/activate")
CPU = replace(EXAMPLE, has_gpus=False, ranks=2, options=("--accelerator", "cpu"))
ALONE = replace(EXAMPLE, nodes=1, ranks=1, script_args=())
ODD = replace(EXAMPLE, script="my dir/tr$in it.py", script_args=("--name", "a 'b' $HOME `x`"))
TWO_LINES = replace(EXAMPLE, script="two\nlines \x1b[31m.py", script_args=("a\nb",))
OUTSIDE = replace(
    EXAMPLE,
    options=("--output-dir", "out", "--model", "/data/my model"),
    script_args=("--data=../corpus", "--lr", "1e-4", "--hub", "https://x/y"),
    elsewhere=True,
)
LONG = replace(EXAMPLE, script_args=tuple(f"--option{n} value{n}" for n in range(40)))

every_job = pytest.mark.parametrize(
    "job",
    [EXAMPLE, KNOWN, CPU, ALONE, ODD, TWO_LINES, OUTSIDE, LONG],
    ids=["example", "known", "cpu", "alone", "odd", "two lines", "outside", "long"],
)


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line[:7] == "#SBATCH"]


def test_the_example_in_templates_is_what_is_written(golden: Golden) -> None:
    golden("../../templates/job.sbatch", render_job_script(EXAMPLE))


@every_job
def test_bash_takes_it(job: JobScript) -> None:
    text = render_job_script(job)
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)


@every_job
def test_srun_gets_every_word_as_it_is(job: JobScript, tmp_path: Path) -> None:
    stub = tmp_path / "srun"
    stub.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\nexit 7\n', encoding="utf-8")
    stub.chmod(0o755)
    text = render_job_script(replace(job, activate=None))
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_CPUS_PER_TASK": "12"}
    done = subprocess.run(
        ["bash"], input=text, env=environ, text=True, capture_output=True, check=False
    )
    words = done.stdout.split("\0")[:-1]
    assert 7 == done.returncode
    assert ["--kill-on-bad-exit=1", "--cpus-per-task=12", "zerowiz", "launch"] == words[:4]
    assert [*job.options, job.script, *job.script_args] == words[words.index("90") + 1 :]


@every_job
def test_directives_stand_before_the_first_command(job: JobScript) -> None:
    lines = render_job_script(job).splitlines()
    commands = [n for n, line in enumerate(lines) if line and not line.startswith("#")]
    last = max(n for n, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert last < commands[0]


def test_no_line_is_too_long_to_read() -> None:
    assert 100 >= max(map(len, render_job_script(LONG).splitlines()))


def test_gpus_are_asked_for_on_every_node() -> None:
    assert "--gpus-per-node=8" in directives(render_job_script(EXAMPLE))
    assert "--ntasks-per-node=1" in directives(render_job_script(EXAMPLE))


def test_cpu_ranks_ask_for_no_gpu() -> None:
    assert not [word for word in directives(render_job_script(CPU)) if "gpu" in word]


def test_what_is_known_is_asked_for() -> None:
    asked = directives(render_job_script(KNOWN))
    assert "--cpus-per-task=128" in asked
    assert "source '/shared/my env/bin/activate'" in render_job_script(KNOWN)


def test_what_is_not_known_is_left_to_fill_in() -> None:
    text = render_job_script(EXAMPLE)
    assert not [word for word in directives(text) if word.startswith("--mem")]
    assert "FILL IN the memory" in text
    assert "FILL IN the cores" in text


def test_paths_that_a_copy_of_the_folder_does_not_hold_are_left_to_fill_in() -> None:
    asked = "# FILL IN the paths of the cluster for these, unless its nodes have them too:\n"
    *_, below = render_job_script(OUTSIDE).partition(asked)
    assert ["#   '/data/my model'", "#   ../corpus"] == below.partition("\nsrun ")[0].splitlines()
    assert asked not in render_job_script(replace(OUTSIDE, elsewhere=False))
    assert asked not in render_job_script(replace(EXAMPLE, elsewhere=True))
