"""`zerowiz report`: the last launch beside its plan."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest
from cli.harness import Run
from paths import ROOT
from ranks.harness import rank_environ, read_reports, run, run_loaded
from templates.jobs import losses

from zerowiz.core.decision.questions import TEMPLATES, Template
from zerowiz.core.job_end import FILE_NAME
from zerowiz.core.workload import Loop
from zerowiz.emit.processes import read_pid_namespace

ENDED = {"status": 0, "cause": "finished", "rank": None, "last_lines": []}
DIED = {"status": 1, "cause": "cuda_oom", "rank": 1, "last_lines": ["no"]}
PREDICTED = {
    "peak_bytes": 30 * 2**30,
    "step_seconds": 0.171,
    "low_step_seconds": 0.128,
    "high_step_seconds": 0.228,
}
MEASURED = {
    "ranks": 2,
    "peak_bytes": 32 * 2**30,
    "step_seconds": 0.2,
    "outside_bytes": None,
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
    shown = here("report").good
    assert [
        "train.py, attempt 1 (zero2), 2026-11-22T04:30:00Z: it ran out of GPU memory, status 1",
        "Nothing was measured: DeepSpeed's engine took no optimizer step",
        f"Logs: {folder}/logs",
        "",
        "train.py, attempt 2 (zero3), 2026-11-22T04:30:00Z: it finished, status 0",
        "                predicted   measured   off by",
        "peak memory     30.00 GiB  32.00 GiB   -6.2 %",
        "time of a step    0.171 s    0.200 s  -14.5 %",
        "The predicted interval of a step is 0.128 to 0.228 s",
        f"Logs: {folder}/logs",
    ] == shown.stdout.splitlines()


GIB = 2**30
TIMES = dict.fromkeys(("step_seconds", "low_step_seconds", "high_step_seconds"))


@pytest.mark.parametrize(
    ("predicted", "measured", "shown", "hidden"),
    [
        # Of CPU ranks no time is predicted, and of a short run none is measured.
        (
            TIMES,
            {"step_seconds": None, "outside_bytes": GIB},
            [
                "peak memory 30.00 GiB 32.00 GiB time of a step ? ? ",
                "The memory of CPU ranks, here without Python and its libraries, is predicted only roughly",
                "A step time needs four optimizer steps; this attempt took fewer",
            ],
            "The predicted interval",
        ),
        # A record of an earlier release has more.
        (
            {"memory": "allocated", "outside_bytes": None, "accumulation_steps": 4},
            {"micro_batches": 3},
            ["time of a step 0.171 s 0.200 s"],
            "CPU ranks",
        ),
    ],
    ids=["a CPU rank", "an earlier release"],
)
def test_what_was_measured_stands_beside_what_is_comparable(
    here: Run,
    folder: Path,
    predicted: dict[str, object],
    measured: dict[str, object],
    shown: list[str],
    hidden: str,
) -> None:
    run = {"predicted": PREDICTED | predicted, "measured": MEASURED | measured}
    write(folder, {"end": ENDED, **run})
    text = " ".join(here("report").stdout.split())
    assert [] == [line for line in shown if line not in text]
    assert hidden not in text


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
    # What watched zerowiz has ended the job before one started.
    (folder / "logs" / "orders").write_text("end\n")
    assert (
        "it has ended; zerowiz was killed or its disk full before it could say how"
        in here("report").stdout
    )
    (folder / "logs" / "orders").write_text("")
    # Its rank runs no more, and nobody wrote how it ended: zerowiz was killed.
    gone = {"pid": os.getpid(), "start_ticks": 0}
    rank = {
        "rank": 0,
        "host": "here",
        "space": read_pid_namespace(),
        "process": gone,
        "beside": gone,
    }
    (folder / "logs" / "rank-0.start.json").write_text(json.dumps(rank))
    shown = here("report").stdout
    assert "it has ended; zerowiz was killed or its disk full before it could say how" in shown
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
        ("{", 1, f"`{FILE_NAME}` is not a record of a launch: Expecting"),
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


# `zerowiz template`: a script to start from, copied whole or not at all.

EACH = pytest.mark.parametrize("template", TEMPLATES, ids=lambda each: each.loop)


def paths(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@EACH
def test_all_that_the_script_needs_is_copied_byte_for_byte(
    here: Run, folder: Path, template: Template
) -> None:
    assert 0 == here("template", "--loop", template.loop, "a/first run").code
    assert "trains new weights" in here("template", "--loop", template.loop, "a/first run").stdout
    copied = folder / "a" / "first run"
    for path in paths(copied):
        assert (ROOT / "templates" / path).read_bytes() == (copied / path).read_bytes()
    assert {"corpus.txt", "model/config.json", template.script} < paths(copied)
    assert "portable_checkpoint/__init__.py" in paths(copied)


def test_without_a_folder_the_templates_are_listed_and_nothing_is_written(
    here: Run, folder: Path
) -> None:
    result = here("template").good
    for each in TEMPLATES:
        assert f"--loop {each.loop}" in result.stdout
        assert each.script in result.stdout
    assert set() == paths(folder)


def test_a_second_copy_changes_nothing_and_the_other_template_joins_it(
    here: Run, folder: Path
) -> None:
    here("template", "demo")
    before = paths(folder)
    again = here("template", "demo")
    assert (0, True) == (again.code, again.stdout.startswith("all of it is in demo already\n"))
    other = here("template", "--loop", "engine", "demo")
    assert "wrote demo/train_deepspeed.py\n" == other.stdout.partition("\n\n")[0] + "\n"
    assert before | {"demo/train_deepspeed.py"} == paths(folder)


def test_a_file_of_another_content_refuses_all_of_it(here: Run, folder: Path) -> None:
    (folder / "demo").mkdir()
    (folder / "demo" / "corpus.txt").write_text("mine\n")
    result = here("template", "demo")
    assert 1 == result.code
    assert "`demo/corpus.txt` already exists with other content; zerowiz does not change it" == (
        result.problem
    )
    assert "use an empty folder" == result.hints
    assert {"demo/corpus.txt"} == paths(folder)
    assert "mine\n" == (folder / "demo" / "corpus.txt").read_text()


@pytest.mark.parametrize("name", ["train.py", "train.py/below"])
def test_what_is_no_folder_is_named(here: Run, folder: Path, name: str) -> None:
    (folder / "train.py").write_text("mine\n")
    result = here("template", name)
    assert 1 == result.code
    assert "not a" in result.problem
    assert result.hints
    assert {"train.py"} == paths(folder)


@pytest.mark.deepspeed
@pytest.mark.parametrize(
    "template",
    [
        pytest.param(each, marks=() if each.loop is Loop.ENGINE else pytest.mark.slow)
        for each in TEMPLATES
    ],
    ids=lambda each: each.loop,
)
def test_the_command_that_it_names_trains_the_copy_on_two_ranks(
    tmp_path: Path, template: Template
) -> None:
    reports = tmp_path / "reports"
    ours = rank_environ(reports)
    env = {**ours, "PYTHONPATH": f"{ours['PYTHONPATH']}:{ROOT}"}
    zerowiz = [sys.executable, "-m", "zerowiz"]

    said = run([*zerowiz, "template", "--loop", template.loop, "demo"], env=env, cwd=tmp_path)
    line = said.stdout.partition("on a machine without a GPU: ")[2].strip()
    enter, _, launch = line.partition(" && ")
    assert "cd demo" == enter
    _, command, *words = shlex.split(launch)
    # One of both as it is started for people. A third of the steps shows it.
    real = template.loop is Loop.ENGINE
    fewer = ("--steps" if real else "--max_steps", "10")
    done = (run if real else run_loaded)(
        [*zerowiz, command, "--yes", "--gpus-per-node", "2", *words, *fewer],
        env=env,
        cwd=tmp_path / "demo",
    )

    assert 0 == done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    # There is room for a whole copy on each rank.
    assert "DDP: " in done.stderr
    assert [(0, 0), (1, 0)] == [(each["rank"], each["stage"]) for each in read_reports(reports)]
    seen = losses(done.stdout)
    assert seen[max(seen)] < seen[min(seen)] - 1
