"""Texts in other languages: what a catalog may say, who speaks it, and what stays English."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Formatter

import pytest
from babel.messages.catalog import Message
from cli.harness import (
    DOWN,
    ENTER,
    HF_IN_CODE,
    HF_PARSER,
    Open,
    Result,
    Run,
    Terminal,
    clean_environ,
    run_process,
)
from rich.cells import cell_len
from words.catalog import (
    LANGUAGES,
    PACKAGE,
    ROOT,
    make_catalog,
    path_of,
    read_catalog,
)

from zerowiz.translation import _, in_english, speak, unknown_language, wanted_language

# A translation has the names, literals and settings of its text. One that is missing is English.

each_language = pytest.mark.parametrize("language", LANGUAGES)
# Others are shown as they stand: `{...}`, JSON.
_NAME = re.compile(r"\{[a-z_]\w*(?:![rsa])?(?::[^{}]*(?:\{\w+\}[^{}]*)?)?\}")
# A width of its own and signs that look like ASCII would break columns and what is pasted.
_FULL_WIDTH = re.compile("[\u3000\uff01-\uff5e\uff61-\uff9f]")


def messages(language: str) -> Iterator[Message]:
    """What is translated."""
    return (each for each in read_catalog(language) if each.id and each.string)


@each_language
def test_the_catalog_is_the_one_that_is_made(language: str) -> None:
    assert make_catalog(language) == path_of(language).read_bytes(), "make words"


@each_language
def test_a_translation_names_the_same_values(language: str) -> None:
    for each in messages(language):
        names = sorted(set(_NAME.findall(str(each.id))))
        assert names == sorted(set(_NAME.findall(str(each.string)))), each.id


@each_language
def test_a_translation_that_gets_values_can_be_formatted(language: str) -> None:
    for each in messages(language):
        if _NAME.search(str(each.id)) and "python-brace-format" in each.flags:
            for text in (str(each.id), str(each.string)):
                if "{...}" not in text:
                    list(Formatter().parse(text))


@each_language
def test_a_translation_keeps_what_is_typed_and_the_settings(language: str) -> None:
    for each in messages(language):
        literals = [*re.findall(r"`[^`]+`", str(each.id)), *re.findall(r"\$[a-z_]+", str(each.id))]
        assert [] == [literal for literal in literals if literal not in str(each.string)], each.id
        assert str(each.id).count("`") == str(each.string).count("`"), each.id


@each_language
def test_a_translation_ends_as_its_text_and_has_no_wide_ascii(language: str) -> None:
    for each in messages(language):
        # What divides a list has its room in it.
        ends = str(each.string)[-1:]
        assert str(each.id)[-1:].isspace() == (ends.isspace() or ends == "、"), each.id
        assert not _FULL_WIDTH.search(str(each.string)), each.id


# The mechanism: which language is chosen, and what a text is to people and to programs.


@pytest.mark.parametrize(
    ("environ", "language"),
    [
        ({}, "en"),
        ({"LANG": "ja_JP.UTF-8"}, "ja"),
        ({"LANG": "ja_JP.eucJP"}, "ja"),
        ({"LANG": "ja"}, "ja"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "ja_JP.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "ja_JP.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, "en"),
        ({"LC_MESSAGES": "ja_JP.UTF-8", "LC_ALL": "", "LANG": "C"}, "ja"),
        ({"LANGUAGE": "de:ja:en", "LANG": "en_US.UTF-8"}, "ja"),
        ({"ZEROWIZ_LANG": "en", "LANG": "ja_JP.UTF-8"}, "en"),
        ({"ZEROWIZ_LANG": "ja", "LC_ALL": "C"}, "ja"),
        ({"ZEROWIZ_LANG": "", "LANG": "ja_JP.UTF-8"}, "ja"),
    ],
)
def test_the_first_variable_that_is_set_chooses(environ: Mapping[str, str], language: str) -> None:
    assert language == wanted_language(environ)
    assert unknown_language(environ) is None


def test_an_unknown_language_is_one_error_in_english(process: Run) -> None:
    result = process("plan", "--model", "7b", ZEROWIZ_LANG="klingon", LANG="ja_JP.UTF-8")
    assert (2, "") == (result.code, result.stdout)
    assert [
        "error: `ZEROWIZ_LANG` is `klingon`, a language that zerowiz does not speak",
        f"hint: set it to one of: {', '.join(('en', *LANGUAGES))}",
    ] == [line for line in result.stderr.splitlines() if line]


_LITTLE = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=utf-8\\n"\n\nmsgid "Model"\nmsgstr "Modèle"\n'


def test_a_language_of_one_text_is_spoken_and_the_rest_is_english(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "zerowiz", ignore=shutil.ignore_patterns("__pycache__"))
    catalog = tmp_path / "zerowiz" / "data" / "locale" / "fr" / "LC_MESSAGES" / "zerowiz.po"
    catalog.parent.mkdir(parents=True)
    catalog.write_text(_LITTLE)
    runpy.run_path(str(ROOT / "hatch_build.py"))["compile_catalog"](catalog)
    command = [
        sys.executable,
        "-m",
        "zerowiz",
        "plan",
        "-v",
        "--machine",
        "8xH100",
        "--model",
        "7b",
    ]
    environ = {**clean_environ(ZEROWIZ_LANG="fr"), "PYTHONPATH": os.fspath(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert re.search(r"^Modèle +7b.*^Chosen ", done.stdout, re.MULTILINE | re.DOTALL)


def test_a_text_for_a_program_is_english() -> None:
    speak("ja")
    try:
        with in_english():
            assert "GPU table" == _("GPU table")
        assert "GPU table" != _("GPU table")
    finally:
        speak("en")


# What programs read is the same in every language, byte for byte.

ADVISED = '{"zero_optimization": {"stage": 7}, "trian_batch_size": 3}'


def run_in(language: str, folder: Path, *words: str) -> Result:
    """In a folder of the same name in each language, since files name it."""
    work = folder / "job"
    work.mkdir(exist_ok=True)
    (work / "train.py").write_text(HF_IN_CODE)
    (work / "ds.json").write_text(ADVISED)
    return run_process(work, *words, env={} if language == "en" else {"ZEROWIZ_LANG": language})


# What this host has free changes while the tests run; a file says so, and its hash.
_FREE = re.compile(rb'"(?:free_bytes|available_bytes|plan_sha256)": [^,\n]+')


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, by its path in it; without what is free now."""
    found = (path for path in folder.rglob("*") if path.is_file())
    named = {os.fspath(path.relative_to(folder)): path.read_bytes() for path in found}
    kept = {name: content for name, content in named.items() if "/written/" not in name}
    return {name: _FREE.sub(b"", content) for name, content in kept.items()}


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--json", "--model", "7b", "--machine", "4xA100-40"),
        ("plan", "--json", "--model", "7b", "--machine", "8xH100", "--limits", "train.py"),
        ("machine", "--json", "--machine", "2xdgx-h100"),
        ("check", "--json", "ds.json"),
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_json_is_english(words: Sequence[str], folder: Path) -> None:
    english = run_in("en", folder, *words)
    japanese = run_in("ja", folder, *words)
    assert (english.code, english.stdout) == (japanese.code, japanese.stdout)
    assert english.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--model", "7b", "--machine", "8xH100", "--slurm"),
        (
            "--accelerator",
            "cpu",
            "--gpus-per-node",
            "2",
            "--model",
            "10m",
            "--seq-len",
            "64",
            "--host-memory",
            "3GiB",
            "--memory-budget",
            "1GiB",
        ),
    ],
    ids=("for a spec", "here"),
)
def test_the_files_that_init_writes_are_english(words: Sequence[str], folder: Path) -> None:
    told = ("init", "--yes", *words, "train.py")
    written = {}
    for language in ("en", "ja"):
        assert 0 == (done := run_in(language, folder, *told)).code, done.stderr
        written[language] = files(folder / "job")
        assert ("wrote" in done.stdout) is (language == "en")
        shutil.rmtree(folder / "job")
    assert written["en"] == written["ja"]
    assert "zerowiz.toml" in written["en"]


