"""Run many random faults, one process at a time, and count how they end: --help tells how.

Prints what went wrong as it is found, then the figures, and ends with 1 when anything did.
"""

import argparse
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from faults.bounded import Ended, misses, run_bounded
from faults.command_lines import command_line
from faults.gpus import fault_misses, gpu_fault, run_fault
from faults.mutations import damage
from faults.zoo import build_zoo

from zerowiz.errors import ExitCode

FEW_LINES = 100
"""Of fewer, by chance most may be refused."""
Tried = tuple[Ended, list[str]]
"""How a command ended, and what was wrong with that."""


def say(line: str) -> None:
    """One line, at once: the whole takes long."""
    sys.stdout.write(f"{line}\n".encode(errors="backslashreplace").decode())
    sys.stdout.flush()


def try_line(seed: int, folder: Path) -> Tried:
    """The command line of a seed."""
    ended = run_bounded(folder, command_line(seed))
    return ended, misses(ended)


def try_gpu(seed: int, folder: Path) -> Tried:
    """The fault of the driver of a seed."""
    fault = gpu_fault(seed)
    ended = run_fault(fault, folder)
    return ended, fault_misses(fault, ended)


def try_file(seed: int, folder: Path) -> Tried:
    """The damaged file of a seed."""
    ended = run_bounded(folder, damage(seed, folder))
    return ended, misses(ended)


KINDS: dict[str, Callable[[int, Path], Tried]] = {
    "lines": try_line,
    "gpus": try_gpu,
    "files": try_file,
}


def reached_a_plan(ended: Ended) -> bool:
    """Whether a job was decided: it is planned, or nothing fits."""
    is_planned = ended.code in {ExitCode.OK, ExitCode.NOTHING_FITS}
    return is_planned and ended.words[0] in {"plan", "init", "launch", "measure"}


def show_figures(kind: str, every: Sequence[Ended]) -> int:
    """Counts by exit code, and the worst; 1 where most command lines are no more than typing errors."""
    codes = Counter(ended.code for ended in every)
    parsed = sum(ended.was_parsed for ended in every)
    slowest = max(every, key=lambda ended: ended.seconds)
    largest = max(every, key=lambda ended: ended.memory_bytes)
    planned = sum(reached_a_plan(ended) for ended in every)
    say(f"{len(every)} commands, {parsed} past the options, {planned} of them to a plan")
    say("exit codes: " + ", ".join(f"{code}: {codes[code]}" for code in sorted(codes)))
    for name, worst in (("longest", slowest), ("largest", largest)):
        size = f"{worst.seconds:.1f} s, {worst.memory_bytes / 2**20:.0f} MiB"
        say(f"{name}: {size}: {' '.join(worst.words)[:200]!a}")
    tries_too_little = kind == "lines" and len(every) >= FEW_LINES and parsed < len(every) / 2
    if tries_too_little:
        say("fewer than half of them came past the options")
    return int(tries_too_little)


def run_all(kind: str, seeds: Iterable[int], every: list[Ended]) -> int:
    """Run them, each in a folder of its own; how many went wrong."""
    wrong = 0
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="zerowiz-faults-") as beside:
            folder = Path(beside) / "zoo"
            build_zoo(folder)
            ended, found = KINDS[kind](seed, folder)
        every.append(ended)
        if found:
            wrong += 1
            say(f"seed {seed}: {'; '.join(found)}\n  {list(ended.words)!a}"[:1500])
            say(f"  {ended.stderr[-600:]!a}")
    return wrong


def main() -> int:
    """Run them, and show the figures also of those before a Ctrl-C; 1 where anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS, help="what is random")
    parser.add_argument("count", type=int, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    said = parser.parse_args()
    every: list[Ended] = []
    wrong = 0
    try:
        wrong = run_all(said.kind, range(said.first, said.first + said.count), every)
    finally:
        if every:
            wrong += show_figures(said.kind, every)
    return min(wrong, 1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
