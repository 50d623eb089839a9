"""Time `zerowiz --version` and `--help` against the library that reads the command line.

$ python tests/bench/start_speed.py
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

RUNS = 15
COMMANDS: dict[str, Sequence[str]] = {
    "python -c 'import typer'": (sys.executable, "-c", "import typer"),
    "zerowiz --version": (sys.executable, "-m", "zerowiz", "--version"),
    "zerowiz --help": (sys.executable, "-m", "zerowiz", "--help"),
}


def seconds(argv: Sequence[str]) -> float:
    """Of one whole process."""
    begun = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main() -> None:
    """In turn, so that a machine that slows down slows all of them down."""
    for argv in COMMANDS.values():
        seconds(argv)
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):
        for name, argv in COMMANDS.items():
            taken[name].append(seconds(argv))
    least = taken["python -c 'import typer'"]
    lines = [f"{RUNS} turns, whole processes, wall seconds (min / median / max), times the first"]
    for name, all_of_it in taken.items():
        ratio = statistics.median(a / b for a, b in zip(all_of_it, least, strict=True))
        middle = statistics.median(all_of_it)
        figures = f"{min(all_of_it):.3f} / {middle:.3f} / {max(all_of_it):.3f}"
        lines.append(f"{name:26} {figures}  {ratio:.2f}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
