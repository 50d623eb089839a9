"""The table of settings that are measured together, and the runs that it asks for."""

from collections import Counter

import pytest
from accuracy.grid import (
    IMPOSSIBLE,
    MODELS,
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
from measured.rows import family_of, read_every_row

from zerowiz.core.trial import decode_trials

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
        assert MODELS[family] == trial.model


def test_every_run_that_trained_is_a_point() -> None:
    rows = [row for row in read_every_row() if is_measured(row)]
    assert len(rows) == len(measured_points(rows)) > 400
    assert [] == [row["id"] for row in rows if "strategy" not in point_of(row)]


def test_no_impossible_pair_was_measured() -> None:
    had = {pair for point in measured_points(read_every_row()) for pair in pairs_of(point)}
    assert set() == had & set(IMPOSSIBLE)
