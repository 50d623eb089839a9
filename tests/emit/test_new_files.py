"""Files that are added to a person's folder: whole, all or none, and never over another."""

from pathlib import Path

import pytest

from zerowiz.core.launch.plan import PlannedFile
from zerowiz.emit.files import add_files, refuse_other_files, remove_added
from zerowiz.errors import ZerowizError

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
    with pytest.raises(ZerowizError, match="cannot be read"):
        add_files((*FILES, PlannedFile(path="here/c.py", text="")))
    assert {"here"} == paths(folder)
    assert not (folder / "lib").exists()


def test_they_have_the_permissions_of_any_new_file(folder: Path) -> None:
    (folder / "other").touch()
    add_files(FILES)
    assert (folder / "other").stat().st_mode == (folder / "run.py").stat().st_mode
