"""The recordings of tests/machines, as values that a test may edit before they are played."""

import json
from pathlib import Path
from typing import Any

from zerowiz.core.machine import Machine
from zerowiz.probe.machine import read_machine
from zerowiz.probe.nvml.tape import Replay
from zerowiz.probe.recording import decode_recording

MACHINES = Path(__file__).parent / "machines"

INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST = 2, 3, 4, 15

Recording = dict[str, Any]


def recording(name: str) -> Recording:
    """A whole recording, such as `h200-x4` or `synthetic/gb10`."""
    content: Recording = json.loads((MACHINES / f"{name}.json").read_text(encoding="utf-8"))
    return content


def library(name: str) -> Replay:
    """What stands in for the driver's library, to be put under pynvml."""
    return Replay(recording(name)["nvml"])


def play(
    content: Recording, *, environ: dict[str, str] | None = None, gpus: str | None = None
) -> Machine:
    """The machine of a recording; an environment given here stands in for the recorded one."""
    world = decode_recording(content if environ is None else {**content, "environ": environ}, "it")
    return read_machine(world, gpus=gpus)
