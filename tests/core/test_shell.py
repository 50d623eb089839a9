"""Words that a person pastes into a shell arrive as they were."""

import os
import subprocess

from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core import command_words

ODD = (
    *("train.py", "my run.py", "it's", "$HOME `x` \\", "", "-", "\\x41'", "\N{SNOWMAN}"),
    *("two\nlines", "\x1b[31m", "caf\udce9", "\udce9f'", "\N{NO-BREAK SPACE}1", "\x7f"),
)


def read_by_bash(line: str) -> list[str]:
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True, env={}
    )
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def test_a_shell_reads_back_every_word() -> None:
    assert list(ODD) == read_by_bash(command_words.join(ODD))


@given(st.lists(st.binary().map(lambda word: os.fsdecode(word.replace(b"\0", b"")))))
def test_a_line_has_only_what_a_terminal_shows(words: list[str]) -> None:
    line = command_words.join(words)
    assert line.isprintable()


def test_plain_words_stay_plain() -> None:
    assert "zerowiz plan 'my run.py'" == command_words.join(["zerowiz", "plan", "my run.py"])
