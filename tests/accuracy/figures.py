"""Keep the committed figures, and say where today's are worse."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from accuracy.records import Record, decode_record, encode_record, errors_of, group

FIGURES = Path(__file__).with_name("figures.json")
PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
README = Path(__file__).parents[2] / "README.md"

# A hundredth of a percentage point: what the page rounds to.
ROUNDING = 0.0001


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
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


def worse(now: Sequence[Record], committed: Sequence[Record]) -> list[str]:
    """One line for each figure of zerowiz that got worse, on the runs that both compare."""
    sides = ({r.key for r in records if r.compared} for records in (now, committed))
    keys = set.intersection(*sides)
    before = group([record for record in committed if record.key in keys])
    lines = _unlike(now, committed)
    for key, members in group([record for record in now if record.key in keys]).items():
        ours, theirs = errors_of(members, "zerowiz"), errors_of(before.get(key, ()), "zerowiz")
        if ours is None or theirs is None:
            continue
        for figure, is_, was in (
            ("mean", ours.mean, theirs.mean),
            ("worst", abs(ours.worst), abs(theirs.worst)),
        ):
            if is_ > was + ROUNDING:
                where = " ".join(dict.fromkeys(key))
                lines.append(f"{where}: {figure} error {100 * is_:.2f} %, was {100 * was:.2f} %")
    return lines


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
