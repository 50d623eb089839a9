"""The settings that are timed next: they fit, they are new, and they end in the time there is."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from accuracy.grid import deal_cases
from accuracy.split import Split
from measured.rows import read_every_row, read_times
from paths import ROOT
from ranks.harness import rank_environ
from speed import run_timing
from speed.samples import sample_of
from speed.sweep import by_engine
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
    plan_case,
    point_of,
    with_ids,
)

from zerowiz.app.options import Options
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import Accelerator, Machine, with_host_memory
from zerowiz.core.speed.costs import GpuRates, find_rates
from zerowiz.core.trial import decode_trial, decode_trials, encode_trial
from zerowiz.probe.package_data import read_gpu_table

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
    return {**encode_trial(decode_trial(case, "case")), "ok": True}


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


def seconds_of(chosen: Sequence[Candidate]) -> float:
    """Of all of them: those of one engine pay for it once, a repeat has its own."""
    seconds, known = 0.0, list[Candidate]()
    for each in chosen:
        shared = each not in known and any(each.engine == other.engine for other in known)
        seconds += each.cost_seconds + (0.0 if shared else each.start_seconds)
        known.append(each)
    return seconds


def test_the_chosen_ones_end_in_the_time_there_is(
    candidates: list[Candidate], chosen: list[Candidate]
) -> None:
    cheapest = min(each.start_seconds + each.cost_seconds for each in candidates)
    assert BUDGET_SECONDS - cheapest <= seconds_of(chosen) <= BUDGET_SECONDS


def test_settings_share_engines(chosen: list[Candidate]) -> None:
    engines = {each.engine for each in chosen}
    assert len(engines) < len(chosen) / 2
    shared = Counter(each.engine for each in chosen).most_common(1)[0][0]
    points = [each.point for each in chosen if each.engine == shared]
    same = {name for name in points[0] if len({point[name] for point in points}) == 1}
    assert {"model", "strategy", "method", "links", "loss", "precision"} <= same


def test_a_repeat_has_an_engine_of_its_own(chosen: list[Candidate]) -> None:
    machine, rates = machine_of("2xH200")
    cases = with_ids(chosen, "t", 0)
    groups = by_engine([plan_case(case, machine, rates) for case in cases])
    for group in groups:
        again = [str(planned.trial.id).endswith(AGAIN) for planned in group]
        assert len(set(again)) == 1
    assert len(cases) == sum(map(len, groups))
    smallest = [group[0].trial.workload for group in groups if len(group) > 1]
    largest = [group[-1].trial.workload for group in groups if len(group) > 1]
    assert all(
        one.gradient_checkpointing > other.gradient_checkpointing
        or one.micro_batch * one.sequence_tokens <= other.micro_batch * other.sequence_tokens
        for one, other in zip(smallest, largest, strict=True)
    )


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
    others = [each for each in candidates if each.point not in timed]
    regardless = choose(others, [], BUDGET_SECONDS)
    known = {pair for point in timed for pair in pairs_of(point)}

    def new(runs: list[Candidate]) -> int:
        return len({pair for each in runs for pair in pairs_of(each.point)} - known)

    assert new(later) > new(regardless)
    assert not {id(each) for each in chosen} & {id(each) for each in later}


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.deepspeed
def test_the_whole_way_on_two_cpu_ranks(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    words = ["--accelerator", "cpu", "--gpus", "2", "--model", "1m", "--prefix", "c"]
    words += ["--budget-seconds", "1200", "--limit", "8", "--out", str(out)]
    environ = rank_environ(tmp_path / "reports") | {"PYTHONPATH": str(ROOT)}
    argv = [sys.executable, str(ROOT / "tests" / "speed" / "run_timing.py"), *words]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr[-3000:]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert 8 == sum(is_timed(row) for row in rows)
    assert 8 == len({row["id"] for row in rows})
    assert "8 timed" in done.stderr
    assert len({row["accumulation_steps"] for row in rows}) > 1
    assert all(row["steps"] + row["timed_steps"] >= 7 and row["peak_bytes"] is None for row in rows)
    [sample] = [sample_of(as_on_h200(row)) for row in rows[:1]]
    assert sample is not None
    assert (sample.free_running, sample.measured_seconds) == (True, rows[0]["steady_step_seconds"])


def as_on_h200(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a model that the tests have, as a GPU would have it."""
    of_gpu = {"gpu": "NVIDIA H200", "nccl_p2p": True, "model": "qwen2.5-0.5b"}
    return {**row, **of_gpu, "precision": "bf16", "file": TIMING_FILE}


def test_what_is_said_of_this_host_stands_for_what_is_read() -> None:
    options = Options(accelerator=Accelerator.CPU, host_memory="4096TiB")
    assert 4096 * 2**40 == run_timing.machine_of(options).host.available_bytes


def test_no_table_of_memory_has_the_rows_that_have_none() -> None:
    """They lie in a folder of their own."""
    assert not {row["file"] for row in read_times()} & {row["file"] for row in read_every_row()}
    alone = [row for row in read_times() if row["file"].startswith("times/")]
    assert len(alone) > 80
    assert all(row["peak_bytes"] is None for row in alone)
