"""Time `zerowiz plan --json` on measured runs, one whole process for each, beside a bare interpreter.

Run with `make bench`. The runs are spread over all that can be asked for.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

# The tests that ask for the same runs are `app.…` to each other.
sys.path[0] = str(Path(__file__).parents[1])

from app.decide.asked import ROWS, words_of  # noqa: E402

RUNS = 20
WANTED_S = 0.3

ZEROWIZ = (sys.executable, "-m", "zerowiz", "plan")
# A run that is refused has its answer too.
ANSWERED = frozenset({os.EX_OK, 4})


def seconds(argv: Sequence[str]) -> float:
    """Wall time of one whole process that must give its answer."""
    start = time.perf_counter()
    done = subprocess.run(
        argv, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if done.returncode not in ANSWERED:
        sys.exit(done.stderr)
    return time.perf_counter() - start


def main() -> None:
    """Warm up, time each run once, print the median and the worst."""
    rows = ROWS[:: len(ROWS) // RUNS][:RUNS]
    with tempfile.TemporaryDirectory() as folder:
        asked = [(*ZEROWIZ, *words_of(row, Path(folder))) for row in rows]
        seconds(asked[0])
        times = [seconds(argv) for argv in asked]
    bare = [seconds((sys.executable, "-c", "pass")) for _ in rows]
    lines = (
        f"{len(rows)} measured runs, whole processes, wall seconds (median / worst)",
        f"zerowiz plan --json  {statistics.median(times):.3f} / {max(times):.3f}, wanted: under {WANTED_S}",
        f"python -c pass       {statistics.median(bare):.3f} / {max(bare):.3f}",
    )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
