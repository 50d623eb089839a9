"""Let everything of `cases.py` happen again and again, at other moments: repeat.py REPEAT [CASE...].

Prints a table, and ends with 1 when a single status was wrong or a single process was left.
"""

import random
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from kills.cases import CASES, misses, run_case


def say(line: str) -> None:
    """One line, at once: the whole takes hours."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the table; the number of cases that went wrong at least once."""
    repeat = int(sys.argv[1])
    names = [name for name in CASES if not sys.argv[2:] or name in sys.argv[2:]]
    say(f"{'case':32} {'runs':>5} {'right':>6} {'left':>5} {'median s':>9}")
    wrong = 0
    for name in names:
        seconds, right, left = [], 0, 0
        for turn in range(repeat):
            with tempfile.TemporaryDirectory(prefix="zerowiz-kills-") as folder:
                chance = random.Random(f"{name} {turn}")  # noqa: S311 - no secret
                ended = run_case(CASES[name], Path(folder), chance)
                found = misses(CASES[name], ended)
                if found:
                    say(f"{name}, run {turn}: {found}\n{ended.stderr[-2000:]!r}")
            seconds.append(ended.gone_after_s)
            right += not [miss for miss in found if not miss.startswith("left")]
            left += len(ended.left)
        wrong += right < repeat or left > 0
        median = statistics.median(seconds)
        say(f"{name:32} {repeat:5} {right:6} {left:5} {median:9.1f}")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
