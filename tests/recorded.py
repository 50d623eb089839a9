"""The recordings of tests/machines, as values that a test may edit before they are played."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from zerowiz.core.machine.types import Machine
from zerowiz.probe.machine.read_machine import read_machine
from zerowiz.probe.machine_recording import Replay, decode_recording

MACHINES = Path(__file__).parent / "machines"

INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST = 2, 3, 4, 15

Recording = dict[str, Any]
# What the fixture `driver` gives: it puts a function table under the real pynvml.
Install = Callable[[object], None]


def put_under_pynvml(library: object, patch: pytest.MonkeyPatch) -> None:
    """Let the real pynvml call this function table, as the driver's library."""
    patch.setattr(pynvml, "nvmlLib", library)
    patch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})


def names() -> list[str]:
    """Every recording, and every synthetic one."""
    paths = [*MACHINES.glob("*.json"), *MACHINES.glob("synthetic/*.json")]
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(paths)}
    recorded = [path for path, text in texts.items() if "nvml" in json.loads(text)]
    return [path.relative_to(MACHINES).with_suffix("").as_posix() for path in recorded]


def recording(name: str) -> Recording:
    """A whole recording, such as `h200-x4` or `synthetic/gb10`."""
    content: Recording = json.loads((MACHINES / f"{name}.json").read_text(encoding="utf-8"))
    return content


def library(name: str) -> Replay:
    """What stands in for the driver's library, to be put under pynvml."""
    return Replay(recording(name)["nvml"])


def without(content: Recording, *symbols: str) -> Recording:
    """The recording of a driver that lacks these C functions."""
    calls = {call: content["nvml"][call] for call in _others(content["nvml"], symbols)}
    return {**content, "nvml": calls}


def _others(calls: Iterable[str], symbols: tuple[str, ...]) -> list[str]:
    return [call for call in calls if call.partition("(")[0] not in symbols]


def play(
    content: Recording, *, environ: dict[str, str] | None = None, gpus: str | None = None
) -> Machine:
    """The machine of a recording; an environment given here stands in for the recorded one."""
    world = decode_recording(content if environ is None else {**content, "environ": environ}, "it")
    return read_machine(world, gpus=gpus)
