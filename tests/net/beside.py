"""Print what `make bench` says, each line under that of bench.txt which has other figures."""

import re
import sys
from collections import defaultdict
from pathlib import Path

_FIGURE = re.compile(r"\d[\d.,]*")


def main() -> None:
    """Read the new lines from standard input. Nothing fails: times differ by machine and by day."""
    recorded = Path(__file__).with_name("bench.txt").read_text(encoding="utf-8").splitlines()
    was: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for line in recorded:
        was[_words(line)].append(line)
    for line in sys.stdin:
        # The same words may stand under more than one heading: in their order.
        if alike := was[_words(line)]:
            sys.stdout.write(f"was  {alike.pop(0)}\n")
        sys.stdout.write(f"now  {line}")


def _words(line: str) -> tuple[str, ...]:
    """What names the figures of a line."""
    return (*_FIGURE.sub("", line).split(),)


if __name__ == "__main__":
    main()
