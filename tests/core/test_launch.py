"""The launch as a value: argv and environment, before anything happens."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from zerowiz.core.launch import Programs, launch_argv, launch_env, launcher_options
from zerowiz.core.machine import Accelerator, Machine
from zerowiz.core.spec import parse_spec
from zerowiz.probe.gpu_table import read_gpu_table

FOUR = parse_spec("4xA100-40GB", read_gpu_table())
TWO_OF_FOUR = replace(FOUR, gpus=(FOUR.gpus[1], FOUR.gpus[3]))
CPU = replace(FOUR, accelerator=Accelerator.CPU)
PROGRAMS = Programs(
    deepspeed="/venv/bin/deepspeed",
    bin_folder="/venv/bin",
    master_port=12345,
    extensions_folder="/venv/torch_extensions",
)
ON_PATH = {"PATH": "/venv/bin:/bin"}


@pytest.mark.parametrize(
    ("machine", "hostfile", "expected"),
    [
        (FOUR, None, ("--include", "localhost:0,1,2,3")),
        (TWO_OF_FOUR, None, ("--include", "localhost:1,3")),
        (CPU, None, ("--num_gpus", "4")),
        (FOUR, "hosts", ("--hostfile", "hosts")),
    ],
)
def test_the_launcher_is_told_where_the_ranks_run(
    machine: Machine, hostfile: str | None, expected: tuple[str, ...]
) -> None:
    assert expected == launcher_options(machine, hostfile)


def test_launcher_options_stand_before_the_script_and_its_own_after_it() -> None:
    argv = launch_argv(PROGRAMS, ("--include", "localhost:0"), "t.py", ("--lr", "--include"))
    at = argv.index("t.py")
    assert "/venv/bin/deepspeed" == argv[0]
    assert ("--include", "localhost:0") == argv[1:3]
    assert ("--master_port", "12345") == argv[at - 2 : at]
    assert ("--lr", "--include") == argv[at + 1 :]


def test_a_gpu_job_counts_gpus_as_nvml_does_and_lets_segments_grow() -> None:
    expected = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "TORCH_EXTENSIONS_DIR": "/venv/torch_extensions",
    }
    assert expected == launch_env(FOUR, PROGRAMS, ON_PATH, {})


def test_a_cpu_job_needs_no_cuda_variables() -> None:
    expected = {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": "/venv/torch_extensions"}
    assert expected == launch_env(CPU, PROGRAMS, ON_PATH, {})


@pytest.mark.parametrize(
    "own",
    [
        {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"},
        {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"},
        {"PYTORCH_CUDA_ALLOC_CONF": ""},
        {"TORCH_EXTENSIONS_DIR": "/scratch"},
    ],
)
def test_what_the_user_set_is_never_overridden(own: Mapping[str, str]) -> None:
    assert not set(own) & set(launch_env(FOUR, PROGRAMS, {**ON_PATH, **own}, {}))


def test_torchs_newer_name_for_the_allocators_settings_counts_as_well() -> None:
    environ = {**ON_PATH, "PYTORCH_ALLOC_CONF": "backend:native"}
    assert "PYTORCH_CUDA_ALLOC_CONF" not in launch_env(FOUR, PROGRAMS, environ, {})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ({"PATH": "/usr/bin:/bin"}, "/venv/bin:/usr/bin:/bin"),
        ({"PATH": ""}, "/venv/bin"),
        ({}, "/venv/bin"),
        ({"PATH": "/bin:/venv/bin"}, None),
    ],
)
def test_the_programs_beside_the_interpreter_are_on_the_path(
    path: Mapping[str, str], expected: str | None
) -> None:
    assert expected == launch_env(FOUR, PROGRAMS, path, {}).get("PATH")


def test_outside_a_virtual_environment_compiled_ops_stay_where_torch_puts_them() -> None:
    programs = replace(PROGRAMS, extensions_folder=None)
    assert "TORCH_EXTENSIONS_DIR" not in launch_env(FOUR, programs, ON_PATH, {})


def test_how_the_config_is_delivered_is_part_of_the_environment() -> None:
    delivery = {"ACCELERATE_USE_DEEPSPEED": "true"}
    assert delivery.items() <= launch_env(CPU, PROGRAMS, ON_PATH, delivery).items()
