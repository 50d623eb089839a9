"""A LaunchPlan is done as it was planned."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zerowiz.core.launch.plan import LaunchPlan, PlannedFile
from zerowiz.emit.files import refuse_loss
from zerowiz.errors import ZerowizError

# Forked from the tests' own process, execute() would take pytest's place; so it runs in its own.
_DO = """
import sys
from zerowiz.core.launch.plan import LaunchPlan, PlannedFile
from zerowiz.emit.measure import execute
from zerowiz.errors import ZerowizError
sys.stdout.write("before\\n")
plan = {plan!r}
try:
    execute(plan, {environ!r})
except ZerowizError as error:
    sys.exit(f"{{int(error.exit_code)}} {{error.message}}")
"""


def do(folder: Path, plan: LaunchPlan, **environ: str) -> subprocess.CompletedProcess[str]:
    code = _DO.format(plan=plan, environ=environ)
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_command_runs_with_its_words_and_its_environment(tmp_path: Path) -> None:
    plan = LaunchPlan(
        files=(PlannedFile(path="a.json", text="{}\n"),),
        argv=("/bin/sh", "-c", 'env; printf "<%s>" "$@"', "sh", "a b", "", "*"),
        env={"ADDED": "1", "CHANGED": "new"},
    )
    done = do(tmp_path, plan, CHANGED="old", KEPT="2")
    assert 0 == done.returncode, done.stderr
    lines = done.stdout.splitlines()
    assert "before" == lines[0]
    assert {"ADDED=1", "CHANGED=new", "KEPT=2"} <= set(lines)
    assert "<a b><><*>" == lines[-1]
    assert "{}\n" == (tmp_path / "a.json").read_text()


def test_the_status_is_the_commands_own(tmp_path: Path) -> None:
    plan = LaunchPlan(files=(), argv=("/bin/sh", "-c", "exit 9"), env={})
    assert 9 == do(tmp_path, plan).returncode


def test_a_command_that_cannot_start_is_a_preflight_failure(tmp_path: Path) -> None:
    plan = LaunchPlan(files=(), argv=(str(tmp_path / "none"),), env={})
    assert "5 cannot start" in do(tmp_path, plan).stderr


def test_a_file_that_is_refused_stops_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("mine")
    files = (PlannedFile(path="a.json", text="{}\n"),)
    done = do(tmp_path, LaunchPlan(files=files, argv=("/bin/touch", "ran"), env={}))
    assert "1 `a.json` exists" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_file_that_is_refused_keeps_all_from_being_written(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("mine")
    files = (PlannedFile(path="a.json", text="{}\n"), PlannedFile(path="b.json", text="{}\n"))
    done = do(tmp_path, LaunchPlan(files=files, argv=("/bin/touch", "ran"), env={}))
    assert "1 `b.json` exists" in done.stderr
    assert ["b.json"] == [path.name for path in tmp_path.iterdir()]


def test_the_command_holds_its_files_as_long_as_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    first, second = (PlannedFile(path=str(path), text=text) for text in ("{}\n", "[]\n"))
    plan = LaunchPlan(files=(first,), argv=("/bin/sleep", "60"), env={})
    code = _DO.format(plan=plan, environ={})
    with subprocess.Popen([sys.executable, "-c", code]) as job:
        while Path(f"/proc/{job.pid}/comm").read_text() != "sleep\n":
            time.sleep(0.01)
        with pytest.raises(ZerowizError, match=f"process {job.pid} on"):
            refuse_loss(second)
        job.kill()
    refuse_loss(second)
