"""What `plan --objective` and `plan --limits` print for people."""

import json
import re

import pytest
from cli.harness import Run

JOB = ("plan", "--machine", "2xH200", "--model", "1b", "--global-batch", "64")


def table_below(text: str, words: str) -> list[list[str]]:
    """The rows of the table that follows a line with these words."""
    after = text[text.index(words) :].splitlines()
    head = next(place for place, line in enumerate(after) if line.startswith("strategy"))
    rows = []
    for line in after[head + 1 :]:
        if not line or line.startswith(("Why", "*")):
            break
        rows.append(line.split())
    return rows


def test_the_front_and_the_reason_of_the_choice_are_shown(here: Run) -> None:
    text = here(*JOB, "--objective", "fastest").stdout
    content = json.loads(here(*JOB, "--objective", "fastest", "--json").stdout)
    assert f"{content['candidates']['count']} candidates compared" in text
    rows = table_below(text, "candidates compared")
    chosen = [row for row in rows if row[-1] == "chosen"]
    choice = content["choice"]
    assert 1 == len(chosen)
    assert [choice["strategy"], str(choice["micro_batch"]), "x"] == chosen[0][:3]
    assert re.search(r"^Why {6}\S", text, re.MULTILINE)
    front = content["candidates"]["pareto"]
    assert content["choice"] in front
    assert [[each["strategy"], str(each["micro_batch"])] for each in front] == [
        row[:2] for row in rows
    ]
    assert len({tuple(row[:5]) for row in rows}) == len(rows)
    assert choice["step_seconds"] > front[0]["step_seconds"]
    reason = "its step is predicted to be within 3 % of the fastest that fits"
    assert reason in " ".join(text.split())
    assert [reason] == content["reasons"]


def test_the_smallest_says_what_it_takes(here: Run) -> None:
    text = here(*JOB, "--objective", "smallest").stdout
    rows = table_below(text, "candidates compared")
    assert len({tuple(row[:5]) for row in rows}) == len(rows)
    assert "chosen" in rows[-1]
    assert re.search(
        r"^Why {6}no candidate needs less than [\d.]+ GiB per device", text, re.MULTILINE
    )


def test_by_default_no_front_is_shown(here: Run) -> None:
    assert "candidates compared" not in here(*JOB).stdout


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ("--machine", "cpu", "--model", "10m"),
            "zerowiz predicts no step time, as zerowiz has no speeds for a CPU",
        ),
        (
            ("--machine", "8xH100-80GB", "--model", "1b", "--memory-budget", "9GiB"),
            "no candidate is certain to fit",
        ),
    ],
)
def test_where_a_search_cannot_choose_the_plan_says_that_the_flowchart_does(
    here: Run, words: tuple[str, ...], why: str
) -> None:
    text = here("plan", *words, "--objective", "fastest").stdout
    assert f"{why}, so the flowchart chooses" in " ".join(text.split())


def test_where_a_stage_was_asked_for_no_flowchart_is_said_to_choose(here: Run) -> None:
    job = ("plan", "--machine", "8xH100-80GB-SXM", "--model", "8b", "--micro-batch", "3")
    text = here(
        *job, "--stage", "2", "--objective", "fastest", "--no-gradient-checkpointing"
    ).stdout
    assert "you asked for it" in text
    assert re.search(r"^Search {3}no candidate is certain to fit$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        ("8xH100-80GB-SXM", r"it is the fastest of \d+ candidates that fit; the next, ZeRO-2, "),
        ("4xA100-40GB", "it is the only candidate that is certain to fit$"),
    ],
)
def test_the_fastest_says_what_it_was_compared_with(here: Run, machine: str, why: str) -> None:
    words = ("--model", "7b", "--gradient-checkpointing", "--objective", "fastest")
    text = here("plan", "--machine", machine, *words).stdout
    assert re.search(rf"^Why {{6}}{why}", text, re.MULTILINE)


def test_what_is_faster_by_nothing_is_said_to_be_as_fast(here: Run) -> None:
    job = ("plan", "--machine", "1xRTX4090", "--model", "7b", "--method", "qlora")
    text = here(*job, "--objective", "fastest", "--global-batch", "32").stdout
    assert re.search(r"^Why {6}ZeRO-1 2 x 16 is as fast, but sharding gains", text, re.MULTILINE)


def test_where_nothing_fits_nothing_chooses(here: Run) -> None:
    job = ("plan", "--machine", "RTX4090", "--model", "70b", "--objective", "fastest")
    text = here(*job).stdout
    assert "Chosen   none" in text
    assert re.search(r"^Search {3}no candidate is certain to fit$", text, re.MULTILINE)


@pytest.mark.parametrize(("model", "by_positions"), [("7b", False), ("gpt2", True)])
def test_the_limits_of_each_strategy_are_a_table(
    here: Run, model: str, *, by_positions: bool
) -> None:
    words = ("plan", "--machine", "4xA100-40GB", "--model", model, "--limits")
    text, content = here(*words).stdout, json.loads(here(*words, "--json").stdout)
    assert by_positions is any(limit["by_positions"] for limit in content["limits"])
    headings = ["strategy", "batch", "batch (ckpt)", "tokens", "tokens (ckpt)"]
    assert headings in [re.split(" {2,}", line) for line in text.splitlines()]
    rows = {row[0]: row[1:] for row in table_below(text, "The largest micro-batch")}
    for limit in content["limits"]:
        recomputes = limit["gradient_checkpointing"]
        batch, tokens = rows[limit["strategy"]][recomputes], rows[limit["strategy"]][2 + recomputes]
        assert str(limit["micro_batch"] or "-") == batch
        assert str(limit["sequence_tokens"] or "-") == tokens.removesuffix("*")
        assert limit["by_positions"] is tokens.endswith("*")


def test_limits_are_of_one_machine(here: Run) -> None:
    result = here("plan", "--machine", "all", "--model", "1b", "--limits")
    assert 2 == result.code
    assert "`--limits` is for one machine" in result.stderr
