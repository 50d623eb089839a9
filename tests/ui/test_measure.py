"""A measured run is shown with its time beside the prediction, and with what the links carry."""

import io
from typing import Any

from measured.rows import read_model, read_rows

from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.measured_row import Comparison, compare
from zerowiz.core.measured_trial import ComparedStep, decode_trial, plan_trial
from zerowiz.core.speed.costs import StepTime
from zerowiz.core.structs import replace
from zerowiz.probe.package_data import read_gpu_table
from zerowiz.ui.measure import comparison, outcome
from zerowiz.ui.sentences import ROUGH_ON_CPU

MEASURED = next(each for each in read_rows() if each["id"] == "b4-001")
PREDICTED = StepTime(terms=(), expected_seconds=0.3, low_seconds=0.2, high_seconds=0.4, tokens=8)
SAMPLES = [0.5, 0.26, 0.2504, 0.25]
STEP = "Step     measured: 0.250 s, median of the last 3 steps (0.250 to 0.260 s)"
LINKS = [
    {"collective": "all_reduce", "size_bytes": 25 * 2**20, "bus_bytes_per_s": 253_400_000_000},
    {"collective": "all_reduce", "size_bytes": 2**20, "bus_bytes_per_s": 20_000_000_000},
    {"collective": "all_gather", "size_bytes": 2**20, "bus_bytes_per_s": 9_000_000_000},
]


def compared(**said: object) -> Comparison:
    untimed: dict[str, Any] = {
        "timed_step_seconds": None,
        "timed_steps": 6,
        "rank_times": [],
        "bus": None,
        "error": None,
    }
    row: dict[str, Any] = {**MEASURED, **untimed, **said}
    machine = parse_spec("4xH200", read_gpu_table())
    planned = plan_trial(decode_trial(MEASURED, "case"), machine, read_model(row["model"]))
    return compare(planned, row)


def shown(run: Comparison) -> list[str]:
    stream = io.StringIO()
    comparison(run, stream)
    return stream.getvalue().splitlines()


def timed(**said: object) -> Comparison:
    run = compared(timed_step_seconds=SAMPLES, rank_times=[{"timed_step_seconds": SAMPLES}], **said)
    return replace(run, step=ComparedStep(predicted=PREDICTED, measured=run.step.measured))


def test_the_steady_step_stands_beside_its_prediction() -> None:
    lines = shown(timed())
    assert STEP in lines
    assert "Step     predicted: 0.300 s, 0.200 to 0.400; error +19.8 %" in lines


def test_steps_that_the_deadline_left_out_are_said_to_be() -> None:
    samples = SAMPLES[:2]
    run = compared(timed_step_seconds=samples, rank_times=[{"timed_step_seconds": samples}])
    assert "Step     not measured: time was left for 2 of 6 steps" in shown(run)


def test_a_run_that_dies_in_a_free_step_says_where() -> None:
    died = compared(ok=False, oom_phase="timing")
    assert "ran out of memory in a timed step, after the measured ones" == outcome(died)
    assert not any(line.startswith("Step     not") for line in shown(died))


def test_the_links_stand_by_the_size_of_the_message() -> None:
    lines = [line for line in shown(timed(bus=LINKS)) if line.startswith("Bus")]
    assert [
        "Bus      1 MiB: all_reduce 20, all_gather 9 GB/s",
        "Bus      25 MiB: all_reduce 253 GB/s",
    ] == lines


def test_without_timed_steps_there_are_no_such_lines() -> None:
    lines = shown(compared(timed_steps=0))
    assert not any(line.startswith(("Step     measured", "Step     not", "Bus")) for line in lines)


def test_the_memory_of_cpu_ranks_is_said_to_be_rough() -> None:
    assert ROUGH_ON_CPU in shown(compared(accelerator="cpu"))
    assert ROUGH_ON_CPU not in shown(compared())
