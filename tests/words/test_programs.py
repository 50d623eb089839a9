"""What programs read is the same in every language, byte for byte."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli.harness import HF_IN_CODE, Result, clean_environ, run_process

ADVISED = '{"zero_optimization": {"stage": 7}, "trian_batch_size": 3}'


def run_in(language: str, folder: Path, *words: str) -> Result:
    """In a folder of the same name in each language, since files name it."""
    work = folder / "job"
    work.mkdir(exist_ok=True)
    (work / "train.py").write_text(HF_IN_CODE)
    (work / "ds.json").write_text(ADVISED)
    return run_process(work, *words, env={"ZEROWIZ_LANG": language})


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
        ("plan", "--json", "--model", "7b", "--machine", "4xA100-40", "--tokens", "2B"),
        ("plan", "--json", "--model", "7b", "--machine", "8xH100", "--limits", "train.py"),
        ("plan", "--json", "--model", "7b", "--machine", "nothing"),
        ("machine", "--json", "--machine", "2xdgx-h100"),
        ("check", "--json", "ds.json"),
        ("check", "--sarif", "ds.json"),
        ("check", "--schema"),
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
            "8GiB",
            "--memory-budget",
            "3GiB",
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


# The Python API and records ask for no `--json`, which chooses English before all else.
_REFUSE = """\
import json
from zerowiz.core.script import Convention, Obstacle, ScriptFacts, deliver
from zerowiz.errors import PreflightError
from zerowiz.words import english

for obstacle in Obstacle:
    facts = ScriptFacts(
        path="train.py",
        integration=None,
        convention=Convention.UNKNOWN,
        obstacle=obstacle,
        config_line=7,
    )
    try:
        deliver(facts, (), "ds.json")
    except PreflightError as error:
        print(error.message, json.dumps(english([error.message, *error.hints])), sep="\\n")
"""


def test_why_a_script_is_refused_is_english_to_programs(folder: Path) -> None:
    shown = {}
    for language in ("en", "ja"):
        done = subprocess.run(
            [sys.executable, "-c", _REFUSE],
            cwd=folder,
            env=clean_environ(ZEROWIZ_LANG=language),
            capture_output=True,
            text=True,
            check=True,
        )
        shown[language] = done.stdout.splitlines()
    assert shown["en"][1::2] == shown["ja"][1::2]
    assert shown["en"][0::2] != shown["ja"][0::2]


def test_a_saved_machine_is_english(folder: Path) -> None:
    saved = []
    for language in ("en", "ja"):
        words = ("machine", "--machine", "8xH100", "--interconnect", "nvlink", "--save", "a.json")
        assert 0 == run_in(language, folder, *words).code
        saved.append((folder / "job" / "a.json").read_bytes())
        (folder / "job" / "a.json").unlink()
    assert saved[0] == saved[1]


def test_the_command_that_a_script_may_run_reports_for_editors_in_one_form(folder: Path) -> None:
    lines = {}
    for language in ("en", "ja"):
        said = run_in(language, folder, "check", "ds.json").stdout.splitlines()
        lines[language] = [each.partition(": ")[0] for each in said if each.startswith("ds.json:")]
    assert lines["en"] == lines["ja"]
    assert lines["en"][0].startswith("ds.json:1:")
