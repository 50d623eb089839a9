"""Every text of the program keeps the rules for words that can be stated."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer
from cli.harness import Run
from paths import ROOT
from ui.streams import TerminalStream

from zerowiz.cli.commands import COMMANDS, build_app
from zerowiz.core.command_words import flags
from zerowiz.core.decision.evaluate import Verdict
from zerowiz.ui import sentences, show
from zerowiz.ui.text import is_coloured

PACKAGE = ROOT / "zerowiz"
HELP = PACKAGE / "cli"

# What a newcomer has to read twice, and what to write.
DIALECT = {
    r"(?<![Tt]here )\bis no (?!longer\b|such\b)\w": "is not a",
    r"\brungs?\b|\bladder\b": "strategy",
    r"\bas (it is usually )?told\b|\bis told\b": "rule of thumb, or set",
    r"\bmend(s|ed|ing)?\b|\bcures?\b": "fix, remedy",
    r"\bnobody\b|\bsomebody\b": "who it is: the Trainer, you",
    r"\bheld against\b": "compared with",
    r"\bdisagrees? with\b": "conflicts with",
    r"\bsays? it\b|\bsay (it|so|them)\b|`[^`]*` says your": "set it with",
    r"\bdrop (it|one|them|`)": "remove",
    r"\bsettles? it\b": "to be sure",
    r"\bbelongs into\b|\bgoes with\b": "belongs in, works with",
    r"\bsurely (fit|run)": "fits",
    r"\bon the (CPU|GPU) alone\b": "only",
}


def _literal(node: ast.AST) -> str | None:
    """The text of a string; what is put into it is `{}`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (each.value if isinstance(each, ast.Constant) else "{}" for each in node.values)
        return "".join(map(str, parts))
    return None


def _read_texts() -> Iterator[tuple[str, str]]:
    """Where and what: the strings of more than one word that are no docstrings; helps are."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inner = {id(v) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in n.values}
        silent = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            text = None if id(node) in inner else _literal(node)
            is_help = path.parent == HELP and not str(text).endswith((".", "`."))
            if (
                (id(node) not in silent or is_help)
                and text is not None
                and re.search(r"\w [\w`{]", text)
            ):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", text


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """Where and what, read once a test asks for it."""
    return tuple(_read_texts())


def test_there_are_texts_to_read() -> None:
    assert len(texts()) > 1000


@pytest.mark.parametrize("pattern", DIALECT)
def test_no_text_speaks_dialect(pattern: str) -> None:
    found = [f"{where}: {text}" for where, text in texts() if re.search(pattern, text)]
    assert [] == found, f"write: {DIALECT[pattern]}"


def test_every_setting_that_a_text_names_has_an_option() -> None:
    named = {
        (name, where) for where, text in texts() for name in re.findall(r"`\$([a-z][a-z_]*)", text)
    }
    assert [] == sorted((name, where) for name, where in named if name not in flags())


PROGRAMS = ("zerowiz", "pip", "apt", "dnf", "export", "unset", "rm", "srun", "hf", "jupyter")


def _commands() -> Iterator[tuple[str, str]]:
    """The commands of the texts, each in backticks or a text of its own."""
    for where, text in texts():
        for command in (*re.findall(r"`([^`]+)`", text), text):
            if command.split()[0:1] and command.split()[0] in PROGRAMS and "`" not in command:
                yield where, command


def _is_sentence(command: str) -> bool:
    """`zerowiz plans ...` is no command."""
    return command.startswith("zerowiz ") and command.split()[1] not in COMMANDS


def _options(name: str) -> set[str]:
    """The options of a command of zerowiz."""
    command = typer.main.get_command(build_app([name]))
    found = getattr(command, "commands", {}).get(name, command)
    return {option for each in found.params for option in (*each.opts, *each.secondary_opts)}


def test_a_command_in_a_text_can_be_pasted_into_a_shell() -> None:
    commands = [each for each in _commands() if not _is_sentence(each[1])]
    assert len(commands) > 40
    for where, command in commands:
        assert shlex.split(command.replace("{}", "x")), where


def test_a_command_of_zerowiz_in_a_text_has_only_options_that_exist() -> None:
    for where, command in _commands():
        if not command.startswith("zerowiz ") or _is_sentence(command):
            continue
        _, name, *words = command.split()
        own = words[: next((i for i, w in enumerate(words) if w in ("...", "deepspeed")), None)]
        used = {word.partition("=")[0] for word in own if word.startswith("-")}
        assert used <= _options(name) | {"--help"}, where


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--stage", "2"),
        ("--objective", "smallest"),
        ("--global-batch", "8"),
        ("--accounting", "textbook"),
        ("--limits", "--explain"),
        ("--trainer", "grpo"),
    ],
)
def test_a_cpu_rank_is_not_called_a_gpu(here: Run, words: tuple[str, ...]) -> None:
    result = here("plan", "--machine", "cpu", "--gpus-per-node", "2", "--model", "10m", *words)
    assert 0 == result.code
    assert "CPU rank" in result.stdout
    assert "GPU" not in result.stdout + result.stderr


def test_where_nothing_fits_a_cpu_rank_is_not_called_a_gpu(here: Run) -> None:
    result = here("plan", "--machine", "cpu", "--gpus-per-node", "2", "--model", "70b")
    assert 4 == result.code
    assert "GPU" not in result.problem


def test_each_verdict_has_a_sign_of_its_own_beside_its_word() -> None:
    signs = {sentences.VERDICTS[verdict].split()[0] for verdict in Verdict}
    assert len(Verdict) == len(signs)
    assert not [sign for sign in signs if sign.isalpha() and sign != "x"]


@pytest.mark.parametrize(
    ("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "unknown"), ("TERM", "")]
)
def test_without_colours_an_error_loses_nothing_else(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain = TerminalStream(), TerminalStream()
    show.error("it failed", ("`zerowiz doctor` finds out why",), coloured)
    assert is_coloured(coloured)
    assert "\x1b[31merror:\x1b[0m it failed" in coloured.getvalue()
    monkeypatch.setenv(name, value)
    show.error("it failed", ("`zerowiz doctor` finds out why",), plain)
    assert not is_coloured(plain)
    assert plain.getvalue() == re.sub(r"\x1b\[\d+m", "", coloured.getvalue())


def test_a_log_has_no_colours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    with (tmp_path / "log").open("w", encoding="utf-8") as log:
        show.error("it failed", ("a hint",), log)
    assert "error: it failed\n\nhint: a hint\n" == (tmp_path / "log").read_text(encoding="utf-8")
