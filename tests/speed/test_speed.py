"""The constants of step times come from the fitted side, and are no worse than the page says."""

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from accuracy.grid import deal_cases
from accuracy.split import Split
from measured.rows import Row, read_every_row, read_model, read_times
from measured.trials import decode_trial, decode_trials, encode_trial
from paths import ROOT, TESTS
from ranks.harness import rank_environ
from speed import run_timing
from speed.errors import lines
from speed.fit import fit
from speed.pairs import as_planned, log_error, rank_by_other_runs, rank_runs, rank_settings
from speed.public import read_published
from speed.repeats import SETTING, describe_repeats, find_repeats
from speed.samples import DISTURBED, Sample, read_samples, sample_of
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
from zerowiz.core.machine.names import GpuModel, parse_spec
from zerowiz.core.machine.types import Accelerator, Machine, with_host_memory
from zerowiz.core.speed.costs import COSTS, find_rates
from zerowiz.core.speed.step_time import (
    AT_ENDS,
    IN_BLOCKS,
    IN_FUSED_BLOCKS,
    Moved,
    count_products,
)
from zerowiz.core.structs import replace
from zerowiz.core.workload import Workload
from zerowiz.probe.files import read_gpu_table

if TYPE_CHECKING:
    from speed.traffic import Traffic


@cache
def free() -> list[Sample]:
    return [each for each in read_samples() if each.free_running]


def _median(side: Split) -> float:
    return next(lines([each for each in free() if each.side is side], COSTS)).median


@pytest.mark.parametrize(("side", "most"), [(Split.FITTED, 0.10), (Split.SET_ASIDE, 0.12)])
def test_half_of_the_steps_are_as_near_as_documented(side: Split, most: float) -> None:
    assert 0.02 < _median(side) < most


@pytest.mark.slow
def test_a_fit_of_half_of_the_samples_from_elsewhere_finds_nearly_the_same_constants() -> None:
    found = fit(
        [each for each in free() if each.side is Split.FITTED][::2],
        replace(COSTS, product_fraction=0.5, host_seconds=300e-6),
    )
    for name in ("product_fraction", "elementwise_fraction", "host_seconds", "core_bytes_per_s"):
        assert getattr(found, name) == pytest.approx(getattr(COSTS, name), rel=0.3), name


def test_no_disturbed_run_and_no_synchronised_step_of_stage_3_counts() -> None:
    assert not {each.row["file"] for each in read_samples()} & DISTURBED
    assert all(each.free_running for each in read_samples() if each.rank.strategy.stage == 3)


def test_each_timed_row_has_the_speed_of_its_host() -> None:
    read = [each.machine.host.python_call_seconds or 0 for each in free()]
    # Shared hosts: 82 to 380 ns. A default or a missing reading is none of these.
    assert 60e-9 < min(read) < max(read) < 400e-9
    # One host is not always as fast, and its rows say so.
    on_h200 = {
        each.machine.host.python_call_seconds for each in free() if "H200" in each.row["gpu"]
    }
    assert len(on_h200) > 20


def test_published_times_that_wait_for_the_gpu_are_near() -> None:
    near = [
        each.error
        for each in read_published()
        if each.run["sequence_tokens"] >= 2048 and "offload" not in each.run["strategy"]
    ]
    assert len(near) > 10
    assert max(map(abs, near)) < 0.37


def test_an_error_is_above_zero_where_too_much_is_predicted() -> None:
    first = read_samples()[0]
    predicted = first.predict(COSTS)
    assert predicted is not None
    for times in (2, 0.5):
        measured = first._replace(measured_seconds=predicted.expected_seconds / times)
        assert log_error(measured, COSTS) == pytest.approx(math.log(times))


# Which of two settings is faster: of runs, of settings as a plan sees them, and by measuring
# again.


