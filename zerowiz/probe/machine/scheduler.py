"""Read what a scheduler or a launcher gave this job, from its environment variables.

The variables are hints, not proof: a parser ignores a value that it cannot read.
"""

import os
import re
import signal
import sys
from collections.abc import Callable, Mapping

from msgspec import Struct

from zerowiz.core.machine.types import JobAllocation, if_known, least
from zerowiz.probe.files import Files
from zerowiz.probe.machine.host import parse_list

# Find out whether a person looks on: not with `nohup`, in CI or in a container.

# Docker and Podman make these files in every container; podman(1) and systemd-nspawn(1) set the
# variable `container`, Kubernetes that of its API's address.
_CONTAINER_FILES = (".dockerenv", "run/.containerenv")
_UNATTENDED = ("CI", "container", "KUBERNETES_SERVICE_HOST")


def has_person(environ: Mapping[str, str], files: Files) -> bool:
    """Whether a person can end what this process starts, at its terminal."""
    in_container = any(files.real(path) is not None for path in _CONTAINER_FILES)
    survives_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    unattended = in_container or survives_hangup or any(map(environ.get, _UNATTENDED))
    return _is_in_foreground() and not unattended


def _is_in_foreground() -> bool:
    """Whether this process reads its input from a terminal, and writes its messages to one."""
    try:
        owner = os.tcgetpgrp(sys.stdin.fileno())
    except (OSError, ValueError):
        return False
    return owner == os.getpgrp() and sys.stderr.isatty()


_Environ = Mapping[str, str]

# Slurm, sbatch(1), --mem: units of 1024; megabytes without a unit.
_SLURM_SIZE = re.compile(r"(\d{1,12})([KMGT]?)B?", re.IGNORECASE | re.ASCII)
_SLURM_UNITS = {"K": 2**10, "": 2**20, "M": 2**20, "G": 2**30, "T": 2**40}


class _Scheduler(Struct, frozen=True, kw_only=True):
    """How a scheduler or launcher is recognized, and how its variables are parsed."""

    name: str
    job_variables: tuple[str, ...]
    """Inside a job at least one of these is set."""
    parse: Callable[[str, _Environ, str], JobAllocation]
    """From its name, the environment and the text of its host file."""
    hosts_variable: str = ""
    """The variable with the job's hosts, or with the path of the file that lists them."""
    node_variable: str = ""
    """The variable that is set on the nodes of a job alone; empty for a launcher."""
    client: str = ""
    """A program that is installed wherever jobs can be submitted."""
    site_variables: tuple[str, ...] = ()
    """Variables that are set where it is installed, also outside of a job."""


def read_allocation(environ: Mapping[str, str], files: Files) -> JobAllocation | None:
    """What this job was given; `None` outside of every scheduler and launcher."""
    for row in SCHEDULERS:
        if any(name in environ for name in row.job_variables):
            hosts = environ.get(row.hosts_variable)
            if hosts and hosts.startswith("/"):
                hosts = files.text(hosts.lstrip("/"))
            return row.parse(row.name, environ, hosts or "")
    return None


def scheduler_here(files: Files, environ: Mapping[str, str]) -> str | None:
    """The scheduler that jobs can be submitted to from this host; `None` on a node of a job."""
    rows = [row for row in SCHEDULERS if row.node_variable]
    if any(row.node_variable in environ for row in rows):
        return None
    # A recording must not contain the path of the home folder.
    home = environ.get("HOME", "").rstrip("/")
    folders = [
        folder.lstrip("/")
        for folder in (part.rstrip("/") for part in environ.get("PATH", "").split(":"))
        if folder.startswith("/") and not (home and f"{folder}/".startswith(f"{home}/"))
    ]
    return next((row.name for row in rows if _is_here(files, environ, row, folders)), None)


def _is_here(files: Files, environ: _Environ, row: _Scheduler, folders: list[str]) -> bool:
    if any(environ.get(name) for name in (*row.site_variables, *row.job_variables)):
        return True
    return any(files.real(f"{folder}/{row.client}") is not None for folder in folders)


def parse_count(text: str | None) -> int | None:
    """A whole number above 0."""
    match = re.fullmatch(r"\s*0*([1-9]\d{0,8})\s*", text or "", re.ASCII)
    return int(match[1]) if match else None


