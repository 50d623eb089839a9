import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pexpect
import pytest
from cli.harness import clean_environ
from fake_host import build_host
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import FileAnswers, FilesLog, RecordedFiles

from zerowiz.core.machine.types import JobAllocation
from zerowiz.probe.machine.scheduler import (
    SCHEDULERS,
    has_person,
    parse_count,
    parse_elastic,
    parse_slurm_fewest,
    parse_slurm_gpus,
    parse_slurm_size,
    read_allocation,
    scheduler_here,
)

# What a launch was started from, seen by real processes at a real terminal.

SEE = """
from pathlib import Path
from zerowiz.probe.files import Files
from zerowiz.probe.machine.scheduler import has_person
print(has_person({}, Files(root=Path("/nowhere"))))
"""


def at_terminal(command: str) -> str:
    child = pexpect.spawn("/bin/bash", ["-c", command], env=clean_environ(), timeout=20)
    return str(child.read().decode())


def see() -> str:
    return f"{sys.executable} -c '{SEE}'"


HANGUP = signal.SIGHUP.name.removeprefix("SIG")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param(see(), "True", id="it belongs to it"),
        pytest.param(f"set -m; {see()} & wait", "False", id="background"),
        pytest.param(f"{see()} </dev/null", "False", id="no input"),
        pytest.param(f"{see()} 2>/dev/null", "False", id="nobody reads its notes"),
        pytest.param(f"setsid -w {see()}", "False", id="another session"),
        # nohup is seen though the terminal is there.
        pytest.param(f"trap '' {HANGUP}; {see()}", "False", id="nohup"),
    ],
)
def test_the_process_that_a_terminal_belongs_to_is_in_the_foreground(
    command: str, expected: str
) -> None:
    assert expected in at_terminal(command)


def test_a_process_without_a_terminal_is_not_in_the_foreground() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SEE],
        env=clean_environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert "False" in done.stdout


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        ({}, {}, True),
        ({".dockerenv": ""}, {}, False),
        ({"run/.containerenv": ""}, {}, False),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
        ({}, {"container": "podman"}, False),
        ({}, {"container": ""}, True),
        ({}, {"CI": ""}, True),
        ({}, {"CI": "1"}, False),
    ],
)
def test_in_a_container_and_in_ci_nobody_looks_on(
    files: Mapping[str, str],
    environ: Mapping[str, str],
    expected: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zerowiz.probe.machine.scheduler._is_in_foreground", lambda: True)
    assert expected is has_person(environ, build_host(tmp_path, files))


NOTHING = RecordedFiles(answers=FileAnswers())
MIB, GIB = 2**20, 2**30

# Lightning-AI/pytorch-lightning issue 16236: one task of a job with two GPUs; what Slurm said of
# its hosts is left out. It has neither SLURM_GPUS_ON_NODE nor SLURM_CPUS_ON_NODE.
SLURM_STEP = {
    "SLURM_JOBID": "7099018",
    "SLURM_JOB_CPUS_PER_NODE": "3",
    "SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0": "3",
    "SLURM_JOB_GPUS": "2,3",
    "SLURM_JOB_ID": "7099018",
    "SLURM_JOB_NAME": "train.job",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_LOCALID": "0",
    "SLURM_MEM_PER_CPU": "32768",
    "SLURM_NNODES": "1",
    "SLURM_NODE_ALIASES": "(null)",
    "SLURM_NTASKS": "1",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_PROCID": "0",
    "SLURM_STEP_GPUS": "2,3",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_TASKS_PER_NODE": "2",
}

# As sbatch(1) describes what `-N 2 --gpus-per-node=h100:8 --mem=1000G` sets on the first node.
SLURM_BATCH = {
    "SLURM_JOB_ID": "81",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURMD_NODENAME": "node1",
    "SLURM_GPUS_PER_NODE": "h100:8",
    "SLURM_GPUS_ON_NODE": "8",
    "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7",
    "SLURM_MEM_PER_NODE": "1024000",
    "SLURM_CPUS_ON_NODE": "96",
    "SLURM_JOB_CPUS_PER_NODE": "96(x2)",
    "SLURM_TASKS_PER_NODE": "8(x2)",
}

# kubeflow/trainer pull 1840: what a pod of a PyTorchJob gets; WORLD_SIZE counts its ranks there.
KUBEFLOW = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "MASTER_ADDR": "job-master-0",
    "MASTER_PORT": "23456",
    "PET_MASTER_ADDR": "job-master-0",
    "PET_MASTER_PORT": "23456",
    "PET_NNODES": "3",
    "PET_NODE_RANK": "0",
    "PET_NPROC_PER_NODE": "8",
    "RANK": "0",
    "WORLD_SIZE": "24",
}

