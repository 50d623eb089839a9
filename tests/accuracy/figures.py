"""Keep the committed figures, and say where today's are worse."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from accuracy.records import (
    Errors,
    Record,
    decode_record,
    encode_record,
    errors_by_kind,
    errors_by_part,
    errors_of,
    group,
)
from msgspec import Struct

from zerowiz.core.structs import replace

FIGURES = Path(__file__).with_name("figures.json")
PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
MEASURED_PAIRS = Path(__file__).parents[2] / "zerowiz" / "data" / "measured_pairs.json"
README = Path(__file__).parents[2] / "README.md"

# A hundredth of a percentage point: what the page rounds to.
ROUNDING = 0.0001


class Figures(Struct, frozen=True, kw_only=True):
    """What is committed."""

    versions: Mapping[str, str]
    """Of the rivals."""
    records: tuple[Record, ...]


def read_figures() -> Figures:
    """The committed figures."""
    values = json.loads(FIGURES.read_text(encoding="utf-8"))
    return Figures(
        versions=values["versions"], records=tuple(decode_record(each) for each in values["runs"])
    )


def encode_figures(figures: Figures) -> str:
    """One run a line, so that a diff shows the runs that moved."""
    runs = ",\n".join(json.dumps(encode_record(record)) for record in figures.records)
    return f'{{"versions": {json.dumps(dict(figures.versions))}, "runs": [\n{runs}\n]}}\n'


def _unlike(now: Sequence[Record], committed: Sequence[Record]) -> list[str]:
    """Runs that came or went, that are no longer compared, or whose verdict has become wrong."""
    before, after = ({r.key: r for r in records} for records in (committed, now))
    came = Counter(file for file, _ in after.keys() - before.keys())
    went = Counter(file for file, _ in before.keys() - after.keys())
    both = [(before[key], after[key]) for key in before if key in after]
    return [
        *(f"{file}: {count} runs have no committed figure" for file, count in came.items()),
        *(f"{file}: {count} runs are gone" for file, count in went.items()),
        *(
            f"run {is_.id} is no longer compared: {is_.unpredicted}"
            for was, is_ in both
            if was.compared and not is_.compared
        ),
        *(
            f"run {is_.id} is said to be `{is_.verdict}`, and it {is_.outcome}"
            for was, is_ in both
            if is_.misjudged and not was.misjudged
        ),
    ]


def _with_parts_of(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """The records, each with those parts alone that its namesake has too."""
    named = {record.key: record.parts for record in others}
    return [
        replace(r, parts={name: r.parts[name] for name in r.parts if name in named[r.key]})
        for r in records
    ]


def _errors(records: Sequence[Record], others: Sequence[Record]) -> dict[tuple[str, ...], Errors]:
    """Those of the peaks by group, and those of each phase and of host memory."""
    errors: dict[tuple[str, ...], Errors] = {}
    for key, members in group(records).items():
        peaks = errors_of(members, "zerowiz")
        errors |= {key: peaks} if peaks else {}
    shared = _with_parts_of(records, others)
    return errors | dict(errors_by_part(shared)) | dict(errors_by_kind(shared))


def _grown(ours: Errors, theirs: Errors) -> Iterator[str]:
    for figure, is_, was in (
        ("mean", ours.mean, theirs.mean),
        ("worst", abs(ours.worst), abs(theirs.worst)),
    ):
        if is_ > was + ROUNDING:
            yield f"{figure} error {100 * is_:.2f} %, was {100 * was:.2f} %"


def worse(now: Sequence[Record], committed: Sequence[Record]) -> list[str]:
    """One line for each figure of zerowiz that got worse, on the runs that both compare."""
    sides = ({r.key for r in records if r.compared} for records in (now, committed))
    keys = set.intersection(*sides)
    after, before = ([r for r in records if r.key in keys] for records in (now, committed))
    ours, theirs = _errors(after, before), _errors(before, after)
    return _unlike(now, committed) + [
        f"{' '.join(dict.fromkeys(key))}: {grown}"
        for key in ours
        if key in theirs
        for grown in _grown(ours[key], theirs[key])
    ]


def take_rivals(now: Sequence[Record], committed: Sequence[Record]) -> tuple[Record, ...]:
    """Today's records with the rivals' committed figures."""
    before = {record.key: record for record in committed}
    return tuple(
        replace(
            record,
            deepspeed_bytes=before[record.key].deepspeed_bytes,
            accelerate_bytes=before[record.key].accelerate_bytes,
        )
        if record.key in before
        else record
        for record in now
    )
