"""A person's own config is read in the dialect of its reader."""

from pathlib import Path

import pytest

from zerowiz.core.workload import Integration, Precision
from zerowiz.errors import UsageError
from zerowiz.probe.config_file import read_config_file

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
