"""What a person sees of a run, and of the machines that a model fits."""

import io
import re
from collections.abc import Callable

import pytest
from ui.streams import TerminalStream

from zerowiz.core.catalog import find_offers
from zerowiz.core.decision.flowchart import Constraints, Decision, decide
from zerowiz.core.decision.job import Job, Objective
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.machine.types import Machine
from zerowiz.core.machine_kinds import (
    MachineCandidate,
    PriceList,
    list_kinds,
    read_prices,
)
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.speed.costs import StepTime
from zerowiz.core.structs import replace
from zerowiz.core.workload import Workload
from zerowiz.probe.files import read_gpu_table, read_instances
from zerowiz.ui.catalog import machines
from zerowiz.ui.text import count, money

TABLE = read_gpu_table()
SOME = tuple(row for row in TABLE if "80GB" in row.name or "V100" in row.name)
PRICES = read_prices(["A100-80GB=1.50,H100-80GB=2.50"], TABLE, read_instances())


def decided(machine: Machine, params: int) -> Decision:
    """A plan whose times are made up: these pages do not change with a constant of theirs."""
    model, workload = model_from_size("m", params), Workload(gradient_checkpointing=True)
    made = decide(Job(machine=machine, model=model, workload=workload), Constraints())
    tokens = 2048 * machine.world_size
    time = StepTime(
        terms=(), expected_seconds=0.5, low_seconds=0.25, high_seconds=1.125, tokens=tokens
    )
    evaluated = tuple(replace(one, step_time=time) for one in made.evaluated)
    chosen = made.chosen and next(e for e in evaluated if e.strategy == made.chosen.strategy)
    return replace(made, evaluated=evaluated, chosen=chosen)


def listed(
    params: int,
    prices: PriceList,
    stream: io.StringIO,
    objective: Objective = Objective.FLOWCHART,
) -> str:
    def decide_on(candidate: MachineCandidate) -> Decision:
        return decided(candidate.machine, params)

    found = find_offers(list_kinds(SOME, ()), TABLE, decide_on, prices)
    job = decided(parse_spec("8xA100-80GB", TABLE), params).job
    machines(found, job, prices, stream, objective=objective)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")


@pytest.mark.parametrize(
    ("file", "params", "prices"),
    [
        ("machines", 70 * 10**9, PriceList()),
        ("machines-priced", 7 * 10**9, PRICES),
        ("machines-none", 10**12, PriceList()),
    ],
)
def test_the_machines_of_a_model(
    golden: Callable[[str, str], None], file: str, params: int, prices: PriceList
) -> None:
    golden(f"catalog/{file}.txt", listed(params, prices, io.StringIO()))


@pytest.mark.parametrize("objective", [Objective.FASTEST, Objective.SMALLEST])
def test_who_has_an_objective_is_told_of_no_other(objective: Objective) -> None:
    shown = listed(70 * 10**9, PriceList(), io.StringIO(), objective)
    assert "flowchart" not in shown


@pytest.mark.parametrize(
    ("rows", "said"), [(7, "1 more machine fits:"), (6, "2 more machines fit:")]
)
def test_machines_that_have_no_row_are_counted(
    monkeypatch: pytest.MonkeyPatch, rows: int, said: str
) -> None:
    monkeypatch.setattr("zerowiz.ui.catalog._MOST_ROWS", rows)
    assert said in listed(70 * 10**9, PriceList(), io.StringIO())


@pytest.mark.parametrize(
    ("columns", "left"),
    [(160, set()), (80, {"(step)"}), (60, {"needs", "headroom", "(step)"})],
)
def test_a_narrow_terminal_has_fewer_columns_and_no_line_that_is_wider(
    monkeypatch: pytest.MonkeyPatch, columns: int, left: set[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = listed(70 * 10**9, PRICES, TerminalStream())
    assert max(map(len, shown.splitlines())) <= columns
    heading = re.search(r"^machine .*$", shown, re.MULTILINE)
    assert heading is not None
    headings = set(heading[0].split())
    # What may run out of memory is to be seen however narrow the terminal is.
    assert {"verdict", "cost", *({"needs", "headroom", "(step)"} - left)} <= headings
    assert not left & headings


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (money(704), "$704"),
        (money(17.6), "$17.60"),
        (money(0.0123), "$0.0123"),
        (money(12345.6), "$12,346"),
        (money(0), "$0.00"),
        (count(2 * 10**9), "2 B"),
        (count(1000 * 10**12), "1,000 T"),
        (count(10**17), "100,000 T"),
    ],
)
def test_costs_are_written_as_people_plan_with_them(said: str, expected: str) -> None:
    assert expected == said
