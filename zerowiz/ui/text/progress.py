"""Show how far a wait has come, where somebody is looking."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def counting(label: str, total: int, stream: TextIO) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal, nothing elsewhere; the function takes each name that is done."""
    if not stream.isatty():
        yield lambda _name: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda _name: progress.advance(task)
