"""What more than one test folder needs."""

import sys
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

sys.path.insert(0, str(Path(__file__).parent))

Install = Callable[[object], None]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a function table under the real pynvml, as the driver's library, for one test."""

    def install(library: object) -> None:
        monkeypatch.setattr(pynvml, "nvmlLib", library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    return install


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a person rewrite the golden files, and then read the diff; or test with real clusters."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")
    parser.addoption("--cluster", action="store_true", help="only the tests marked cluster")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that need sshd, pdsh and SLURM run when they are asked for, and alone."""
    asked = config.getoption("--cluster")
    others = [item for item in items if bool(item.get_closest_marker("cluster")) != asked]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


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
