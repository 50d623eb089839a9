"""The regret of a choice is worked out from rows, and what is missing for it can be measured."""

import json
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from measured.rows import read_model
from measured.trials import decode_trials
from regret.autotuner import FOUND, Tuned
from regret.autotuner import choose as choose_for
from regret.measure import START_SECONDS, Case, measure
from regret.regret import Regret, regret_of, table
from regret.report import cheapest_first, repeats_of, runs_of
from regret.section import make_regrets
from regret.settings import (
    CHOICE,
    DRAWN,
    FLOWCHART,
    HF_ZERO2,
    HF_ZERO3,
    LEAST,
    NEAR,
    RIVALS,
    TriedSetting,
    choose,
    every_way,
    settings_of,
)
from regret.workloads import CPU, GIB, JOBS, RegretJob, by_setting, read_regret_rows

from zerowiz.app.options import Options
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.workload import Precision

JOB = next(job for job in JOBS if job.id == "llama-1b-24-2xh200")
SETTINGS = settings_of(JOB, JOB.plan_input(read_model(JOB.model)))
CHOSEN, *OTHERS = [setting.id for setting in SETTINGS]


def row(setting: str, seconds: float | None, **said: object) -> dict[str, Any]:
    out = {"ok": seconds is not None, "oom_phase": None if seconds else "first_step"}
    times = [{"rank": 0, "timed_step_seconds": [seconds] * 3}] if seconds else []
    return {"id": f"{JOB.id}/{setting}", "rank_times": times, **out, **said}


def regret(*rows: dict[str, Any]) -> Regret:
    return regret_of(JOB, SETTINGS, by_setting(rows))


def measured(choice: float | None, *others: float | None) -> Regret:
    """The choice, and the other settings in order."""
    took = zip(OTHERS, others, strict=False)
    return regret(row(CHOSEN, choice), *(row(name, seconds) for name, seconds in took))


