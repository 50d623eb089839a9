"""Read out of the installed DeepSpeed which keys its config has, what each takes, and its classes.

Run by make_schema.py, once for each version and in a process of its own:
`python -m schema.read_schema OUT`, with that version and this repository on PYTHONPATH.
"""

import copy
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schema.by_hand import FACTS, Fact
from schema.tracked import NO_DEFAULT, Read, Tracked, nested, package_folder

os.environ["DS_ACCELERATOR"] = "cpu"
warnings.simplefilter("ignore")

import deepspeed  # noqa: E402 (the accelerator is chosen while it is imported)
from deepspeed.runtime.config import DeepSpeedConfig  # noqa: E402
from deepspeed.runtime.config_utils import DeepSpeedConfigModel  # noqa: E402
from deepspeed.utils import logger  # noqa: E402
from schema.models import (  # noqa: E402
    Row,
    field_rows,
    first_sentence,
    json_types,
    make_row,
    section_row,
    text_of_default,
)
from schema.read_classes import class_rows  # noqa: E402

from zerowiz.core.dsconfig.schema import Kind, kind_of  # noqa: E402

# Without a batch size DeepSpeed reads no config.
BASE: Mapping[str, Any] = {"train_micro_batch_size_per_gpu": 1}

# A value counts as taken when it is taken beside one of these: some are for one stage alone.
BESIDE: Sequence[Mapping[str, Any]] = (
    {},
    {"zero_optimization": {"stage": 3}},
    {"zero_optimization": {"stage": 1}, "bf16": {"bf16_master_weights_and_grads": True}},
)
PROBE = "zerowiz probe"

SAMPLES: Sequence[object] = (
    *(None, True, False, 1, 2, 0, 3, 8, 64, 1e3, 0.5, 1.5, -0.5),
    *(
        "1",
        "0",
        "8",
        "1.0",
        "8.0",
        "5e8",
        "1.5",
        "0.5",
        "true",
        "false",
        "on",
        "word",
        "/tmp",
        "auto",
    ),
    *([], [1], ["word"], {}, {"enabled": False}, {"mode": "dense"}),
)


def rows() -> list[Row]:
    """Every key of the installed DeepSpeed, by its path."""
    logger.setLevel(logging.CRITICAL)
    found = _Found()
    found.explore()
    keys = {"": make_row("", types=["object"], unknown="ignored")}
    for section, model in found.models.items():
        keys[section] = section_row(section, model)
        keys |= {row["path"]: row for row in field_rows(section, model)}
    for path, reads in found.reads.items():
        keys.setdefault(path, _by_reads(path, reads, found.is_section(path)))
    for path, fact in FACTS.items():
        if fact.read_in and path not in keys and _is_read(path, fact, keys):
            keys[path] = make_row(path, default=text_of_default(fact.default), source=fact.read_in)
    for path in _others(keys):
        del keys[path]
    for path in {row["path"].rpartition(".")[0] for row in keys.values()}:
        keys[path]["unknown"] = keys[path].get("unknown") or "ignored"
    return [_settled(row) for _, row in sorted(keys.items())]


# How the keys are found: DeepSpeed reads configs that note what it asks for.


class _Found:
    """The keys that were asked for, and the models that sections were made into."""

    def __init__(self) -> None:
        self.reads: dict[str, list[Read]] = {}
        self.models: dict[str, type] = {}

    def explore(self) -> None:
        """Put a section wherever a key was asked for, until nothing new is asked."""
        log: list[Read] = []
        self._read(Tracked("", log, BASE), log)
        tried: set[str] = set()
        while new := set(self.reads) - tried:
            path = min(new)
            tried.add(path)
            for inside in ({PROBE: path}, {}, {"enabled": True}):
                log = []
                section = Tracked(path, log, inside)
                self._read(nested(path, section, log, BASE), log)

    def is_section(self, path: str) -> bool:
        return any(other.startswith(f"{path}.") for other in self.reads)

    def _read(self, config: Tracked, log: list[Read]) -> None:
        """What a config was asked for counts even where it is refused in the end."""
        _refusal(config)
        for path, model in _MADE:
            self.models[path] = model
        _MADE.clear()
        for read in log:
            if PROBE not in read.path and not _is_free(read.path):
                self.reads.setdefault(read.path, []).append(read)


_MADE: list[tuple[str, type]] = []


def _watch_models() -> None:
    """Have every config model say which section it was made from."""
    plain = DeepSpeedConfigModel.__init__

    def watched(self: Any, strict: bool = False, **data: Any) -> None:
        if isinstance(path := data.pop(PROBE, None), str):
            _MADE.append((path, type(self)))
        plain(self, strict=strict, **data)

    DeepSpeedConfigModel.__init__ = watched