def parse_slurm(name: str, environ: _Environ, _hosts: str = "") -> JobAllocation:
    """A job of Slurm. Its variables come before those of the step, which may have less."""
    job_nodes = parse_count(environ.get("SLURM_JOB_NUM_NODES"))
    nodes = job_nodes or parse_count(environ.get("SLURM_NNODES"))
    tasks = parse_slurm_fewest(environ.get("SLURM_TASKS_PER_NODE", ""))
    total = parse_slurm_gpus(environ.get("SLURM_GPUS", ""))
    counts = (
        parse_slurm_gpus(environ.get("SLURM_GPUS_PER_NODE", "")),
        parse_count(environ.get("SLURM_GPUS_ON_NODE")),
        len(parse_list(environ.get("SLURM_JOB_GPUS", ""))) or None,
        _times(tasks, parse_slurm_gpus(environ.get("SLURM_GPUS_PER_TASK", ""))),
        _divide(total, nodes),
    )
    gpus = next((count for count in counts if count is not None), None)
    cores = parse_slurm_fewest(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    cores = cores or parse_count(environ.get("SLURM_CPUS_ON_NODE"))
    sizes = (
        parse_slurm_size(environ.get("SLURM_MEM_PER_NODE", "")),
        _times(parse_slurm_size(environ.get("SLURM_MEM_PER_CPU", "")), cores),
        _times(parse_slurm_size(environ.get("SLURM_MEM_PER_GPU", "")), gpus),
    )
    return JobAllocation(
        scheduler=name,
        nodes=nodes,
        gpus_per_node=gpus,
        memory_bytes=next((size for size in sizes if size is not None), None),
    )


def parse_slurm_gpus(text: str) -> int | None:
    """The count in `8`, `h100:8` or `gpu:h100:8`, summed over `a100:2,v100:2`."""
    counts = [parse_count(part.rpartition(":")[2]) for part in text.split(",")]
    return if_known(counts, sum)


def parse_slurm_fewest(text: str) -> int | None:
    """The fewest tasks or cores on any node in `4(x2),3`."""
    counts = [parse_count(re.sub(r"\(x\d+\)$", "", part)) for part in text.split(",")]
    return least(counts)


def parse_slurm_size(text: str) -> int | None:
    """The bytes in `515000`, which are megabytes, or `64G`; `None` for 0, the whole node."""
    match = _SLURM_SIZE.fullmatch(text.strip())
    return int(match[1]) * _SLURM_UNITS[match[2].upper()] or None if match else None


def parse_hosts(name: str, _environ: _Environ, hosts: str = "") -> JobAllocation:
    """A job of PBS or LSF by its hosts: one for each rank, or `hostA 4 hostB 4`."""
    names = {word for word in hosts.split() if not word.isdigit()}
    return JobAllocation(scheduler=name, nodes=len(names) or None)


def parse_ranks(name: str, environ: _Environ, _hosts: str = "") -> JobAllocation:
    """The variables of torchrun's ranks, else mpirun's, and torchrun's options (PET_..., Kubeflow).

    WORLD_SIZE counts only together with LOCAL_WORLD_SIZE: Kubeflow sets it alone, to the count of
    pods or of ranks. One rank of mpirun on each node does not mean one GPU: it may be a launcher
    that starts the ranks.
    """
    world, local = _counts(environ, "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    gpus = local
    if local is None:
        world, local = _counts(environ, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
        gpus = None if local == 1 else local
    nodes = parse_elastic(environ.get("PET_NNODES", ""))
    per_node = parse_count(environ.get("PET_NPROC_PER_NODE"))
    return JobAllocation(
        scheduler=name, nodes=_divide(world, local) or nodes, gpus_per_node=gpus or per_node
    )


def _counts(environ: _Environ, *names: str) -> list[int | None]:
    return [parse_count(environ.get(name)) for name in names]


def parse_elastic(text: str) -> int | None:
    """The nodes in `2` or `MIN:MAX`.

    Of a range it is the minimum: the job may start with it, and each node then has the most to
    hold.
    """
    fewest, colon, most = text.partition(":")
    return parse_count(fewest) if not colon or parse_count(most) else None


# In this order: a launcher inside a job of SLURM knows less of the job than SLURM does.
SCHEDULERS = (
    # Slurm, sbatch(1) and srun(1), output environment variables. The shell of `salloc` may be on
    # the login node: only slurmd sets SLURMD_NODENAME.
    _Scheduler(
        name="SLURM",
        job_variables=("SLURM_JOB_ID",),
        parse=parse_slurm,
        node_variable="SLURMD_NODENAME",
        client="srun",
        site_variables=("SLURM_CONF",),
    ),
    # OpenPBS, qsub(1B); Torque, qsub(1). Grid Engine has a `qsub` too.
    _Scheduler(
        name="PBS",
        job_variables=("PBS_JOBID",),
        parse=parse_hosts,
        hosts_variable="PBS_NODEFILE",
        node_variable="PBS_JOBID",
        client="pbsnodes",
        site_variables=("PBS_CONF_FILE", "PBS_DEFAULT", "PBS_SERVER"),
    ),
    # IBM Spectrum LSF, environment variables.
    _Scheduler(
        name="LSF",
        job_variables=("LSB_JOBID",),
        parse=parse_hosts,
        hosts_variable="LSB_MCPU_HOSTS",
        node_variable="LSB_JOBID",
        client="bsub",
        site_variables=("LSF_ENVDIR", "LSF_SERVERDIR"),
    ),
    # Kubernetes, "Discovering services"; Kubeflow, training-operator, pytorch/envvar.go.
    _Scheduler(name="Kubernetes", job_variables=("KUBERNETES_SERVICE_HOST",), parse=parse_ranks),
    # PyTorch, torch/distributed/run.py, "Environment Variables".
    _Scheduler(
        name="torchrun", job_variables=("TORCHELASTIC_RUN_ID", "PET_NNODES"), parse=parse_ranks
    ),
    # Open MPI, mpirun(1), "Exported environment variables".
    _Scheduler(name="Open MPI", job_variables=("OMPI_COMM_WORLD_SIZE",), parse=parse_ranks),
)


def _times(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first * second


def _divide(total: int | None, parts: int | None) -> int | None:
    """The whole number of equal parts; `None` when they are not equal."""
    if total is None or parts is None or total % parts:
        return None
    return total // parts
