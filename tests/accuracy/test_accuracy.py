"""The published errors: no worse than committed, of every run, and on the page as they are."""

import json
from collections import Counter
from functools import cache

import pytest
from accuracy.figures import PAGE, README, read_figures, take_rivals, worse
from accuracy.grid import (
    IMPOSSIBLE,
    SETTINGS,
    Point,
    all_pairs,
    case_of,
    cover,
    is_measured,
    measured_points,
    missing_pairs,
    pairs_of,
    point_of,
)
from accuracy.grid import MODELS as GRID_MODELS
from accuracy.outcomes import Outcome, outcome_of
from accuracy.page import (
    by_kind,
    headline,
    holes,
    host,
    phases,
    render,
    strangers,
    two_ways,
    unpredicted,
    verdicts,
    with_headline,
)
from accuracy.records import (
    APART,
    HOST,
    KEPT_TOGETHER,
    KINDS,
    PEAKS,
    TOGETHER,
    Record,
    decode_record,
    difference_of,
    encode_record,
    error_of,
    errors_by_kind,
    errors_by_part,
    errors_of,
    group,
    make_records,
)
from accuracy.split import (
    BEFORE_GPT_NEOX_WAS_DEALT,
    FAMILIES_SET_ASIDE,
    FILES,
    Row,
    Split,
    deal,
    split_of,
)
from measured.rows import (
    family_of,
    read_every_row,
)
from measured.traces import RUNS, TRACES, encode_traces, read_traces, take_trace, trace_of
from measured.trials import PHASES, decode_trials
from paths import TESTS

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy_types import Offload
from zerowiz.core.structs import encode, replace

COMMITTED = read_figures()


@cache
def now() -> tuple[Record, ...]:
    """What is predicted of every run."""
    return make_records()


def a_row(**values: object) -> Row:
    row = {
        "file": "new.jsonl",
        "id": "a",
        "model": "llama-3.2-1b",
        "micro_batch": 1,
        "sequence_tokens": 2048,
        "precision": "bf16",
        "gradient_checkpointing": False,
        "attention": "sdpa",
        "stage": 2,
        "gpus": 4,
        "ok": True,
        "oom_phase": None,
        "memory_cap_bytes": None,
        "allocator_retries": 0,
        "step_seconds": [9.0, 3.0, 1.0],
    }
    return {**row, **values}


def test_no_figure_is_worse_than_the_committed_one() -> None:
    assert [] == worse(now(), COMMITTED.records)


@pytest.mark.slow
def test_the_page_is_what_the_committed_figures_say() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert render(COMMITTED.records, COMMITTED.versions) == page


def test_the_table_of_the_readme_is_what_the_committed_figures_say() -> None:
    readme = README.read_text(encoding="utf-8")
    assert headline(COMMITTED.records) in readme
    assert with_headline(readme, COMMITTED.records) == readme


def test_every_measured_run_is_compared_or_says_why_not() -> None:
    assert [(row["file"], row["id"]) for row in read_every_row()] == [r.key for r in now()]
    silent = [
        r
        for r in now()
        if not r.compared and not r.capped and not r.unpredicted and r.outcome != Outcome.DIED
    ]
    assert [] == silent


def test_no_two_runs_have_one_name() -> None:
    assert len(now()) == len({record.key for record in now()})


@pytest.mark.parametrize("by", ["all", "strategy", "family"])
def test_the_groups_of_a_kind_hold_every_compared_run_once(by: str) -> None:
    grouped = [r.key for (_, kind, _), some in group(now()).items() if kind == by for r in some]
    assert sorted(r.key for r in now() if r.compared) == sorted(grouped)


def test_an_error_is_signed_and_the_worst_keeps_its_sign() -> None:
    one = next(record for record in now() if record.compared)
    low, high = (replace(one, measured_bytes=100, predicted_bytes=size) for size in (90, 105))
    errors = errors_of((low, high), "zerowiz")
    assert errors is not None
    assert 0.075 == pytest.approx(errors.mean)
    assert -0.1 == pytest.approx(errors.worst)


