"""What more than one test folder needs."""

import sys
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_nvml import FakeNvmlLib


@pytest.fixture
def fake_nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeNvmlLib], FakeNvmlLib]:
    """Put a fake C library under the real pynvml for the length of a test."""

    def install(lib: FakeNvmlLib) -> FakeNvmlLib:
        monkeypatch.setattr(pynvml, "nvmlLib", lib)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return lib

    return install


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a person rewrite the golden files, and then read the diff."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")


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
