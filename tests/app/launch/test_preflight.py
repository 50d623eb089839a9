"""What a launch makes of the findings of its preflight checks."""

from pathlib import Path

import pytest
from core.launch.doctor.cases import lock, locked

from zerowiz.app.launch import start
from zerowiz.app.launch.start import (
    check_locks,
    note_findings,
    note_waits,
    require_no_error,
    take_over,
)
from zerowiz.core.findings import PreflightFinding, found
from zerowiz.core.preflight.builds import BEING_BUILT, COMPILES, NO_NINJA
from zerowiz.core.preflight.facts import Extensions
from zerowiz.core.preflight.hardware import MEMLOCK, PORT_TAKEN
from zerowiz.errors import PreflightError
from zerowiz.probe.preflight.toolchain import read_locks
from zerowiz.ui.reporter import TerminalReporter

ERROR = found(PORT_TAKEN, "another process uses port 1", "choose another")
WARNING = found(MEMLOCK, "little may be locked", "ulimit -l unlimited")


def test_an_error_stops_a_launch_with_its_fixes_as_hints() -> None:
    second = found(NO_NINJA, "no `ninja` found", "pip install ninja")
    with pytest.raises(
        PreflightError, match=r"another process uses port 1 \(PF601 port-taken\)"
    ) as e:
        require_no_error((WARNING, ERROR, second))
    first, other, fix, force = e.value.hints
    assert ("choose another", "pip install ninja") == (first, fix)
    assert other.startswith("no `ninja` found (PF402")
    assert "$force" in force


def test_what_may_go_well_stops_nothing() -> None:
    require_no_error((WARNING,))
    require_no_error((ERROR,), force=True)


@pytest.mark.parametrize(
    ("findings", "force", "expected"),
    [((WARNING, ERROR), False, 1), ((WARNING, ERROR), True, 2), ((), False, 0)],
)
def test_warnings_are_notes(
    findings: tuple[PreflightFinding, ...],
    force: bool,
    expected: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    note_findings(findings, TerminalReporter(), force=force)
    notes = capsys.readouterr().err.splitlines()
    assert expected == len(notes)
    assert all(note.startswith("note: ") for note in notes)


def test_what_the_job_waits_for_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    waits = (found(COMPILES, "DeepSpeed compiles it"), found(BEING_BUILT, "process 7 builds it"))
    note_waits((WARNING, *waits), TerminalReporter())
    expected = ["note: DeepSpeed compiles it", "note: process 7 builds it"]
    assert expected == capsys.readouterr().err.splitlines()


def test_a_lock_is_taken_over_once_and_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cpu_adam").mkdir()
    (tmp_path / "cpu_adam" / "lock").touch()
    left = read_locks(tmp_path, ("cpu_adam",))
    take_over(left, TerminalReporter())
    assert () == read_locks(tmp_path, ("cpu_adam",))
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith(f"note: removed the lock `{tmp_path}/cpu_adam/lock`")
    take_over(left, TerminalReporter())
    assert "" == capsys.readouterr().err


@pytest.mark.parametrize(
    ("extensions", "expected"),
    [
        (None, ""),
        (Extensions(folder="/e"), ""),
        (locked(lock(holder_pid=7)), "note: process 7 is building `cpu_adam`"),
        (locked(lock()), "note: `/e/cpu_adam/lock` is 15 minutes old"),
        # It is gone meanwhile: nothing to say.
        (locked(lock(left_by_rank=True)), ""),
    ],
)
def test_what_waits_for_no_lock_may_start(
    extensions: Extensions | None,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(start, "read_builds", lambda *_: extensions)
    check_locks("deepspeed", {}, (), TerminalReporter())
    said = capsys.readouterr().err
    assert said.startswith(expected)
    assert len(said.splitlines()) == bool(expected)


def test_what_would_wait_for_ever_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    left = locked(lock(sees_all=True), "ext4")
    monkeypatch.setattr(start, "read_builds", lambda *_: left)
    with pytest.raises(PreflightError, match="PF408") as e:
        check_locks("deepspeed", {}, (), TerminalReporter())
    assert ("rm /e/cpu_adam/lock",) == e.value.hints
