"""What DeepSpeed's launchers are told to reach the nodes of a hostfile."""

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zerowiz.core.launch.nodes import (
    KEEPALIVE,
    HostLaunch,
    plan_host_launch,
    quote_script,
    quote_words,
    refuse_unsafe_paths,
)
from zerowiz.core.launch.plan import EnvText, Launcher, merge_env
from zerowiz.errors import UsageError


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


@pytest.mark.parametrize(
    ("launcher", "sent"),
    [(Launcher.OPENMPI, ["-x", "NCCL_X=^a b"]), (Launcher.MPICH, ["-genv", "NCCL_X", "^a b"])],
)
def test_what_deepspeed_would_send_between_quotes_is_sent_past_it(
    launcher: Launcher, sent: list[str]
) -> None:
    launch = plan(launcher, {"NCCL_X": "^a b", "NCCL_DEBUG": "INFO"})
    assert ("NCCL_X",) == launch.without
    assert "NCCL_X" not in launch.env
    assert sent == launcher_args(launch)[-len(sent) :]


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
