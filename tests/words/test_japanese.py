"""Conversations and plans in Japanese, at a real terminal: whole, and in straight columns."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli.harness import DOWN, ENTER, HF_PARSER, Open, Run, Terminal, clean_environ
from paths import ROOT
from rich.cells import cell_len
from words.make_catalog import read_catalog

JAPANESE = {str(each.id): str(each.string) for each in read_catalog("ja") if each.id}
CPU = ("--accelerator", "cpu", "--gpus-per-node", "2", "--memory-budget", "3GiB")
PLAN = ("plan", "--model", "7b", "--machine", "4xA100-80GB", "--memory-budget", "60GiB")
MODEL = "Which model? (a folder, a hub id, or a size like 7b)"


def column(line: str, words: str) -> int:
    """Where words begin, in columns of the terminal."""
    return cell_len(line[: line.index(words)])


def labelled(lines: Sequence[str], labels: Sequence[str]) -> set[int]:
    """The columns in which the words behind these labels begin."""
    found = {}
    for label in map(JAPANESE.__getitem__, labels):
        line = next(each for each in lines if each.startswith(f"{label} "))
        found[label] = cell_len(line) - cell_len(line.removeprefix(label).lstrip())
    return set(found.values())


def without_english(text: str) -> list[str]:
    """Lines with two English words side by side, which are no names, options or commands."""
    bare = re.sub(
        r"`[^`]*`|\S*[/_.=-]\S*|NVIDIA [\w ]+|zerowiz [a-z]+[^\n]*(\\\\\n[^\n]*)*", " ", text
    )
    return [each for each in bare.splitlines() if re.search(r"\b[a-z]{3,} [a-z]{2,}\b", each)]


_CHECK = """\
import json
from lint.rows import FOUND
from zerowiz.core.lint.linter import lint
from zerowiz.probe.package_data import read_ds_schema
from zerowiz.words import english

schema = read_ds_schema(None)
found = [each for row in FOUND for each in lint(row.text, schema, row.context)]
texts = [text for each in found for text in (each.message, each.fix or "")]
print(json.dumps({"shown": texts, "english": english(texts)}))
"""


def test_what_check_finds_is_japanese_to_people_and_english_to_programs(folder: Path) -> None:
    texts = {}
    for language in ("en", "ja"):
        environ = clean_environ(ZEROWIZ_LANG=language)
        environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
        command = [sys.executable, "-c", _CHECK]
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, check=True)
        texts[language] = json.loads(done.stdout)
    assert texts["en"]["english"] == texts["ja"]["english"]
    shown = "\n".join(texts["ja"]["shown"]).replace("compute capability", "")
    assert [] == without_english(shown)


def test_the_wizard_speaks_japanese_from_the_first_line_to_the_last(
    terminal: Open, folder: Path
) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    person = terminal("init", *CPU, ZEROWIZ_LANG="ja")
    person.reply(JAPANESE[MODEL], "10m" + ENTER)
    person.reply(JAPANESE["How many tokens per sequence?"], "64" + ENTER)
    person.wait_for(JAPANESE["Launch now?"])
    person.settle()
    # What the choices mean stands in one column.
    titles = ("yes, launch it", "no, only write the files", "change something", "stop here")
    shown = [next(n for n in person.lines if JAPANESE[title] in n) for title in titles]
    details = {
        column(line, JAPANESE[detail].partition("{")[0] or "ds_config")
        for line, detail in zip(
            shown,
            (
                "writes {config_path} and starts deepspeed with it",
                "writes {config_path} and prints the command",
                "keeps the other answers",
                "writes nothing",
            ),
            strict=True,
        )
    }
    assert 1 == len(details), person.text
    person.child.send(DOWN + ENTER)
    assert 0 == person.end()
    assert JAPANESE["wrote {path}\n"].format(path="zerowiz.toml") in person.text + "\n"
    assert 1 == len(labelled(person.lines, ("Step", "Chosen", "Peak")))
    assert [] == without_english(person.text)
    assert (folder / "zerowiz.toml").read_text().startswith("# Answers for zerowiz.")


@pytest.mark.parametrize("columns", [50, 80])
def test_a_plan_has_straight_columns(folder: Path, columns: int) -> None:
    shown = Terminal(folder, PLAN, {"ZEROWIZ_LANG": "ja"}, columns=columns)
    shown.end()
    assert all(cell_len(line) <= columns for line in shown.lines)
    assert 1 == len(labelled(shown.lines, ("Machine", "Model", "Step", "Chosen", "Peak", "Time")))
    head = next(n for n in shown.lines if n.startswith(f"{JAPANESE['strategy']} "))
    rows = [each for each in shown.lines if re.match(r"(ddp|zero\d\S*) +[\d.]+ ", each)]
    assert len(rows) == 7, shown.text
    verdicts = [JAPANESE[each] for each in ("+ fits", "? uncertain", "x too big", "host?")]
    at = {column(row, next(v for v in verdicts if v in row)) for row in rows}
    assert {column(head, JAPANESE["verdict"])} == at
    # Numbers end below the end of their heading.
    needs = column(head, JAPANESE["needs"]) + cell_len(JAPANESE["needs"])
    first = [re.search(r"[\d.]+(?= )", row[24:]) for row in rows]
    assert {needs} == {24 + each.end() for each in first if each}
    chart = [each for each in shown.lines if each.startswith(("●", "┃", "┗"))]
    assert chart
    assert all(cell_len(line) <= 50 for line in chart)
    assert [] == without_english(shown.text)


@pytest.mark.parametrize(
    "words",
    [("plan", "--machine", "8xH1000", "--model", "7b"), ("template", "--loop", "foo", "here")],
)
def test_an_error_has_its_hints_in_japanese(process: Run, words: Sequence[str]) -> None:
    result = process(*words, LANG="ja_JP.UTF-8", LANGUAGE="")
    assert 2 == result.code
    error, *hints = [line for line in result.stderr.splitlines() if line]
    assert error.startswith(JAPANESE["error: "])
    assert hints
    assert all(hint.startswith(JAPANESE["hint: "]) for hint in hints)
    assert [] == without_english(result.stderr)


def test_a_dry_run_names_the_files_in_japanese(process: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    words = ("launch", "--dry-run", *CPU, "--model", "10m", "train.py", "--output_dir", "out")
    shown = process(*words, LANG="ja_JP.UTF-8", LANGUAGE="")
    assert 0 == shown.code
    remarks = [line for line in shown.stdout.splitlines() if line.startswith("# ")]
    assert len(remarks) > 1
    assert [] == without_english("\n".join(remarks))
    assert not [line for line in remarks if "writes" in line]


def test_help_is_written_in_columns(process: Run) -> None:
    text = process("plan", "--help", ZEROWIZ_LANG="ja").stdout
    assert text.startswith(JAPANESE["Usage: "])
    assert all(cell_len(line) <= 80 for line in text.splitlines())
    assert [] == without_english(re.sub(r"<[^>]*>|\[[^\]]*\]", "", text))