# torch/distributed/run.py, "Environment Variables", of a rank on the second of two nodes.
TORCHRUN = {
    "LOCAL_RANK": "3",
    "RANK": "7",
    "GROUP_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "WORLD_SIZE": "8",
    "TORCHELASTIC_RUN_ID": "none",
}

OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}


GPUS: list[tuple[dict[str, str], int | None]] = [
    ({"SLURM_GPUS_PER_NODE": "8"}, 8),
    ({"SLURM_GPUS_PER_NODE": "a100:2,v100:2"}, 4),
    # awslabs/awsome-distributed-ai issue 71: `srun --gres=gpu:a100:4` sets these alone.
    ({"SLURM_STEP_GPUS": "0,1,2,3", "SLURM_GPUS_ON_NODE": "4"}, 4),
    ({"SLURM_GPUS_PER_NODE": "8", "SLURM_GPUS_ON_NODE": "1"}, 8),
    ({"SLURM_GPUS_PER_NODE": "h100", "SLURM_GPUS_ON_NODE": "4"}, 4),
    ({"SLURM_JOB_GPUS": "0-3,6"}, 5),
    ({"SLURM_GPUS_PER_TASK": "1", "SLURM_TASKS_PER_NODE": "4(x2)"}, 4),
    ({"SLURM_GPUS": "16", "SLURM_NNODES": "2"}, 8),
    ({"SLURM_GPUS": "15", "SLURM_NNODES": "2"}, None),
    ({"SLURM_TASKS_PER_NODE": "8(x2)"}, None),
    ({}, None),
]
MEMORY: list[tuple[dict[str, str], int | None]] = [
    ({"SLURM_MEM_PER_NODE": "515000"}, 515000 * MIB),
    ({"SLURM_MEM_PER_NODE": "0"}, None),
    ({"SLURM_MEM_PER_CPU": "4000", "SLURM_CPUS_ON_NODE": "32"}, 128000 * MIB),
    ({"SLURM_MEM_PER_CPU": "4000", "SLURM_JOB_CPUS_PER_NODE": "72(x2),36"}, 144000 * MIB),
    ({"SLURM_MEM_PER_CPU": "4000"}, None),
    ({"SLURM_MEM_PER_GPU": "102400", "SLURM_GPUS_ON_NODE": "8"}, 800 * GIB),
    ({"SLURM_MEM_PER_GPU": "102400"}, None),
]


@pytest.mark.parametrize(
    ("what", "environ", "expected"),
    [
        *(("gpus_per_node", *row) for row in GPUS),
        *(("memory_bytes", *row) for row in MEMORY),
    ],
)
def test_slurm_says_in_many_ways_what_a_node_has(
    what: str, environ: dict[str, str], expected: int | None
) -> None:
    allocation = read_allocation({"SLURM_JOB_ID": "1", **environ}, NOTHING)
    assert allocation
    assert expected == getattr(allocation, what)


