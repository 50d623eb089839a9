"""A clean folder and environment, and three ways to run zerowiz in it."""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.harness import OTHERS, Result, Run, Terminal, run_process

from zerowiz.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and an environment that says nothing."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    for name in [name for name in os.environ if OTHERS.match(name)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return work


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run in this process: fast, and NVML can be replayed; never for what would exec."""
    assert folder.is_dir()

    def run(*words: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["zerowiz", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        assert isinstance(code, int)
        captured = capfd.readouterr()
        return Result(stdout=captured.out, stderr=captured.err, code=int(code))

    return run


@pytest.fixture
def process(folder: Path) -> Run:
    """Run in a process of its own, without a terminal."""

    def run(*words: str, **env: str) -> Result:
        return run_process(folder, *words, env=env)

    return run


@pytest.fixture
def terminal(folder: Path) -> Iterator[Callable[..., Terminal]]:
    """Run at a terminal."""
    opened: list[Terminal] = []

    def run(*words: str, **env: str) -> Terminal:
        opened.append(Terminal(folder, words, env))
        return opened[-1]

    yield run
    for one in opened:
        one.child.close(force=True)


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        yield listener.getsockname()[1]
