import shlex
import subprocess
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zerowiz.core.launch.job_nodes import (
    KEEPALIVE,
    AttemptSpec,
    HostLaunch,
    Join,
    LaunchSpec,
    NodeRank,
    decode_file,
    encode_file,
    expand_hosts,
    hostfile_text,
    job_folder,
    node_options,
    plan_host_launch,
    quote_script,
    quote_words,
    refuse_unlike,
    refuse_unsafe_paths,
    slots_of,
)
from zerowiz.core.launch.plan import EntryPoint, EnvText, Launcher, merge_env
from zerowiz.core.machine.types import Accelerator, Gpu, Machine, MachineSource
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


# What DeepSpeed's launchers are told to reach the nodes of a hostfile.


def plan(
    launcher: Launcher,
    environ: Mapping[str, str],
    address: str | None = "a1",
    files: Sequence[EnvText] = (),
) -> HostLaunch:
    return plan_host_launch(
        launcher,
        "hosts",
        merge_env(environ, {"DS_ACCELERATOR": "cpu"}, files),
        environ,
        env_file="/run/deepspeed_env",
        master_addr=address,
        master_port=29501,
    )


def launcher_args(launch: HostLaunch) -> list[str]:
    [told] = [word for word in launch.options if word.startswith("--launcher_args=")]
    return shlex.split(told.partition("=")[2])


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
    launch = plan(Launcher.PDSH, {"HF_HOME": "/a b"})
    assert ("--hostfile", "hosts", "--launcher", "pdsh", "--master_addr", "a1") == launch.options
    assert "HF_HOME=/a b\nDS_ACCELERATOR=cpu\n" == launch.env_text
    assert "/run/deepspeed_env" == launch.env["DS_ENV_FILE"]


def test_an_address_that_is_not_known_is_left_to_deepspeed() -> None:
    assert "--master_addr" not in plan(Launcher.PDSH, {}, address=None).options


@pytest.mark.parametrize(
    ("launcher", "name"),
    [
        (Launcher.PDSH, "PDSH_SSH_ARGS_APPEND"),
        (Launcher.OPENMPI, "OMPI_MCA_plm_rsh_args"),
        (Launcher.MPICH, "HYDRA_LAUNCHER_EXTRA_ARGS"),
    ],
)
def test_ssh_is_told_to_notice_a_dead_node_after_what_the_person_says(
    launcher: Launcher, name: str
) -> None:
    assert KEEPALIVE == plan(launcher, {}).env[name]
    assert f"-p 2222 {KEEPALIVE}" == plan(launcher, {name: "-p 2222"}).env[name]


def test_open_mpi_takes_variables_by_name_and_their_values_from_its_environment() -> None:
    launch = plan(Launcher.OPENMPI, {"HF_TOKEN": "secret", "HF_HOME": "/a b"})
    words = launcher_args(launch)
    named = [after for word, after in pairwise(words) if word == "-x"]
    assert ["HF_TOKEN", "HF_HOME", "DS_ACCELERATOR", "MASTER_PORT", "MASTER_ADDR"] == named
    assert ("secret", "29501", "a1") == (
        *(launch.env[name] for name in ("HF_TOKEN", "MASTER_PORT", "MASTER_ADDR")),
    )
    assert "" == launch.env_text


@pytest.mark.parametrize(
    ("environ", "interfaces"), [({}, ""), ({"OMPI_MCA_btl_tcp_if_include": "ib0"}, "ib0")]
)
def test_open_mpi_is_not_bound_to_eth0(environ: Mapping[str, str], interfaces: str) -> None:
    words = launcher_args(plan(Launcher.OPENMPI, environ))
    assert ["--mca", "btl_tcp_if_include", interfaces] == words[:3]


@pytest.mark.parametrize("launcher", [Launcher.OPENMPI, Launcher.MPICH])
def test_what_deepspeed_would_send_between_quotes_stays_and_is_named(launcher: Launcher) -> None:
    launch = plan(launcher, {"NCCL_X": "^a b", "NCCL_DEBUG": "INFO"})
    assert ("NCCL_X",) == launch.without
    assert "NCCL_X" not in launch.env
    assert [True] == [note.startswith("`NCCL_X` is not sent") for note in launch.notes]


