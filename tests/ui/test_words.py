"""Every value has its sentence, and every size its unit."""

import ast
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer
from cli.harness import Run
from measured.rows import read_model
from paths import ROOT
from ui.streams import TerminalStream

from zerowiz.cli.commands import COMMANDS, build_app
from zerowiz.core.command_words import flags
from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.decision.flowchart import FlowchartQuestion, Reason
from zerowiz.core.decision.job import Job
from zerowiz.core.decision.questions import QUESTIONS, AnswerKind
from zerowiz.core.decision.uncertainty import Assumption, SettledBy
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.machine.types import Interconnect, LinkClass, Network, NetworkKind
from zerowiz.core.strategies import STRATEGIES, ZERO2
from zerowiz.core.structs import replace
from zerowiz.core.workload import Method, Reference, Trainer, Uncounted, Workload
from zerowiz.probe.files import read_gpu_table
from zerowiz.ui import sentences
from zerowiz.ui.sentences import trainer, vllm
from zerowiz.ui.text import (
    bare_gib,
    count,
    decimal_gb,
    error,
    fold,
    fold_command,
    gib,
    is_coloured,
    small,
)

# Every text of the program keeps the rules for words that can be stated.

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
    # 4: what is free of this host is too little.
    assert result.code in {0, 4}, result.stderr
    assert "CPU rank" in result.stdout
    assert "GPU" not in result.stdout + result.stderr


def test_where_nothing_fits_a_cpu_rank_is_not_called_a_gpu(here: Run) -> None:
    result = here("plan", "--machine", "cpu", "--gpus-per-node", "2", "--model", "70b")
    assert 4 == result.code
    assert "GPU" not in result.problem


@pytest.mark.parametrize(
    ("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "unknown"), ("TERM", "")]
)
def test_without_colours_an_error_loses_nothing_else(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain = TerminalStream(), TerminalStream()
    error("it failed", ("`zerowiz doctor` finds out why",), coloured)
    assert is_coloured(coloured)
    assert "\x1b[31merror:\x1b[0m it failed" in coloured.getvalue()
    monkeypatch.setenv(name, value)
    error("it failed", ("`zerowiz doctor` finds out why",), plain)
    assert not is_coloured(plain)
    assert plain.getvalue() == re.sub(r"\x1b\[\d+m", "", coloured.getvalue())


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"CLICOLOR_FORCE": "1"}, True),
        ({"TTY_COMPATIBLE": "1"}, True),
        ({"FORCE_COLOR": "0", "CLICOLOR_FORCE": "0", "TTY_COMPATIBLE": "0"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_a_log_has_colours_only_where_a_variable_forces_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], *, coloured: bool
) -> None:
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.setenv(name, variables.get(name, ""))
    with (tmp_path / "log").open("w", encoding="utf-8") as log:
        error("it failed", ("a hint",), log)
    word = "\x1b[31merror:\x1b[0m" if coloured else "error:"
    assert f"{word} it failed" in (tmp_path / "log").read_text(encoding="utf-8")


# What a plan says of a trainer other than SFT.

JOB = Job(
    machine=parse_spec("8xH100-80GB", read_gpu_table()),
    model=read_model("llama-3.2-1b"),
    workload=Workload(micro_batch=2, sequence_tokens=1024, gradient_checkpointing=True),
)


def words(strategy: str, workload: Workload) -> str:
    row = next(each for each in STRATEGIES if each.name == strategy)
    evaluated = evaluate(replace(JOB, workload=workload), row)
    said = trainer(workload, evaluated)
    return said if evaluated.vllm is None else f"{said} | {vllm(workload, evaluated.vllm)}"


STEP = JOB.workload
PAIRS = "2 sequences of each pair at once, chosen and rejected"


@pytest.mark.parametrize(
    ("strategy", "step", "expected"),
    [
        (
            "zero2",
            replace(STEP, trainer=Trainer.DPO),
            f"dpo: {PAIRS}; a frozen reference model on every GPU (2.3 GiB)",
        ),
        (
            "zero3",
            replace(STEP, trainer=Trainer.DPO),
            f"dpo: {PAIRS}; a frozen reference model, sharded (0.3 GiB on each GPU)",
        ),
        (
            "zero3-offload",
            replace(STEP, trainer=Trainer.DPO),
            f"dpo: {PAIRS}; a frozen reference model in the host's memory (0.3 GiB of each rank)",
        ),
        (
            "zero2",
            replace(STEP, trainer=Trainer.DPO, reference=Reference.PRECOMPUTED),
            f"dpo: {PAIRS}; the reference was computed before training",
        ),
        (
            "zero2",
            replace(STEP, trainer=Trainer.DPO, method=Method.LORA),
            f"dpo: {PAIRS}; no reference model",
        ),
        ("zero2", replace(STEP, trainer=Trainer.REWARD), f"reward: {PAIRS}"),
        (
            "zero2",
            replace(STEP, trainer=Trainer.GRPO, accumulation_steps=4),
            (
                "grpo: completions generated by the model itself, 8 at a time on each GPU; no reference"
                " model"
            ),
        ),
        (
            "zero2",
            replace(STEP, trainer=Trainer.GRPO, vllm_memory_fraction=0.0),
            (
                "grpo: completions generated by vLLM on other GPUs, 2 at a time on each GPU; no"
                " reference model"
            ),
        ),
        (
            "zero2",
            replace(STEP, trainer=Trainer.GRPO, vllm_memory_fraction=0.4),
            (
                "grpo: completions generated by vLLM, 2 at a time on each GPU; no reference model |"
                " 31.9 GiB of each GPU (0.4 of it) at all times, on top of the peak (never measured)"
            ),
        ),
    ],
)
def test_a_trainer_is_said_in_one_line(strategy: str, step: Workload, expected: str) -> None:
    assert expected == words(strategy, step)


