"""Time `zerowiz machine` on eight replayed GPUs and here, plans for all machines, and python alone.

Run with `make bench`. The last is what no Python program can be faster than here.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

EIGHT = Path(__file__).parents[1] / "machines" / "synthetic" / "b200-x8-odd-gpu.json"
RUNS = 9

ZEROWIZ = (sys.executable, "-m", "zerowiz", "machine")
TIMED = {
    "machine --json, 8 replayed GPUs": (*ZEROWIZ, "--json", "--machine", str(EIGHT)),
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


def main() -> None:
    """Warm all up, time them in turn, print medians."""
    for argv in TIMED.values():
        seconds(argv)
    rounds = [[seconds(argv) for argv in TIMED.values()] for _ in range(RUNS)]
    sys.stdout.write(f"{RUNS} rounds, whole processes, wall seconds (min / median / max)\n")
    for name, times in zip(TIMED, zip(*rounds, strict=True), strict=True):
        spread = f"{min(times):.3f} / {statistics.median(times):.3f} / {max(times):.3f}"
        sys.stdout.write(f"{name:<34}{spread}\n")


if __name__ == "__main__":
    main()