@pytest.mark.parametrize("launcher", Launcher)
@pytest.mark.parametrize("name", ["MLFLOW_TRACKING_PASSWORD", "NCCL_X_KEY"])
def test_a_secret_that_deepspeed_would_show_unasked_is_kept_from_it(
    launcher: Launcher, name: str
) -> None:
    launch = plan(launcher, {name: "hunter 2", "MLFLOW_TRACKING_URI": "http://m"})
    assert (name,) == launch.without
    assert "hunter 2" not in str((launch.options, launch.env, launch.env_text))
    assert [True] == [
        note.startswith(f"`{name}` is not sent to the nodes") for note in launch.notes
    ]

    asked = plan(launcher, {name: "t"}, files=[EnvText(name="mine", text=f"{name}=t")])
    assert ((), ()) == (asked.without, asked.notes)


WRITTEN = st.characters(codec="utf-8", exclude_characters="\0")


@given(st.lists(st.text(WRITTEN)))
@example(["a `b`", 'c "$d" \\', "%h %%", "\\\n e", "~", "*", "!f g"])
def test_every_word_reaches_a_node_of_pdsh_as_it_is(words: list[str]) -> None:
    assert words == node_sees(quote_words(Launcher.PDSH, words))


@given(st.text(WRITTEN, min_size=1))
def test_the_script_reaches_a_node_of_pdsh_as_it_is(path: str) -> None:
    # DeepSpeed does not touch it.
    assert [path] == shell_sees([quote_script(Launcher.PDSH, path)])


@pytest.mark.parametrize("launcher", [Launcher.OPENMPI, Launcher.MPICH])
def test_where_no_shell_is_between_words_stay_as_they_are(launcher: Launcher) -> None:
    assert ("a b", "$x", "%h") == quote_words(launcher, ["a b", "$x", "%h"])


def test_a_folder_that_breaks_the_command_of_a_node_is_refused() -> None:
    with pytest.raises(UsageError, match="the working folder `/a b`"):
        refuse_unsafe_paths(Launcher.PDSH, {"the working folder": "/a b"})
    refuse_unsafe_paths(Launcher.PDSH, {"the working folder": "/a-b/c_d.1"})


@pytest.mark.parametrize("launcher", [Launcher.OPENMPI, Launcher.MPICH])
def test_mpirun_passes_on_no_rank_of_the_job_that_zerowiz_runs_in(launcher: Launcher) -> None:
    around = {"CROSS_RANK": "1", "CROSS_SIZE": "2", "HOME": "/root"}
    assert ("CROSS_RANK", "CROSS_SIZE") == plan(launcher, around).without


LAUNCH = LaunchSpec(
    zerowiz_version="1.0",
    entry=EntryPoint(target="pkg.train", is_module=True, takes_local_rank=False),
    script_args=("--name", "a 'b' $c\n"),
    env={"ACCELERATE_USE_DEEPSPEED": "true"},
    sha256_by_path={"out/ds_config_zero2.json": "0" * 64},
    strategy="zero2",
    master_addr="n1",
    master_port=29500,
    slots=((0, 1), (2, 3)),
    hostfile="run/hostfile",
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
    assert attempt == decode_file(AttemptSpec, encode_file(attempt), "attempt-1.json")


def test_a_join_is_read_as_it_was_written() -> None:
    assert join(1) == decode_file(Join, encode_file(join(1)), "hello-1.json")


@pytest.mark.parametrize(("output_dir", "parent"), [("", "."), ("/shared/out", "/shared/out")])
def test_nodes_meet_in_the_output_folder(output_dir: str, parent: str) -> None:
    assert f"{parent}/.zerowiz/jobs/slurm-1-0-0" == job_folder(output_dir, "slurm-1-0-0")


def test_nodes_that_are_alike_are_taken() -> None:
    refuse_unlike((join(0), join(1), join(2)))


def test_gpus_and_cpus_do_not_train_together() -> None:
    with pytest.raises(ZerowizError, match="cpu on `n2`"):
        refuse_unlike((join(0), join(1, Accelerator.CPU)))