@pytest.fixture(scope="module")
def rivals() -> tuple[Sample, Sample]:
    """Two runs of one workload, of which the first is predicted to take much less time."""
    for fast in free():
        for slow in free():
            if fast.setting == slow.setting and 2 * _predicted(fast) < _predicted(slow):
                return fast, slow
    raise AssertionError("no rivals")


def _predicted(sample: Sample) -> float:
    found = sample.predict()
    assert found is not None
    return found.expected_seconds


def run(sample: Sample, number: int, seconds: float) -> Sample:
    return sample._replace(id=f"{sample.id}@{number}", measured_seconds=seconds)


def test_only_rivals_whose_times_differ_are_ranked(rivals: tuple[Sample, Sample]) -> None:
    fast_run, slow_run = rivals
    alone = run(fast_run, 1, 1.0), run(fast_run, 2, 2.0)
    assert rank_runs(alone, COSTS) == (0, 0)
    assert rank_runs([run(fast_run, 1, 1.0), run(slow_run, 1, 1.05)], COSTS) == (0, 0)
    assert rank_runs([run(fast_run, 1, 1.0), run(slow_run, 1, 2.0)], COSTS) == (1, 1)
    assert rank_runs([run(fast_run, 1, 2.0), run(slow_run, 1, 1.0)], COSTS) == (0, 1)


def test_one_odd_run_does_not_decide_between_settings(rivals: tuple[Sample, Sample]) -> None:
    fast_run, slow_run = rivals
    runs = [*(run(fast_run, n, 1.0) for n in (1, 2)), run(fast_run, 3, 9.0), run(slow_run, 1, 2.0)]
    assert rank_runs(runs, COSTS) == (2, 3)
    assert rank_settings(runs, COSTS) == (1, 1)


def test_settings_are_compared_on_one_host(rivals: tuple[Sample, Sample]) -> None:
    """Else the setting whose host was read in a busy moment seems slow."""
    fast_run, slow_run = rivals

    def read_at(sample: Sample, call_seconds: float) -> Sample:
        host = replace(sample.machine.host, python_call_seconds=call_seconds)
        return sample._replace(machine=replace(sample.machine, host=host))

    runs = read_at(run(fast_run, 1, 1.0), 300e-9), read_at(run(slow_run, 1, 2.0), 100e-9)
    readings = [each.machine.host.python_call_seconds for each in as_planned(runs)]
    assert readings == pytest.approx([200e-9, 200e-9])


def test_another_run_of_both_settings_says_an_order_too(rivals: tuple[Sample, Sample]) -> None:
    fast_run, slow_run = rivals
    fast = [run(fast_run, number, seconds) for number, seconds in enumerate((1.0, 1.0, 1.0, 3.0))]
    slow = [run(slow_run, number, 2.0) for number in range(3)]
    measured, predicted = rank_by_other_runs([*fast, *slow], COSTS)
    # The odd run is slower than each of the three, and the others say that it is faster.
    assert measured == predicted == (9, 12)
    assert rank_by_other_runs([run(fast_run, 1, 1.0), run(slow_run, 1, 2.0)], COSTS) == (
        (0, 0),
        (0, 0),
    )


def test_what_differs_much_is_ranked_right() -> None:
    runs, settings = rank_runs(free(), COSTS), rank_settings(free(), COSTS)
    assert settings.pairs > 300
    assert settings.right / settings.pairs > 0.94
    # One setting timed twice differs by 8 % in the median, and by three quarters where the host is busy.
    assert runs.right / runs.pairs > 0.88


# A setting that was timed twice shows how near a prediction can come at all.


@cache
def one() -> Sample:
    return next(each for each in read_samples() if not each.free_running)


def timed(id_: str, seconds: float, **said: object) -> Sample:
    row: Row = {**one().row, **said}
    return one()._replace(id=id_, row=row, measured_seconds=seconds, free_running=True)


def test_only_the_same_setting_is_a_repeat() -> None:
    samples = [
        timed("first", 1.0),
        timed("other", 2.0, micro_batch=64),
        timed("capped", 3.0, memory_cap_bytes=5),
        timed("again", 1.1),
        one(),
    ]
    [repeated] = find_repeats(samples)
    assert ("first", "again") == repeated.ids
    assert round(repeated.spread_fraction, 6) == 0.1


