"""Time `zerowiz machine` of a file and here, plans for all machines, the driver's child, and python.

Run with `make bench`. `python -c pass` is what no Python program can be faster than here. The driver
is eight replayed GPUs, read in this process and in a forked child.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

# Its neighbours are those of the tests.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from recorded import described, play, recording

from zerowiz.probe.host_files import HostFiles, World
from zerowiz.probe.machine.nvml_child import read_in_child

EIGHT = "synthetic/b200-x8-odd-gpu"
RUNS, READINGS = 9, 101

ZEROWIZ = (sys.executable, "-m", "zerowiz", "machine")
TIMED: dict[str, Sequence[str]] = {
    "machine, as this host answers": ZEROWIZ,
    **{
        f"plan --machine all, {size}": (
            *(sys.executable, "-m", "zerowiz", "plan", "--machine", "all", "--model", size),
            *("--gradient-checkpointing", "--json"),
        )
        for size in ("1b", "7b", "70b", "405b")
    },
    "python -c pass": (sys.executable, "-c", "pass"),
}


def seconds(argv: Sequence[str]) -> float:
    """Wall time of one whole process; how it ends is no matter, for there may be no GPU."""
    start = time.perf_counter()
    subprocess.run(argv, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def time_child() -> None:
    """What it costs to read the driver in a child process."""
    content, world = recording(EIGHT), World(files=HostFiles(), environ={})
    ways: dict[str, Callable[[], object]] = {
        "in this process": lambda: play(content),
        "in a child": lambda: read_in_child(world, lambda *_: play(content)),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(READINGS):
        for way, read in ways.items():
            start = time.perf_counter()
            read()
            times[way].append(1000 * (time.perf_counter() - start))
    medians = {way: statistics.median(values) for way, values in times.items()}
    for way, median in medians.items():
        sys.stdout.write(f"8 replayed GPUs, {way}: {median:.1f} ms\n")
    first, second = medians.values()
    sys.stdout.write(f"the child costs {second - first:.1f} ms (medians of {READINGS} pairs)\n")


def main() -> None:
    """Warm all up, time them in turn, print medians."""
    with TemporaryDirectory() as folder:
        file = described(EIGHT, Path(folder))
        timed = {
            "machine --json, a file of 8 GPUs": (*ZEROWIZ, "--json", "--machine", file),
            **TIMED,
        }
        for argv in timed.values():
            seconds(argv)
        rounds = [[seconds(argv) for argv in timed.values()] for _ in range(RUNS)]
    sys.stdout.write(f"{RUNS} rounds, whole processes, wall seconds (min / median / max)\n")
    for name, times in zip(timed, zip(*rounds, strict=True), strict=True):
        spread = f"{min(times):.3f} / {statistics.median(times):.3f} / {max(times):.3f}"
        sys.stdout.write(f"{name:<34}{spread}\n")
    time_child()


if __name__ == "__main__":
    main()
