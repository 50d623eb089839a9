"""Run zerowiz in this process for a page: at an empty desk, at no terminal, in 80 columns."""

import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from cli.harness import COLUMNS, Result, enter

from zerowiz.cli.commands import main


@contextmanager
def empty_desk() -> Iterator[pytest.MonkeyPatch]:
    """Work in an empty folder; what is changed on the way comes back."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        work = Path(folder, "work")
        work.mkdir()
        enter(work, patch)
        # What a person's jobs have left changes plans.
        patch.setenv("XDG_CACHE_HOME", f"{folder}/caches")
        patch.setenv("COLUMNS", str(COLUMNS))
        patch.setattr(sys, "stdin", io.StringIO())
        yield patch


def run(*words: str) -> Result:
    """Run the tool with these words."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        patch.setattr(sys, "argv", ["zerowiz", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    assert isinstance(code, int)
    return Result(stdout=stdout.getvalue(), stderr=stderr.getvalue(), code=int(code))
