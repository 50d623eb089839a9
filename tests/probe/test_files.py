"""What a person names may be no file, or have no end: it is refused within seconds."""

import os
import socket
import subprocess
from pathlib import Path
from threading import Thread

import pytest

from zerowiz.app.answers_file import read_answers_file
from zerowiz.errors import UsageError, ZerowizError
from zerowiz.probe.files import LONGEST_SCRIPT_BYTES, read_named, read_named_text
from zerowiz.probe.machine.machine_file import read_machine_file
from zerowiz.probe.script.read_script import read_script


def _refusal(path: Path) -> str:
    with pytest.raises(OSError, match=r".") as raised:
        read_named(path, 2**20)
    return str(raised.value.strerror)


def test_what_is_no_file_is_refused_by_what_it_is(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        assert "No such device or address" == _refusal(tmp_path / "socket")
    assert "it is a folder, not a file" == _refusal(tmp_path)
    assert "it is a device, not a file" == _refusal(Path("/dev/zero"))
    assert "No such file or directory" == _refusal(tmp_path / "missing")
    assert "embedded null" in _refusal(Path("a\0b"))


def test_a_log_of_the_kernel_that_has_no_next_line_yet_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `/proc/kmsg` answers, which not every machine has."""
    log = tmp_path / "kmsg"
    log.write_bytes(b"<6>a line\n")
    parts = iter([b"<6>a line\n"])

    def read(_handle: int, _most: int) -> bytes:
        for part in parts:
            return part
        raise BlockingIOError

    monkeypatch.setattr(os, "read", read)
    assert "it has no end" == _refusal(log)


def test_a_file_of_the_kernel_is_read_though_much_is_asked_for() -> None:
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    assert boot_id.read_bytes() == read_named(boot_id, 2**25)


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(2**40)
    assert "it has more than 1 MiB" == _refusal(huge)


def test_a_pipe_is_read_to_its_end_and_one_without_a_writer_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_bytes, args=(b"abc" * 100_000,))
    writer.start()
    assert b"abc" * 100_000 == read_named(pipe)
    writer.join()
    assert b"abc" * 100_000 == read_named(pipe), "a command may need it twice"
    monkeypatch.setattr("zerowiz.probe.files._OPENED_SECONDS", 0.1)
    monkeypatch.setattr("zerowiz.probe.files._WRITTEN_SECONDS", 1)
    other = tmp_path / "other"
    os.mkfifo(other)
    assert "no program has it open to write to it" == _refusal(other)
    silent = tmp_path / "silent"
    os.mkfifo(silent)
    handle = os.open(silent, os.O_RDWR)
    assert "nothing was written to it for 1 seconds" == _refusal(silent)
    os.close(handle)


def test_what_a_shell_puts_behind_a_command_can_be_read_twice() -> None:
    with subprocess.Popen(["/bin/echo", "one"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        path = Path(f"/dev/fd/{process.stdout.fileno()}")
        assert "one\n" == read_named_text(path) == read_named_text(path)


DEEP = "an expression in it has too many levels"
BATCH = "from transformers import TrainingArguments\nTrainingArguments(per_device_train_batch_size={})\n"


BEYOND = {
    "signs": (f"x = {'-' * 100_000}1\n", DEEP),
    "attributes": (f"x = a{'.b' * 20_000}\n", DEEP),
    "sums": (f"x = 1{'+1' * 20_000}\n", DEEP),
    "hex": (BATCH.format("0x" + "f" * 5_000), "a number in it has too many digits"),
    "digits": (BATCH.format("9" * 5_000), "a number in line 2 has too many digits"),
    "grouped": (BATCH.format("-" + "9_" * 5_000 + "9"), "a number in line 2 has too many digits"),
    "nobody wrote it": ("a\n" * (LONGEST_SCRIPT_BYTES // 2 + 1), "it has more than 512 KiB"),
}


@pytest.mark.parametrize(("text", "problem"), BEYOND.values(), ids=BEYOND)
def test_a_script_beyond_what_is_read_is_an_error(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    with pytest.raises(ZerowizError, match=problem):
        read_script(path)


def test_an_answers_file_with_too_many_levels_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "zerowiz.toml"
    path.write_text("a = " + "[" * 50_000)
    with pytest.raises(UsageError, match="is not TOML: maximum recursion"):
        read_answers_file(path)


def test_a_long_line_is_cut_where_it_was_quoted(tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    path.write_text("[" * 100_000)
    with pytest.raises(UsageError, match="is not JSON: too many levels"):
        read_machine_file(path)
    error = UsageError(f"hostfile `h` line 1: `{'x' * 6_000}` is not valid", "y" * 3_000)
    assert error.message.startswith("hostfile `h` line 1: `xxx")
    assert error.message.endswith("xxx` is not valid")
    assert 200 > len(error.message)
    assert ("y" * 3_000,) == error.hints
    assert 820 > len(UsageError("z " * 3_000).message)
