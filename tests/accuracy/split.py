"""Decide which measured runs may fit a formula, before anybody looks at them."""

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

Row = Mapping[str, Any]


class Split(StrEnum):
    """What a run may be used for."""

    FITTED = "fitted"
    SET_ASIDE = "set aside"


# Rule: a run that somebody has looked at stays what it was. Every run of h200.jsonl has fitted a
# formula; those of launches.jsonl were measured when the formulas stood. All others are dealt out.
FILES: Mapping[str, Split] = {
    "h200.jsonl": Split.FITTED,
    "launches.jsonl": Split.SET_ASIDE,
}

# Set aside by the hash, and then looked at: formulas were mended by them. They stay on this side.
# j1-033 to j1-040 and j3-008 are what the formulas of torch_autocast were found on. Of ways to
# count a block in which a bucket is full, i1-044 to u4-019 helped to choose.
LOOKED_AT = frozenset(
    {
        "f2-013",
        "i1-024",
        "i1-038",
        "i1-039",
        "j3-008",
        "m3-005",
        *("i1-044", "i1-046", "k1-028", "m1-008", "u4-019"),
        *(f"j1-{number:03}" for number in range(33, 41)),
    }
)

# Two families that no formula is fitted on: a norm behind each layer and one over whole queries
# and keys; a parallel residual with LayerNorm, biases and partial rotation.
FAMILIES_SET_ASIDE = frozenset({"olmo2", "gpt_neox"})
# The second showed errors that only its own runs can explain: those of later files are dealt by the
# hash as others are, and may fit a formula. Its runs of these files stay aside.
BEFORE_GPT_NEOX_WAS_DEALT = frozenset(
    f"2026-11-{each}.jsonl" for each in ("h200", "h100", "capped", "accumulation")
)

_MODEL_AND_WORKLOAD = (
    *("model", "micro_batch", "sequence_tokens", "precision", "gradient_checkpointing"),
    *("attention", "stage", "gpus"),
)
SIDES = 3


def deal(row: Row) -> Split:
    """A third is set aside, by a hash of model and workload: repeats land on one side."""
    said = {name: row[name] for name in _MODEL_AND_WORKLOAD}
    trainer = row.get("trainer", "sft")
    if trainer != "sft":
        said["trainer"] = trainer
    key = json.dumps(said, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(key.encode()).digest()
    return Split.FITTED if int.from_bytes(digest) % SIDES else Split.SET_ASIDE


def split_of(row: Row, family: str | None) -> Split:
    """The side of a run of this file and family."""
    if row["file"] in FILES:
        return FILES[row["file"]]
    if row["id"] in LOOKED_AT:
        return Split.FITTED
    dealt = family == "gpt_neox" and row["file"] not in BEFORE_GPT_NEOX_WAS_DEALT
    return Split.SET_ASIDE if family in FAMILIES_SET_ASIDE and not dealt else deal(row)
