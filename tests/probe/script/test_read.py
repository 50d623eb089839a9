"""A script is read as a file, and what cannot be read is one line."""

import sys
from pathlib import Path

import pytest
from probe.reading import SCRIPTS

from zerowiz.core.script.facts import Convention
from zerowiz.core.script.settings import resolve_script
from zerowiz.errors import PreflightError, ZerowizError
from zerowiz.probe.script.read import read_script


def test_reading_a_script_runs_nothing_and_warns_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text('import sys\nsys.modules["ran"] = None\nPATTERN = "\\d"\n')
    assert Convention.UNKNOWN is read_script(path).convention
    assert "ran" not in sys.modules


def test_an_encoding_cookie_a_shebang_and_a_bom_are_python(tmp_path: Path) -> None:
    for name, data in (
        ("cookie.py", b"#!/usr/bin/env python\n# -*- coding: latin-1 -*-\nname = '\xe9'\n"),
        ("bom.py", b"\xef\xbb\xbfx = 1\n"),
    ):
        (tmp_path / name).write_bytes(data)
        assert str(tmp_path / name) == read_script(tmp_path / name).path


@pytest.mark.parametrize("encoding", ["hex", "rot13", "undefined", "punycode", "utf-16"])
def test_an_encoding_that_python_refuses_is_an_error_of_one_line(
    tmp_path: Path, encoding: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"# -*- coding: {encoding} -*-\nimport torch\n")
    with pytest.raises(ZerowizError, match=f"is not (Python: encoding problem:|valid) {encoding}"):
        read_script(path)


def test_the_args_file_beside_the_script_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text((SCRIPTS / "hf_parser.py").read_text())
    (tmp_path / "train.args").write_text("--per_device_train_batch_size 2\n--bf16\n")
    said = resolve_script(read_script(tmp_path / "train.py"), ()).micro_batch
    assert said is not None
    assert said.value == 2


def test_a_missing_script_is_an_error_that_names_the_near_ones(tmp_path: Path) -> None:
    (tmp_path / "train_hf.py").touch()
    (tmp_path / "setup.py").touch()
    with pytest.raises(PreflightError) as caught:
        read_script(tmp_path / "train_fh.py")
    assert f"there is no script `{tmp_path / 'train_fh.py'}`" == caught.value.message
    assert (f"did you mean `{tmp_path / 'train_hf.py'}`?",) == caught.value.hints


def test_a_folder_is_an_error_that_names_its_scripts(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(PreflightError) as caught:
        read_script(tmp_path)
    assert f"`{tmp_path}` is a folder, not a script" == caught.value.message
    assert (f"did you mean `{tmp_path / 'train.py'}`?",) == caught.value.hints


def test_a_path_through_a_file_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    path = tmp_path / "train.py" / "train.py"
    with pytest.raises(PreflightError) as caught:
        read_script(path)
    assert f"`{path}` cannot be read: Not a directory" == caught.value.message


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"x = 1\ndef f(:\n", "line 2 is not Python"),
        (b"x = 1\ny = 2\nz = 3\nname = '\xe9'\n", "line 4 is not valid utf-8"),
        (b"# coding: klingon\n", "line 1 is not Python"),
        (b"#!/bin/bash\npython train.py \\\n  --x\n", "is a shell script that starts"),
        (b"x = 1\0", "is not Python"),
    ],
)
def test_what_is_not_python_is_one_line_and_a_hint(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(data)
    with pytest.raises(ZerowizError) as caught:
        read_script(path)
    assert said in caught.value.message
    assert "\n" not in caught.value.message


def test_a_file_of_words_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text((SCRIPTS / "hf_parser.py").read_text())
    (tmp_path / "train.args").write_bytes(b"\xff\xfe-")
    with pytest.raises(PreflightError) as caught:
        read_script(tmp_path / "train.py")
    assert caught.value.message.startswith(f"`{tmp_path / 'train.args'}`, from which")