def _refusal(config: Mapping[str, Any]) -> str | None:
    """What DeepSpeed says against a config; None when it takes it."""
    try:
        DeepSpeedConfig(config)
    except Exception as refused:  # noqa: BLE001 (whatever DeepSpeed raises is its answer)
        return str(refused) or type(refused).__name__
    return None


# What a row says.


def _by_reads(path: str, reads: Sequence[Read], section: bool) -> Row:
    """A key that code asks for by its name."""
    defaults = [read.default for read in reads if read.default is not NO_DEFAULT]
    plain = [value for value in defaults if not isinstance(value, dict)]
    default = next((value for value in plain if value is not None), None)
    return make_row(
        path,
        types=["object"] if section else json_types([type(default)]) if default is not None else [],
        default=None if section or not plain else text_of_default(default, null=True),
        unknown="ignored" if section else None,
        source=next((read.source for read in reads if read.source), None),
    )


def _settled(row: Row) -> Row:
    """The row with what is known by hand and what was tried, without what is empty."""
    path = row["path"]
    fact = FACTS.get(path, Fact())
    row |= {key: value for key, value in _said(fact).items() if value}
    if path:
        row["takes"], refusal = _tried(path, row)
        row["any_case"] = bool(row.get("choices")) and _takes_any_case(path, row["choices"])
        if not row["takes"]:
            row |= {"types": [], "unknown": None, "about": first_sentence(refusal or "")}
    else:
        row["takes"] = ["object"]
    assert row.get("types") or not row["takes"] or path in TYPELESS, f"by_hand.py: type of {path}?"
    return {key: value for key, value in row.items() if value not in (None, [], {}, False)}


# tensor_parallel/config.py: objects that only code can pass.
TYPELESS = {
    "tensor_parallel.dtype",
    "tensor_parallel.tp.mpu",
    "tensor_parallel.tp.tp_group",
}


def _said(fact: Fact) -> Row:
    return {
        "types": list(fact.types),
        "choices": [json.dumps(choice) for choice in fact.choices],
        "bounds": fact.bounds,
        "aliases": [fact.alias] if fact.alias else [],
        "unknown": "free" if fact.free else None,
        "about": fact.about,
    }


def _tried(path: str, row: Row) -> tuple[list[str], str | None]:
    """The kinds of values of which DeepSpeed takes one, and what it says against an object."""
    choices = [json.loads(choice) for choice in row.get("choices") or []]
    samples = [*choices, *([[choice] for choice in choices]), *SAMPLES]
    taken = {kind_of(value) for value in samples if _takes(path, value)}
    return [kind.value for kind in Kind if kind in taken], _refusal(_holding(path, {}, {}))


def _takes(path: str, value: object) -> bool:
    return any(_refusal(_holding(path, value, beside)) is None for beside in BESIDE)


def _takes_any_case(path: str, choices: Sequence[str]) -> bool:
    words = [word for word in map(json.loads, choices) if isinstance(word, str)]
    return bool(words) and all(
        _takes(path, word.upper()) and _takes(path, word.lower()) for word in words
    )


def _holding(path: str, value: object, beside: Mapping[str, Any]) -> dict[str, Any]:
    """A plain config that holds a value; nothing in it is shared, for DeepSpeed writes into it."""
    config: dict[str, Any] = copy.deepcopy({**BASE, **beside})
    at = config
    *sections, name = path.split(".")
    for section in sections:
        at = at.setdefault(section, {})
    at[name] = copy.deepcopy(value)
    return config


def _is_free(path: str) -> bool:
    """Whether the name is the user's own, not DeepSpeed's."""
    above = path.rpartition(".")[0]
    return path not in FACTS and any(
        fact.free and f"{above}.".startswith(f"{free}.") for free, fact in FACTS.items()
    )


def _others(keys: Mapping[str, Row]) -> list[str]:
    """The paths that are other names of a section."""
    aliases = {fact.alias for fact in FACTS.values() if fact.alias}
    return [path for path in keys if path.partition(".")[0] in aliases]


def _is_read(path: str, fact: Fact, keys: Mapping[str, Row]) -> bool:
    """Whether this version's file names the key, and the section that it is in is one."""
    section, _, name = path.rpartition(".")
    file = package_folder(deepspeed) / str(fact.read_in)
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return section in keys and bool(re.search(rf"""["']{name}["']""", text))


if __name__ == "__main__":
    _watch_models()
    found = {"keys": rows(), "classes": class_rows()}
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