def scaled(record: Record, factor: float) -> Record:
    """The record with its prediction moved."""
    assert record.predicted_bytes is not None
    return replace(record, predicted_bytes=int(record.predicted_bytes * factor))


def test_every_phase_and_every_offload_strategy_has_an_error_on_both_sides() -> None:
    errors = errors_by_part(now())
    assert {(split.value, name) for split in Split for name in (*PHASES, HOST)} == set(errors)
    measured = {strategy for strategy in STRATEGIES if strategy.measured}
    offloaded = {strategy.name for strategy in measured if strategy.offload is not Offload.NONE}
    assert offloaded == {record.strategy for record in now() if HOST in record.parts}


def test_a_strategy_is_measured_if_a_run_of_it_is_compared() -> None:
    compared = {record.strategy for record in now() if record.compared}
    assert compared & {strategy.name for strategy in STRATEGIES} == {
        strategy.name for strategy in STRATEGIES if strategy.measured
    }


def test_figures_come_back_as_they_were_written() -> None:
    written = json.loads(json.dumps([encode_record(record) for record in now()]))
    assert list(now()) == [decode_record(values) for values in written]


def test_a_worse_prediction_is_named_by_its_group() -> None:
    """Every group that the run is in, by its mean, its worst, or both."""
    one = next(r for r in now() if r.compared and r.strategy == "zero3" and r.family == "qwen3")
    moved = [scaled(r, 1.5) if r is one else r for r in now()]
    lines = worse(moved, now())
    assert [True] * len(lines) == [line.startswith("fitted ") for line in lines]
    named = {line.partition(":")[0] for line in lines}
    kinds = {f"fitted {kind} rank 0" for kind, holds in KINDS.items() if holds(one)}
    assert {"fitted all", "fitted strategy zero3", "fitted family qwen3", *kinds} == named


def test_a_worse_rank_is_named_though_rank_0_is_as_it_was() -> None:
    one = next(r for r in now() if r.compared and r.others_bytes and r.split == "fitted")
    moved = replace(one, others_predicted_bytes=tuple(3 * size for size in one.others_bytes))
    lines = worse([moved if r is one else r for r in now()], now())
    assert {f"fitted {kind} other ranks" for kind, holds in KINDS.items() if holds(one)} == {
        line.partition(":")[0] for line in lines
    }


@pytest.mark.parametrize("name", ["first_step", "host"])
def test_a_worse_phase_or_host_memory_is_named_by_itself(name: str) -> None:
    one = next(r for r in now() if r.compared and name in r.parts and r.split == "fitted")
    parts = {**one.parts, name: (3 * one.parts[name][1], one.parts[name][1])}
    lines = worse([replace(r, parts=parts) if r is one else r for r in now()], now())
    named = {line.partition(":")[0] for line in lines}
    assert {f"fitted {name}"} == {each for each in named if not each.endswith("first iteration")}
    assert (name == "first_step") is ("fitted all first iteration" in named)


def test_a_phase_that_only_one_side_knows_blames_nobody() -> None:
    bare = [replace(record, parts={}) for record in now()]
    assert [] == worse(now(), bare)
    assert [] == worse(bare, now())


def test_a_change_within_the_rounding_is_not_worse() -> None:
    assert [] == worse([scaled(r, 1.00005) if r.compared else r for r in now()], now())


def test_a_better_prediction_is_not_worse() -> None:
    exact = [replace(r, predicted_bytes=r.measured_bytes) if r.compared else r for r in now()]
    assert [] == worse(exact, now())


def test_a_run_that_is_no_longer_compared_is_worse() -> None:
    one = next(record for record in now() if record.compared)
    silenced = replace(one, predicted_bytes=None, unpredicted="why not")
    lines = worse([silenced if r is one else r for r in now()], now())
    assert [f"run {one.id} is no longer compared: why not"] == lines


def test_a_verdict_that_became_wrong_is_worse() -> None:
    one = next(r for r in now() if (r.verdict, r.outcome) == ("does_not_fit", "ran out of memory"))
    lines = worse([replace(r, verdict="fits") if r is one else r for r in now()], now())
    assert [f"run {one.id} is said to be `fits`, and it ran out of memory"] == lines


