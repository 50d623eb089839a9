"""A file of `accelerate config` says how many GPUs a job takes, where no option does."""

from pathlib import Path
from typing import Any

import pytest
from recorded import library, reading_here

from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.core.machine.types import Machine
from zerowiz.errors import UsageError


def found(folder: Path, text: str, **said: Any) -> Machine:
    """Of a node with 4 H200, the machine of a job with this file."""
    path = folder / "acc.yaml"
    path.write_text(f"distributed_type: DEEPSPEED\n{text}")
    with reading_here(library("h200-x4")):
        return find_machine(Options(config=path, output_dir=folder, **said), {})


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("", (0, 1, 2, 3)),
        ("num_processes: -1\n", (0, 1, 2, 3)),
        ("num_processes: 4\ngpu_ids: all\n", (0, 1, 2, 3)),
        ("num_processes: 2\n", (0, 1)),
        ("num_processes: 2\ngpu_ids: 1,3\n", (1, 3)),
        ("num_processes: 8\nnum_machines: 2\n", (0, 1, 2, 3)),
    ],
)
def test_the_gpus_are_those_of_the_file(
    tmp_path: Path, text: str, indices: tuple[int, ...]
) -> None:
    machine = found(tmp_path, text)
    assert indices == tuple(gpu.index for gpu in machine.gpus)
    assert not [note for note in machine.notes if "acc.yaml" in note]


def test_the_nodes_are_those_of_the_file(tmp_path: Path) -> None:
    machine = found(tmp_path, "num_processes: 8\nnum_machines: 2\n")
    assert (2, 8) == (machine.nodes, machine.world_size)


def test_more_processes_than_gpus_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"asks for 8 processes per node.* has room for 4"
    ) as caught:
        found(tmp_path, "num_processes: 8\n")
    assert ("use what is here: `$gpus_per_node 4`",) == caught.value.hints


@pytest.mark.parametrize("said", [{"gpus": "0,2,3"}, {"gpus_per_node": 3}])
def test_an_option_says_more_than_the_file(tmp_path: Path, said: dict[str, Any]) -> None:
    machine = found(tmp_path, "num_processes: 8\n", **said)
    assert 3 == machine.world_size
    (note,) = [note for note in machine.notes if "acc.yaml" in note]
    assert "asks for 8 processes; the plan is for 3" in note


def test_another_machine_is_taken_as_it_is_named(tmp_path: Path) -> None:
    machine = found(tmp_path, "num_processes: 8\nnum_machines: 2\n", machine="2xA100-40GB")
    assert (1, 2) == (machine.nodes, machine.world_size)
    assert any("asks for 8 processes; the plan is for 2" in note for note in machine.notes)