def test_every_reason_question_verdict_link_assumption_and_gap_has_words() -> None:
    words = [
        *map(sentences.reason, Reason),
        *(sentences.question(each, None) for each in FlowchartQuestion),
        *(sentences.link(Interconnect(link_class=link)) for link in LinkClass),
        *map(sentences.assumption, Assumption),
        *map(sentences.uncounted, Uncounted),
        *map(sentences.settles, SettledBy),
    ]
    assert all(words)
    assert len(words) == len(set(words))
    assert not [word for word in words if word.endswith(".")]


def test_a_network_that_nobody_knows_is_said_to_count_as_slow_with_the_way_out() -> None:
    two = parse_spec("2x8xH100-80GB", read_gpu_table())
    said = "; between nodes unknown, treated as slow: set it with `--interconnect`"
    assert sentences.links(two).endswith(said)
    known = Network(kind=NetworkKind.INFINIBAND)
    assert sentences.links(replace(two, network=known)).endswith("; between nodes InfiniBand")
    assert "between nodes" not in sentences.links(replace(two, nodes=1))


def test_every_question_of_the_wizard_names_its_flag_and_ends_as_a_question() -> None:
    for question in QUESTIONS:
        assert "?" in question.text
        assert question.flag == question.flag.upper() or question.flag.startswith("$")
        is_number = question.kind in {AnswerKind.COUNT, AnswerKind.RATE}
        needs_answer = question.kind is AnswerKind.CHOICE and question.default is None
        assert is_number or needs_answer or question.problem(question.default or "x") is None


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (gib(None), "unknown"),
        (gib(47 * 2**30), "47.0 GiB"),
        (decimal_gb(28_500_000_000), "28.5 GB"),
        (decimal_gb(14_000_000_000), "14 GB"),
        (small(0), "0 B"),
        (small(1023), "1023 B"),
        (small(1024), "1.0 KiB"),
        (small(5 * 2**20), "5.0 MiB"),
        (small(3 * 2**40), "3072.0 GiB"),
        (bare_gib(None), "?"),
        (bare_gib(0), "0.0"),
        (bare_gib(2**30 // 25), "0.04"),
        (bare_gib(-(2**30)), "-1.0"),
        (count(6_738_415_616), "6.74 B"),
        (count(124_439_808), "124 M"),
        (count(12), "12"),
    ],
)
def test_sizes_are_written_as_people_read_them(said: str, expected: str) -> None:
    assert expected == said


@pytest.mark.parametrize(
    ("assumptions", "assumed"),
    [
        ((), ""),
        (
            (Assumption.FUSED_OPTIMIZER, Assumption.FOREACH),
            "; assumes a fused Adam, an Adam that copies lists of tensors",
        ),
    ],
)
def test_an_interval_says_its_bounds_and_what_it_assumes(
    assumptions: tuple[Assumption, ...], assumed: str
) -> None:
    model = read_model("llama-2-7b")
    machine = parse_spec("4xH100-80GB", read_gpu_table())
    job = Job(machine=machine, model=model, workload=Workload())
    found = evaluate(job, ZERO2).interval
    assert found is not None
    interval = replace(found, assumptions=assumptions, never_together=())
    bounds = (
        f"torch allocates {gib(found.expected_bytes)}, {bare_gib(found.low_bytes)} to "
        f"{bare_gib(found.high_bytes)} on any rank"
    )
    assert bounds + assumed == sentences.interval(interval, model)


def test_a_pipe_gets_whole_lines() -> None:
    line = "word " * 100
    assert line == fold(line, io.StringIO())
    assert line.strip() == fold_command(line.split(), io.StringIO())


def test_a_terminal_gets_lines_that_end_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    words = ["error:", *[f"`--option-{i} value`" for i in range(9)]]
    folded = fold(" ".join(words), TerminalStream(), hang=7).splitlines()
    assert " ".join(words) == " ".join(line.strip() for line in folded)
    assert max(map(len, folded)) <= 40
    assert all(line.startswith(" " * 7) for line in folded[1:])


def test_a_folded_command_is_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    words = [f"--option-{i}" for i in range(12)]
    folded = fold_command(words, TerminalStream(), before="next: ")
    assert max(map(len, folded.splitlines())) <= 40
    assert ["next:", *words] == folded.replace("\\\n", " ").split()