def test_runs_that_came_or_went_are_said_and_blame_no_group() -> None:
    worst = max((r for r in now() if r.compared), key=lambda r: abs(error_of(r, "zerowiz") or 0))
    rest = [record for record in now() if record is not worst]
    assert [f"{worst.file}: 1 runs are gone"] == worse(rest, now())
    assert [f"{worst.file}: 1 runs have no committed figure"] == worse(now(), rest)


@pytest.mark.slow
def test_the_page_shows_every_run_and_every_verdict() -> None:
    page = render(now(), COMMITTED.versions)
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert [] == [r.id for r in now() if not any(line.startswith(f"| {r.id} |") for line in rows)]
    assert unpredicted(now()) in page
    assert phases(now()) in page
    assert host(now()) in page
    assert verdicts(now()) in page
    assert strangers(now()) in page
    assert two_ways(now()) in page
    assert by_kind(now()) in page
    assert holes(now()) in page


def test_every_kind_of_run_is_published_on_both_sides_and_of_every_rank() -> None:
    errors = errors_by_kind(now())
    sides = {(split, kind) for split, kind, _ in errors}
    launched = "started by `zerowiz launch`"
    assert {(s.value, kind) for s in Split for kind in KINDS} - {("fitted", launched)} == sides
    of_all = {peak: errors[("set aside", "all", peak)] for peak in PEAKS}
    compared = [r for r in now() if r.compared and r.split == "set aside"]
    assert len(compared) == len(of_all["rank 0"].each)
    assert sum(len(r.others_bytes) for r in compared) == len(of_all["other ranks"].each)


def test_the_page_names_every_hole_and_why_some_pairs_are_none() -> None:
    said = holes(now())
    for one, other in missing_pairs([record.point for record in now()]):
        assert f"| {one[0]} {one[1]} | {other[0]} {other[1]} |" in said
    assert [] == [why for why in IMPOSSIBLE.values() if why not in said]


@cache
def guessed() -> list[Record]:
    """The records of models that no family describes."""
    return [record for record in now() if record.guessed_bytes is not None]


def test_an_architecture_without_formulas_is_predicted_by_its_trace() -> None:
    """Within 0.5 %, as one with formulas; the guess beside it is anybody's and counts nowhere."""
    assert 4 == len({record.family for record in guessed()})
    assert set() == {record.family for record in guessed()} & set(FAMILIES)
    assert [r.traced_bytes for r in guessed()] == [r.predicted_bytes for r in guessed()]
    off = {r.id: error_of(r, "zerowiz") for r in guessed()}
    assert {} == {run: error for run, error in off.items() if error is None or abs(error) > 0.005}


def test_every_config_without_formulas_was_measured() -> None:
    folders = {path.name for path in (TESTS / "strangers").iterdir() if path.is_dir()}
    assert folders == {record.model for record in guessed()}


def test_formulas_and_traces_agree() -> None:
    """Of every family that was measured; no wider band is twice as wide as it must be."""
    off: dict[str, float] = {}
    for record in now():
        difference = difference_of(record)
        if difference is not None:
            family = str(record.family)
            off[family] = max(abs(difference.of_peak), off.get(family, 0))
    assert {r.family for r in now() if r.compared} - {r.family for r in guessed()} == set(off)
    assert {} == {name: size for name, size in off.items() if size > APART.get(name, TOGETHER)}
    assert {} == {name: band for name, band in APART.items() if off[name] < band / 2}


def test_formulas_and_traces_agree_on_what_forward_keeps() -> None:
    off = {r.id: difference.of_kept for r in now() if (difference := difference_of(r)) is not None}
    assert {} == {run: part for run, part in off.items() if abs(part) > KEPT_TOGETHER}


def test_the_traces_are_those_that_are_listed() -> None:
    listed = {run: version for version, runs in RUNS.items() for run in runs}
    assert listed == {run: committed.transformers for run, committed in read_traces().items()}
    assert encode_traces(read_traces()) == TRACES.read_text(encoding="utf-8")