def test_the_jobs_are_as_many_and_as_different_as_the_figure_claims() -> None:
    assert len(JOBS) >= 12
    assert len(JOBS) == len({job.id for job in JOBS})
    assert {16, 24, 40, 80, None} == {job.card_gib for job in JOBS}
    assert {(gpu, gpus) for gpu in ("H100-80GB", "H200") for gpus in (1, 2)} == {
        (job.gpu, job.gpus) for job in JOBS
    }
    for gpu in ("H100-80GB", "H200"):
        alone = [job for job in JOBS if (job.gpu, job.gpus) == (gpu, 1)]
        assert {16, 24, 40, None} <= {job.card_gib for job in alone}
        assert {True, False} == {job.lora_rank is None for job in alone}
    assert {True, False} == {job.nccl_p2p for job in JOBS if job.gpus > 1}
    assert min(job.tokens for job in JOBS) <= 512
    assert max(job.tokens for job in JOBS) >= 16384
    assert {True, False} == {job.lora_rank is None for job in JOBS}


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.id)
def test_each_job_has_its_choice_its_rivals_and_enough_others(job: RegretJob) -> None:
    plan_input = job.plan_input(read_model(job.model))
    settings = settings_of(job, plan_input)
    roles = [role for setting in settings for role in setting.roles]
    assert [1, 1, 1, 1] == [roles.count(role) for role in (CHOICE, *RIVALS)]
    assert len(settings) >= LEAST
    assert CHOICE in settings[0].roles
    assert settings[0].runs
    batches = {s.trial.workload.tokens * s.trial.workload.accumulation_steps for s in settings}
    assert {job.tokens * job.sequences // job.gpus} == batches


def test_every_setting_within_one_and_a_half_times_the_best_is_measured() -> None:
    plan_input = JOB.plan_input(read_model(JOB.model))
    running = [way for way in every_way(plan_input) if way.evaluated.runs]
    best = min(way.seconds for way in running)
    near = {way.id for way in running if way.seconds <= 1.5 * best}
    assert near == {setting.id for setting in SETTINGS if NEAR in setting.roles}
    drawn = {setting.id for setting in SETTINGS if DRAWN in setting.roles}
    assert 3 <= len(drawn)
    assert not drawn & near
    chosen = choose(plan_input)
    assert chosen is not None
    assert CHOSEN == chosen.id


def test_the_trainers_examples_are_run_as_they_stand() -> None:
    by_role = {role: setting.trial for setting in SETTINGS for role in setting.roles}
    two, three = by_role[HF_ZERO2], by_role[HF_ZERO3]
    assert [(2, "optimizer", 8), (3, "all", 8)] == [
        (trial.stage, trial.offload.value, trial.workload.micro_batch) for trial in (two, three)
    ]
    hidden = read_model(JOB.model).architecture.hidden_size
    assert three.zero_optimization is not None
    assert hidden**2 == three.zero_optimization["reduce_bucket_size"]
    assert by_role[FLOWCHART].workload.micro_batch == 1


def test_regret_is_what_the_choice_takes_longer_than_the_best_measured() -> None:
    assert measured(1.1, 1.0, 2.0, 3.0, 4.0, 5.0).regret == pytest.approx(0.1)
    assert measured(1.0, 1.5, 2.0, 3.0, 4.0, 5.0).regret == 0


def test_too_few_rows_or_no_choice_among_them_are_no_figure() -> None:
    assert measured(1.1, 1.0, 2.0, 3.0, 4.0).regret is None
    without = regret(*(row(name, 1.0) for name in OTHERS))
    assert without.regret is None
    assert CHOSEN == without.missing[0].id


def test_a_choice_that_ran_out_of_memory_is_named_and_has_no_regret() -> None:
    died = measured(None, 1.0, 2.0, 3.0, 4.0, 5.0)
    assert (True, None) == (died.ran_out, died.regret)
    assert f"| `{CHOSEN}` | out of memory |" in table([died])
    assert ": mean" not in table([died])
    said = table([measured(1.1, 1.0, 2.0, 3.0, 4.0, 5.0), died])
    assert "Of 1 workload: mean 10.0 %, worst 10.0 %; 1 choice ran out of memory." in said


def test_a_failure_is_no_answer_and_a_second_run_is_the_spread() -> None:
    failed = regret(row(CHOSEN, None, oom_phase=None))
    assert CHOSEN in [setting.id for setting in failed.missing]
    twice = regret(row(CHOSEN, 1.0), row(f"{CHOSEN}@2", 1.2))
    assert pytest.approx(1.1) == twice.measured[CHOSEN]
    assert pytest.approx(0.2) == twice.spread


def test_rows_of_settings_that_are_no_longer_asked_for_count() -> None:
    rows = [row(CHOSEN, 2.0), row("zero9-mb3", 1.0), *(row(name, 3.0) for name in OTHERS[:4])]
    assert 1.0 == regret(*rows).regret


def test_the_table_says_how_many_times_as_long_a_rivals_step_takes() -> None:
    flowchart = next(setting.id for setting in SETTINGS if FLOWCHART in setting.roles)
    one = regret(row(CHOSEN, 1.0), row(flowchart, 2.5))
    assert "2.50" == one.of_rival(FLOWCHART)
    assert "not measured yet" == one.of_rival(HF_ZERO2)
    assert "Not measured yet.\n" == table([regret()])
    assert "mean 10.0 %, worst 10.0 %" in table([measured(1.1, 1.0, 2.0, 3.0, 4.0, 5.0)])


def test_the_table_says_of_how_many_workloads_every_setting_was_measured() -> None:
    every_one = regret(*(row(setting.id, 1.0) for setting in SETTINGS))
    some = measured(1.1, 1.0, 2.0, 3.0, 4.0, 5.0)
    assert "In 1 of them, we measured every setting" in table([every_one, some])


INF = float("inf")


def names(cases: tuple[Case, ...]) -> list[str]:
    """The settings of them."""
    return [str(case["id"]).partition("/")[2] for case in cases]


def test_a_first_figure_needs_the_choice_and_the_fastest_others() -> None:
    bare = regret()
    first = bare.urgent
    assert CHOSEN == first[0].id
    assert LEAST == len(first)
    swept = [s for s in SETTINGS if not s.is_fresh]
    assert swept[: LEAST - 1] == list(first[1:])
    assert () == measured(1.0, *(1.0 for _ in range(LEAST - 1))).urgent
    assert 0 < bare.first_seconds < bare.cost_seconds


def test_the_choice_and_the_rivals_run_by_themselves_and_all_others_by_few_engines() -> None:
    bare = regret()
    runs = runs_of([bare], INF)
    assert [CHOSEN, f"{CHOSEN}@2"] == names(runs.fresh)[:2]
    rivals = {s.id for s in SETTINGS if set(RIVALS) & {*s.roles}}
    doubted = {s.id for s in SETTINGS if not s.runs}
    assert {CHOSEN, f"{CHOSEN}@2", *rivals, *doubted} == {*names(runs.fresh)}
    assert {s.id for s in SETTINGS if not s.is_fresh} == {*names(runs.swept)}
    trials = decode_trials(json.loads(json.dumps([*runs.fresh, *runs.swept])))
    assert all(0 < (trial.memory_cap_bytes or 0) < 24 * GIB for trial in trials)


def test_a_choice_and_what_seemed_faster_run_side_by_side_until_each_ran_three_times() -> None:
    settings = [setting for setting in SETTINGS if setting.runs][1:4]
    faster = [setting.id for setting in settings]
    each = regret(row(CHOSEN, 1.0), *(row(name, 0.9 + n / 100) for n, name in enumerate(faster)))
    repeated = [CHOSEN, *faster[:2]]
    assert [f"{name}@{n}" for n in (2, 3) for name in repeated] == names(
        repeats_of([each], 1e6).fresh
    )
    assert len(repeats_of([each], 1e6, runs=6).fresh) == 5 * len(repeated)
    assert not repeats_of([regret(row(CHOSEN, 0.5), row(faster[0], 0.9))], 1e6).fresh
    assert not repeats_of([each], 0.0).fresh


def test_no_choice_costs_more_than_documented() -> None:
    known = [each for each in make_regrets() if each.regret is not None]
    # The page says of the largest that it is less than the spread, of one what it costs, and of all
    # others the limit.
    large = {each.job.id: each for each in known if (each.regret or 0) > 0.10}
    assert {"gemma-2b-80-h100", "qwen-32b-lora-80-2xh100"} == large.keys()
    largest = max(large.values(), key=lambda each: each.regret or 0)
    assert (largest.regret or 0) < (largest.spread or 0)
    assert not any(each.ran_out for each in known)


def test_what_is_run_ends_in_the_time_there_is() -> None:
    bare = regret()
    some = runs_of([bare], bare.first_seconds + 0.01)
    assert {s.id for s in bare.urgent} == {*names(some.fresh), *names(some.swept)}
    none = runs_of([bare], 1.0)
    assert ((), ()) == (none.fresh, none.swept)


@pytest.mark.parametrize("gpu", ["H100-80GB", "H200"])
def test_the_jobs_of_one_gpu_have_first_figures_in_half_an_hour(gpu: str) -> None:
    jobs = [job for job in JOBS if (job.gpu, job.gpus) == (gpu, 1)]
    regrets = [
        regret_of(job, settings_of(job, job.plan_input(read_model(job.model))), {}) for job in jobs
    ]
    assert len(jobs) >= 12
    assert sum(each.first_seconds for each in regrets) + START_SECONDS < 1800


def test_the_cheapest_figure_comes_first() -> None:
    done = measured(1.0, *(1.0 for _ in OTHERS))
    assert [JOB] == [each.job for each in cheapest_first([done, regret()])]


TINY = RegretJob(
    id="tiny",
    model="../../templates/model",
    gpu=CPU,
    gpus=2,
    sequences=4,
    tokens=32,
    precision=Precision.FP32,
)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.deepspeed
def test_the_whole_way_on_two_cpu_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the settings of a job to rows, and from the rows to a figure."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plan_input = TINY.plan_input(read_model(TINY.model))
    settings = tuple(s for s in settings_of(TINY, plan_input) if not is_offloaded(s))
    bare = regret_of(TINY, settings, {})
    runs = runs_of([bare], float("inf"))
    assert len(runs.swept) > 1
    out = tmp_path / "rows.jsonl"
    options = Options(accelerator=Accelerator.CPU, gpus_per_node=TINY.gpus)

    # It forks, and sets the environment: as a program of its own.
    process = get_context("spawn").Process(
        target=measure, args=(runs, out, time.time() + 280, options)
    )
    process.start()
    process.join()
    assert 0 == process.exitcode

    rows = read_regret_rows(tmp_path)
    assert {case["id"] for case in runs.swept} == {r["id"] for r in rows if r["peak_bytes"] is None}
    found = regret_of(TINY, settings, by_setting(read_regret_rows(tmp_path)))
    assert () == found.missing
    assert found.choice is not None
    assert found.spread is not None
    assert found.best is not None
    assert (found.regret is None) == (len(settings) < LEAST)
    assert f"`{found.choice.id}`" in table([found])


def is_offloaded(setting: TriedSetting) -> bool:
    """What needs an op that takes a minute to compile."""
    return setting.trial.offload != "none"


@pytest.mark.parametrize("found", FOUND, ids=[found.model for found in FOUND])
def test_zerowiz_chooses_what_deepspeeds_autotuner_found(found: Tuned) -> None:
    chosen = choose_for(found)
    assert chosen.strategy == found.strategy
    assert chosen.samples_per_s == pytest.approx(found.samples_per_s, rel=0.25)
