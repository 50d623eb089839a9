import os
from pathlib import Path

import pytest
from fake_host import build_host

from zerowiz.probe.machine.host import read_host
from zerowiz.probe.machine.network import read_network
from zerowiz.probe.recording import FOLDER, Files, FilesLog, HostFiles, RecordedFiles

FILES = {"proc/meminfo": "MemTotal: 1 kB\n", "sys/block/a/size": "8\n", "sys/block/b/size": "9\n"}
LINKS = {"sys/class/block/a": "sys/block/a"}
PATHS = ("proc/meminfo", "sys/block", "sys/block/a", "sys/class/block/a", "not/there", FOLDER)


@pytest.fixture
def host(tmp_path: Path) -> HostFiles:
    return build_host(tmp_path, FILES, LINKS)


def ask_all(files: Files) -> list[object]:
    asks = (files.text, files.names, files.real, files.space, files.opens)
    return [ask(path) for ask in asks for path in PATHS]


def test_a_file_is_its_text(host: HostFiles) -> None:
    assert "8\n" == host.text("sys/class/block/a/size")
    assert host.text("sys/block") is None
    assert host.text("not/there") is None


def test_bytes_that_are_no_text_are_replaced(host: HostFiles) -> None:
    (host.root / "binary").write_bytes(b"a\xffb")
    assert "a\ufffdb" == host.text("binary")


@pytest.mark.parametrize("what", ["pipe", "device"])
def test_what_never_ends_is_no_text(host: HostFiles, what: str) -> None:
    """A variable names the file with the hosts of a job, and may name anything."""
    if what == "pipe":
        os.mkfifo(host.root / what)
    else:
        (host.root / what).symlink_to("/dev/zero")
    assert host.text(what) is None


def test_a_folder_is_its_sorted_names(host: HostFiles) -> None:
    assert ("a", "b") == host.names("sys/block")
    assert () == host.names("proc/meminfo")
    assert () == host.names("not/there")


def test_a_link_is_resolved_within_the_root(host: HostFiles) -> None:
    assert "sys/block/a" == host.real("sys/class/block/a")
    assert host.real("not/there") is None


def test_a_link_to_itself_leads_nowhere(host: HostFiles) -> None:
    (host.root / "loop").symlink_to("loop")
    assert host.real("loop") is None
    assert host.text("loop") is None


def test_a_link_out_of_the_root_leads_nowhere(host: HostFiles) -> None:
    (host.root / "out").symlink_to("/")
    assert host.real("out") is None


def test_the_folder_of_the_job_has_a_name_of_its_own(host: HostFiles, tmp_path: Path) -> None:
    elsewhere = HostFiles(root=Path("/"), folder=tmp_path)
    assert host.names("") == elsewhere.names(FOLDER)
    space = elsewhere.space(FOLDER)
    assert space
    assert 0 < space.free_bytes <= space.total_bytes
    assert 2 == len(space.device.split(":"))


def test_a_file_that_is_there_opens(host: HostFiles) -> None:
    assert host.opens("proc/meminfo")
    assert not host.opens("not/there")


def test_a_log_changes_no_answer(host: HostFiles) -> None:
    # The free space may change between two questions: the same log is asked twice.
    log = FilesLog(files=host)
    assert ask_all(log) == ask_all(log)
    assert [host.text(path) for path in PATHS] == [log.text(path) for path in PATHS]


def test_a_recording_answers_as_the_host_did(host: HostFiles) -> None:
    log = FilesLog(files=host)
    assert ask_all(log) == ask_all(RecordedFiles(answers=log.answers))


def test_what_was_not_asked_is_not_there(host: HostFiles) -> None:
    recorded = RecordedFiles(answers=FilesLog(files=host).answers)
    nothing = [None] * 6 + [()] * 6 + [None] * 12 + [False] * 6
    assert nothing == ask_all(recorded)


def test_this_host_replays_from_its_recording() -> None:
    log = FilesLog(files=HostFiles())
    live = (read_host(log), read_network(log, {}))
    recorded = RecordedFiles(answers=log.answers)
    assert live == (read_host(recorded), read_network(recorded, {}))
