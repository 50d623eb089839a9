"""Let everything of `cases.py` happen again and again, at other moments: --help tells how.

Prints a table, and ends with 1 when a single status was wrong or a single process was left.
"""

import argparse
import random
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from kills.cases import CASES, misses, run_case
from kills.harness import Ended


def say(line: str) -> None:
    """One line, at once: the whole takes hours."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run_once(name: str, turn: int) -> tuple[Ended, list[str]]:
    """One run of a case; what went wrong in it is said at once."""
    with tempfile.TemporaryDirectory(prefix="zerowiz-kills-") as folder:
        chance = random.Random(f"{name} {turn}")  # noqa: S311 - no secret
        ended = run_case(CASES[name], Path(folder), chance)
    found = misses(CASES[name], ended)
    if found:
        say(f"{name}, run {turn}: {found}\n{ended.stderr[-4000:]!r}")
    return ended, found


def main() -> int:
    """Run the table; 1 where anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repeat", type=int, help="runs of each case")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side; 3 cores each")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    said = parser.parse_intermixed_args()
    say(f"{'case':32} {'runs':>5} {'right':>6} {'left':>5} {'median s':>9}")
    wrong = 0
    with ThreadPoolExecutor(said.at_once) as pool:
        for name in said.cases or CASES:
            ends = list(pool.map(partial(run_once, name), range(said.repeat)))
            left = sum(len(ended.left) for ended, _ in ends)
            right = sum(all(miss.startswith("left") for miss in found) for _, found in ends)
            wrong += right < said.repeat or left > 0
            median = statistics.median(ended.gone_after_s for ended, _ in ends)
            say(f"{name:32} {said.repeat:5} {right:6} {left:5} {median:9.1f}")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
