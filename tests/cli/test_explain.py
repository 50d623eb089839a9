"""`plan --explain` and the times of a plan, as people see them."""

import re
from collections.abc import Callable

import pytest
from cli.harness import Run, Terminal

JOB = ("plan", "--machine", "2xH200", "--model", "7b", "--gradient-checkpointing", "--stage", "3")


def table_of(text: str, heading: str) -> list[list[str]]:
    """The rows below a heading, less the headings of its columns."""
    lines = text.partition(heading)[2].splitlines()[2:]
    end = next((place for place, line in enumerate(lines) if not line), len(lines))
    return [re.split(r"\s{2,}", line) for line in lines[:end]]


def test_a_plan_shows_the_time_of_each_strategy_and_the_tokens_of_the_chosen_one(here: Run) -> None:
    shown = here(*JOB).stdout
    rows = [line.split() for line in shown.splitlines() if re.match(r"(ddp|zero\d)\S* ", line)]
    assert len(rows) == 7
    assert all(re.fullmatch(r"\d+\.?\d*", row[7]) for row in rows)
    assert re.search(
        r"^Time +zero3: [\d.]+ s per optimizer step expected, [\d.]+ to [\d.]+;"
        r" [\d,]+ tokens/s on all GPUs together$",
        shown,
        re.MULTILINE,
    )
    assert "Time of a step with zero3" not in shown


def test_explain_shows_parts_of_the_time_that_add_up(here: Run) -> None:
    rows = table_of(here(*JOB, "--explain").stdout, "Time of a step with zero3, in seconds:")
    *parts, total = rows
    assert total[0] == "sum"
    assert float(total[1]) == pytest.approx(sum(float(part[1]) for part in parts), abs=0.01)
    assert 99 <= sum(int(part[2].removesuffix("%")) for part in parts) <= 101
    assert all(part[3] for part in parts)


PCIE = "has no known speed: their PCIe is assumed, 63 GB/s one way."


def test_explain_says_where_the_rate_of_pcie_enters(here: Run) -> None:
    assert "PCIe" not in here(*JOB, "--explain").stdout.partition("Time of a step")[2]
    assert PCIE in here(*JOB, "--interconnect", "pcie", "--explain").stdout
    words = ("--model", "7b", "--stage", "3", "--offload", "all", "--host-memory", "1TiB")
    alone = here("plan", "--machine", "1xH200", *words, "--explain")
    said = alone.stdout.partition("Time of a step")[2]
    assert "What is offloaded crosses the PCIe of each GPU: 63 GB/s one way" in said
    assert PCIE not in said


def test_explain_shows_what_each_phase_holds_with_its_formula(here: Run) -> None:
    rows = table_of(here(*JOB, "--explain").stdout, "Memory of each GPU with zero3")
    assert {row[0] for row in rows} == {"model", "init", "forward", "backward", "step"}
    assert ["init", "master weights", "13.0", "4 P"] in rows


def test_a_time_that_is_unknown_is_a_dash_and_explain_says_why(here: Run) -> None:
    shown = here("plan", "--machine", "cpu", "--model", "10m", "--explain").stdout
    row = next(line for line in shown.splitlines() if line.startswith("ddp "))
    assert row.split()[7] == "-"
    assert "Time  " not in shown
    assert "unknown: zerowiz has no speeds" in shown


def test_the_table_with_times_is_not_cut_at_80_columns(
    here: Run, terminal: Callable[..., Terminal]
) -> None:
    words = ("plan", "--machine", "2x8xH100-80GB-SXM", "--model", "405b", "--method", "lora")
    person = terminal(*words)
    person.end()
    rows = [line.split() for line in person.lines if re.match(r"(ddp|zero\d)\S* ", line)]
    assert len(rows) == 7
    # The phase of the peak is left out there, and nothing else.
    wide = [line.split() for line in here(*words).stdout.splitlines()]
    assert [[*row[:2], *row[3:]] for row in wide if row[:1] in [[each[0]] for each in rows]] == rows