def test_a_run_of_an_architecture_without_formulas_has_a_trace_of_its_own() -> None:
    unknown = [row for row in read_every_row() if family_of(row) is None]
    assert [] == [row["id"] for row in unknown if trace_of(row) is None]


@pytest.mark.slow
@pytest.mark.parametrize("run", ["i1-063", "i1-065", "i1-068", "i1-070", "f2-007", "i1-032"])
def test_a_fresh_trace_is_the_committed_one(run: str) -> None:
    """Where transformers runs a model otherwise, `python tests/measured/traces.py` shows by a diff."""
    pytest.importorskip("transformers")
    row = next(row for row in read_every_row() if row["id"] == run)
    assert encode(read_traces()[run].traced) == encode(take_trace(row))


def test_rivals_have_figures_where_they_can() -> None:
    """DeepSpeed for ZeRO-2 and ZeRO-3 alone; accelerate for every strategy."""
    records = take_rivals(now(), COMMITTED.records)
    with_deepspeed = {r.strategy for r in records if error_of(r, "DeepSpeed") is not None}
    with_accelerate = {r.strategy for r in records if error_of(r, "accelerate") is not None}
    assert {"zero2", "zero3", "zero2-offload"} <= with_deepspeed
    assert set() == with_deepspeed & {"ddp", "zero1", "model alone"}
    assert {"ddp", "zero1", "zero2", "zero3"} <= with_accelerate
    assert "model alone" not in with_accelerate


def test_what_was_seen_before_the_split_is_not_dealt_out() -> None:
    assert {"h200.jsonl": Split.FITTED, "launches.jsonl": Split.SET_ASIDE} == FILES
    seen_before = [row for row in read_every_row() if row["file"] in FILES]
    assert {*FILES.items()} == {(row["file"], split_of(row, "olmo2")) for row in seen_before}


def test_a_third_of_new_runs_is_set_aside() -> None:
    shapes = [
        a_row(micro_batch=m, sequence_tokens=s, stage=z, gpus=g)
        for m in (1, 2, 4, 8, 16)
        for s in (512, 1024, 2048, 4096, 8192)
        for z in (0, 1, 2, 3)
        for g in (1, 2, 4)
    ]
    aside = sum(split_of(row, "llama") is Split.SET_ASIDE for row in shapes)
    assert 1 / 3 == pytest.approx(aside / len(shapes), abs=0.08)


def test_the_split_is_a_fact_and_not_a_matter_of_the_day() -> None:
    dealt = [deal(a_row(sequence_tokens=tokens)) for tokens in (2048, 8192, 16384, 32768)]
    assert [Split.FITTED] * 2 + [Split.SET_ASIDE] * 2 == dealt


@pytest.mark.parametrize(
    "values", [{"id": "b"}, {"optimizer": "torch SGD"}, {"memory_cap_bytes": 1}, {"peak_bytes": 1}]
)
def test_repeats_of_a_model_and_workload_land_on_one_side(values: dict[str, object]) -> None:
    rows = [a_row(sequence_tokens=2**power) for power in range(6, 16)]
    assert [deal(row) for row in rows] == [deal({**row, **values}) for row in rows]


def test_two_families_that_zerowiz_knows_were_wholly_set_aside_and_one_still_is() -> None:
    assert 2 == len(FAMILIES_SET_ASIDE & set(FAMILIES))
    rows = [a_row(sequence_tokens=2**power) for power in range(6, 16)]
    before = [{**row, "file": file} for row in rows for file in BEFORE_GPT_NEOX_WAS_DEALT]
    sides = {split_of(row, family) for row in before for family in FAMILIES_SET_ASIDE}
    assert {Split.SET_ASIDE} == sides
    assert {Split.SET_ASIDE} == {split_of(row, "olmo2") for row in rows}
    assert [deal(row) for row in rows] == [split_of(row, "gpt_neox") for row in rows]


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ({}, Outcome.RAN),
        ({"ok": False, "oom_phase": "step"}, Outcome.DIED),
        ({"ok": False}, None),
        ({"allocator_retries": 2, "step_seconds": [9.0, 3.0, 1.04]}, Outcome.RAN),
        ({"allocator_retries": 2, "step_seconds": [9.0, 3.0, 1.06]}, Outcome.SLOW),
        ({"allocator_retries": 2, "model": "another"}, Outcome.SLOW),
    ],
)
def test_a_run_is_as_slow_as_its_uncapped_twin_says(
    values: dict[str, object], outcome: Outcome | None
) -> None:
    row = a_row(memory_cap_bytes=10**9, **values)
    assert outcome is outcome_of(row, (a_row(), row))