ALLOCATIONS: dict[str, tuple[dict[str, str], JobAllocation | None]] = {
    "no scheduler": ({"PATH": "/usr/bin", "WORLD_SIZE": "8"}, None),
    "a batch script of SLURM": (
        SLURM_BATCH,
        JobAllocation(scheduler="SLURM", nodes=2, gpus_per_node=8, memory_bytes=1024000 * MIB),
    ),
    "a real step of SLURM": (
        SLURM_STEP,
        JobAllocation(scheduler="SLURM", nodes=1, gpus_per_node=2, memory_bytes=3 * 32768 * MIB),
    ),
    "SLURM around launchers": (
        SLURM_BATCH | TORCHRUN | OPEN_MPI,
        JobAllocation(scheduler="SLURM", nodes=2, gpus_per_node=8, memory_bytes=1024000 * MIB),
    ),
    "LSF": (
        {"LSB_JOBID": "5", "LSB_MCPU_HOSTS": "hostA 4 hostB 4"},
        JobAllocation(scheduler="LSF", nodes=2),
    ),
    "LSF without hosts": ({"LSB_JOBID": "5"}, JobAllocation(scheduler="LSF")),
    "kubeflow": (KUBEFLOW, JobAllocation(scheduler="Kubernetes", nodes=3, gpus_per_node=8)),
    "kubeflow auto": (
        KUBEFLOW | {"PET_NPROC_PER_NODE": "auto", "WORLD_SIZE": "3"},
        JobAllocation(scheduler="Kubernetes", nodes=3),
    ),
    "torchrun in a pod": (
        {"KUBERNETES_SERVICE_HOST": "10.96.0.1", **TORCHRUN},
        JobAllocation(scheduler="Kubernetes", nodes=2, gpus_per_node=4),
    ),
    "mpirun in a pod": (
        {"KUBERNETES_SERVICE_HOST": "10.96.0.1", **OPEN_MPI},
        JobAllocation(scheduler="Kubernetes", nodes=2, gpus_per_node=8),
    ),
    "bare pod": (
        {"KUBERNETES_SERVICE_HOST": "10.96.0.1"},
        JobAllocation(scheduler="Kubernetes"),
    ),
    "torchrun": (TORCHRUN, JobAllocation(scheduler="torchrun", nodes=2, gpus_per_node=4)),
    "elastic": ({"PET_NNODES": "1:4"}, JobAllocation(scheduler="torchrun", nodes=1)),
    "mpirun": (OPEN_MPI, JobAllocation(scheduler="Open MPI", nodes=2, gpus_per_node=8)),
    "mpirun, one rank each": (
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
        JobAllocation(scheduler="Open MPI", nodes=4),
    ),
    "mpirun, uneven": (
        {"OMPI_COMM_WORLD_SIZE": "10", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
        JobAllocation(scheduler="Open MPI", gpus_per_node=8),
    ),
    "torchrun started by mpirun": (
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", **TORCHRUN},
        JobAllocation(scheduler="torchrun", nodes=2, gpus_per_node=4),
    ),
}


@pytest.mark.parametrize(("environ", "expected"), ALLOCATIONS.values(), ids=ALLOCATIONS)
def test_an_allocation_is_what_its_variables_tell(
    environ: dict[str, str], expected: JobAllocation | None
) -> None:
    assert expected == read_allocation(environ, NOTHING)


def test_a_pbs_job_has_as_many_nodes_as_its_file_has_hosts(tmp_path: Path) -> None:
    host = build_host(tmp_path, {"var/spool/pbs/aux/12.pbs": "a\na\nb\nb\n"})
    environ = {"PBS_JOBID": "12.pbs", "PBS_NODEFILE": "/var/spool/pbs/aux/12.pbs"}
    assert JobAllocation(scheduler="PBS", nodes=2) == read_allocation(environ, host)


TEXTS: dict[Callable[[str], int | None], dict[str, int | None]] = {
    parse_slurm_gpus: {
        "8": 8,
        "h100:8": 8,
        "gpu:h100:8": 8,
        "a100:2,v100:2": 4,
        "h100": None,
        "a100:2,v100": None,
        "": None,
        "0": None,
    },
    # Of uneven nodes the smallest.
    parse_slurm_fewest: {"4(x2)": 4, "4(x2),3": 3, "8": 8, "4(x2": None, "": None},
    # In megabytes, unless they say so.
    parse_slurm_size: {
        "64000": 64000 * MIB,
        "64G": 64 * GIB,
        "1t": 2**40,
        "512K": 2**19,
        **dict.fromkeys(("0", "", "lots", "-1", "4.5G")),
    },
    # The fewest nodes of an elastic job.
    parse_elastic: {"2": 2, "1:4": 1, "2:8": 2, ":4": None, "1:": None, "a:b": None, "": None},
    parse_count: {"4": 4, " 4 ": 4, **dict.fromkeys(("0", "-4", "4.0", "٤", "9" * 5000))},
}


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [(parse, text, expected) for parse, texts in TEXTS.items() for text, expected in texts.items()],
)
def test_a_variable_is_a_number_or_nothing(
    parse: Callable[[str], int | None], text: str, expected: int | None
) -> None:
    assert expected == parse(text)


