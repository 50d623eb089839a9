"""The launch as a value: argv and environment, before anything happens."""

import subprocess
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.launch.plan import (
    LaunchPlan,
    Programs,
    launch_env,
    launcher_options,
    merge_env,
)
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.machine.types import Accelerator, Host, Machine
from zerowiz.core.structs import replace
from zerowiz.probe.files import read_gpu_table

# What of the environment reaches the ranks of other nodes.


def exported(value: str) -> str:
    """As DeepSpeed's add_export writes it (0.19.8), and pdsh passes it on."""
    import re

    value = value.strip()
    quoted = f'"{value}"' if re.search(r"[^\w@%+=:,./-]", value) else value
    return quoted.replace("%%", "%")


def shell_sees(lines: Mapping[str, str]) -> dict[str, str]:
    """What a node's shell makes of them."""
    exports = "".join(f"export {name}={exported(value)}; " for name, value in lines.items())
    shown = "".join(f'printf "%s\\0" "${name}"; ' for name in lines)
    done = subprocess.run(["sh", "-c", exports + shown], capture_output=True, check=True)
    values = done.stdout.decode().split("\0")[:-1]
    return dict(zip(lines, values, strict=True))


def sent(environ: Mapping[str, str], planned: Mapping[str, str], *lines: str) -> dict[str, str]:
    """What a rank of another node sees."""
    text = merge_env(environ, planned, lines).text
    return shell_sees(dict(line.split("=", maxsplit=1) for line in text.splitlines()))


@pytest.mark.parametrize(
    ("environ", "planned", "lines", "seen"),
    [
        pytest.param(
            {"HF_HOME": "/x", "EDITOR": "vi", "CUDA_VISIBLE_DEVICES": "0", "DS_ENV_FILE": "f"},
            {},
            (),
            {"HF_HOME": "/x"},
            id="settings of libraries travel, others stay",
        ),
        pytest.param(
            {"NCCL_DEBUG": "INFO"},
            {"OMP_NUM_THREADS": "4"},
            ("NCCL_DEBUG=WARN", "OMP_NUM_THREADS=8"),
            {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "8"},
            id="a line wins over the environment and over a default",
        ),
        pytest.param({}, {}, ("A=1", "A=2"), {"A": "2"}, id="the last line wins"),
        pytest.param(
            {},
            {"DS_ACCELERATOR": "cpu"},
            ("DS_ACCELERATOR=cuda",),
            {"DS_ACCELERATOR": "cpu"},
            id="what the job depends on wins over a line",
        ),
        pytest.param(
            {},
            {},
            ("A=1", "", "  ", "# B=1", "no equals", "=1", "C=2"),
            {"A": "1", "C": "2"},
            id="lines on which DeepSpeed fails are left out",
        ),
        pytest.param({}, {}, ("X=a b",), {"X": "a b"}, id="a space"),
        pytest.param({}, {}, ("export X=1",), {"X": "1"}, id="export"),
        pytest.param({}, {}, ("X=$((1 + 2))",), {"X": "3"}, id="the shell expands a line"),
        pytest.param({}, {}, (r"X=a \$ \" c",), {"X": 'a $ " c'}, id="escapes in a line"),
        pytest.param({"HF_TOKEN": "t"}, {}, ("HF_TOKEN=s",), {"HF_TOKEN": "s"}, id="a secret sent"),
    ],
)
def test_a_rank_of_another_node_sees(
    environ: Mapping[str, str],
    planned: Mapping[str, str],
    lines: tuple[str, ...],
    seen: Mapping[str, str],
) -> None:
    assert seen == sent(environ, planned, *lines)
    assert () == merge_env(environ, planned, lines).notes


@given(st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" ")))
def test_every_value_reaches_the_shell_of_a_node_as_it_is(value: str) -> None:
    value = value.strip()
    assert {"HF_X": value} == sent({"HF_X": value}, {})


@pytest.mark.parametrize(
    ("name", "value", "unset", "why"),
    [
        ("HF_TOKEN", "s", (), "where every user could see it"),
        ("WANDB_API_KEY", "s", (), "where every user could see it"),
        # DeepSpeed's runner would send it unasked.
        ("MLFLOW_TRACKING_PASSWORD", "s", ("MLFLOW_TRACKING_PASSWORD",), "where every user"),
        ("NCCL_X_KEY", "s", ("NCCL_X_KEY",), "where every user could see it"),
        ("HF_X", "a\nb", (), "DeepSpeed cannot send a value with a line break"),
    ],
)
def test_what_stays_is_named(name: str, value: str, unset: tuple[str, ...], why: str) -> None:
    env = merge_env({name: value, "HF_HOME": "/x"}, {})
    assert ("HF_HOME=/x\n", unset) == (env.text, env.unset)
    [note] = env.notes
    assert note.startswith(f"`{name}` is not sent to the nodes")
    assert why in note


FOUR = parse_spec("4xA100-40GB", read_gpu_table())
TWO_OF_FOUR = replace(FOUR, gpus=(FOUR.gpus[1], FOUR.gpus[3]))
CPU = replace(FOUR, accelerator=Accelerator.CPU)
PROGRAMS = Programs(
    deepspeed="/venv/bin/deepspeed",
    bin_folder="/venv/bin",
    tool_folder="/tool/bin",
    master_port=12345,
    rank_program="/site/zerowiz/worker/rank.py",
    extensions_folder="/venv/torch_extensions",
)
ON_PATH = {"PATH": "/venv/bin:/bin"}


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (FOUR, ("--include", "localhost:0,1,2,3")),
        (TWO_OF_FOUR, ("--include", "localhost:1,3")),
        (CPU, ("--num_gpus", "4")),
    ],
)
def test_the_launcher_is_told_where_the_ranks_run(
    machine: Machine, expected: tuple[str, ...]
) -> None:
    assert expected == launcher_options(machine)


