"""Completion in zsh and fish, asked as a person asks them."""

import subprocess
from pathlib import Path

import pytest
from shells.typed import PRINT_LINE, TYPED, completed, environ_of, make_place, script_of

pytestmark = pytest.mark.shells


def test_zsh_completes(tmp_path: Path) -> None:
    place = make_place(tmp_path)
    shell = "autoload -Uz compinit; compinit -u -D"
    first = f"{shell}; source {script_of('zsh', place)}; {PRINT_LINE}; echo REA''DY"
    lines = completed(place, ["zsh", "-f", "-i"], first, list(TYPED))
    assert list(TYPED.values()) == [f"{line} " if line[-1:] != " " else line for line in lines]


def test_fish_completes(tmp_path: Path) -> None:
    place = make_place(tmp_path)
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
