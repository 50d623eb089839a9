"""Render the job script (sbatch) that trains on the nodes of a SLURM cluster."""

import re
import shlex
from collections.abc import Iterator, Sequence

from msgspec import Struct

from zerowiz.core import shell
from zerowiz.core.launch.other_launchers import launcher_words, read_command
from zerowiz.errors import UsageError

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
    launch = ["zerowiz", "launch", "--stage", job.stage, "--yes", "--grace-seconds", "90"]
    launch += job.options
    script = [job.script, *job.script_args]
    one_line = _fold([*launch, *script])
    return _TEXT.format(
        job=job,
        script=shell.quote(job.script),
        path=shell.quote(job.path),
        nodes=f"{job.nodes} nodes with {share} each" if job.nodes > 1 else f"a node with {share}",
        name=_NAME.sub("-", job.script.rpartition("/")[2].removesuffix(".py")) or "train",
        gpus=f"#SBATCH --gpus-per-node={job.ranks}\n" if job.has_gpus else "",
        about_cores="# All ranks of a node use these cores" if job.cores else _TO_FILL_IN,
        cores=job.cores or job.ranks * _CORES_PER_RANK,
        environment=_ACTIVATE.format(activate=shlex.quote(job.activate))
        if job.activate
        else _TO_ACTIVATE,
        folders="".join(f"{line}\n" for line in _folders(job)),
        command=f"{_fold(launch)} \\\n{_fold(script)}" if job.script_args else one_line,
    )


def _folders(job: JobScript) -> Iterator[str]:
    """The paths below that a copy of the folder of `sbatch` does not hold."""
    words = (*job.options, job.script, *job.script_args)
    paths = [path for word in words if (path := _OUTSIDE.search(word))]
    if job.elsewhere and paths:
        yield "# FILL IN the paths of the cluster for these, unless its nodes have them too:"
        yield from dict.fromkeys(f"#   {shell.quote(path[1])}" for path in paths)


def _fold(words: Sequence[str]) -> str:
    """A long command over several lines, broken between words."""
    lines: list[str] = []
    line = ""
    for word in map(shlex.quote, words):
        if line and len(line) + len(word) > _WIDTH:
            lines.append(line)
            line = "   "
        line = f"{line} {word}" if line else f"  {word}"
    return " \\\n".join([*lines, line])


# Find the line of a shell script that starts a training.

_SUFFIXES = (".sh", ".bash", ".zsh", ".sbatch", ".slurm")
_SHEBANG = re.compile(r"#!\S*\b(env +)?(ba|da|k|z)?sh\b")
_PYTHON = "python"
# A line, with those that a backslash continues; one at the end of a comment is a part of it.
_LINE = re.compile(r"[ \t]*#[^\n]*\n?|(?:[^\n]*\\\n)*[^\n]*\n?")
# What ends a command, or a word with its quotes; else a quote that stays open.
_TOKEN = re.compile(
    r"""(?P<end>[|&;]|\d*[<>])"""
    r"""|(?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\s'"\\|&;<>])+)"""
    r"""|\S"""
)


class ShellCommand(Struct, frozen=True, kw_only=True):
    """A command of a shell script that another launcher begins."""

    line: int
    """Its first, from 1 on."""
    launcher: str
    words: tuple[str, ...]
    """From the launcher on."""

    @property
    def expands(self) -> bool:
        """Whether the shell puts something else into it."""
        return any("$" in word or "`" in word for word in self.words)


def is_shell_script(path: str, text: str) -> bool:
    """Whether a file is one, by its name or its first line."""
    return path.endswith(_SUFFIXES) or _SHEBANG.match(text) is not None


def find_training_command(text: str) -> ShellCommand | None:
    """The command that starts a training; one of `python` only where no other launcher has one."""
    lines = [*_list_commands(text)]
    launchers = [line for line in lines if not line.launcher.startswith(_PYTHON)]
    return next(iter(launchers), lines[-1] if lines else None)


def _list_commands(text: str) -> Iterator[ShellCommand]:
    for line in _LINE.finditer(text):
        starts = (
            words[at:]
            for words in _split_commands(line[0].replace("\\\n", " "))
            for at in range(len(words))
        )
        for words in starts:
            name = launcher_words(words)
            if name and _starts_training(words):
                number = text.count("\n", 0, line.start()) + 1
                yield ShellCommand(line=number, launcher=" ".join(name), words=words)
                break


def _split_commands(line: str) -> list[tuple[str, ...]]:
    """The words of each command of a line, without quotes; none where a quote ends on a later line.

    What a redirection names is taken for a command, too.
    """
    commands: list[tuple[str, ...]] = [()]
    for token in _TOKEN.finditer(line):
        word = token["word"]
        if token["end"]:
            commands.append(())
        elif word is None:
            return []
        elif word.startswith("#"):
            break
        else:
            commands[-1] += (*shlex.split(word),)
    return commands


def _starts_training(words: Sequence[str]) -> bool:
    """Whether a launcher's words name a script; those of `python` have to show it."""
    try:
        command = read_command(words)
    except UsageError:
        return True  # what is wrong is said when it is launched
    if command is None:
        return False
    if not words[0].rpartition("/")[2].startswith(_PYTHON):
        return True
    return command.target.endswith(".py") or (command.is_module and command.target != "pip")
