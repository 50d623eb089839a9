"""The text of an answers file: what a person wrote in it stays, and what it says can be read again."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.app.answers_file import read_answers_file, rewrite
from zerowiz.errors import UsageError, ZerowizError

MINE = """\
# The job of the paper.
model = "7b"   # as in table 2

# Rented.
machine = '8xH100'
script-args = [
  "--lr", # tuned
  "1e-4",
]
nodes = 2"""


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        # What is right stays byte for byte, with the ends of its lines.
        (MINE, tomllib.loads(MINE), MINE),
        *(
            (f"# mine{ends}nodes = 2{ends}", {"nodes": 2}, f"# mine{ends}nodes = 2{ends}")
            for ends in ("\n", "\r\n")
        ),
        # Comments stay, whatever changes.
        (
            MINE,
            {"model": "13b", "nodes": 2, "hpz": True},
            (
                '# The job of the paper.\nmodel = "13b"   # as in table 2\n\n# Rented.\n'
                "nodes = 2\nhpz = true\n"
            ),
        ),
        # A sign of a comment in a value is no comment.
        ('model = "a # b" # c\n', {"model": "d"}, 'model = "d" # c\n'),
    ],
)
def test_what_a_person_wrote_stays(text: str, values: dict[str, object], expected: str) -> None:
    assert expected == rewrite(text, values)


VALUES = st.one_of(
    st.booleans(),
    st.integers(min_value=0, max_value=2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]))),
)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,3}(-[a-z]{1,3})?", fullmatch=True), VALUES))
def test_what_is_written_is_what_toml_reads(values: dict[str, object]) -> None:
    text = rewrite("", values)
    assert values == tomllib.loads(text)
    assert text == rewrite(text, values)


def test_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(ZerowizError, match="not UTF-8"):
        rewrite("", {"script": "\udcff.py"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes = 2\nmodel 7b\n", r"Expected '=' after a key in .* \(at line 2, "),
        ("nodes = 2\nnodes = 2\n", r"Cannot overwrite a value \(at line 2, "),
        ('model = "7b\n', r".* \(at line 1, "),
        (f"seq-len = {'9' * 5000}\n", "Exceeds the limit .* value has 5000 digits"),
    ],
)
def test_what_is_not_toml_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text(text)
    with pytest.raises(UsageError) as refused:
        read_answers_file(tmp_path / "a.toml")
    assert re.match(f"`a.toml` is not TOML: {message}", str(refused.value))


def test_a_number_of_many_digits_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text(f"seq-len = 0x{'f' * 5000}\n")
    with pytest.raises(UsageError, match=r'line 1: `sequence_tokens="\.\.\."` must be a whole'):
        read_answers_file(tmp_path / "a.toml")
