"""Completion, asked of a real bash as a person asks it; of other shells in `tests/shells`."""

from pathlib import Path

import pytest
from shells.typed import PRINT_LINE, TYPED, completed, make_place, script_of

from zerowiz.cli.completion import complete_machine, complete_script
from zerowiz.core.machine.spec import parse_machine
from zerowiz.probe.package_data import read_gpu_table, read_instances


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with scripts and a model, and the program on PATH."""
    return make_place(tmp_path)


def test_bash_completes(place: Path) -> None:
    first = f"source {script_of('bash', place)}; {PRINT_LINE}; echo REA''DY"
    lines = completed(place, ["bash", "--norc", "--noprofile", "-i"], first, list(TYPED))
    assert list(TYPED.values()) == [f"{line} " if line[-1:] != " " else line for line in lines]


@pytest.mark.parametrize("begun", ["h1", "8xH", "2x8xA100", "P5", "dgx", "rtx", "4*l4", ""])
def test_each_machine_that_is_offered_is_taken(begun: str) -> None:
    offered = complete_machine(begun)
    assert offered
    for name in {*offered} - {"all", "cpu"}:
        assert name.startswith(begun)
        assert parse_machine(name, read_gpu_table(), read_instances()).gpus


def test_scripts_are_offered_here_and_below(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "my-model" / "train.py").write_text("")
    monkeypatch.chdir(place)
    assert ["finetune.py", "deep/", "my-model/"] == complete_script("")
    assert ["my-model/train.py"] == complete_script("my-model/")
