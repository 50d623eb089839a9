"""A setting that was timed twice shows how near a prediction can come at all."""

import json

from measured.rows import Row
from paths import TESTS
from speed.repeats import _SETTING, describe_repeats, find_repeats
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
    assert describe_repeats(find_repeats(samples)).endswith(said)
    assert "No setting was timed twice." == describe_repeats([])


def test_what_makes_a_setting_is_said_by_every_timed_row() -> None:
    """A key that no row has would make all of them alike."""
    text = (TESTS / "measured" / "2026-11-grid.jsonl").read_text("utf-8")
    row = json.loads(text.splitlines()[0])
    assert set(_SETTING) <= row.keys()
