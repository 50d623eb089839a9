"""Files are written whole or not at all, and never over somebody's work."""

import json
import multiprocessing
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from zerowiz.core.launch.provenance import PlannedFile
from zerowiz.emit.files import (
    add_files,
    find_losses,
    refuse_loss,
    refuse_other_files,
    release,
    remove_added,
    write_file,
    write_files,
    write_held,
)
from zerowiz.errors import HandEditedError, ZerowizError


def write(path: Path, text: str, *, force: bool = False) -> None:
    write_file(PlannedFile(path=str(path), text=text), force=force)


def test_what_is_written_is_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "config.json"
    write(path, "{}\n")
    assert "{}\n" == path.read_text()
    assert {"config.json", ".zerowiz"} == {child.name for child in path.parent.iterdir()}


def test_what_zerowiz_wrote_is_rewritten_silently(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text in ("one", "two", "one", "one"):
        write(path, text)
        assert text == path.read_text()


def test_a_copy_of_a_persons_file_is_as_private_as_that(tmp_path: Path) -> None:
    own, copy = tmp_path / "args.json", tmp_path / "args.ds_config_zero2.json"
    own.write_text("{}")
    for mode in (0o600, 0o444, 0o640):
        own.chmod(mode)
        write_file(PlannedFile(path=str(copy), text=f"{mode}", copy_of=str(own)))
        assert (f"{mode}", mode) == (copy.read_text(), stat.S_IMODE(copy.stat().st_mode))


def test_an_edited_copy_is_kept_and_not_shown(tmp_path: Path) -> None:
    own, copy = tmp_path / "args.json", tmp_path / "args.ds_config_zero2.json"
    own.write_text("{}")
    copy.write_text("mine")
    with pytest.raises(HandEditedError) as refused:
        write_file(PlannedFile(path=str(copy), text="theirs", copy_of=str(own)))
    assert "mine" == copy.read_text()
    assert () == refused.value.losses
    assert any(f"`{own}`" in hint for hint in refused.value.hints)


@pytest.mark.parametrize(
    ("wrote", "there", "text", "force", "is_kept"),
    [
        pytest.param(None, "mine", "new", False, True, id="there before"),
        pytest.param("old", "old, and mine", "new", False, True, id="changed since"),
        pytest.param(None, "same", "same", False, False, id="the same content"),
        pytest.param(None, "mine", "new", True, False, id="by force"),
    ],
)
def test_a_file_that_zerowiz_did_not_write_is_kept(
    tmp_path: Path, wrote: str | None, there: str, text: str, *, force: bool, is_kept: bool
) -> None:
    path = tmp_path / "config.json"
    if wrote is not None:
        write(path, wrote)
    path.write_text(there)
    if is_kept:
        [loss] = find_losses([PlannedFile(path=str(path), text=text)])
        assert (str(path), there.encode(), text) == (loss.path, loss.there, loss.wanted)
        with pytest.raises(ZerowizError, match="exists") as refused:
            write(path, text, force=force)
        assert any("--force" in hint for hint in refused.value.hints)
    else:
        write(path, text, force=force)
    assert (there if is_kept else text) == path.read_text()


def test_a_plan_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    """It holds the words of a command, and one of them may be a secret that nothing names."""
    path = tmp_path / "ds_config_zero2.plan.json"
    write_file(PlannedFile(path=str(path), text="{}"))
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0o002, 0o664)]
)
def test_the_permissions_are_those_of_the_umask(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        write(tmp_path / "config.json", "{}")
    finally:
        assert mask == os.umask(before)
    assert mode == stat.S_IMODE((tmp_path / "config.json").stat().st_mode)


def test_a_link_stays_a_link_and_its_file_is_written(tmp_path: Path) -> None:
    real, link = tmp_path / "shared" / "config.json", tmp_path / "config.json"
    real.parent.mkdir()
    write(real, "old")
    link.symlink_to(real)
    with pytest.raises(ZerowizError):
        write(link, "new")
    write(link, "new", force=True)
    assert link.is_symlink()
    assert "new" == real.read_text()
    write(link, "newer")
    assert "newer" == real.read_text()


def test_a_link_to_nothing_makes_its_file(tmp_path: Path) -> None:
    link = tmp_path / "config.json"
    link.symlink_to(tmp_path / "later.json")
    write(link, "new")
    assert link.is_symlink()
    assert "new" == (tmp_path / "later.json").read_text()


def test_a_place_that_cannot_be_written_is_a_known_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    bad = [
        tmp_path / "file" / "c.json",
        tmp_path / "folder",
        tmp_path / "loop",
        Path("/proc/none/c.json"),
        tmp_path / ("x" * 300),
    ]
    before = sorted(tmp_path.rglob("*"))
    for path in bad:
        # Force takes a link that leads nowhere for what it is: nothing.
        for force in (False, True) if path.name != "loop" else (False,):
            with pytest.raises(ZerowizError, match="cannot write") as refused:
                write(path, "{}", force=force)
            assert "--output-dir" in refused.value.hints[0]
    assert set(before) >= {p for p in tmp_path.rglob("*") if ".zerowiz" not in p.parts}


def pair(folder: Path, text: str) -> tuple[PlannedFile, PlannedFile]:
    """A plan and its config, as a run writes them."""
    names = ("ds_config_zero2.plan.json", "ds_config_zero2.json")
    plan, config = (PlannedFile(path=str(folder / name), text=f"{text} {name}") for name in names)
    return plan, config


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("ds_config*")}


