"""Render the job script (sbatch) that trains on the nodes of a SLURM cluster."""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from zerowiz.core import shell
from zerowiz.core.launch.secrets import hide_secrets, quote_words

_WIDTH = 96
# For a rank's own threads and those of its data loader; DeepSpeed's offload uses more.
_CORES_PER_RANK = 4
# A job without a time limit gets its partition's, and a backfilling scheduler cannot fit it in.
# sbatch(1), --signal: it may come up to a minute early. The grace is less than the warning, so that
# the ranks have saved before the time is up.
_TEXT = """\
#!/bin/bash
# Trains {script} on {nodes}. Edit the lines marked FILL IN, then:
#   sbatch {path}

#SBATCH --job-name={name}
# FILL IN what your site requires (remove one #): `sacctmgr show associations`, `sinfo`
##SBATCH --account=NAME
##SBATCH --partition=NAME
#SBATCH --nodes={job.nodes}
# One zerowiz per node, which starts the ranks of that node
#SBATCH --ntasks-per-node=1
{gpus}{about_cores}
#SBATCH --cpus-per-task={cores}
# FILL IN the memory per node for the job (remove one #); 0 is all of it
##SBATCH --mem=0
# FILL IN the time limit, days-hours:minutes:seconds
#SBATCH --time=24:00:00
# All output, in the folder of `sbatch`; a restart appends to it
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
# Start again after a node failure or preemption; it starts over if it cannot resume
#SBATCH --requeue
# Signal the ranks 120 s before the time is up, so that they can save
#SBATCH --signal=TERM@120

{environment}
# One copy on each node; they agree in the output folder, which all have to share.
# srun itself does not read --cpus-per-task of above (since Slurm 22.05).
{folders}srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \\
{command}
status=$?
# FILL IN: to queue the job again when its time is up (status 143), uncomment the line below
# if [ "$status" -eq 143 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$status"
"""
_ACTIVATE = """\
# FILL IN the modules that your site needs; every node must see this environment
# module load cuda
# shellcheck source=/dev/null
source {activate}
"""
_TO_ACTIVATE = """\
# FILL IN how to activate the environment of `zerowiz` and `deepspeed` on every node
# module load cuda
# source /path/to/environment/bin/activate
"""
_TO_FILL_IN = "# FILL IN the cores per node, or your share of them; all ranks of a node use them"
# A word, or the value in it, that is an absolute path or leaves the folder.
_OUTSIDE = re.compile(r"^(?:--?[\w-]+=)?((?:/|\.\./)[^/].*)", re.DOTALL)
_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class JobScript(Struct, frozen=True, kw_only=True):
    """What the script requests, and what it starts."""

    nodes: int
    ranks: int
    """On each node, one for each of its GPUs."""
    has_gpus: bool
    """Whether the ranks run on GPUs, not on the CPU."""
    cores: int | None = None
    """Of the job on each node; None where the nodes are not known."""
    activate: str | None = None
    """The `activate` of a virtual environment, which is sourced first."""
    stage: str = "auto"
    options: tuple[str, ...] = ()
    """Of `zerowiz launch`, besides `--stage` and `--yes`."""
    script: str
    script_args: tuple[str, ...] = ()
    path: str = "job.sbatch"
    """Its own path, relative to the same folder as its other paths: that of `sbatch`."""
    elsewhere: bool = False
    """Whether it is written on another machine than its nodes, whose folders may differ."""


def render_job_script(job: JobScript) -> str:
    """The text of the file, for a person to read and edit."""
    what = "GPU" if job.has_gpus else "CPU rank"
    share = f"{job.ranks} {what}{'s' if job.ranks > 1 else ''}"
    launch = [
        *("zerowiz", "launch", "--stage", job.stage, "--yes", "--grace-seconds", "90"),
        *job.options,
    ]
    script = [job.script, *job.script_args]
    return _TEXT.format(
        job=job,
        script=shell.quote(job.script),
        path=shell.quote(job.path),
        nodes=f"{job.nodes} nodes with {share} each" if job.nodes > 1 else f"a node with {share}",
        name=_NAME.sub("-", job.script.rpartition("/")[2].removesuffix(".py")) or "train",
        gpus=f"#SBATCH --gpus-per-node={job.ranks}\n" if job.has_gpus else "",
        about_cores="# All ranks of a node use these cores" if job.cores else _TO_FILL_IN,
        cores=job.cores or job.ranks * _CORES_PER_RANK,
        environment=_ACTIVATE.format(activate=shell.quote(job.activate))
        if job.activate
        else _TO_ACTIVATE,
        folders="".join(f"{line}\n" for line in _folders(job)),
        command=f"{_fold(launch)} \\\n{_fold(script)}"
        if job.script_args
        else _fold([*launch, *script]),
    )


def _folders(job: JobScript) -> Iterator[str]:
    """Paths and secrets of the command below that a copy of the folder of `sbatch` lacks."""
    paths = [
        path
        for word in (*job.options, job.script, *job.script_args)
        if (path := _OUTSIDE.search(word))
    ]
    if job.elsewhere and paths:
        yield "# FILL IN the paths of the cluster for these, unless its nodes have them too:"
        yield from dict.fromkeys(f"#   {shell.quote(path[1])}" for path in paths)
    if hide_secrets(job.script_args) != job.script_args:
        yield "# FILL IN the secrets of this command: export its variables here, or before sbatch"


def _fold(words: Sequence[str]) -> str:
    """A long command over several lines, broken between words."""
    lines: list[str] = []
    line = ""
    for word in quote_words(words):
        if line and len(line) + len(word) > _WIDTH:
            lines.append(line)
            line = "   "
        line = f"{line} {word}" if line else f"  {word}"
    return " \\\n".join([*lines, line])
