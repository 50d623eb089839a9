"""A settings file is read as its script reads it, and what cannot be read is one line."""

import os
from pathlib import Path

import pytest
from paths import TESTS

from zerowiz.core.script.facts import ScriptFacts
from zerowiz.errors import ExitCode, ZerowizError
from zerowiz.probe.script.read import read_script

SCRIPTS = TESTS / "probe" / "scripts"
ONE_FILE, TRL = SCRIPTS / "hf_parser.py", SCRIPTS / "hf_parser_trl.py"


def read(script: Path, *words: str) -> ScriptFacts:
    return read_script(script, words)


def test_words_that_name_no_file_read_none() -> None:
    assert read(ONE_FILE).settings_file is None
    assert read(ONE_FILE, "--output_dir", "a.json").settings_file is None
    assert read(TRL, "a.yaml").settings_file is None


def test_the_values_are_those_that_the_script_gets(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"bf16": true, "learning_rate": 1e-5, "x": {"y": [null]}}')
    whole = read(ONE_FILE, str(tmp_path / "a.json")).settings_file
    assert whole is not None
    assert {"bf16": True, "learning_rate": 1e-5, "x": {"y": [None]}} == whole.values
    assert whole.is_whole
    # What TrlParser reads is YAML whatever its name is; there 1e-5 is a text.
    defaults = read(TRL, "--bf16", "--config", str(tmp_path / "a.json")).settings_file
    assert defaults is not None
    assert {"bf16": True, "learning_rate": "1e-5", "x": {"y": [None]}} == defaults.values
    assert not defaults.is_whole


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.json", b"{", "is not JSON: Expecting property name enclosed in double quotes"),
        ("a.json", b"[" * 100_000, "is not JSON: too many levels"),
        ("a.json", b"[1]", "has no named values"),
        ("a.json", b'{"a": "\xe9"}', "is not UTF-8 text (byte 7)"),
        ("a.yaml", b"a: [", "is not YAML: syntax error"),
        ("a.yaml", b"d: 2024-13-45", "is not YAML: month must be in 1..12"),
        ("a.yaml", b"", "has no named values"),
    ],
)
def test_what_holds_no_values_is_a_mistake_of_usage(
    tmp_path: Path, name: str, data: bytes, expected: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    words = (str(path),) if name == "a.json" else ("--config", str(path))
    with pytest.raises(ZerowizError) as caught:
        read(ONE_FILE if name == "a.json" else TRL, *words)
    assert caught.value.message.startswith(f"`{path}` {expected}")
    assert "\n" not in caught.value.message
    assert ExitCode.USAGE is caught.value.exit_code


def test_a_file_that_is_not_there_fails_the_preflight(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    for name in ("none.json", "pipe.json", "folder.json"):
        with pytest.raises(ZerowizError) as caught:
            read(ONE_FILE, str(tmp_path / name))
        assert f"`{tmp_path / name}`" in caught.value.message
        assert ExitCode.PREFLIGHT is caught.value.exit_code
