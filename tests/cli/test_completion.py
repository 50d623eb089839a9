"""Completion, asked of real shells as a person asks them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from zerowiz.cli.completion import complete_machine, complete_script
from zerowiz.core.machine.spec import parse_machine
from zerowiz.probe.machine.gpu_table import read_gpu_table, read_instances

# What is typed before Tab, and what stands in the line after it.
TYPED = {
    "zerowiz mach": "zerowiz machine ",
    "zerowiz plan --obj": "zerowiz plan --objective ",
    "zerowiz plan --machine p6": "zerowiz plan --machine p6-b200.48xlarge ",
    "zerowiz plan --machine 2xp4de": "zerowiz plan --machine 2xp4de.24xlarge ",
    "zerowiz plan --model qwen2.5-14": "zerowiz plan --model qwen2.5-14b ",
    "zerowiz plan --model my": "zerowiz plan --model my-model ",
    "zerowiz plan --precision b": "zerowiz plan --precision bf16 ",
    "zerowiz launch fine": "zerowiz launch finetune.py ",
}


def needs(shell: str) -> pytest.MarkDecorator:
    """Only bash is among the packages that the tests may ask for."""
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a script and a model, and the program on PATH."""
    work, programs = tmp_path / "work", tmp_path / "bin"
    for folder in (work / "my-model", programs):
        folder.mkdir(parents=True)
    (work / "finetune.py").write_text("")
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


def test_bash_completes(place: Path) -> None:
    first = f"source {script_of('bash', place)}; {PRINT_LINE}; echo REA''DY"
    lines = completed(place, ["bash", "--norc", "--noprofile", "-i"], first, list(TYPED))
    assert list(TYPED.values()) == [f"{line} " if line[-1:] != " " else line for line in lines]


@needs("zsh")
def test_zsh_completes(place: Path) -> None:
    shell = "autoload -Uz compinit; compinit -u -D"
    first = f"{shell}; source {script_of('zsh', place)}; {PRINT_LINE}; echo REA''DY"
    lines = completed(place, ["zsh", "-f", "-i"], first, list(TYPED))
    assert list(TYPED.values()) == [f"{line} " if line[-1:] != " " else line for line in lines]


@needs("fish")
def test_fish_completes(place: Path) -> None:
    script = script_of("fish", place)
    for begin, expected in TYPED.items():
        ran = subprocess.run(
            ["fish", "--no-config", "-c", f"source {script}; complete -C '{begin}'"],
            env=environ_of(place),
            cwd=place,
            capture_output=True,
            text=True,
            check=True,
        )
        values = [line.partition("\t")[0] for line in ran.stdout.splitlines()]
        assert expected.split()[-1] in values


@pytest.mark.parametrize("begun", ["h1", "8xH", "2x8xA100", "P5", "dgx", "rtx", "4*l4", ""])
def test_each_machine_that_is_offered_is_taken(begun: str) -> None:
    offered = complete_machine(begun)
    assert offered
    for name in {*offered} - {"all", "cpu"}:
        assert name.startswith(begun)
        assert parse_machine(name, read_gpu_table(), read_instances()).gpus


def test_scripts_are_offered_here_and_below(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "my-model" / "train.py").write_text("")
    monkeypatch.chdir(place)
    assert ["finetune.py", "my-model/"] == complete_script("")
    assert ["my-model/train.py"] == complete_script("my-model/")
