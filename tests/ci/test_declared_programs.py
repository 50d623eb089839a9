"""The PATH of CI: what the README lists and every system has, and nothing else."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

SCRIPT = ROOT / ".ci" / "declared_programs.py"

# Status, name, Essential, priority, Provides, Pre-Depends, Depends: as dpkg-query prints them.
INSTALLED = """\
installed\tbase\tyes\trequired\t\tlibbase\t
installed\tlibbase\tno\toptional\t\t\t
installed\tmount\tno\trequired\t\t\t
installed\tiproute2\tno\timportant\t\t\t
installed\tg++\tno\toptional\tc++-compiler\t\tg++-12 (>= 12.2.0-1~), missing | cpp:any
installed\tg++-12\tno\toptional\t\t\tlinker
installed\tcpp\tno\toptional\t\t\tg++
installed\tbinutils\tno\toptional\tlinker (= 2)\t\t
installed\tpdsh\tno\toptional\t\t\tg++
config-files\tmake\tno\toptional\t\t\t
"""
DECLARED = {"base", "libbase", "mount", "g++", "g++-12", "cpp", "binutils"}

DPKG_QUERY = """\
#!/bin/sh
case $1 in
  -W) cat {folder}/installed ;;
  -L) shift; for name; do cat {folder}/files/"$name" 2>/dev/null; done ;;
esac
"""


@pytest.fixture
def dpkg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system of these packages: each has a program of its own name in `bin`."""
    programs, files, alone = (tmp_path / name for name in ("bin", "files", "alone"))
    for folder in (programs, files, alone):
        folder.mkdir()
    (tmp_path / "installed").write_text(INSTALLED)
    for line in INSTALLED.splitlines():
        name = line.split("\t")[1]
        (programs / name).write_text("")
        (files / name).write_text(f"/usr/share/doc/{name}\n{programs / name}\n")
    # As update-alternatives does: no package lists it.
    (programs / "c++").symlink_to(programs / "g++")
    (programs / "own").write_text("a program of nobody's package")
    (alone / "dpkg-query").write_text(DPKG_QUERY.format(folder=tmp_path))
    (alone / "dpkg-query").chmod(0o755)
    monkeypatch.setenv("PATH", f"{alone}:{os.environ['PATH']}")
    return programs


def test_the_readme_lists_what_make_needs() -> None:
    listed = runpy.run_path(str(SCRIPT))["read_packages"]()
    assert {"python3-dev", "python3-venv", "g++", "make", "git"} == listed


@pytest.mark.usefixtures("dpkg")
def test_packages_of_every_system_and_wanted_ones_are_declared_with_what_they_need() -> None:
    list_declared = runpy.run_path(str(SCRIPT))["list_declared"]
    assert DECLARED == list_declared(frozenset({"g++", "make"}))


def test_programs_are_found_by_every_name_that_they_have(dpkg: Path) -> None:
    script = runpy.run_path(str(SCRIPT))
    list_programs = script["list_programs"]
    list_programs.__globals__["PLACES"] = (dpkg, dpkg / "none")
    found = {program.name for program in list_programs(frozenset(DECLARED))}
    assert DECLARED | {"c++"} == found


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no dpkg knows what is installed")
def test_an_undeclared_program_is_not_found_and_declared_ones_are(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr
    names = {path.name for path in tmp_path.iterdir()}
    assert {"sh", "bash", "sed", "tee", "python3"} <= names
    assert not names & {"pdsh", "ssh"}


def test_without_dpkg_it_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 1 == done.returncode
    assert "no dpkg" in done.stderr
    assert [] == list(tmp_path.iterdir())
