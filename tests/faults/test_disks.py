"""A disk that is full, or a folder that is gone, is one line; what was there stays whole."""

from pathlib import Path

import pytest
from cli.harness import run_process
from faults.bounded import misses, run_bounded
from faults.zoo import build_zoo

# No file can grow above this, as on a disk that is full.
ROOM_BYTES = 64
FULL = f"""
import os, resource, subprocess, sys
for number in (1, 2):  # what is said goes through pipes, which have no size
    cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=number)
    os.dup2(cat.stdin.fileno(), number)
resource.setrlimit(resource.RLIMIT_FSIZE, ({ROOM_BYTES}, {ROOM_BYTES}))
# Python, too, would write what fits of each module that it compiles, for all that run after it.
os.execv(sys.executable, [sys.executable, "-B", "-m", "zerowiz", *sys.argv[1:]])
"""
GONE = """
import os, sys
os.mkdir("../gone")
os.chdir("../gone")
os.rmdir("../gone")
os.execv(sys.executable, [sys.executable, "-m", "zerowiz", *sys.argv[1:]])
"""
JOB = ("--model", "7b", "--machine", "4xA100-40GB")
WRITES = {
    "init": ("init", "--yes", *JOB, "train.py"),
    "slurm": ("init", "--yes", "--slurm", *JOB, "train.py"),
    "html": ("plan", *JOB, "--html", "plan.html"),
    "save": ("machine", "--machine", "h200-x4.json", "--save", "saved.json"),
    "fix": ("check", "--fix", "amp.json"),
    "template": ("template", "new"),
}
OFTEN = ("init", "html", "fix", "template")


def texts(folder: Path) -> dict[str, bytes]:
    """What is in every file, by its path."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "name",
    [name if name in OFTEN else pytest.param(name, marks=pytest.mark.thorough) for name in WRITES],
)
def test_a_full_disk_is_one_line_and_loses_nothing(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "zoo"
    build_zoo(folder)
    before, paths = texts(folder), {*folder.rglob("*")}
    ended = run_bounded(folder, WRITES[name], program=("-c", FULL))
    assert ([], 1) == (misses(ended), ended.code), ended.stderr
    assert (before, paths) == (texts(folder), {*folder.rglob("*")})


@pytest.mark.parametrize("module", ["cli/commands", "app/options"])
def test_a_module_that_a_full_disk_cut_short_is_named(module: str, tmp_path: Path) -> None:
    words = ("plan", *JOB)
    compiled = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    assert 4 == run_process(tmp_path, *words, env=compiled).code
    (cut,) = tmp_path.rglob(f"zerowiz/{module}.*.pyc")
    cut.write_bytes(cut.read_bytes()[:ROOM_BYTES])
    refused = run_process(tmp_path, *words, env=compiled)
    assert (1, "") == (refused.code, refused.stdout)
    assert "a compiled module of Python is cut short" in refused.problem
    assert "`__pycache__`" in refused.hints


@pytest.mark.parametrize(
    "words",
    [
        ("launch", "--dry-run", "--accelerator", "cpu", "--model", "10m", "train.py"),
        ("doctor", "--accelerator", "cpu", "train.py"),
        ("template", "new"),
        ("machine", "--machine", "cpu", "--save", "saved.json"),
    ],
    ids=lambda words: words[0],
)
def test_a_folder_that_is_gone_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    build_zoo(tmp_path / "zoo")
    ended = run_bounded(tmp_path / "zoo", words, program=("-c", GONE))
    assert [] == misses(ended), ended.stderr
