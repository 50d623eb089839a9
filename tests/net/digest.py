"""A plan's JSON short enough to keep and to read: key figures whole, the rest as digests of its parts.

Nothing is left out of a digest, so any difference shows; which one it is, the whole JSON tells.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDE = 240
# Digits that another machine's libm computes alike.
DIGITS = 10
RELEASE = "zerowiz_version"


def shorten(plan: Mapping[str, Any]) -> dict[str, Any]:
    """A plan, a comparison of plans, or the machines that a job fits."""
    short = {
        key: _SHORTENED[key](part) if key in _SHORTENED else _fold(part)
        for key, part in plan.items()
        if part not in (None, [], {}) and key != RELEASE
    }
    return {key: part for key, part in short.items() if part not in (None, [], {})}


def digest(value: object) -> str:
    """A value's fingerprint."""
    text = json.dumps(_round(value), sort_keys=True)
    return "#" + hashlib.sha256(text.encode()).hexdigest()[:8]


def beyond(other: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """Of another plan what differs from the first; null for what it lacks."""
    found: dict[str, Any] = {}
    for key in dict.fromkeys([*first, *other]):
        old, new = first.get(key), other.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            if inner := beyond(new, old):
                found[key] = inner
        elif old != new:
            found[key] = new
    return found


def _strategies(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {row["name"]: _strategy(row) for row in rows}


def _strategy(row: Mapping[str, Any]) -> dict[str, Any]:
    rest = dict(row)
    gpu, host = rest.pop("gpu", None) or {}, rest.pop("host", None) or {}
    figures = {
        "verdict": rest.pop("verdict", None),
        "peak_bytes": gpu.get("peak_bytes"),
        "device_bytes": gpu.get("device_bytes"),
        "host_bytes": host.get("peak_bytes"),
        "step_seconds": rest.pop("step_seconds", None),
    }
    digests = {
        "gpu": digest(gpu),
        "ledger": digest(gpu.get("lines")),
        "host": digest(host),
        "time": digest([rest.pop(key, None) for key in ("step_seconds_interval", "step_terms")]),
        "rest": digest(rest),
    }
    present = {k: v for k, v in figures.items() if v is not None}
    return {**_rounded(present), **digests}


def _named(key: str, *figures: str) -> Any:
    """Rows by their name, with these figures of each."""

    def shorten_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            row[key]: _round({**{name: row.get(name) for name in figures}, "all": digest(row)})
            for row in rows
        }

    return shorten_rows


def _machine(machine: Mapping[str, Any]) -> dict[str, Any]:
    first, *others = [{**gpu, "index": None, "uuid": None} for gpu in machine["gpus"]]
    alike = all(gpu == first for gpu in others)
    return {
        "gpus": f"{len(machine['gpus'])} x {first['name']}" + ("" if alike else ", not alike"),
        "interconnect": machine["interconnect"]["class"],
        "nodes": machine["nodes"],
        "all": digest({**machine, "gpus": [dict(gpu, uuid=None) for gpu in machine["gpus"]]}),
    }


def _present(part: Mapping[str, Any]) -> dict[str, Any]:
    return _rounded({key: value for key, value in part.items() if value is not None})


def _remedies(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    figures = ("change", "strategy", "verdict", "device_bytes", "step_seconds")
    return [_round({**{k: row.get(k) for k in figures}, "all": digest(row)}) for row in rows]


def _candidates(part: Mapping[str, Any]) -> dict[str, Any]:
    return {**_present(part), "pareto": [row["strategy"] for row in part["pareto"]],
            "clearly_faster": (part.get("clearly_faster") or {}).get("strategy"),
            "all": digest(part)}  # fmt: skip


def _fold(part: Any) -> Any:
    """A part as it is, or its digest where it is long."""
    return _round(part) if len(json.dumps(part)) <= 2 * WIDE else digest(part)


_SHORTENED = {
    "machine": _machine,
    "workload": _present,
    "strategies": _strategies,
    "choice": _present,
    "candidates": _candidates,
    "remedies": _remedies,
    "reasons": list,
    "settled": list,
    "command": list,
    "env": dict,
    "machines": _named("machine", "strategy", "verdict", "device_bytes", "step_seconds"),
    "plans": lambda plans: [shorten(plan) for plan in plans],
}


def _rounded(part: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _round(value) for key, value in part.items()}


def _round(value: Any) -> Any:
    """The value with floats of fewer digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return _rounded(value)
    if isinstance(value, list | tuple):
        return [_round(part) for part in value]
    return value


def render(value: Any, indent: str = "") -> str:
    """JSON in which what is short stands on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + len(indent) <= WIDE or not isinstance(value, dict | list) or not value:
        return flat
    inner = indent + " "
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(key, ensure_ascii=False)}: {render(part, inner)}"
            for key, part in value.items()
        ]
    else:
        parts = [render(part, inner) for part in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    joined = f",\n{inner}".join(parts)
    return f"{first}\n{inner}{joined}\n{indent}{last}"


def differences(old: Any, new: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Each difference: the names that lead to it, then what was and what is there."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            yield from differences(old.get(key), new.get(key), (*path, key))
    elif isinstance(old, list) and isinstance(new, list):
        yield from _list_differences(old, new, path)
    elif old != new:
        yield (*path, _flat(old), _flat(new))


def _list_differences(
    old: list[Any], new: list[Any], path: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    gone = [part for part in old if part not in new]
    come = [part for part in new if part not in old]
    if len(gone) == len(come):
        for before, after in zip(gone, come, strict=True):
            yield from differences(before, after, path)
    else:
        yield from ((*path, _flat(part), "(gone)") for part in gone)
        yield from ((*path, "(new)", _flat(part)) for part in come)
    if old != new and not gone and not come:
        yield (*path, "(another order)", "(another order)")


def _flat(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value, ensure_ascii=False)