def test_the_spread_of_all_is_said() -> None:
    samples = [timed("a", 1.0), timed("b", 1.2)]
    said = "more than once: 1. Their times differ by 20.0% in the median, by 20.0% at most."
    assert said in describe_repeats(find_repeats(samples))
    assert "No setting was timed twice." == describe_repeats([])


def test_a_run_predicts_others_of_its_lease_and_of_other_leases() -> None:
    samples = [timed(each, took, file=each[0]) for each, took in (("a1", 1.0), ("a2", 1.25))]
    [repeated] = find_repeats([*samples, timed("b1", 2.0, file="b")])
    assert repeated.errors_of_same_lease == pytest.approx([0.25, 0.2])
    # Beside 2.0 stand 1.0 and 1.25, whose median is 1.125.
    assert repeated.errors_of_other_leases == pytest.approx([1.0, 0.6, 0.4375])
    said = describe_repeats([repeated])
    assert (
        "a time from another lease is the prediction, half of 3 predictions are within 60.0%"
        in said
    )
    assert "a time from the same lease is the prediction, half of 2 predictions are within" in said


def test_what_makes_a_setting_is_said_by_every_timed_row() -> None:
    """A key that no row has would make all of them alike."""
    text = (TESTS / "measured" / "2026-11-grid.jsonl").read_text("utf-8")
    row = json.loads(text.splitlines()[0])
    assert set(SETTING) <= row.keys()


# The settings that are timed next: they fit, they are new, and they end in the time there is.

TABLE = read_gpu_table()
BUDGET_SECONDS = 400.0


def machine_of(spec: str) -> tuple[Machine, GpuModel | None]:
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


def test_a_repeat_has_an_engine_of_its_own(chosen: list[Candidate]) -> None:
    machine, rates = machine_of("2xH200")
    cases = with_ids(chosen, "t", 0)
    groups = by_engine([plan_case(case, machine, rates) for case in cases])
    for group in groups:
        again = [str(planned.trial.id).endswith(AGAIN) for planned in group]
        assert len(set(again)) == 1
    assert len(cases) == sum(map(len, groups))


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


# What small kernels move is as much as the step-time model says, in traces of real models.

# One mean stands for all families of a kind; between them the traces differ by so much.
_NEAR = 0.30


@pytest.fixture(scope="module", params=["llama-3.2-1b", "phi-3-mini", "pythia-1.4b", "opt-1.3b"])
def case(request: pytest.FixtureRequest) -> "tuple[str, Traffic]":
    from speed.traffic import count_traffic

    return request.param, count_traffic(request.param)


def test_the_traffic_of_a_block_is_that_of_its_kind(case: "tuple[str, Traffic]") -> None:
    name, traffic = case
    norms_are_fused = name in {"pythia-1.4b", "opt-1.3b"}
    said = IN_FUSED_BLOCKS if norms_are_fused else IN_BLOCKS
    assert_near(traffic.blocks, said)
    # The other kind would be further off.
    other = IN_BLOCKS if norms_are_fused else IN_FUSED_BLOCKS
    assert abs(traffic.blocks.backward - said.backward) < abs(
        traffic.blocks.backward - other.backward
    )


def test_the_operations_of_a_layer_are_those_of_its_parts(case: "tuple[str, Traffic]") -> None:
    name, traffic = case
    model = read_model(name)
    of_all = count_products(model, Workload()).operations
    assert of_all / model.architecture.layers == pytest.approx(traffic.operations, rel=0.2)


def test_the_traffic_at_the_ends_is_that_of_all(case: "tuple[str, Traffic]") -> None:
    assert_near(case[1].ends, AT_ENDS)


def assert_near(found: Moved, said: Moved) -> None:
    assert tuple(found) == pytest.approx(tuple(said), rel=_NEAR)
