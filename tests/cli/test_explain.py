"""`plan --explain` and the times of a plan, as people see them."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.harness import HF_IN_CODE_WITH_WORDS, Run, Terminal

JOB = ("plan", "--machine", "2xH200", "--model", "7b", "--gradient-checkpointing", "--stage", "3")


def table_of(text: str, heading: str) -> list[list[str]]:
    """The rows below a heading, less the headings of its columns."""
    lines = text.partition(heading)[2].splitlines()[2:]
    end = next((place for place, line in enumerate(lines) if not line), len(lines))
    return [re.split(r"\s{2,}", line) for line in lines[:end]]


def strategies_of(text: str) -> list[list[str]]:
    """The rows of the table of strategies."""
    table = text[text.index("\nstrategy ") :].partition("\n\n")[0]
    return [line.split() for line in table.splitlines()[2:]]


def test_a_plan_shows_the_time_of_each_strategy_and_the_tokens_of_the_chosen_one(here: Run) -> None:
    shown = here(*JOB).stdout
    rows = strategies_of(shown)
    assert len(rows) == 7
    assert all(re.fullmatch(r"\d+\.?\d*", row[3]) for row in rows)
    assert re.search(
        r"^Time +[\d.]+ s per optimizer step expected, [\d.]+ to [\d.]+;"
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
    text = here(*JOB, "--explain").stdout.partition("Memory of each GPU with zero3")[2]
    rows = table_of(text, "c=context\n")
    assert {row[0] for row in rows} == {"model", "init", "forward", "backward", "step"}
    assert ["init", "master weights", "13.0", "4 P"] in rows


def test_a_time_that_is_unknown_is_a_dash_and_explain_says_why(here: Run) -> None:
    shown = here("plan", "--machine", "cpu", "--model", "10m", "--explain").stdout
    assert {"-"} == {row[3] for row in strategies_of(shown)}
    assert "Time  " not in shown
    assert "unknown: zerowiz has no speeds" in shown


def test_the_table_with_times_is_not_cut_at_80_columns(
    here: Run, terminal: Callable[..., Terminal]
) -> None:
    words = ("plan", "--machine", "2x8xH100-80GB-SXM", "--model", "405b", "--method", "lora")
    person = terminal(*words)
    person.end()
    assert strategies_of("\n".join(person.lines)) == strategies_of(here(*words).stdout)


def test_a_strategy_that_is_not_chosen_is_explained(here: Run) -> None:
    shown = here(*JOB[:-2], "--explain", "ZeRO-2").stdout
    assert "Time of a step with zero2" in shown
    (why,) = re.findall(r"Why ([\d.]+) GiB: what each GPU holds in (?:\w+)", shown)
    rows = table_of(shown, f"Why {why} GiB")
    *parts, total = rows
    assert [["zero2", why]] == [row[:2] for row in strategies_of(shown) if row[0] == "zero2"]
    assert ["sum", why] == total
    assert float(why) == pytest.approx(sum(float(part[1]) for part in parts), abs=0.5)
    assert all(part[2] for part in parts)


def test_explain_takes_no_word_of_a_script(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_IN_CODE_WITH_WORDS)
    words = [word for word in JOB if word != "--gradient-checkpointing"]
    shown = here(*words, "--explain", "train.py", "--explain", "zero2")
    assert 0 == shown.code, shown.stderr
    assert "Time of a step with zero3" in shown.stdout
    assert "Time of a step with zero2" not in shown.stdout


def test_a_strategy_that_does_not_exist_is_refused_with_those_that_do(here: Run) -> None:
    refused = here(*JOB, "--explain=zero4")
    assert 2 == refused.code
    assert "`--explain zero4`: there is no such strategy" in refused.problem
    assert "zero3-offload-optimizer" in refused.stderr


def test_verbose_shows_all_that_is_known_of_each_strategy(here: Run) -> None:
    plain, more = here(*JOB).stdout, here(*JOB, "-v").stdout
    assert "Buffers  " not in plain
    assert "Buffers  " in more
    head = next(line for line in more.splitlines() if line.startswith("strategy "))
    names = "strategy peak peak in needs headroom host sent time verdict"
    assert names.split() == head.split()


def test_a_host_that_is_too_small_has_a_verdict_of_its_own(here: Run) -> None:
    words = ("plan", "--machine", "8xH100-80GB-SXM", "--model", "8b", "--host-memory", "8GiB")
    shown = here(*words, "--offload", "all").stdout
    verdicts = dict(re.findall(r"^(ddp|zero\S+) .*\d  (x .*)$", shown, re.MULTILINE))
    assert {"x too big", "x host"} == set(verdicts.values())
    assert ("x too big", "x host") == (verdicts["ddp"], verdicts["zero3-offload"])
    assert '"x host": the GPU has room; the host has too little memory' in shown
    assert '"host?"' not in shown
    found = json.loads(here(*words, "--offload", "all", "--json").stdout)["strategies"]
    for each in found:
        assert "does_not_fit" == each["verdict"]
        assert (each["gpu"]["headroom_bytes"] >= 0) is (verdicts[each["name"]] == "x host")
