import json
from dataclasses import replace
from pathlib import Path

import pytest

from zerowiz.core.codec import encode_machine
from zerowiz.core.machine import MachineSource
from zerowiz.core.spec import parse_spec
from zerowiz.errors import UsageError
from zerowiz.probe.gpu_table import read_gpu_table
from zerowiz.probe.machine_file import parse_machine_file, read_machine_file

MACHINE = parse_spec("4xA100-40GB", read_gpu_table())


def save(folder: Path, **content: object) -> Path:
    path = folder / "machine.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_saved_machine_comes_back_as_one_from_a_file(tmp_path: Path) -> None:
    path = save(tmp_path, schema_version=1, machine=encode_machine(MACHINE))
    assert replace(MACHINE, source=MachineSource.FILE) == read_machine_file(path)


def test_the_whole_output_of_a_plan_is_a_machine_file(tmp_path: Path) -> None:
    path = save(
        tmp_path,
        schema_version=1,
        zerowiz_version="0.1",
        machine=encode_machine(MACHINE),
        chosen="zero2",
        strategies=[],
    )
    assert MACHINE.gpus == read_machine_file(path).gpus


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[]", "not an object"),
        ("{}", "has no `schema_version`"),
        ('{"schema_version": 2, "machine": {}}', "has `schema_version` 2; this zerowiz reads 1"),
        ('{"schema_version": 1}', "has no `machine`"),
        ('{"schema_version": 1, "machine": []}', "not an object"),
        ('{"schema_version": 1, "machine": {}}', "`m.json: machine.gpus` is missing"),
    ],
)
def test_a_text_that_is_no_machine_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_machine_file(text, "m.json")
    assert said in caught.value.message
    assert "m.json" in caught.value.message
    assert "\n" not in caught.value.message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json` does not exist"):
        read_machine_file(tmp_path / "none.json")


def test_a_folder_is_no_machine_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_machine_file(tmp_path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not text"):
        read_machine_file(path)