@pytest.mark.parametrize("edited", [(0,), (1,), (0, 1)])
def test_where_one_file_is_refused_none_is_written(tmp_path: Path, edited: tuple[int, ...]) -> None:
    files = pair(tmp_path, "old")
    write_files(files)
    for place in edited:
        Path(files[place].path).write_text("mine")
    before = texts(tmp_path)
    with pytest.raises(HandEditedError) as refused:
        write_files(pair(tmp_path, "new"))
    assert before == texts(tmp_path)
    # The config comes first: its loss is the one that matters.
    assert [files[place].path for place in reversed(edited)] == [
        loss.path for loss in refused.value.losses
    ]
    assert all(f"`{files[place].path}`" in refused.value.message for place in edited)
    write_files(pair(tmp_path, "new"), force=True)
    assert {"new"} == {text.partition(" ")[0] for text in texts(tmp_path).values()}


def test_only_a_config_can_be_launched_as_it_is(tmp_path: Path) -> None:
    plan, config = pair(tmp_path, "new")
    for file, expected in ((plan, False), (config, True)):
        Path(file.path).write_text("mine")
        with pytest.raises(HandEditedError) as refused:
            refuse_loss(file)
        assert expected == any("--config" in hint for hint in refused.value.hints)
        assert expected != any("no run reads" in hint for hint in refused.value.hints)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("place", [0, 1])
def test_where_one_can_be_no_file_none_is_written(
    tmp_path: Path, place: int, *, force: bool
) -> None:
    files = pair(tmp_path, "new")
    Path(files[place].path).mkdir()
    with pytest.raises(ZerowizError, match="is a directory"):
        write_files(files, force=force)
    assert [Path(files[place].path)] == list(tmp_path.iterdir())


def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    plan, config = pair(tmp_path, "new")
    os.mkfifo(config.path)
    for force in (False, True):
        with pytest.raises(ZerowizError, match="not a regular file"):
            write_files((plan, config), force=force)
    with pytest.raises(ZerowizError, match="not a regular file"):
        find_losses((plan, config))
    assert not Path(plan.path).exists()


def test_of_a_huge_file_only_the_beginning_is_read(tmp_path: Path) -> None:
    _, config = pair(tmp_path, "new")
    with Path(config.path).open("wb") as stream:
        stream.truncate(10**11)
    [loss] = find_losses([config])
    assert len(loss.there) < 10**8
    assert 10**11 == Path(config.path).stat().st_size


def _write_often(path: str, letter: str, times: int) -> None:
    for _ in range(times):
        write_file(PlannedFile(path=path, text=json.dumps([letter] * 20_000) + "\n"))


def test_racing_writers_never_show_half_a_file_nor_stop_each_other(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    whole = {json.dumps([letter] * 20_000) + "\n" for letter in "ab"}
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=_write_often, args=(str(path), letter, 60)) for letter in "ab"
    ]
    for writer in writers:
        writer.start()
    seen: set[str] = set()
    while any(writer.is_alive() for writer in writers):
        if path.exists():
            seen.add(path.read_text())
    for writer in writers:
        writer.join()
    assert [0, 0] == [writer.exitcode for writer in writers]
    assert seen
    assert seen <= whole
    assert {"config.json", ".zerowiz"} == {child.name for child in tmp_path.iterdir()}


def _write_pairs_often(folder: str, letter: str, times: int) -> None:
    for _ in range(times):
        write_files(pair(Path(folder), json.dumps([letter] * 20_000)))


def test_racing_jobs_with_two_files_never_refuse_each_other(tmp_path: Path) -> None:
    whole = {
        (Path(file.path).name, file.text)
        for letter in "ab"
        for file in pair(tmp_path, json.dumps([letter] * 20_000))
    }
    context = multiprocessing.get_context("spawn")
    jobs = [
        context.Process(target=_write_pairs_often, args=(str(tmp_path), letter, 40))
        for letter in "ab"
    ]
    for job in jobs:
        job.start()
    seen: set[tuple[str, str]] = set()
    while any(job.is_alive() for job in jobs):
        here = texts(tmp_path)
        seen.update(here.items())
        # The plan goes first, so no config is ever without one.
        assert "ds_config_zero2.json" not in here or len(list(tmp_path.glob("*.plan.json"))) == 1
    for job in jobs:
        job.join()
    assert [0, 0] == [job.exitcode for job in jobs]
    assert seen
    assert seen <= whole


