"""What is typed before Tab, in which folder, and what a shell makes of it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect

# What is typed before Tab, and what stands in the line after it.
TYPED = {
    "zerowiz mach": "zerowiz machine ",
    "zerowiz plan --obj": "zerowiz plan --objective ",
    "zerowiz plan --machine p6": "zerowiz plan --machine p6-b200.48xlarge ",
    "zerowiz plan --machine 2xp4de": "zerowiz plan --machine 2xp4de.24xlarge ",
    "zerowiz plan --machine 8xRTX50": "zerowiz plan --machine 8xRTX5090-32GB ",
    "zerowiz plan --stage a": "zerowiz plan --stage auto ",
    "zerowiz plan --model qwen2.5-14": "zerowiz plan --model qwen2.5-14b ",
    "zerowiz plan --model my": "zerowiz plan --model my-model/ ",
    "zerowiz plan --precision b": "zerowiz plan --precision bf16 ",
    "zerowiz launch deep/tr": "zerowiz launch deep/train.py ",
    "zerowiz launch fine": "zerowiz launch finetune.py ",
    "zerowiz template --loop e": "zerowiz template --loop engine ",
    "zerowiz template my": "zerowiz template my-model/ ",
}


def make_place(tmp_path: Path) -> Path:
    """A folder with a script and a model, and the program on PATH."""
    work, programs = tmp_path / "work", tmp_path / "bin"
    for folder in (work / "my-model", programs):
        folder.mkdir(parents=True)
    (work / "finetune.py").write_text("")
    (work / "deep").mkdir()
    (work / "deep" / "train.py").write_text("")
    (work / "my-model" / "config.json").write_text("{}")
    program = programs / "zerowiz"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m zerowiz "$@"\n')
    program.chmod(0o755)
    return work


def environ_of(place: Path) -> dict[str, str]:
    path = f"{place.parent / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TERM": "dumb", "HOME": str(place.parent), "PS1": "$ "}


def script_of(shell: str, place: Path) -> Path:
    """What `zerowiz --install-completion` writes in this shell, in a file."""
    ran = subprocess.run(
        [place.parent / "bin" / "zerowiz"],
        env={**environ_of(place), "_ZEROWIZ_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        check=True,
    )
    path = place.parent / f"completion.{shell}"
    path.write_text(ran.stdout)
    return path


def completed(place: Path, argv: list[str], first: str, typed: list[str]) -> Iterator[str]:
    """The line that each beginning becomes with Tab, in an interactive shell."""
    shell = pexpect.spawn(
        argv[0], argv[1:], env=environ_of(place), cwd=place, encoding="utf-8", timeout=30
    )
    shell.sendline(first)
    shell.expect_exact("READY")
    try:
        for begin in typed:
            # Ctrl-A and a comment sign: the line is shown as a whole, and not run.
            shell.send(f"{begin}\t")
            shell.expect_exact(begin)
            shell.send("END\x01print-line \r")
            shell.expect(r"LINE<(.*?)END>")
            yield str(shell.match[1]) if shell.match else ""
    finally:
        shell.close(force=True)


PRINT_LINE = "print-line() { printf 'LINE<%s>\\n' \"$*\"; }"
