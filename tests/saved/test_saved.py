"""Files that zerowiz wrote in November 2026, before msgspec read them, are still read."""

import json
from pathlib import Path
from typing import Any

import pytest
from measured.trials import decode_trials, encode_trial

from zerowiz.core.memory.micro_step import Traced
from zerowiz.core.structs import encode
from zerowiz.probe.files import read_kept
from zerowiz.probe.machine.machine_file import read_machine_file

SAVED = Path(__file__).parent


def content_of(name: str) -> Any:
    return json.loads((SAVED / name).read_text(encoding="utf-8"))


def as_json(value: object) -> Any:
    return json.loads(json.dumps(encode(value)))


def kept(before: Any, now: Any) -> Any:
    """What is encoded now, less the keys that were not known then."""
    if isinstance(before, dict):
        return {key: kept(each, now[key]) for key, each in before.items()}
    if isinstance(before, list):
        return [kept(*pair) for pair in zip(before, now, strict=True)]
    return now


@pytest.mark.parametrize("name", ["machine.json", "ds_config_zero2.plan.json"])
def test_a_described_machine_is_read_as_it_was_written(name: str) -> None:
    expected = {**content_of(name)["machine"], "source": "file"}
    # Where each number came from, and the disk: `machine` does not list these any more.
    del expected["origins"], expected["host"]["disk"]
    assert expected == kept(expected, as_json(read_machine_file(SAVED / name)))


def test_a_trace_is_read_as_it_was_written() -> None:
    expected = content_of("trace.json")
    # What no prediction reads is not kept any more.
    for tensor in expected["tensors"]:
        del tensor["trainable"]
    for traced in expected["runs"]:
        del traced["attention"], traced["saved_by_block_bytes"]
    assert expected == kept(expected, as_json(read_kept(Traced, SAVED / "trace.json")))


def test_cases_are_read_as_they_were() -> None:
    expected = content_of("cases_as_read.json")
    trials = decode_trials(content_of("cases.json"))
    assert expected == kept(expected, [as_json(encode_trial(trial)) for trial in trials])
