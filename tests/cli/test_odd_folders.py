"""What a person does works in a folder of any name."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli.harness import clean_environ
from paths import TEMPLATES

ZEROWIZ = (sys.executable, "-m", "zerowiz")


def unescape(word: str) -> bytes:
    """The bytes of a word between `$'` and `'`."""
    return re.sub(rb"\\x(..)", lambda found: bytes.fromhex(found[1].decode()), word.encode())


@pytest.fixture
def latin_1(tmp_path: Path) -> Path:
    """A folder with a script and a model, whose name is no UTF-8."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(TEMPLATES, folder)
    return folder


def test_a_path_that_is_no_utf_8_reaches_json_and_a_job_script(latin_1: Path) -> None:
    options = ("--yes", "--model", latin_1 / "model", "--machine", "4xA100-40GB")
    where = ("--output-dir", latin_1 / "out")
    words = (*ZEROWIZ, "init", "--slurm", *options, *where, latin_1 / "train_deepspeed.py")
    for _ in range(2):  # the second finds what the first wrote, and is not in its way
        done = subprocess.run(words, env=clean_environ(), capture_output=True, check=False)
        assert 0 == done.returncode, done.stderr.decode()
        assert b"zerowiz.toml is not written: a path in it is not UTF-8" in done.stderr
        # What is shown can be pasted.
        *_, shown = done.stdout.decode().partition("and submit it\n")
        typed = shlex.split(shown.partition("It runs on")[0].replace("$'", "'"))
        job_file = str(latin_1 / "out" / "job.sbatch")
        assert ["sbatch", job_file] == [os.fsdecode(unescape(word)) for word in typed]
    assert not (latin_1 / "out" / "zerowiz.toml").exists()
    assert os.fsencode(latin_1) in (latin_1 / "out" / "job.sbatch").read_bytes()

    ranks = ("--accelerator", "cpu", "--gpus-per-node", "2", *options[1:3])
    dry = (
        *ZEROWIZ,
        "launch",
        "--dry-run",
        "--json",
        "--yes",
        *ranks,
        latin_1 / "train_deepspeed.py",
    )
    done = subprocess.run(dry, env=clean_environ(), capture_output=True, check=False)
    assert 0 == done.returncode, done.stderr.decode()
    assert str(latin_1 / "model") in json.loads(done.stdout)["command"]
