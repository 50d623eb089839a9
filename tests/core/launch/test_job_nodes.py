import subprocess
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zerowiz.core.launch.plan import (
    KEEPALIVE,
    AttemptSpec,
    EntryPoint,
    Join,
    LauncherCommand,
    LaunchSpec,
    NodeRank,
    RankEnv,
    encode_file,
    expand_hosts,
    hostfile_text,
    job_folder,
    node_options,
    pdsh_command,
    quote_script,
    quote_words,
    refuse_unlike,
    refuse_unsafe_paths,
    slots_of,
)
from zerowiz.core.machine.types import Accelerator, Gpu, Machine, MachineSource
from zerowiz.core.structs import decode, parse_json
from zerowiz.errors import UsageError, ZerowizError


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
    ["", ",", "n1,", "n1,,n2", "n[", "n[]", "n[2-1]", "n]1[", "n[1-2", "n[a-b]", "n[1]["],
)
def test_what_is_no_list_of_hosts_is_refused(text: str) -> None:
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


# What DeepSpeed's runner is told to reach the nodes of a hostfile.


def plan(address: str | None = "a1", **environ: str) -> LauncherCommand:
    sent = RankEnv(text="A=1\n", unset=("NCCL_X_KEY",), notes=("a note",))
    return pdsh_command(
        "hosts",
        sent,
        environ,
        {"B": "2"},
        env_file="/run/deepspeed_env",
        master_addr=address,
    )


def node_sees(words: Sequence[str]) -> list[str]:
    """What PDSHRunner.parse_user_args (0.19.8), pdsh and the shell of a node make of words."""
    sent = ['"{}"'.format(word.replace('"', '\\"')) if " " in word else word for word in words]
    return shell_sees(sent)


def shell_sees(sent: Sequence[str]) -> list[str]:
    """What pdsh and the shell of a node, a real one, make of words."""
    line = " ".join(["printf", "'%%s\\0'", "-", *sent]).replace("%%", "%")
    seen = subprocess.run(["sh", "-c", line], capture_output=True, check=True).stdout
    return seen.decode().split("\0")[1:-1]


def test_pdsh_gets_the_variables_in_a_file() -> None:
    command = plan()
    told = ("--hostfile", "hosts", "--launcher", "pdsh", "--master_addr", "a1")
    assert told == command.options
    assert [("/run/deepspeed_env", "A=1\n")] == [(file.path, file.text) for file in command.files]
    assert {"B": "2", "DS_ENV_FILE": "/run/deepspeed_env"}.items() <= command.env.items()
    assert (("NCCL_X_KEY",), ("a note",)) == (command.unset, command.notes)


def test_an_address_that_is_not_known_is_left_to_deepspeed() -> None:
    assert "--master_addr" not in plan(address=None).options


@pytest.mark.parametrize(
    ("said", "told"), [({}, KEEPALIVE), ({"PDSH_SSH_ARGS_APPEND": "-p 1"}, f"-p 1 {KEEPALIVE}")]
)
def test_ssh_is_told_to_notice_a_dead_node_after_what_the_person_says(
    said: dict[str, str], told: str
) -> None:
    assert told == plan(**said).env["PDSH_SSH_ARGS_APPEND"]


WRITTEN = st.characters(codec="utf-8", exclude_characters="\0")


@given(st.lists(st.text(WRITTEN)))
@example(["a `b`", 'c "$d" \\', "%h %%", "\\\n e", "~", "*", "!f g"])
def test_every_word_reaches_a_node_of_pdsh_as_it_is(words: list[str]) -> None:
    assert words == node_sees(quote_words(words))


@given(st.text(WRITTEN, min_size=1))
def test_the_script_reaches_a_node_of_pdsh_as_it_is(path: str) -> None:
    # DeepSpeed does not touch it.
    assert [path] == shell_sees([quote_script(path)])


def test_a_folder_that_breaks_the_command_of_a_node_is_refused() -> None:
    with pytest.raises(UsageError, match="the working folder `/a b`"):
        refuse_unsafe_paths({"the working folder": "/a b"})
    refuse_unsafe_paths({"the working folder": "/a-b/c_d.1"})


LAUNCH = LaunchSpec(
    entry=EntryPoint(target="pkg.train", is_module=True, takes_local_rank=False),
    script_args=("--name", "a 'b' $c\n"),
    env={"ACCELERATE_USE_DEEPSPEED": "true"},
    sha256_by_path={"out/ds_config_zero2.json": "0" * 64},
    master_addr="n1",
    master_port=29500,
    slots=((0, 1), (2, 3)),
    run_folder="run",
)


def join(rank: int, accelerator: Accelerator = Accelerator.CUDA) -> Join:
    source = MachineSource.NVML if accelerator is Accelerator.CUDA else MachineSource.CPU
    gpus = tuple(Gpu(index=index, name="A") for index in range(2))
    machine = Machine(source=source, accelerator=accelerator, gpus=gpus)
    return Join(
        rank=rank, host=f"n{rank + 1}", word=f"w{rank}", zerowiz_version="1.0", machine=machine
    )


@pytest.mark.parametrize(
    "attempt",
    [
        AttemptSpec(heard=("a", "b"), spec=LAUNCH),
        AttemptSpec(heard=("a", "b"), end=137, why="killed"),
        AttemptSpec(heard=(), end=0),
    ],
)
def test_an_attempt_is_read_as_it_was_written(attempt: AttemptSpec) -> None:
    assert attempt == decode(AttemptSpec, parse_json(encode_file(attempt)), "attempt-1.json")


def test_a_join_is_read_as_it_was_written() -> None:
    assert join(1) == decode(Join, parse_json(encode_file(join(1))), "hello-1.json")


@pytest.mark.parametrize(("output_dir", "parent"), [("", "."), ("/shared/out", "/shared/out")])
def test_nodes_meet_in_the_output_folder(output_dir: str, parent: str) -> None:
    assert f"{parent}/.zerowiz/jobs/slurm-1-0-0" == job_folder(output_dir, "slurm-1-0-0")


def test_nodes_that_are_alike_are_taken() -> None:
    refuse_unlike((join(0), join(1), join(2)))


def test_gpus_and_cpus_do_not_train_together() -> None:
    with pytest.raises(ZerowizError, match="cpu on `n2`"):
        refuse_unlike((join(0), join(1, Accelerator.CPU)))
