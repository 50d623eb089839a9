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


def run_once(name: str, turn: int) -> tuple[Ended | None, list[str]]:
    """One run of a case, None where it never came as far, and what went wrong, which is said at once."""
    ended, said = None, ""
    with tempfile.TemporaryDirectory(prefix="zerowiz-kills-") as folder:
        chance = random.Random(f"{name} {turn}")  # noqa: S311 - no secret
        try:
            ended = run_case(CASES[name], Path(folder), chance)
        except (TimeoutError, StopIteration) as error:
            found = [repr(error)]
        else:
            found = misses(CASES[name], ended)
            said = ended.stderr[-4000:].decode(errors="replace")
    if found:
        say(f"{name}, run {turn}: {'; '.join(found)}\n{said}")
    return ended, found


def main() -> int:
    """Run the table; 1 where anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repeat", type=int, help="runs of each case")
    parser.add_argument(
        "--first", type=int, default=0, help="the first run, where others were before"
    )
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side; 3 cores each")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    said = parser.parse_intermixed_args()
    if unknown := {*said.cases} - CASES.keys():
        parser.error(f"no such case: {', '.join(unknown)}")
    say(f"{'case':32} {'runs':>5} {'right':>6} {'left':>5} {'median s':>9}")
    wrong = 0
    with ThreadPoolExecutor(said.at_once) as pool:
        for name in said.cases or CASES:
            turns = range(said.first, said.first + said.repeat)
            every = list(pool.map(partial(run_once, name), turns))
            ends = [ended for ended, _ in every if ended is not None]
            left = sum(len(ended.left) for ended in ends)
            right = sum(not found for _, found in every)
            wrong += right < said.repeat
            median = statistics.median([ended.gone_after_s for ended in ends] or [0.0])
            say(f"{name:32} {said.repeat:5} {right:6} {left:5} {median:9.1f}")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
