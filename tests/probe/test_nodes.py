"""Where the ranks of a hostfile meet."""

import pytest

from zerowiz.core.launch.plan import NodeRank
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.nodes import (
    find_master_address,
    read_node_rank,
    require_address,
)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        pytest.param("192.0.2.7", "192.0.2.7", id="an address"),
        pytest.param("no-such-host.invalid", None, id="a name that nobody knows"),
        pytest.param("localhost", None, id="loopback is never told to another node"),
    ],
)
def test_the_ranks_of_a_hostfile_meet_at(host: str, address: str | None) -> None:
    assert address == find_master_address(host)


# Read off a job of two nodes (Slurm 22.05.8); what zerowiz does not ask for is left out.
BATCH = {
    "SLURM_JOB_ID": "41",
    "SLURM_CLUSTER_NAME": "zerowiz",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURMD_NODENAME": "n1",
}
SALLOC = {"SLURM_JOB_ID": "42", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
STEP = BATCH | {
    "SLURM_NODEID": "1",
    "SLURMD_NODENAME": "n2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
ALONE = {
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_NODEID": "0",
}
POD = {
    "PET_NNODES": "4",
    "PET_NODE_RANK": "3",
    "PET_NPROC_PER_NODE": "8",
    "PET_MASTER_ADDR": "llm-master-0",
    "PET_MASTER_PORT": "23456",
}
OLD_POD = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "llm-master-0",
    "MASTER_PORT": "23456",
}
IN_TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "h1",
    "MASTER_PORT": "29500",
}


def of(environ: dict[str, str]) -> NodeRank:
    place = read_node_rank(environ)
    assert place is not None
    return place


PLACES = {
    "a step of SLURM": (
        STEP,
        NodeRank(
            node_rank=1,
            nodes=2,
            hosts=("n1", "n2"),
            master_addr="n1",
            job_key="slurm-zerowiz-41-0-0",
        ),
    ),
    "a pod of Kubeflow": (
        POD,
        NodeRank(
            node_rank=3,
            nodes=4,
            hosts=("node-0", "node-1", "node-2", "node-3"),
            master_addr="llm-master-0",
            master_port=23456,
            job_key="torch-llm-master-0-23456",
        ),
    ),
}


@pytest.mark.parametrize(("environ", "expected"), PLACES.values(), ids=PLACES)
def test_a_copy_knows_its_place(environ: dict[str, str], expected: NodeRank) -> None:
    assert expected == of(environ)


@pytest.mark.parametrize(
    ("environ", "facts"),
    [
        pytest.param(
            STEP | {"MASTER_ADDR": "10.1.0.1", "MASTER_PORT": "29501"},
            {"master_addr": "10.1.0.1", "master_port": 29501},
            id="a master that the job script names",
        ),
        pytest.param(
            STEP | {"SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_NODELIST": "n[1-4]"},
            {"nodes": 2, "hosts": ("n1", "n2")},
            id="a step with fewer nodes than its job is a job of its own",
        ),
        pytest.param(
            POD | OLD_POD | {"WORLD_SIZE": "32", "RANK": "3"},
            {"nodes": 4},
            id="WORLD_SIZE beside PET is not the count of pods",
        ),
        pytest.param(
            OLD_POD,
            {"node_rank": 1, "nodes": 2, "master_addr": "llm-master-0", "master_port": 23456},
            id="a pod without PET is a rank of the world",
        ),
        pytest.param(
            IN_TORCHRUN,
            {"node_rank": 1, "nodes": 2, "master_addr": "h1", "master_port": None},
            id="the port of torchrun's own store is left to it",
        ),
        pytest.param(
            {"NODE_RANK": "0", "NNODES": "2", "MASTER_ADDR": "h1", "MASTER_PORT": "29500"},
            {"node_rank": 0, "nodes": 2},
            id="as people export them",
        ),
        pytest.param(
            POD | {"PET_RDZV_ID": "../a b/c", "PET_MASTER_ADDR": "fe80::1"},
            {"job_key": "torch-..-a-b-c-fe80-1-23456"},
            id="a key is a name of a folder",
        ),
    ],
)
def test_of_its_place_a_copy_knows_what_variables_tell(
    environ: dict[str, str], facts: dict[str, object]
) -> None:
    place = of(environ)
    assert facts == {name: getattr(place, name) for name in facts}


@pytest.mark.parametrize(
    ("environ", "change"),
    [
        (STEP, {"SLURM_STEP_ID": "1"}),
        (STEP, {"SLURM_JOB_ID": "42"}),
        (STEP, {"SLURM_RESTART_COUNT": "1"}),
        (IN_TORCHRUN, {"MASTER_PORT": "29501"}),
    ],
)
def test_each_step_task_and_restart_has_a_key_of_its_own(
    environ: dict[str, str], change: dict[str, str]
) -> None:
    assert of(environ).job_key != of(environ | change).job_key


SRUN = "srun --nodes=2 --ntasks=2 --ntasks-per-node=1"


@pytest.mark.parametrize(
    ("environ", "told", "hints"),
    [
        (BATCH, "without `srun`", (SRUN, "$nodes 1")),
        (SALLOC, "without `srun`", (SRUN, "$nodes 1")),
        (STEP | ALONE, "on one of them", (SRUN, "$nodes 1")),
        *(
            (STEP | change, "more than once on a node", ("--ntasks-per-node=1",))
            for change in (
                {"SLURM_STEP_TASKS_PER_NODE": "8(x2)"},
                {"SLURM_STEP_TASKS_PER_NODE": "1,8"},
                {"SLURM_LOCALID": "3"},
                ALONE | {"SLURM_STEP_TASKS_PER_NODE": "8"},
            )
        ),
        *(
            (
                environ | {"LOCAL_WORLD_SIZE": "8"},
                "zerowiz 8 times",
                ("", "torchrun --nproc-per-node=1"),
            )
            for environ in (IN_TORCHRUN, STEP)
        ),
        (STEP | {"SLURM_NODEID": "x"}, "SLURM_NODEID=x", ()),
        (STEP | {"SLURM_NODEID": "3"}, "node 3 of 2", ()),
    ],
)
def test_what_is_no_copy_on_each_node_is_refused_with_what_starts_one(
    environ: dict[str, str], told: str, hints: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        read_node_rank(environ)
    found = [hint in line for hint, line in zip(hints, refused.value.hints, strict=False)]
    assert [True] * len(hints) == found


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HOME": "/root"},
        BATCH | {"SLURM_JOB_NUM_NODES": "1"},
        STEP | ALONE | {"SLURM_JOB_NUM_NODES": "1"},
        POD | {"PET_NNODES": "1"},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"MASTER_ADDR": "h1", "MASTER_PORT": "1"},
        {"PET_NNODES": "2:4", "PET_MASTER_ADDR": "h1"},
    ],
)
def test_one_node_has_no_place(environ: dict[str, str]) -> None:
    assert read_node_rank(environ) is None


def test_a_first_node_without_an_address_is_said_at_once() -> None:
    require_address(of(STEP | {"MASTER_ADDR": "127.0.0.1"}))
    with pytest.raises(PreflightError, match=r"n1\.invalid"):
        require_address(of(STEP | {"MASTER_ADDR": "n1.invalid"}))
