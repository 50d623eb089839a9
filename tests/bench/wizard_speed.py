"""Time the first question of `zerowiz init`, and the redrawing of what an answer leads to.

$ python tests/bench/wizard_speed.py

Run it on a quiet machine. The aims: the first question in under 0.5 s, a redrawn consequence in
under 50 ms, from the key to the terminal.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

# The tests are found from their own folder.
sys.path[0] = str(Path(__file__).parents[1])

from bench.pty_screen import DOWN, ENTER, UP, PtyScreen  # noqa: E402
from cli.harness import HF_PARSER, clean_environ  # noqa: E402

RUNS = 11
MACHINES = ("4xA100-40GB", "8xH100-80GB")
CONSEQUENCE = "-> "
FIRST = "? Which "
GOAL, LENGTH = "own micro-batch", "How many tokens per sequence?"
BACKSPACE = "\x7f"
# Of the job whose length is typed; the recommended one leaves the micro-batch to the search.
GOALS = ((), ("--objective", "fastest"), ("--micro-batch", "1"))


def main() -> None:
    """Print the medians."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(HF_PARSER)
        (folder / "other.py").write_text(HF_PARSER)
        cpu = ("--accelerator", "cpu", "--gpus-per-node", "2")
        first_question(folder, cpu)
        for words in (cpu, ("--machine", MACHINES[0])):
            walls, cpus = zip(*(first_question(folder, words) for _ in range(RUNS)), strict=True)
            show(f"first question, {words[1]}", walls)
            show("  of it processor time", cpus)
        for machine in MACHINES:
            show_both(f"7b on {machine}, an arrow", redraws_of_a_menu(folder, machine))
            for goal in GOALS:
                what = f"7b on {machine}, a digit {' '.join(goal)}"
                show_both(what, redraws_of_a_line(folder, machine, goal))
        show("python -c ''", [bare(folder) for _ in range(RUNS)])


def start(folder: Path, words: Sequence[str]) -> PtyScreen:
    """`zerowiz init` at a terminal."""
    # Compiled once, as pip does it; not into the tree.
    cache = {"PYTHONPYCACHEPREFIX": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": ""}
    environ = clean_environ(TERM="xterm-256color", **cache)
    return PtyScreen([sys.executable, "-m", "zerowiz", "init", *words], folder, environ)


def first_question(folder: Path, words: Sequence[str]) -> tuple[float, float]:
    """Seconds until the first question stands there, and of processor time."""
    screen = start(folder, words)
    taken = screen.wait(lambda: FIRST in screen.text)
    if taken is None:
        sys.exit(f"no question came:\n{screen.text}")
    cpu_s = screen.cpu_s()
    screen.close()
    return taken, cpu_s


def redraws(screen: PtyScreen, keys: Sequence[str]) -> list[tuple[float, float]]:
    """Seconds from each key to the last that was drawn for it, and of processor time."""
    taken: list[tuple[float, float]] = []
    for key in keys:
        before_s = screen.cpu_s()
        wall_s = screen.redraw(key)
        if wall_s is not None:
            taken.append((wall_s, screen.cpu_s() - before_s))
    if CONSEQUENCE not in screen.text:
        sys.exit(f"no consequence is shown:\n{screen.text}")
    return taken


def redraws_of_a_menu(folder: Path, machine: str) -> list[tuple[float, float]]:
    """Of the goal: the recommended stage, the fastest, an own micro-batch."""
    screen = start(folder, ("--machine", machine, "--model", "7b", "train.py"))
    if not screen.wait_for(GOAL):
        sys.exit(f"no menu came:\n{screen.text}")
    screen.settle()
    taken = redraws(screen, [DOWN, DOWN, UP, UP] * 3)
    screen.close()
    return taken


def redraws_of_a_line(folder: Path, machine: str, goal: Sequence[str]) -> list[tuple[float, float]]:
    """Of the length, as it is typed."""
    words = ("--machine", machine, "--model", "7b", *goal, "train.py")
    screen = start(folder, words)
    if not goal:
        screen.wait_for(GOAL)
        screen.settle()
        screen.press(ENTER)
    if not screen.wait_for(LENGTH):
        sys.exit(f"no question of the length came:\n{screen.text}")
    screen.settle()
    taken: list[tuple[float, float]] = []
    for length in ("4096", "1024", "8192"):
        taken += redraws(screen, length)
        screen.press(BACKSPACE * len(length))
        screen.settle()
    screen.close()
    return taken


def bare(folder: Path) -> float:
    """Python alone."""
    began_s = time.perf_counter()
    PtyScreen([sys.executable, "-c", ""], folder, os.environ).status()
    return time.perf_counter() - began_s


def show_both(what: str, taken: Sequence[tuple[float, float]]) -> None:
    """Two lines: until it was drawn, and the processor time of that."""
    show(what, [wall_s for wall_s, _ in taken])
    show("  of it processor time", [cpu_s for _, cpu_s in taken])


def show(what: str, taken_s: Sequence[float]) -> None:
    """One line."""
    if not taken_s:
        sys.stdout.write(f"{what:44} nothing changed\n")
        return
    median, worst = statistics.median(taken_s), max(taken_s)
    sys.stdout.write(
        f"{what:44} median {1000 * median:4.0f} ms  worst {1000 * worst:4.0f} ms  of {len(taken_s)}\n"
    )


if __name__ == "__main__":
    main()