def test_ranks_with_cores_of_their_own_get_them_from_the_cores_that_are_allowed() -> None:
    bound = launcher_options(FOUR, "0-31")
    assert bound == (
        *launcher_options(FOUR),
        *("--bind_cores_to_rank", "--bind_core_list", "0-31"),
    )


def test_the_jobs_environment_is_the_callers_with_what_the_plan_says() -> None:
    plan = LaunchPlan(files=(), argv=("x",), env={"A": "1", "B": "2"}, unset=("C",))
    assert {"A": "1", "B": "2", "D": "4"} == plan.environ({"A": "0", "C": "3", "D": "4"})


IN_NO_ENVIRONMENT = replace(PROGRAMS, extensions_folder=None)


@pytest.mark.parametrize(
    ("name", "machine", "programs", "environ", "expected"),
    [
        # Each rank gets its share of the cores.
        *(
            ("OMP_NUM_THREADS", replace(FOUR, host=Host(cores=cores)), PROGRAMS, ON_PATH, expected)
            for cores, expected in ((64, "16"), (6, "1"), (2, "1"), (None, None))
        ),
        # DeepSpeed takes the accelerator that was planned.
        *(
            ("DS_ACCELERATOR", machine, PROGRAMS, {**ON_PATH, "DS_ACCELERATOR": said}, told)
            for machine, said, told in (
                *((FOUR, "cpu", "cuda"), (FOUR, "cuda", None)),
                *((CPU, "cuda", "cpu"), (CPU, "cpu", None)),
            )
        ),
        # torch's newer name for the allocator's settings counts as well.
        *(
            ("PYTORCH_CUDA_ALLOC_CONF", FOUR, PROGRAMS, {**ON_PATH, **own}, expected)
            for own, expected in (
                ({"PYTORCH_ALLOC_CONF": "backend:native"}, None),
                ({}, "expandable_segments:True"),
            )
        ),
        # Outside a virtual environment compiled ops stay where torch puts them.
        ("TORCH_EXTENSIONS_DIR", FOUR, IN_NO_ENVIRONMENT, ON_PATH, None),
        # The programs beside the interpreter are on the path.
        *(
            ("PATH", FOUR, PROGRAMS, path, expected)
            for path, expected in (
                ({"PATH": "/usr/bin:/bin"}, "/venv/bin:/usr/bin:/bin"),
                ({"PATH": ""}, "/venv/bin"),
                ({}, "/venv/bin"),
                ({"PATH": "/bin:/venv/bin"}, None),
                ({"PATH": "/tool/bin:/bin:/venv/bin"}, "/bin:/venv/bin:/tool/bin"),
            )
        ),
    ],
)
def test_a_variable_of_the_job_is_set_where_it_has_to_be(
    name: str,
    machine: Machine,
    programs: Programs,
    environ: Mapping[str, str],
    expected: str | None,
) -> None:
    env = launch_env(machine, programs, environ, {})
    assert (expected, expected is not None) == (env.get(name), name in env)


@pytest.mark.parametrize(
    ("name", "driver", "gpus", "expected"),
    [
        ("NVIDIA GeForce RTX 4090", "535.183.01", 4, "1"),
        ("NVIDIA GeForce RTX 4090", "550.40.07", 4, None),
        ("NVIDIA GeForce RTX 4090", "535.183.01", 1, None),
        ("NVIDIA GeForce RTX 4090", None, 4, None),
        ("NVIDIA A100-SXM4-40GB", "535.183.01", 4, None),
    ],
)
def test_peer_to_peer_is_switched_off_where_an_old_driver_hangs_in_it(
    name: str, driver: str | None, gpus: int, expected: str | None
) -> None:
    named = tuple(replace(gpu, name=name) for gpu in FOUR.gpus[:gpus])
    env = launch_env(replace(FOUR, gpus=named, driver_version=driver), PROGRAMS, ON_PATH, {})
    assert (expected, expected) == (env.get("NCCL_P2P_DISABLE"), env.get("NCCL_IB_DISABLE"))


COMPILED = {"TORCH_EXTENSIONS_DIR": "/venv/torch_extensions"}
ON_GPUS = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        pytest.param(FOUR, ON_GPUS, id="counts GPUs as NVML does, and lets segments grow"),
        pytest.param(CPU, {"DS_ACCELERATOR": "cpu"}, id="no variables of CUDA"),
    ],
)
def test_the_variables_of_a_job(machine: Machine, expected: Mapping[str, str]) -> None:
    assert {**COMPILED, **expected} == launch_env(machine, PROGRAMS, ON_PATH, {})


@pytest.mark.parametrize(
    "own",
    [
        {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"},
        {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"},
        {"PYTORCH_CUDA_ALLOC_CONF": ""},
        {"TORCH_EXTENSIONS_DIR": "/scratch"},
        {"OMP_NUM_THREADS": "7"},
        {"NCCL_P2P_DISABLE": "0"},
        {"NCCL_IB_DISABLE": "0"},
    ],
)
def test_what_the_user_set_is_never_overridden(own: Mapping[str, str]) -> None:
    named = tuple(replace(gpu, name="NVIDIA GeForce RTX 4090") for gpu in FOUR.gpus)
    machine = replace(FOUR, gpus=named, driver_version="535.183.01", host=Host(cores=64))
    assert not set(own) & set(launch_env(machine, PROGRAMS, {**ON_PATH, **own}, {}))


def test_how_the_config_is_delivered_is_part_of_the_environment() -> None:
    delivery = {"ACCELERATE_USE_DEEPSPEED": "true"}
    assert delivery.items() <= launch_env(CPU, PROGRAMS, ON_PATH, delivery).items()
