"""Where the ranks of a hostfile meet."""

from ipaddress import ip_address

import pytest

from zerowiz.core.launch.job_nodes import NodeRank
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.nodes import (
    find_master_address,
    parse_ssh_hostname,
    read_node_rank,
    require_address,
)


def test_an_address_stays_itself() -> None:
    assert "192.0.2.7" == find_master_address(["192.0.2.7", "192.0.2.8"])


def test_a_name_that_nobody_knows_is_left_to_deepspeed() -> None:
    assert find_master_address(["no-such-host.invalid", "192.0.2.8"]) is None


def test_loopback_is_never_told_to_another_node() -> None:
    # None where this host has no route to the other one.
    found = find_master_address(["localhost", "192.0.2.8"])
    assert found is None or not ip_address(found).is_loopback
    assert find_master_address(["localhost", "127.0.0.2"]) is None
    assert find_master_address(["localhost"]) is None


def test_an_alias_is_followed() -> None:
    assert "gpu1.example" == parse_ssh_hostname("user me\nhostname gpu1.example\nport 22\n")
    assert parse_ssh_hostname("") is None


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


def test_a_step_of_slurm_tells_its_place() -> None:
    assert NodeRank(
        node_rank=1,
        nodes=2,
        hosts=("n1", "n2"),
        master_addr="n1",
        job_key="slurm-zerowiz-41-0-0",
    ) == of(STEP)


def test_a_master_that_the_job_script_names_is_honoured() -> None:
    place = of(STEP | {"MASTER_ADDR": "10.1.0.1", "MASTER_PORT": "29501"})
    assert ("10.1.0.1", 29501) == (place.master_addr, place.master_port)


@pytest.mark.parametrize(
    "change", [{"SLURM_STEP_ID": "1"}, {"SLURM_JOB_ID": "42"}, {"SLURM_RESTART_COUNT": "1"}]
)
def test_each_step_task_and_restart_has_a_key_of_its_own(change: dict[str, str]) -> None:
    assert of(STEP).job_key != of(STEP | change).job_key


def test_a_step_with_fewer_nodes_than_its_job_is_a_job_of_its_own() -> None:
    place = of(STEP | {"SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_NODELIST": "n[1-4]"})
    assert (2, ("n1", "n2")) == (place.nodes, place.hosts)


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (BATCH, "without `srun`"),
        (SALLOC, "without `srun`"),
        (STEP | ALONE, "on one of them"),
    ],
    ids=["the batch script", "the shell of salloc", "a step of one node"],
)
def test_one_copy_for_many_nodes_is_told_of_srun(environ: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        read_node_rank(environ)
    assert "srun --nodes=2 --ntasks=2 --ntasks-per-node=1" in refused.value.hints[0]
    assert "$nodes 1" in refused.value.hints[1]


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


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_STEP_TASKS_PER_NODE": "8(x2)"},
        {"SLURM_STEP_TASKS_PER_NODE": "1,8"},
        {"SLURM_LOCALID": "3"},
        ALONE | {"SLURM_STEP_TASKS_PER_NODE": "8"},
    ],
)
def test_several_copies_on_a_node_are_refused(change: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="more than once on a node") as refused:
        read_node_rank(STEP | change)
    assert "--ntasks-per-node=1" in refused.value.hints[0]


@pytest.mark.parametrize("environ", [IN_TORCHRUN, STEP])
def test_eight_copies_of_torchrun_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="zerowiz 8 times") as refused:
        read_node_rank(environ | {"LOCAL_WORLD_SIZE": "8"})
    assert "torchrun --nproc-per-node=1" in refused.value.hints[1]


def test_a_pod_of_kubeflow_tells_its_place() -> None:
    assert NodeRank(
        node_rank=3,
        nodes=4,
        hosts=("node-0", "node-1", "node-2", "node-3"),
        master_addr="llm-master-0",
        master_port=23456,
        job_key="torch-llm-master-0-23456",
    ) == of(POD)


def test_world_size_beside_pet_is_not_the_count_of_pods() -> None:
    assert 4 == of(POD | OLD_POD | {"WORLD_SIZE": "32", "RANK": "3"}).nodes


def test_a_pod_without_pet_is_a_rank_of_the_world() -> None:
    place = of(OLD_POD)
    assert (1, 2, "llm-master-0", 23456) == (
        place.node_rank,
        place.nodes,
        place.master_addr,
        place.master_port,
    )


def test_the_port_of_torchruns_own_store_is_left_to_it() -> None:
    place = of(IN_TORCHRUN)
    assert (1, 2, "h1", None) == (
        place.node_rank,
        place.nodes,
        place.master_addr,
        place.master_port,
    )
    assert place.job_key != of(IN_TORCHRUN | {"MASTER_PORT": "29501"}).job_key


def test_node_rank_and_nnodes_are_read_as_people_export_them() -> None:
    place = of({"NODE_RANK": "0", "NNODES": "2", "MASTER_ADDR": "h1", "MASTER_PORT": "29500"})
    assert (0, 2) == (place.node_rank, place.nodes)


def test_a_rank_that_is_no_number_is_refused() -> None:
    with pytest.raises(UsageError, match="SLURM_NODEID=x"):
        read_node_rank(STEP | {"SLURM_NODEID": "x"})


def test_variables_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="node 3 of 2"):
        read_node_rank(STEP | {"SLURM_NODEID": "3"})


def test_a_key_is_a_name_of_a_folder() -> None:
    key = of(POD | {"PET_RDZV_ID": "../a b/c", "PET_MASTER_ADDR": "fe80::1"}).job_key
    assert "torch-..-a-b-c-fe80-1-23456" == key


def test_a_first_node_without_an_address_is_said_at_once() -> None:
    require_address(of(STEP | {"MASTER_ADDR": "127.0.0.1"}))
    with pytest.raises(PreflightError, match=r"n1\.invalid"):
        require_address(of(STEP | {"MASTER_ADDR": "n1.invalid"}))
