import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT

from zerowiz.app.options import STAGES, Options, choices_of, kinds, rows, with_plain
from zerowiz.core import shell
from zerowiz.core.command_words import SYNONYMS, canonical_choice, flags, spell
from zerowiz.core.workload import Precision
from zerowiz.errors import UsageError

NAMED = re.compile(r"`\$([a-z][a-z_]*)")


def texts() -> Iterator[tuple[Path, str]]:
    """The product's modules, less the ones that define or spell settings."""
    for path in sorted((ROOT / "zerowiz").rglob("*.py")):
        if path.name not in {"settings.py", "flags.py", "workload.py", "errors.py"}:
            yield path, path.read_text(encoding="utf-8")


def test_every_setting_that_a_text_names_is_one() -> None:
    named = {(p.name, name) for p, text in texts() for name in NAMED.findall(text)}
    assert named
    # `$schema` is a key of configs.
    assert {("keys.py", "schema")} == {each for each in named if each[1] not in flags()}


def test_core_names_no_flag_but_in_the_rows() -> None:
    ours = {flag for flag in flags().values() if flag.startswith("--")}
    core = ROOT / "zerowiz" / "core"
    # Command lines of DeepSpeed, of a job script and of other launchers.
    found = {
        (str(path.relative_to(core)), flag)
        for path, text in texts()
        if core in path.parents
        for flag in re.findall(r"[\"`](--[a-z][a-z-]+)(?![a-z_-])", _without_prose(text))
        if flag in ours
    }
    assert {
        ("launch/plan.py", "--hostfile"),
        ("launch/other_launchers.py", "--module"),
        ("launch/plan.py", "--module"),
        ("script/config_delivery.py", "--force"),
    } == {each for each in found if each[0] != "launch/sbatch.py"}


def _without_prose(text: str) -> str:
    return re.sub(r"\"\"\".*?\"\"\"|#.*?\n", "", text, flags=re.DOTALL)


def test_every_option_has_a_spelling_of_its_own() -> None:
    spellings = [rows()[name].flag for name in Options.__annotations__]
    assert len(spellings) == len(set(spellings))
    assert {name: row.on for name, row in rows().items()}.items() <= flags().items()


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("`$micro_batch 0`", "`--micro-batch 0`"),
        ("`$no_hpz`", "`--no-hpz`"),
        ("`$gpus_per_node 2`, `$gpus 0`", "`--gpus-per-node 2`, `--gpus 0`"),
        ("in $HOME, $USER and $somewhere", "in $HOME, $USER and $somewhere"),
    ],
)
def test_a_setting_is_spelled_and_other_words_stay(text: str, spelled: str) -> None:
    assert spelled == spell(text)
    # To Python an error names the field.
    assert "`micro_batch` must be at least 1" == str(
        UsageError("`$micro_batch` must be at least 1")
    )


# Words that a person pastes into a shell arrive as they were.

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
    assert list(ODD) == read_by_bash(shell.join(ODD))
    assert "zerowiz plan 'my run.py'" == shell.join(["zerowiz", "plan", "my run.py"])


@given(st.lists(st.binary().map(lambda word: os.fsdecode(word.replace(b"\0", b"")))))
def test_a_line_has_only_what_a_terminal_shows(words: list[str]) -> None:
    assert shell.join(words).isprintable()


# What people call a choice, and the choice that it is.

PRECISIONS = tuple(Precision)


@pytest.mark.parametrize(
    ("key", "choices", "said", "expected"),
    [
        *(("stage", STAGES, f"{word}3", "3") for word in ("zero", "ZeRO-", "stage ", "zero_", "")),
        ("stage", STAGES, "ddp", "0"),
        ("stage", STAGES, "AUTO", "auto"),
        ("stage", STAGES, "zero4", "zero4"),
        ("precision", PRECISIONS, "bfloat16", "bf16"),
        ("precision", PRECISIONS, "torch.bfloat16", "bf16"),
        ("precision", PRECISIONS, "BF16", "bf16"),
        ("precision", PRECISIONS, "float32", "fp32"),
        ("precision", PRECISIONS, "half", "fp16"),
        ("precision", PRECISIONS, "fp8", "fp8"),
    ],
)
def test_a_word_is_the_choice_that_it_means(
    key: str, choices: tuple[str, ...], said: str, expected: str
) -> None:
    assert expected == canonical_choice(key, said, choices)


def test_each_synonym_is_one_of_a_choice_that_is_there() -> None:
    by_key = {row.key: (name, row) for name, row in rows().items()}
    for key, words in SYNONYMS.items():
        name, row = by_key[key]
        choices = choices_of(kinds()[name], row)
        assert set(words.values()) <= set(choices)
        assert all(word == word.lower() and word.isalnum() for word in words)


def test_the_python_api_takes_the_same_words() -> None:
    options = with_plain(Options(), {"stage": "zero3", "precision": "bfloat16"})
    assert ("3", Precision.BF16) == (options.stage, options.precision)
    with pytest.raises(UsageError, match="fp8"):
        with_plain(Options(), {"precision": "fp8"})
