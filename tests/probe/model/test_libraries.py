"""Which release of a library is installed."""

from importlib.metadata import version
from pathlib import Path

import pytest

from zerowiz.probe.package_data import parse_release, read_version


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("5.23.0", (5, 23)),
        ("5.24.0.dev0", (5, 24)),
        ("5.9", (5, 9)),
        ("", None),
        ("main", None),
        (None, None),
    ],
)
def test_a_release_is_its_major_and_minor(
    text: str | None, release: tuple[int, int] | None
) -> None:
    assert release == parse_release(text)


@pytest.mark.parametrize("package", ["torch", "transformers", "deepspeed", "accelerate", "pytest"])
def test_a_version_is_the_one_that_python_tells(package: str) -> None:
    assert version(package) == read_version(package)


def test_a_checkout_says_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers.egg-info").mkdir()
    (tmp_path / "transformers.egg-info" / "PKG-INFO").write_text("Version: 5.99.0.dev0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "5.99.0.dev0" == read_version("transformers")


def test_a_place_that_cannot_be_looked_into_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    # As one that nobody may read: what the kernel says is no "not there".
    monkeypatch.syspath_prepend("/" + 300 * "x")
    assert version("pytest") == read_version("pytest")


def test_what_is_not_installed_has_no_version() -> None:
    assert read_version("no-such-library-of-anybody") is None


def test_the_first_on_the_path_is_what_python_would_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "transformers-5.17.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 5.17.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert read_version("transformers") == "5.17.0"
