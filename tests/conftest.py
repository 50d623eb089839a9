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
