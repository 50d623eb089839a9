"""Time what it costs to read the driver in a child process, on eight replayed GPUs.

Both sides run the same reading: in this process, and in a forked child. Run with `make bench`.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from zerowiz.probe.machine.nvml import read_gpus
from zerowiz.probe.machine.nvml_child import read_in_child
from zerowiz.probe.machine_recording import decode_recording

EIGHT = Path(__file__).parents[1] / "machines" / "synthetic" / "b200-x8-odd-gpu.json"
RUNS = 101


def milliseconds(read: Callable[[], object]) -> float:
    """Wall time of one reading."""
    start = time.perf_counter()
    read()
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    """Time both in turn, print medians."""
    world = decode_recording(json.loads(EIGHT.read_text()), EIGHT.name)
    ways: dict[str, Callable[[], object]] = {
        "in this process": lambda: read_gpus(world),
        "in a child": lambda: read_in_child(world, lambda world, _: read_gpus(world)),
    }
    for read in ways.values():
        read()
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(RUNS):
        for way, read in ways.items():
            times[way].append(milliseconds(read))
    medians = {way: statistics.median(values) for way, values in times.items()}
    for way, median in medians.items():
        sys.stdout.write(f"8 replayed GPUs, {way}: {median:.1f} ms\n")
    first, second = medians.values()
    sys.stdout.write(f"the child costs {second - first:.1f} ms (medians of {RUNS} pairs)\n")


if __name__ == "__main__":
    main()
