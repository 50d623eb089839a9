"""The settings that are timed next: they fit, they are new, and they end in the time there is."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from accuracy.grid import deal_cases
from accuracy.split import Split
from paths import ROOT
from ranks.harness import rank_environ
from speed.timing_cases import (
    AGAIN,
    LONGEST_SECONDS,
    MODELS,
    SETTINGS,
    TIMING_FILE,
    Candidate,
    choose,
    find_candidates,
    is_timed,
    pairs_of,
    point_of,
    scale_costs,
    with_ids,
)

from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import Machine, with_host_memory
from zerowiz.core.measure.trial import decode_trial, decode_trials, encode_trial
from zerowiz.core.speed.rates import GpuRates, find_rates
from zerowiz.probe.machine.gpu_table import read_gpu_table

TABLE = read_gpu_table()
BUDGET_SECONDS = 400.0


def machine_of(spec: str) -> tuple[Machine, GpuRates | None]:
    machine = with_host_memory(parse_spec(spec, TABLE), 256 * 2**30)
    return machine, find_rates(machine, TABLE)


@pytest.fixture(scope="module")
def candidates() -> list[Candidate]:
    return list(find_candidates(MODELS, *machine_of("2xH200"), looked_at=1500))


@pytest.fixture(scope="module")
def chosen(candidates: list[Candidate]) -> list[Candidate]:
    return choose(candidates, [], BUDGET_SECONDS)


def row_of(case: Mapping[str, Any]) -> dict[str, Any]:
    """The case as a row says it."""
    return {**encode_trial(decode_trial(case, "case")), "steady_step_seconds": 1.0, "ok": True}


def test_each_value_of_each_setting_can_be_timed_on_two_gpus(candidates: list[Candidate]) -> None:
    had = {(name, value) for each in candidates for name, value in each.point.items()}
    assert {(name, each) for name, values in SETTINGS.items() for each in values} <= had
    assert {("model", name) for name in MODELS} <= had


def test_on_one_gpu_no_links_are_chosen() -> None:
    found = find_candidates(MODELS[:1], *machine_of("1xH100-80GB-SXM"), looked_at=300)
    assert {"direct"} == {each.point["links"] for each in found}


def test_a_candidate_is_short_and_is_a_case_of_measure(candidates: list[Candidate]) -> None:
    assert all(0 < each.cost_seconds <= LONGEST_SECONDS for each in candidates)
    assert all(each.point == point_of(row_of(each.case)) for each in candidates[::50])


def test_a_run_with_a_tight_room_has_a_cap_and_no_other(candidates: list[Candidate]) -> None:
    capped = {each.point["room"]: "memory_cap_bytes" in each.case for each in candidates}
    assert {"wide": False, "tight": True} == capped


def test_the_chosen_ones_end_in_the_time_there_is(
    candidates: list[Candidate], chosen: list[Candidate]
) -> None:
    seconds = sum(each.cost_seconds for each in chosen)
    cheapest = min(each.cost_seconds for each in candidates)
    assert BUDGET_SECONDS - cheapest <= seconds <= BUDGET_SECONDS
    slower = choose(candidates, [], BUDGET_SECONDS, scale=2.0)
    assert sum(each.cost_seconds for each in slower) <= BUDGET_SECONDS / 2


def test_some_are_timed_twice_and_none_more_often(chosen: list[Candidate]) -> None:
    times = Counter(id(each) for each in chosen)
    assert {1, 2} == set(times.values())
    cases = with_ids(chosen, "t", 3)
    assert len(cases) == len({case["id"] for case in cases})
    assert len(decode_trials(json.loads(json.dumps(cases)))) == len(cases)
    twice = [case for case in cases if case["id"].endswith(AGAIN)]
    by_id = {case["id"]: case for case in cases}
    assert len(twice) == sum(count - 1 for count in times.values())
    for case in twice:
        once = by_id[case["id"].removesuffix(AGAIN)]
        assert {**once, "id": None} == {**case, "id": None}


def test_both_sides_get_some_before_anything_is_run(chosen: list[Candidate]) -> None:
    """About a third is set aside, whatever the cases are; repeats are on the side of the first."""
    cases = with_ids(chosen, "t", 0)
    sides = deal_cases(cases, TIMING_FILE)
    assert [each.side for each in chosen] == sides
    firsts = [s for s, case in zip(sides, cases, strict=True) if not case["id"].endswith(AGAIN)]
    aside = firsts.count(Split.SET_ASIDE) / len(firsts)
    assert 0.25 <= aside <= 0.45


def test_what_was_timed_is_worth_less(candidates: list[Candidate], chosen: list[Candidate]) -> None:
    timed = [each.point for each in chosen]
    later = choose(candidates, timed, BUDGET_SECONDS)
    known = {pair for point in timed for pair in pairs_of(point)}

    def new(runs: list[Candidate]) -> int:
        return len({pair for each in runs for pair in pairs_of(each.point)} - known)

    assert new(later) > 0
    assert not {id(each) for each in chosen} & {id(each) for each in later}


def test_costs_are_scaled_by_what_runs_took(chosen: list[Candidate]) -> None:
    machine, rates = machine_of("2xH200")
    rows = [{**row_of(each.case), "case_seconds": 3 * each.cost_seconds} for each in chosen[:9]]
    assert scale_costs(rows, machine, rates) == pytest.approx(3)
    assert 1.0 == scale_costs([], machine, rates)


@pytest.mark.slow
@pytest.mark.deepspeed
def test_the_whole_way_on_two_cpu_ranks(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    words = ["--accelerator", "cpu", "--gpus", "2", "--model", "1m", "--prefix", "c"]
    words += ["--budget-seconds", "240", "--limit", "2", "--out", str(out)]
    environ = rank_environ(tmp_path / "reports") | {"PYTHONPATH": str(ROOT)}
    argv = [sys.executable, str(ROOT / "tests" / "speed" / "run_timing.py"), *words]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr[-3000:]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [True, True] == [is_timed(row) for row in rows]
    assert ["c-000", "c-001"] == sorted(row["id"] for row in rows)
    assert "2 timed" in done.stderr
