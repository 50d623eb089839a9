import pytest

from zerowiz.core.launch.nodes import NodeRank, expand_hosts, hostfile_text, node_options, slots_of
from zerowiz.core.machine.types import Accelerator, Gpu, Machine, MachineSource
from zerowiz.errors import UsageError


def place(node_rank: int = 1, hosts: tuple[str, ...] = ("n1", "n2")) -> NodeRank:
    return NodeRank(
        node_rank=node_rank, nodes=len(hosts), hosts=hosts, master_addr="n1", job_key="slurm-1-0-0"
    )


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[01-03,7],m3", ("n01", "n02", "n03", "n7", "m3")),
        ("n[098-101]", ("n098", "n099", "n100", "n101")),
        ("r[1-2]n[3-4]-ib", ("r1n3-ib", "r1n4-ib", "r2n3-ib", "r2n4-ib")),
        ("gpu-a,gpu-b", ("gpu-a", "gpu-b")),
        ("a[1,3],b[2]", ("a1", "a3", "b2")),
    ],
)
def test_hosts_are_expanded_as_slurm_does(text: str, hosts: tuple[str, ...]) -> None:
    assert hosts == expand_hosts(text)


@pytest.mark.parametrize(
    "text",
    ["", ",", "n1,", "n1,,n2", "n[", "n[]", "n[1-]", "n[2-1]", "n]1[", "n[1-2", "n[a-b]", "n[1]["],
)
def test_what_is_no_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a list of hosts"):
        expand_hosts(text)


@pytest.mark.parametrize("text", ["n[0-999999999]", "n[0-999]x[0-999]y[0-999]z[0-999]"])
def test_a_list_without_end_is_refused_at_once(text: str) -> None:
    with pytest.raises(UsageError, match="not a list of hosts"):
        expand_hosts(text)


def test_the_ranks_of_one_node_are_asked_for_without_ssh() -> None:
    assert (
        *("--hostfile", "run/hostfile", "--no_ssh", "--node_rank", "1"),
        *("--master_addr", "10.0.0.1", "--include", "n1:0,1@n2:2,3"),
    ) == node_options(place(), "run/hostfile", ((0, 1), (2, 3)), "10.0.0.1")


def test_the_hostfile_counts_up_to_the_highest_slot() -> None:
    assert "n1 slots=2\nn2 slots=4\n" == hostfile_text(place(), ((0, 1), (2, 3)))


def test_slots_are_cuda_numbers_in_rising_order() -> None:
    gpus = (Gpu(index=5, name="A", ordinal=3), Gpu(index=2, name="A", ordinal=2))
    assert (2, 3) == slots_of(Machine(source=MachineSource.NVML, gpus=gpus))


def test_a_mig_slice_has_no_slot() -> None:
    machine = Machine(source=MachineSource.NVML, gpus=(Gpu(index=0, name="A", mig_slice=0),))
    with pytest.raises(UsageError, match="MIG slice"):
        slots_of(machine)


def test_slots_of_cpu_ranks_are_a_count() -> None:
    ranks = (Gpu(index=4, name="CPU"), Gpu(index=7, name="CPU"))
    machine = Machine(source=MachineSource.CPU, accelerator=Accelerator.CPU, gpus=ranks)
    assert (0, 1) == slots_of(machine)


@pytest.mark.parametrize(
    ("node_rank", "hosts"), [(2, ("n1", "n2")), (-1, ("n1", "n2")), (0, ("n1", "n1"))]
)
def test_a_place_that_cannot_be_is_refused(node_rank: int, hosts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="this process is node"):
        place(node_rank, hosts)