HOLD = """
import sys, time
from zerowiz.core.launch.provenance import PlannedFile
from zerowiz.emit.files import write_held
write_held((PlannedFile(path=sys.argv[1], text="first"),))
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A job that was started with `ds_config_zero2.json`, of the text `first`."""
    words = (sys.executable, "-c", HOLD, str(tmp_path / "ds_config_zero2.json"))
    with subprocess.Popen(words, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline()
        yield job
        job.kill()


@pytest.mark.parametrize("force", [False, True])
def test_what_a_running_job_reads_is_not_changed(
    tmp_path: Path, running: "subprocess.Popen[bytes]", *, force: bool
) -> None:
    path = tmp_path / "ds_config_zero2.json"
    other = PlannedFile(path=str(path), text="second")
    for refused in (refuse_loss, lambda file, force: write_held((file,), force=force)):
        with pytest.raises(ZerowizError, match="is in use") as error:
            refused(other, force=force)
        assert f"process {running.pid} on {socket.gethostname()}" in error.value.message
        assert any("--output-dir" in hint for hint in error.value.hints)
    assert "first" == path.read_text()
    # A job that reads the same may start, and one that writes another file.
    same = PlannedFile(path=str(path), text="first")
    third = PlannedFile(path=str(path.with_name("ds_config_zero3.json")), text="second")
    also = write_held((same, third))
    running.kill()
    running.wait()
    # Any of those who hold it counts; after the last of them nothing is left to clean.
    with pytest.raises(ZerowizError, match=f"process {os.getpid()} on"):
        write_held((other,))
    release(also)
    release(write_held((other,)))
    assert "second" == path.read_text()


def test_a_plan_is_read_by_no_rank_and_holds_nothing(tmp_path: Path) -> None:
    plans = [pair(tmp_path, text)[0] for text in ("one", "two")]
    held = write_held(plans[:1])
    assert () == held
    write_files(plans[1:])


def test_a_file_of_one_run_alone_is_private_and_replaced_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "1" / "deepspeed_env"
    for text in ("A=1\n", "A=2\n"):
        file = PlannedFile(path=str(path), text=text, own_folder=True)
        assert () == find_losses((file,))
        write_files((file,))
        assert text == path.read_text()
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert not (tmp_path / "runs" / "1" / ".zerowiz").exists()


# Files that are added to a person's folder: whole, all or none, and never over another.

FILES = (
    PlannedFile(path="lib/a.py", text="a = 1\n"),
    PlannedFile(path="lib/b.py", text="b = 2\n"),
    PlannedFile(path="run.py", text="import lib.a\n"),
)


def paths(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_what_was_added_is_taken_off_and_what_was_there_or_was_changed_stays(folder: Path) -> None:
    (folder / "run.py").write_text("import lib.a\n")
    added = add_files(FILES)
    assert FILES[:2] == added
    assert {"lib/a.py", "lib/b.py", "run.py"} == paths(folder)
    (folder / "lib" / "b.py").write_text("b = 3\n")
    assert ("lib/b.py",) == remove_added(added)
    assert {"lib/b.py", "run.py"} == paths(folder)


def test_another_file_refuses_all_and_is_not_touched(folder: Path) -> None:
    (folder / "run.py").write_text("mine\n")
    for use in (refuse_other_files, add_files):
        with pytest.raises(ZerowizError, match="already exists with other content"):
            use(FILES)
    assert "mine\n" == (folder / "run.py").read_text()
    assert {"run.py"} == paths(folder)


def test_where_one_cannot_be_added_none_is(folder: Path) -> None:
    # A file where the last one needs a folder.
    (folder / "here").write_text("")
    with pytest.raises(ZerowizError, match="cannot write"):
        add_files((*FILES, PlannedFile(path="here/c.py", text="")))
    assert {"here"} == paths(folder)
    assert not (folder / "lib").exists()


def test_they_have_the_permissions_of_any_new_file(folder: Path) -> None:
    (folder / "other").touch()
    add_files(FILES)
    assert (folder / "other").stat().st_mode == (folder / "run.py").stat().st_mode


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_the_records_of_another_user_are_named_with_their_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / ".zerowiz").mkdir(mode=0o700)
    os.chown(tmp_path / ".zerowiz", 1234, 1234)
    # By a name in it, as the folders above are of root alone.
    monkeypatch.chdir(tmp_path)
    os.seteuid(65534)
    try:
        with pytest.raises(ZerowizError, match="belongs to user 1234"):
            write(Path("config.json"), "{}")
    finally:
        os.seteuid(0)