def test_a_saved_machine_is_english(folder: Path) -> None:
    saved = []
    for language in ("en", "ja"):
        words = ("machine", "--machine", "8xH100", "--interconnect", "nvlink", "--save", "a.json")
        assert 0 == run_in(language, folder, *words).code
        saved.append((folder / "job" / "a.json").read_bytes())
        (folder / "job" / "a.json").unlink()
    assert saved[0] == saved[1]


# Conversations and plans in Japanese, at a real terminal: whole, and in straight columns.

JAPANESE = {str(each.id): str(each.string) for each in read_catalog("ja") if each.id}
CPU = ("--accelerator", "cpu", "--gpus-per-node", "2", "--memory-budget", "3GiB")
PLAN = ("plan", "--model", "7b", "--machine", "4xA100-80GB-SXM", "--memory-budget", "60GiB")
NUMBER = re.compile(r"(?<= )[\d.-]+(?= )")
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
                "writes {config_path} and says how to go on",
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
    assert [] == without_english(person.text)
    assert (folder / "zerowiz.toml").read_text().startswith("# Answers for zerowiz.")


@pytest.mark.parametrize("columns", [50, 80])
def test_a_plan_has_straight_columns(folder: Path, columns: int) -> None:
    shown = Terminal(folder, PLAN, {"ZEROWIZ_LANG": "ja"}, columns=columns)
    shown.end()
    assert all(cell_len(line) <= columns for line in shown.lines)
    head = next(n for n in shown.lines if n.startswith("  60.0 GiB"))
    rows = [each for each in shown.lines if re.match(r"[> ] (DDP|ZeRO-\d)  ?", each)]
    assert len(rows) == 4, shown.text
    verdicts = [JAPANESE[each] for each in ("fits", "uncertain", "too big", "recommended")]
    at = {column(row, next(v for v in verdicts if v in row)) for row in rows}
    assert 1 == len(at)
    # Numbers end below the end of their heading.
    needs = column(head, JAPANESE["needs"]) + cell_len(JAPANESE["needs"])
    assert {needs} == {each.end() for row in rows for each in [NUMBER.search(row)] if each}
    # Notes are English.
    assert [] == without_english(shown.text.partition(JAPANESE["note: "])[0])
