"""Random faults of the driver: one call of one recorded machine, for one GPU or for all; one for each seed."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from faults.bounded import Ended, misses, run_bounded
from msgspec import Struct
from recorded import names, play, recording

from zerowiz.core.machine.types import Gpu

SCRIPT = Path(__file__).with_name("under_fault.py")
# nvml.h, nvmlReturn_t.
CODES = (*range(1, 30), 999)
_KINDS = ("error", "error", "error", "garbage", "hang", "crash", "abort")
_PLAN = ("plan", "--json", "--probe-timeout", "1", "--model", "1.3b")
# What is right to differ where another call fails: what follows from a memory of their own does not.
_KEPT = ("uuid", "total_bytes", "free_bytes")


class GpuFault(Struct, frozen=True, kw_only=True):
    """One call that fails."""

    machine: str
    kind: str
    symbol: str
    gpu: str
    """As recordings name it; empty for each."""

    def words(self) -> list[str]:
        """How `under_fault.py` is told."""
        return [self.machine, self.kind, self.symbol, self.gpu, *_PLAN]


def gpu_fault(seed: int) -> GpuFault:
    """The fault of this seed."""
    chance = random.Random(seed)  # noqa: S311 - the same fault each time
    machine = chance.choice(names())
    calls = [call.partition("(")[0] for call in recording(machine)["nvml"]]
    symbol = chance.choice(sorted({*calls} - {"nvmlInitWithFlags"}))
    kind = chance.choice(_KINDS)
    value = {"error": chance.choice(CODES), "garbage": chance.randrange(1000)}.get(kind)
    gpus = [str(gpu.index) for gpu in play(recording(machine)).gpus]
    is_of_one = symbol.startswith("nvmlDevice") and "Count" not in symbol and chance.random() < 0.8
    return GpuFault(
        machine=machine,
        kind=kind if value is None else f"{kind}:{value}",
        symbol=symbol,
        gpu=f"gpu{chance.choice(gpus)}" if is_of_one and gpus else "",
    )


def run_fault(fault: GpuFault, folder: Path) -> Ended:
    """A plan for the machine while the call fails."""
    return run_bounded(folder, fault.words(), program=[str(SCRIPT)])


@cache
def _whole(machine: str) -> Mapping[int, Gpu]:
    """The GPUs of a machine without a fault."""
    return {gpu.index: gpu for gpu in play(recording(machine)).gpus}


def _gpus(stdout: str) -> Sequence[dict[str, Any]]:
    found = json.loads(stdout).get("machine", {})
    return list(found.get("gpus", ()))


def fault_misses(fault: GpuFault, ended: Ended) -> list[str]:
    """What a plan under a fault owes, and did not do: to be right, or an error that says where."""
    found = misses(ended)
    where = rf"GPU (?:\d+ and )?{fault.gpu[3:]}" if fault.gpu else "GPU|driver|NVML"
    try:
        content = json.loads(ended.stdout)
    except ValueError:
        return [*found, "no JSON on stdout"]
    if "error" in content:
        said = " ".join((content["error"]["message"], *content["error"]["hints"]))
        named = re.search(rf"({where})(?!\d)", said)
        return found if named else [*found, f"an error that does not say where: {said}"]
    whole = _whole(fault.machine)
    planned = {gpu["index"]: gpu for gpu in _gpus(ended.stdout)}
    missing = whole.keys() - planned.keys()
    unsaid = [index for index in missing if not re.search(rf"GPU.*\b{index}\b", ended.stderr)]
    if unsaid:
        found.append(f"says nothing of GPU {unsaid}")
    # A driver that tells a wrong number of the GPU that is asked for cannot be known to.
    if not fault.kind.startswith("garbage"):
        found += [
            f"GPU {index}: {key} is {gpu[key]}"
            for index, gpu in planned.items()
            for key in _KEPT
            if not gpu["shares_host_memory"]
            if index in whole and gpu[key] not in {getattr(whole[index], key), None}
        ]
    return found
