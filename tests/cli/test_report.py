"""`zerowiz report`: the last launch beside its plan."""

import json
import re
from pathlib import Path

import pytest
from cli.harness import Run

from zerowiz.core.outcome import FILE_NAME

ENDED = {"status": 0, "cause": "finished", "rank": None, "last_lines": []}
DIED = {"status": 1, "cause": "cuda_oom", "rank": 1, "last_lines": ["no"]}
PREDICTED = {
    "memory": "allocated",
    "peak_bytes": 30 * 2**30,
    "outside_bytes": None,
    "step_seconds": 0.171,
    "low_step_seconds": 0.128,
    "high_step_seconds": 0.228,
    "accumulation_steps": None,
    "one_micro_batch_seconds": None,
}
MEASURED = {
    "ranks": 2,
    "peak_bytes": 32 * 2**30,
    "step_seconds": 0.2,
    "outside_bytes": None,
    "micro_batches": None,
}


def write(folder: Path, *attempts: dict[str, object]) -> None:
    """A record of these attempts, each said where it differs."""
    common = {"strategy": "zero2", "started_at": "2026-11-22T04:30:00Z", "predicted": PREDICTED}
    logs = str(folder / "logs")
    told = [
        {"number": number, **common, "logs": logs, "end": None, "measured": None, **attempt}
        for number, attempt in enumerate(attempts, start=1)
    ]
    content = {"schema_version": 1, "script": "train.py", "attempts": told}
    (folder / FILE_NAME).write_text(json.dumps(content))


def test_each_attempt_stands_with_its_figures_and_its_end(here: Run, folder: Path) -> None:
    write(folder, {"end": DIED}, {"strategy": "zero3", "end": ENDED, "measured": MEASURED})
    shown = here("report")
    assert 0 == shown.code, shown.stderr
    assert [
        "train.py, attempt 1 (zero2), 2026-11-22T04:30:00Z: it ran out of GPU memory, status 1",
        "Nothing was measured: DeepSpeed's engine took no optimizer step",
        f"Logs: {folder}/logs",
        "",
        "train.py, attempt 2 (zero3), 2026-11-22T04:30:00Z: it finished, status 0",
        "                 predicted   measured   off by",
        "peak GPU memory  30.00 GiB  32.00 GiB   -6.2 %",
        "time of a step     0.171 s    0.200 s  -14.5 %",
        "The predicted interval of a step is 0.128 to 0.228 s",
        f"Logs: {folder}/logs",
    ] == shown.stdout.splitlines()


def test_steps_with_fewer_micro_batches_are_said_and_predicted_as_such(
    here: Run, folder: Path
) -> None:
    predicted = PREDICTED | {"accumulation_steps": 4, "one_micro_batch_seconds": 0.051}
    measured = MEASURED | {"micro_batches": 3}
    write(folder, {"end": ENDED, "predicted": predicted, "measured": measured})
    shown = here("report").stdout
    assert "time of a step     0.131 s    0.200 s  -34.5 %" in shown
    assert "Each step had 3 of 4 micro-batches" in shown
    write(
        folder, {"end": ENDED, "predicted": predicted, "measured": MEASURED | {"micro_batches": 4}}
    )
    assert "Each step had" not in here("report").stdout


def test_what_is_not_known_is_a_question_mark_with_its_reason(here: Run, folder: Path) -> None:
    """Of CPU ranks no time is predicted, and of a short run none is measured."""
    times = dict.fromkeys(("step_seconds", "low_step_seconds", "high_step_seconds"))
    predicted = PREDICTED | {"memory": "resident", **times}
    measured = MEASURED | {"peak_bytes": None, "step_seconds": None}
    write(folder, {"end": ENDED, "predicted": predicted, "measured": measured})
    shown = here("report").stdout
    assert re.search(r"^peak process memory +30\.00 GiB +\?$", shown, re.MULTILINE)
    assert re.search(r"^time of a step +\? +\?$", shown, re.MULTILINE)
    assert "The memory of CPU ranks is predicted only roughly" in shown
    assert "The predicted interval" not in shown
    assert "A step time needs four optimizer steps; this attempt took fewer" in shown


def test_of_a_cpu_rank_both_include_python_as_measured(here: Run, folder: Path) -> None:
    gib = 2**30
    process = {"memory": "resident", "peak_bytes": gib // 2, "outside_bytes": gib // 4}
    measured = MEASURED | {"peak_bytes": 2 * gib, "outside_bytes": gib}
    write(folder, {"end": ENDED, "predicted": PREDICTED | process, "measured": measured})
    shown = here("report").stdout
    assert "peak process memory   1.25 GiB  2.00 GiB  -37.5 %" in shown
    assert "Both figures include 1.00 GiB of Python and its libraries, as measured" in shown


def test_a_running_job_shows_what_its_ranks_have_measured_yet(here: Run, folder: Path) -> None:
    write(folder, {})
    assert "Nothing is measured yet" in here("report").stdout
    reports = folder / "logs" / "measured"
    reports.mkdir(parents=True)
    report = {"timed_step_seconds": [9, 0.2, 0.2, 0.2], "peak_bytes": 2**30}
    (reports / "rank-0.json").write_text(json.dumps(report))
    shown = here("report").stdout
    assert "it is running" in shown
    assert "0.200 s" in shown


def test_programs_get_one_object(here: Run, folder: Path) -> None:
    (folder / "out").mkdir()
    write(folder / "out", {"end": ENDED, "measured": MEASURED})
    [attempt] = json.loads(here("report", "out", "--json").stdout)["attempts"]
    assert (PREDICTED, MEASURED) == (attempt["predicted"], attempt["measured"])
    assert {"status": 0, "cause": "finished"} == attempt["end"]


@pytest.mark.parametrize(
    ("content", "code", "expected"),
    [
        (None, 1, f"no supervised launch was recorded here: there is no `{FILE_NAME}`"),
        ("{", 1, f"`{FILE_NAME}` is not JSON"),
        (
            "{}",
            1,
            f"`{FILE_NAME}` is not a record of a launch: `{FILE_NAME}.script` is missing",
        ),
    ],
)
def test_what_is_no_record_is_an_error(
    here: Run, folder: Path, content: str | None, code: int, expected: str
) -> None:
    if content is not None:
        (folder / FILE_NAME).write_text(content)
    failed = here("report")
    assert code == failed.code
    assert failed.problem.startswith(expected), failed.problem
    way_on = "zerowiz launch --supervise" if content is None else "launch writes it anew"
    assert way_on in failed.hints
