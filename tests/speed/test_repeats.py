"""A setting that was timed twice shows how near a prediction can come at all."""

import json

import pytest
from measured.rows import Row
from paths import TESTS
from speed.repeats import SETTING, describe_repeats, find_repeats
from speed.samples import Sample, read_samples

ONE = next(each for each in read_samples() if not each.free_running)


def timed(id_: str, seconds: float, **said: object) -> Sample:
    row: Row = {**ONE.row, **said}
    return ONE._replace(id=id_, row=row, measured_seconds=seconds, free_running=True)


def test_only_the_same_setting_is_a_repeat() -> None:
    samples = [
        timed("first", 1.0),
        timed("other", 2.0, micro_batch=64),
        timed("capped", 3.0, memory_cap_bytes=5),
        timed("again", 1.1),
        ONE,
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
