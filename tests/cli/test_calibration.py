"""What `measure` kept of a machine reaches later plans for it, unless somebody says no."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli.harness import run_process

from zerowiz import __version__
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.measured_row import KeptRun, MachineResults, formulas_of, machine_key
from zerowiz.core.speed.costs import TermKind
from zerowiz.core.structs import encode
from zerowiz.probe.machine.machine_file import results_path
from zerowiz.probe.package_data import read_gpu_table

SAID = "step times are scaled by"
WORDS = ("--model", "1b", "--micro-batch", "2", "--seq-len", "1024", "--gradient-checkpointing")


@pytest.fixture
def measured(tmp_path: Path) -> dict[str, str]:
    """An environment in whose cache two H200s took half as long again as predicted."""
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    run = KeptRun(
        setting={},
        strategy="zero2",
        formulas=formulas_of(__version__),
        measured_seconds=1.5,
        predicted_seconds={TermKind.MATRIX_PRODUCTS.value: 1.0},
    )
    path = results_path(machine_key(parse_spec("2xH200", read_gpu_table())), environ)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(encode(MachineResults(runs=(run,)))))
    return environ


def planned(folder: Path, environ: dict[str, str], *words: str) -> tuple[dict[str, Any], str]:
    done = run_process(folder, "plan", *WORDS, "--json", *words, env=environ)
    assert 0 == done.code, done.stderr
    strategies = json.loads(done.stdout)["strategies"]
    return {each["name"]: each for each in strategies}, done.stderr


def test_a_plan_is_calibrated_by_what_was_measured_on_its_machine(
    tmp_path: Path, measured: dict[str, str]
) -> None:
    calibrated, notes = planned(tmp_path, measured, "--machine", "2xH200")
    bare, silent = planned(tmp_path, measured, "--machine", "2xH200", "--no-calibration")
    assert f"{SAID} 1 setting measured on this machine" in notes
    assert SAID not in silent
    times = [each["zero2"]["step_seconds"] for each in (calibrated, bare)]
    assert times[0] > 1.05 * times[1]
    marks = [each["zero2"]["step_seconds_interval"]["calibrated"] for each in (calibrated, bare)]
    assert [True, False] == marks


def test_another_machine_is_not_calibrated(tmp_path: Path, measured: dict[str, str]) -> None:
    for machine in ("4xH200", "2xH100-80GB"):
        bare, notes = planned(tmp_path, measured, "--machine", machine)
        assert SAID not in notes
        assert not bare["zero2"]["step_seconds_interval"]["calibrated"]


def test_a_file_that_cannot_be_read_is_as_none(tmp_path: Path, measured: dict[str, str]) -> None:
    [file] = Path(measured["XDG_CACHE_HOME"]).rglob("*.json")
    file.write_text('{"runs": [{')
    bare, notes = planned(tmp_path, measured, "--machine", "2xH200")
    assert SAID not in notes
    assert not bare["zero2"]["step_seconds_interval"]["calibrated"]
