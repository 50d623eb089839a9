"""Print what `make bench` says, each line under that of bench.txt which has other figures."""

import re
import sys
from pathlib import Path

_FIGURE = re.compile(r"\d[\d.,]*")


def main() -> None:
    """Read the new lines from standard input. Nothing fails: times differ by machine and by day."""
    recorded = Path(__file__).with_name("bench.txt").read_text(encoding="utf-8").splitlines()
    was = {_words(line): line for line in recorded}
    for line in sys.stdin:
        old = was.get(_words(line))
        if old is not None and _FIGURE.search(old):
            sys.stdout.write(f"was  {old}\n")
        sys.stdout.write(f"now  {line}")


def _words(line: str) -> tuple[str, ...]:
    """What names the figures of a line."""
    return (*_FIGURE.sub("", line).split(),)


if __name__ == "__main__":
    main()
