"""Time a search: what it takes beyond a plan, and for 10,000 nodes of a hostfile.

Run with `make bench`. Whole processes; the machine's other work slows both, so the seconds of CPU
stand beside those of the wall.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MODEL = Path(__file__).parents[1] / "models" / "llama-2-7b"
NODES = 10_000
RUNS = 9

PLAN = (
    *(sys.executable, "-m", "zerowiz", "plan", "--json", "--quiet"),
    *("--machine", "8xH100-80GB", "--model", str(MODEL)),
)
FASTEST = ("--objective", "fastest", "--global-batch")


class Run(NamedTuple):
    """What one process took."""

    wall_s: float
    cpu_s: float


def run(argv: Sequence[str]) -> Run:
    """One whole process that must end well."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    wall_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(wall_s, used_s)


def main() -> None:
    """Warm up, time each in turn, print the medians and the most memory that any took."""
    with tempfile.TemporaryDirectory() as folder:
        hosts = Path(folder) / "hosts"
        hosts.write_text("".join(f"node{number} slots=8\n" for number in range(NODES)))
        on_all = ("--hostfile", str(hosts), "--interconnect", "infiniband:400Gb/s")
        cases = {
            "plan": PLAN,
            "plan --objective fastest": (*PLAN, *FASTEST, "256"),
            f"the same on {NODES} nodes": (*PLAN, *on_all, *FASTEST, str(NODES * 8 * 32)),
        }
        for argv in cases.values():
            run(argv)
        taken = {name: [run(argv) for _ in range(RUNS)] for name, argv in cases.items()}
    for name, runs in taken.items():
        wall_s, cpu_s = (statistics.median(each) for each in zip(*runs, strict=True))
        sys.stdout.write(f"{name:26} {wall_s:.3f} s, {cpu_s:.3f} s of CPU (medians of {RUNS})\n")
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    sys.stdout.write(f"no process held more than {most // 1024} MiB\n")


if __name__ == "__main__":
    main()
