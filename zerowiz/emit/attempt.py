"""Read what the ranks of an attempt wrote into its folder, and tell them to end there.

`worker/rank.py` is the other side. On many nodes the folder is shared, or each node has its own.
"""

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerowiz.core.outcome.verdict import RankEnd, parse_end
from zerowiz.emit.processes import Process, is_alive


@dataclass(frozen=True, kw_only=True, slots=True)
class RankProcess:
    """A rank that was started, somewhere."""

    rank: int
    host: str
    space: str
    """What processes that can signal each other share."""
    process: Process
    """The training."""
    beside: Process
    """Who keeps its output, and writes how it ended."""

    def runs_here(self, space: str) -> bool:
        """Whether it, or who will say how it ended, is a living process of this space."""
        return self.space == space and (is_alive(self.process) or is_alive(self.beside))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content


class AttemptFolder:
    """What is known of the ranks; each file is read once, it is written whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ranks: dict[int, RankProcess] = {}
        self.ends: dict[int, RankEnd] = {}
        self.has_told = False

    def look(self) -> None:
        """Read what is new."""
        with suppress(OSError):
            for path in self.path.glob("rank-*.json"):
                number, _, kind = path.name.removeprefix("rank-").partition(".")
                seen = self.ends if kind == "end.json" else self.ranks
                if int(number) not in seen and (content := _read(path)) is not None:
                    self._take(path, kind, content)

    def _take(self, path: Path, kind: str, content: dict[str, Any]) -> None:
        rank = content["rank"]
        if kind == "end.json":
            self.ends[rank] = parse_end(content, str(path.with_name(f"rank-{rank}.log")))
        else:
            self.ranks[rank] = RankProcess(
                rank=rank,
                host=content["host"],
                space=content["space"],
                process=Process(**content["process"]),
                beside=Process(**content["beside"]),
            )

    def open(self) -> None:
        """Have the folder there before the job, with nothing ordered yet."""
        with suppress(OSError):
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "orders").touch()

    def order(self, line: str) -> bool:
        """Leave an order for who stands beside the ranks: a signal's number, or `end`."""
        with suppress(OSError), (self.path / "orders").open("a", encoding="utf-8") as stream:
            stream.write(f"{line}\n")
            return True
        return False

    def tell_to_end(self) -> None:
        """Have who stands beside each rank end it, wherever it is."""
        if not self.has_told:
            self.has_told = self.order("end")

    def refresh(self) -> None:
        """Change the folder: a network file system then shows what others wrote to it (nfs(5))."""
        with suppress(OSError):
            path = self.path / f"look-{socket.gethostname()}-{os.getpid()}"
            path.touch()
            path.unlink()