def test_what_surely_runs_never_ran_out_of_memory() -> None:
    sure = {Verdict.FITS.value, Verdict.TIGHT.value}
    died = [r for r in now() if r.outcome == Outcome.DIED.value]
    assert len(died) > 20
    assert [] == [r.id for r in died if r.verdict in sure]


def test_hardly_any_run_that_lived_was_said_not_to_fit() -> None:
    lived = [r for r in now() if r.verdict and r.outcome and r.outcome != Outcome.DIED.value]
    refused = [r.id for r in lived if r.verdict == Verdict.DOES_NOT_FIT.value]
    assert len(refused) <= 0.03 * len(lived)


def test_on_a_whole_gpu_hardly_any_run_is_uncertain() -> None:
    """Caps are set near the peaks; what people run has room, or has not."""
    free = [r for r in now() if r.verdict and r.outcome and not r.capped]
    uncertain = [r.id for r in free if r.verdict == Verdict.UNCERTAIN.value]
    assert len(uncertain) <= 0.02 * len(free)


# The table of settings that are measured together, and the runs that it asks for.

NOWHERE: Point = {}


@pytest.mark.slow
def test_runs_cover_every_possible_pair_and_no_impossible_one() -> None:
    points = list(cover(missing_pairs([]), [], NOWHERE))
    had = {pair for point in points for pair in pairs_of(point)}
    assert had == {pair for pair in all_pairs() if pair not in IMPOSSIBLE}


@pytest.mark.slow
def test_far_fewer_runs_than_all_combinations() -> None:
    """No fewer than pairs of the two longest settings; not many more."""
    points = list(cover(missing_pairs([]), [], NOWHERE))
    longest = len(SETTINGS["family"]) * len(SETTINGS["strategy"])
    assert longest <= len(points) <= 1.2 * longest


@pytest.mark.slow
def test_the_same_runs_are_asked_for_each_time() -> None:
    first, second = (list(cover(missing_pairs([]), [], NOWHERE)) for _ in range(2))
    assert first == second


def test_a_wanted_run_is_made_and_what_it_leaves_open_is_chosen() -> None:
    wanted = {"family": "opt", "strategy": "zero3", "method": "lora"}
    first = next(cover(missing_pairs([]), [wanted], NOWHERE))
    assert wanted.items() <= first.items()
    assert set(SETTINGS) == set(first)


@pytest.mark.slow
def test_a_measured_pair_is_not_asked_for_again() -> None:
    points = list(cover(missing_pairs([]), [], NOWHERE))
    assert Counter() == missing_pairs(points)
    assert [] == list(cover(missing_pairs(points), [], NOWHERE))


@pytest.mark.parametrize("family", SETTINGS["family"])
def test_a_run_comes_back_as_the_values_it_was_made_of(family: str) -> None:
    for point in cover(missing_pairs([]), [], {"family": family}):
        case = case_of(point, "a", 3)
        assert point == point_of(case)
        assert family == family_of(case)
        (trial,) = decode_trials([case])
        assert GRID_MODELS[family] == trial.model


def test_every_run_that_trained_is_a_point() -> None:
    rows = [row for row in read_every_row() if is_measured(row)]
    assert len(rows) == len(measured_points(rows)) > 400
    assert [] == [row["id"] for row in rows if "strategy" not in point_of(row)]


def test_no_impossible_pair_was_measured() -> None:
    had = {pair for point in measured_points(read_every_row()) for pair in pairs_of(point)}
    assert set() == had & set(IMPOSSIBLE)