VARIABLES = sorted({*SLURM_BATCH, *SLURM_STEP, *KUBEFLOW, *TORCHRUN, *OPEN_MPI}) + [
    *("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_MEM_PER_GPU"),
    *("PBS_JOBID", "PBS_NODEFILE", "LSB_JOBID", "LSB_MCPU_HOSTS"),
]
VALUES = st.text(max_size=12) | st.from_regex(r"[0-9a-z:,(x)\-/ ]{0,12}", fullmatch=True)


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(
    st.sampled_from([row.job_variables[0] for row in SCHEDULERS]),
    st.dictionaries(st.sampled_from(VARIABLES), VALUES),
)
def test_rubbish_is_unknown_and_never_an_error(mark: str, environ: dict[str, str]) -> None:
    allocation = read_allocation({mark: "1"} | environ, NOTHING)
    assert allocation
    counts = (allocation.nodes, allocation.gpus_per_node, allocation.memory_bytes)
    assert all(count is None or count > 0 for count in counts)


@pytest.mark.parametrize(
    ("program", "expected"),
    [("srun", "SLURM"), ("pbsnodes", "PBS"), ("bsub", "LSF"), ("qsub", None), ("bash", None)],
)
def test_a_scheduler_is_here_when_its_client_is(
    tmp_path: Path, program: str, expected: str | None
) -> None:
    host = build_host(tmp_path, {f"opt/site/bin/{program}": ""})
    environ = {"PATH": "/usr/bin:/opt/site/bin/", "HOME": "/home/someone"}
    assert expected == scheduler_here(host, environ)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SLURM_CONF": "/etc/slurm/slurm.conf"}, "SLURM"),
        ({"LSF_ENVDIR": "/opt/lsf/conf"}, "LSF"),
        ({"PBS_DEFAULT": "pbs"}, "PBS"),
        ({}, None),
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, None),
        # On a node of a job there is nothing to submit.
        (SLURM_BATCH, None),
        ({"PBS_JOBID": "1"}, None),
        ({"LSB_JOBID": "1"}, None),
        # The shell of salloc is still on the login node.
        ({"SLURM_JOB_ID": "7", "SLURM_NNODES": "2"}, "SLURM"),
    ],
)
def test_a_scheduler_is_here_when_its_variables_are(
    environ: dict[str, str], expected: str | None
) -> None:
    assert expected == scheduler_here(NOTHING, environ)


def test_a_search_of_path_asks_nothing_of_the_home_folder() -> None:
    log = FilesLog(files=NOTHING)
    path = "/home/someone/bin:/home/someone:bin::/usr/bin:/usr/bin"
    scheduler_here(log, {"PATH": path, "HOME": "/home/someone"})
    assert {"usr/bin/srun", "usr/bin/pbsnodes", "usr/bin/bsub"} == set(log.answers.real)
