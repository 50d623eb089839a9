"""What more than one test folder needs."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))
# Whoever runs the tests: what is compared is English. Modules choose the language as they load, and
# the processes that tests start by LANGUAGE.
os.environ.pop("ZEROWIZ_LANG", None)
os.environ["LANGUAGE"] = "en"
# Without one, as in a job of cron, no bar is drawn.
os.environ["TERM"] = "xterm-256color"

from cli.harness import HF_PARSER, Result, Run, Terminal, enter, run_process
from recorded import Install, put_under_pynvml

from zerowiz.cli.commands import main

# A slow machine breaks no law. Each is tried a few times for every change, and more often in CI.
for profile, examples in (("few", 8), ("more", 60), ("thorough", 1000)):
    hypothesis.settings.register_profile(profile, max_examples=examples, deadline=None)
hypothesis.settings.load_profile("few")

# What `nohup`, or the `&` of a script, ignores would be ignored by all that the tests start.
for number, handler in (
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGINT, signal.default_int_handler),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

_APART: Mapping[str, str] = {
    "cluster": "with a real sshd",
    "nodes": "on nodes made of namespaces",
    "pictures": "in a real browser",
    "shells": "in a real zsh and fish",
    "slurm": "under a real SLURM",
    "slow": "that train or trace for long",
    "truth": "that train every config of tests/lint",
}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a function table under the real pynvml, as the driver's library, for one test."""

    def install(library: object) -> None:
        put_under_pynvml(library, monkeypatch)

    return install


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests caches of their own.

    What a person's jobs have left (what ran out of memory, what was measured, traces, builds)
    changes plans, and what tests leave is not for them.
    """
    caches = tempfile.TemporaryDirectory(prefix="zerowiz-caches-")
    config.add_cleanup(caches.cleanup)
    os.environ.setdefault("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    os.environ["XDG_CACHE_HOME"] = caches.name


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a person rewrite the golden files, and then read the diff; or run tests that stand apart."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")
    for name, what in _APART.items():
        parser.addoption(f"--{name}", action="store_true", help=f"only the tests {what}")
    parser.addoption(
        "--thorough", action="store_true", help="also the whole of what is sampled otherwise"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file without the marks that are asked for is not even imported."""
    asked = [name for name in _APART if config.getoption(f"--{name}")]
    if not asked or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    return None if all(f"mark.{name}" in text for name in asked) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that stand apart run when they are asked for, and alone; thorough ones, when asked."""
    asked = {name for name in _APART if config.getoption(f"--{name}")}
    sampled = not config.getoption("--thorough")

    def runs(item: pytest.Item) -> bool:
        marks = {mark.name for mark in item.iter_markers()}
        return asked == marks & _APART.keys() and not (sampled and "thorough" in marks)

    running = [item for item in items if runs(item)]
    kept = set(running)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = running
    # What lives as long as the tests is not looked through again at each cycle of the collector.
    gc.freeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Hold a text against a file of tests/golden."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{name} is missing; `make golden` writes it"
        assert path.read_text(encoding="utf-8") == text

    return compare


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and an environment that says nothing."""
    work = tmp_path / "work"
    work.mkdir()
    enter(work, monkeypatch)
    return work


@pytest.fixture
def script(folder: Path) -> Path:
    """A script of the Trainer, in that folder."""
    path = folder / "train.py"
    path.write_text(HF_PARSER)
    return path


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
def pdsh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a `pdsh` and an `ssh` on PATH that a launch finds, and that nothing may start."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("pdsh", "ssh"):
        (programs / name).write_text("#!/bin/sh\necho 'a stand-in was started' >&2\nexit 1\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return programs
