"""Read what a scheduler or a launcher gave this job, from its variables.

They are hints, never proof: each parser passes over what it cannot read.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zerowiz.core.machine.allocation import JobAllocation
from zerowiz.probe.machine.host import parse_list
from zerowiz.probe.recording.files import Files

_Environ = Mapping[str, str]

# Slurm, sbatch(1), --mem: units of 1024; megabytes where none is said.
_SLURM_SIZE = re.compile(r"(\d{1,12})([KMGT]?)B?", re.IGNORECASE | re.ASCII)
_SLURM_UNITS = {"K": 2**10, "": 2**20, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scheduler:
    """How one of them is recognized and read."""

    name: str
    marks: tuple[str, ...]
    """Variables of which any is set inside a job."""
    parse: Callable[[str, _Environ, str], JobAllocation]
    """From its name, the environment and the text of its host file."""
    hosts_variable: str = ""
    """Names the file that lists the hosts of the job."""
    on_node: str = ""
    """The variable that is set on a node of the job, and nowhere else; none for a launcher."""
    client: str = ""
    """A program that is installed wherever jobs can be submitted."""
    site: tuple[str, ...] = ()
    """Variables that tell of it outside of a job too."""


def read_allocation(environ: Mapping[str, str], files: Files) -> JobAllocation | None:
    """What this job was given; `None` outside of every scheduler and launcher."""
    for row in SCHEDULERS:
        if any(mark in environ for mark in row.marks):
            path = environ.get(row.hosts_variable, "")
            hosts = files.text(path.lstrip("/")) if path.startswith("/") else None
            return row.parse(row.name, environ, hosts or "")
    return None


def scheduler_here(files: Files, environ: Mapping[str, str]) -> str | None:
    """The scheduler that jobs can be submitted to from here; `None` on a node of a job."""
    rows = [row for row in SCHEDULERS if row.on_node]
    if any(row.on_node in environ for row in rows):
        return None
    folders = _list_program_folders(environ)
    return next((row.name for row in rows if _is_here(files, environ, row, folders)), None)


def _is_here(files: Files, environ: _Environ, row: _Scheduler, folders: list[str]) -> bool:
    if any(environ.get(variable) for variable in (*row.site, *row.marks)):
        return True
    return any(files.real(f"{folder}/{row.client}") is not None for folder in folders)


def _list_program_folders(environ: _Environ) -> list[str]:
    """The folders of PATH, less those in the home folder, whose names a recording must not hold."""
    home = environ.get("HOME", "").rstrip("/")
    folders = [part.rstrip("/") for part in environ.get("PATH", "").split(":")]
    return [
        folder.lstrip("/")
        for folder in folders
        if folder.startswith("/") and not (home and f"{folder}/".startswith(f"{home}/"))
    ]


def parse_count(text: str | None) -> int | None:
    """A whole number above 0."""
    match = re.fullmatch(r"\s*0*([1-9]\d{0,8})\s*", text or "", re.ASCII)
    return int(match[1]) if match else None


def parse_slurm(name: str, environ: _Environ, _hosts: str = "") -> JobAllocation:
    """A job of Slurm; of the job before of the step, which may have less."""
    nodes = _first_count(environ, "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
    gpus = _count_slurm_gpus(environ, nodes)
    return JobAllocation(
        scheduler=name, nodes=nodes, gpus_per_node=gpus, memory_bytes=_slurm_memory(environ, gpus)
    )


def _count_slurm_gpus(environ: _Environ, nodes: int | None) -> int | None:
    tasks = parse_slurm_fewest(environ.get("SLURM_TASKS_PER_NODE", ""))
    total = parse_slurm_gpus(environ.get("SLURM_GPUS", ""))
    told = (
        parse_slurm_gpus(environ.get("SLURM_GPUS_PER_NODE", "")),
        parse_count(environ.get("SLURM_GPUS_ON_NODE")),
        len(parse_list(environ.get("SLURM_JOB_GPUS", ""))) or None,
        _times(tasks, parse_slurm_gpus(environ.get("SLURM_GPUS_PER_TASK", ""))),
        _divide(total, nodes),
    )
    return next((count for count in told if count is not None), None)


def parse_slurm_gpus(text: str) -> int | None:
    """The count in `8`, `h100:8` or `gpu:h100:8`, summed over `a100:2,v100:2`."""
    counts = [parse_count(part.rpartition(":")[2]) for part in text.split(",")]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def parse_slurm_fewest(text: str) -> int | None:
    """The fewest tasks or cores on any node in `4(x2),3`."""
    counts = [parse_count(re.sub(r"\(x\d+\)$", "", part)) for part in text.split(",")]
    known = [count for count in counts if count is not None]
    return min(known) if len(known) == len(counts) else None


def parse_slurm_size(text: str) -> int | None:
    """The bytes in `515000`, which are megabytes, or `64G`; 0 stands for all of a node."""
    match = _SLURM_SIZE.fullmatch(text.strip())
    return int(match[1]) * _SLURM_UNITS[match[2].upper()] or None if match else None


def _slurm_memory(environ: _Environ, gpus: int | None) -> int | None:
    """What the job may use of a node; Slurm sets one of three variables."""
    cores = parse_slurm_fewest(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    cores = cores or parse_count(environ.get("SLURM_CPUS_ON_NODE"))
    told = (
        parse_slurm_size(environ.get("SLURM_MEM_PER_NODE", "")),
        _times(parse_slurm_size(environ.get("SLURM_MEM_PER_CPU", "")), cores),
        _times(parse_slurm_size(environ.get("SLURM_MEM_PER_GPU", "")), gpus),
    )
    return next((size for size in told if size is not None), None)


def parse_pbs(name: str, environ: _Environ, hosts: str = "") -> JobAllocation:
    """A job of PBS Pro, OpenPBS or Torque; a host stands in the file once for each rank."""
    nodes = parse_count(environ.get("PBS_NUM_NODES")) or len(set(hosts.split())) or None
    # Sites set PBS_NGPUS, some for the job (NCI), some for the node (MetaCentrum).
    gpus = parse_count(environ.get("PBS_NGPUS")) if nodes == 1 else None
    return JobAllocation(scheduler=name, nodes=nodes, gpus_per_node=gpus)


def parse_lsf(name: str, environ: _Environ, _hosts: str = "") -> JobAllocation:
    """A job of LSF: `hostA 4 hostB 4`, else a host for each slot, else the count of slots."""
    pairs = environ.get("LSB_MCPU_HOSTS", "").split()
    paired = len(pairs) % 2 == 0 and all(parse_count(slots) for slots in pairs[1::2])
    hosts = pairs[::2] if paired else []
    if paired and len(pairs) > 2 and pairs[1] == "1" and "1" not in pairs[3::2]:  # noqa: PLR2004
        # The launch node of Summit and Lassen has one slot, and no GPU.
        hosts = hosts[1:]
    hosts = hosts or environ.get("LSB_HOSTS", "").split()
    lone = parse_count(environ.get("LSB_DJOB_NUMPROC")) == 1
    return JobAllocation(scheduler=name, nodes=len(set(hosts)) or (1 if lone else None))


def parse_torchrun(name: str, environ: _Environ, _hosts: str = "") -> JobAllocation:
    """What torchrun told its ranks, else what it was told itself (PET_..., as Kubeflow does).

    WORLD_SIZE counts only beside LOCAL_WORLD_SIZE: Kubeflow sets it alone, to pods or to ranks.
    """
    local = parse_count(environ.get("LOCAL_WORLD_SIZE"))
    nodes = _divide(parse_count(environ.get("WORLD_SIZE")), local)
    return JobAllocation(
        scheduler=name,
        nodes=nodes or parse_elastic(environ.get("PET_NNODES", "")),
        gpus_per_node=local or parse_count(environ.get("PET_NPROC_PER_NODE")),
    )


def parse_elastic(text: str) -> int | None:
    """The nodes in `2` or `MIN:MAX`.

    Of a range it is the fewest: the job starts with them, and each then holds the largest share.
    """
    fewest, colon, most = text.partition(":")
    return parse_count(fewest) if not colon or parse_count(most) else None


def parse_open_mpi(name: str, environ: _Environ, _hosts: str = "") -> JobAllocation:
    """A rank of mpirun.

    One rank on each node says nothing of GPUs: it may be a launcher that starts the others.
    """
    local = parse_count(environ.get("OMPI_COMM_WORLD_LOCAL_SIZE"))
    nodes = _divide(parse_count(environ.get("OMPI_COMM_WORLD_SIZE")), local)
    return JobAllocation(scheduler=name, nodes=nodes, gpus_per_node=None if local == 1 else local)


def parse_kubernetes(name: str, environ: _Environ, _hosts: str = "") -> JobAllocation:
    """A pod, which itself knows no counts: those of the launcher in it."""
    uses_mpi = "OMPI_COMM_WORLD_SIZE" in environ
    return (parse_open_mpi if uses_mpi else parse_torchrun)(name, environ)


# The outer one first: a launcher inside a job of SLURM knows less of the job than SLURM does.
SCHEDULERS = (
    # Slurm, sbatch(1) and srun(1), output environment variables. The shell of `salloc` may be on
    # the login node: only slurmd sets SLURMD_NODENAME.
    _Scheduler(
        name="SLURM",
        marks=("SLURM_JOB_ID",),
        parse=parse_slurm,
        on_node="SLURMD_NODENAME",
        client="srun",
        site=("SLURM_CONF",),
    ),
    # OpenPBS, qsub(1B) and pbs.conf(5); Torque, qsub(1). Grid Engine has a `qsub` too.
    _Scheduler(
        name="PBS",
        marks=("PBS_JOBID",),
        parse=parse_pbs,
        hosts_variable="PBS_NODEFILE",
        on_node="PBS_JOBID",
        client="pbsnodes",
        site=("PBS_CONF_FILE", "PBS_DEFAULT", "PBS_SERVER"),
    ),
    # IBM Spectrum LSF, environment variables; profile.lsf sets the LSF_ ones.
    _Scheduler(
        name="LSF",
        marks=("LSB_JOBID",),
        parse=parse_lsf,
        on_node="LSB_JOBID",
        client="bsub",
        site=("LSF_ENVDIR", "LSF_SERVERDIR"),
    ),
    # Kubernetes, "Discovering services"; Kubeflow, training-operator, pytorch/envvar.go.
    _Scheduler(name="Kubernetes", marks=("KUBERNETES_SERVICE_HOST",), parse=parse_kubernetes),
    # PyTorch, torch/distributed/run.py, "Environment Variables".
    _Scheduler(name="torchrun", marks=("TORCHELASTIC_RUN_ID", "PET_NNODES"), parse=parse_torchrun),
    # Open MPI, mpirun(1), "Exported environment variables".
    _Scheduler(name="Open MPI", marks=("OMPI_COMM_WORLD_SIZE",), parse=parse_open_mpi),
)


def _first_count(environ: _Environ, *keys: str) -> int | None:
    counts = (parse_count(environ.get(key)) for key in keys)
    return next((count for count in counts if count is not None), None)


def _times(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one * other


def _divide(total: int | None, parts: int | None) -> int | None:
    """The whole number of equal parts; `None` when they are not equal."""
    if total is None or parts is None or total % parts:
        return None
    return total // parts
