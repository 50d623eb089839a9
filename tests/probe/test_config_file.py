"""A person's own config is read in the dialect of its reader."""

import os
from pathlib import Path

import pytest
from probe.scripts import SCRIPTS

from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.workload import Integration, Precision
from zerowiz.errors import ExitCode, UsageError, ZerowizError
from zerowiz.probe.config_text import read_config_file
from zerowiz.probe.script.read_script import read_script

BY_HAND = """\
{
  # as hjson takes it
  zero_optimization: {
    stage: 3
    overlap_comm: no
  }
  bf16: {enabled: yes}   // a word
  'train_micro_batch_size_per_gpu': 4,
}
"""
PLAIN = '{"zero_optimization": {"stage": 2}}'


def test_deepspeed_reads_what_people_write_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "ds.hjson"
    path.write_text(BY_HAND.replace("yes}   // a word", "yes\n}"))
    for reader in (None, Integration.DEEPSPEED):
        own = read_config_file(path, reader)
        assert (3, 4, Precision.BF16) == (own.stage, own.micro_batch, own.precision)
        assert own.buffers is not None
        assert not own.buffers.overlap_comm


@pytest.mark.parametrize("reader", [Integration.HF, Integration.ACCELERATE])
def test_the_trainer_reads_json_alone(tmp_path: Path, reader: Integration) -> None:
    path = tmp_path / "ds.json"
    path.write_text("// a comment\n" + PLAIN)
    with pytest.raises(UsageError, match=r"is not JSON: .* at line 1 column 1"):
        read_config_file(path, reader)
    path.write_text(PLAIN)
    assert 2 == read_config_file(path, reader).stage


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"[1]", "holds no JSON object"),
        (b'{"a": ', "is not JSON"),
        (b"\xff\xfe{\x00", "UTF-16"),
        (b'{"a": "\xe9"}', "is not UTF-8"),
        (b'{"schema_version": 1, "machine": {}}', "is a machine"),
    ],
)
def test_what_is_no_config_is_refused(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "ds.json"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=problem):
        read_config_file(path)


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_config_file(tmp_path)


# A settings file is read as its script reads it, and what cannot be read is one line.

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
