"""Run zerowiz in this process for a page: at an empty desk, at no terminal, in 80 columns."""

import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from cli.harness import COLUMNS, Result, enter
from core.preflight.cases import CASES
from lint.rows import FOUND
from recorded import Replay, put_under_pynvml

from zerowiz.cli.commands import COMMANDS, main
from zerowiz.core.findings import Finding, Rule, Severity
from zerowiz.core.lint.linter import RULES as CHECK_RULES
from zerowiz.core.lint.linter import lint
from zerowiz.core.lint.report import FileReport
from zerowiz.core.preflight.examine import RULES as PREFLIGHT_RULES
from zerowiz.core.preflight.examine import examine
from zerowiz.core.workload import SETTINGS, setting_kinds
from zerowiz.errors import ExitCode
from zerowiz.probe.files import read_bad_releases, read_ds_schema
from zerowiz.ui import check as show_check


@contextmanager
def empty_desk() -> Iterator[pytest.MonkeyPatch]:
    """Work in an empty folder; what is changed on the way comes back."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        work = Path(folder, "work")
        work.mkdir()
        enter(work, patch)
        # What a person's jobs have left changes plans.
        patch.setenv("XDG_CACHE_HOME", f"{folder}/caches")
        patch.setenv("COLUMNS", str(COLUMNS))
        patch.setattr(sys, "stdin", io.StringIO())
        yield patch


def run(*words: str) -> Result:
    """Run the tool with these words."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        patch.setattr(sys, "argv", ["zerowiz", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    assert isinstance(code, int)
    return Result(stdout=stdout.getvalue(), stderr=stderr.getvalue(), code=int(code))


def step_options(panel: str, skip: int = 0, most: int | None = None) -> str:
    """The fields of Options for the settings of a training step.

    Args:
        panel: Under which heading of `--help` they stand.
        skip: How many of them stand elsewhere, before this block.
        most: How many there are at most, with those.
    """
    names = [name for name, row in SETTINGS.items() if row.panel == panel][skip:most]
    lines = []
    for name in names:
        kind = setting_kinds()[name]
        own = kind.__name__ if kind.__module__ == "builtins" else f"workload.{kind.__name__}"
        said = "str" if kind is tuple else own
        lines.append(f"{name}: {said} | None = None\n")
    return "".join(lines)


# Tables, links and code as markdown.

_ADDRESS = re.compile(r"https?://[^\s,;)]+")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The rows below their head; a bar in a cell does not end it."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [[str(cell).replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def sources(texts: Iterable[str]) -> str:
    """A numbered link to each address that stands in the texts, once."""
    found = dict.fromkeys(address for text in texts for address in _ADDRESS.findall(text))
    return " ".join(f"[{number}]({address})" for number, address in enumerate(found, 1))


def code(text: str, language: str) -> str:
    """Lines of code, without what is empty below them."""
    return f"```{language}\n{text.rstrip()}\n```"


# What the page of errors is made of: the rules, and what the tests have zerowiz find.

CONFIG = "ds_config.json"


def rule_table(rules: Iterable[Rule], words: Callable[[Rule], str], heading: str) -> str:
    head = f"| code | name | severity | {heading} |\n|---|---|---|---|\n"
    return head + "".join(
        f"| [{r.code}](#{r.code.lower()}) | `{r.name}` | {r.severity} | {words(r)} |\n"
        for r in rules
    )


def bad_releases() -> str:
    """Each row of the table, with who says so."""
    rows = (
        (
            f"{row.library} {row.since} until {row.until}".replace("0.0.0 until", "before"),
            row.severity.value,
            f"{row.harm} {sources(row.sources)}",
            row.instead,
        )
        for row in read_bad_releases()
    )
    return table(("release", "severity", "what happens", "without another release"), rows)


def section(rule: Rule, *parts: str) -> str:
    return "\n\n".join([f"### {rule.code}", *parts]) + "\n"


def example_of(rule: Rule) -> tuple[str, Finding]:
    """The first config of the tests that has the mistake in its usual form, with a fix."""
    schema = read_ds_schema(None)
    examples = [
        (row.text, each)
        for row in FOUND
        if row.rule == rule.name
        for each in lint(row.text, schema, row.context)
        if each.rule is rule and each.fix
    ]
    assert examples, f"no finding of {rule.code} says what to do"
    usual = [example for example in examples if example[1].severity is rule.severity]
    return (usual or examples)[0]


def check_section(rule: Rule) -> str:
    text, finding = example_of(rule)
    stream = io.StringIO()
    show_check.reports([FileReport(path=CONFIG, findings=(finding,))], "", stream)
    shown = finding_in(stream.getvalue(), rule)
    return section(
        rule,
        f"`{rule.name}`, in a config such as",
        code(text, "json"),
        "`zerowiz check` says:",
        code(shown, "text"),
    )


def check_codes() -> str:
    return rule_table(CHECK_RULES, lambda rule: rule.why, "if it stays")


def check_examples() -> str:
    return "\n".join(map(check_section, CHECK_RULES))


def by_earlier_steps() -> dict[str, str]:
    """What `doctor` shows where an earlier step of a launch refuses the job."""
    cpu = ("--accelerator", "cpu", "--gpus-per-node", "2", "--host-memory", "3GiB")
    with empty_desk() as patch:
        # Not every CPU computes bf16, and what fits differs by that.
        patch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
        versions_differ = 18
        put_under_pynvml(Replay({"nvmlInitWithFlags(0)": {"err": versions_differ}}), patch)
        shown = {
            "script-refused": run("doctor", *cpu, "missing.py").stdout,
            "plan-refused": run("doctor", *cpu, "--precision", "fp32", "--model", "70b").stdout,
            "no-plan": run("doctor", *cpu).stdout,
            "no-machine": run("doctor").stdout,
        }
        patch.setattr(sys, "executable", "/env/bin/python")
        patch.setenv("PATH", "/nowhere")
        return {**shown, "no-deepspeed": run("doctor", *cpu, "--model", "10m").stdout}


def finding_in(shown: str, rule: Rule) -> str:
    """The lines of this rule's finding."""
    found = re.search(rf"^.*?\b\w+ {rule.code} .*(?:\n .*)*", shown, re.MULTILINE)
    assert found, shown
    return found[0]


def preflight_section(rule: Rule, shown: str) -> str:
    waits = rule.severity is Severity.INFO and "    fix:" not in shown
    way_out = ["You need not do anything."] if waits else []
    assert waits or "    fix:" in shown, f"no finding of {rule.code} says what to do"
    return section(rule, f"`{rule.name}`: {rule.when}.", code(shown, "text"), *way_out)


def of_cases() -> Iterator[tuple[str, str]]:
    """What `doctor` shows of each case."""
    for case in CASES:
        stream = io.StringIO()
        found = [each for each in examine(case.found) if each.rule.name == case.rule]
        show_check.findings(found, stream)
        yield case.rule, stream.getvalue()


def preflight_codes() -> str:
    return rule_table(PREFLIGHT_RULES, lambda rule: rule.when, "found if")


def preflight_examples() -> str:
    shown = {**dict(of_cases()), **by_earlier_steps()}
    return "\n".join(
        preflight_section(rule, finding_in(shown[rule.name], rule)) for rule in PREFLIGHT_RULES
    )


ENDS = {
    ExitCode.FAILED: ("report",),
    ExitCode.USAGE: ("plan", "--machine", "4xA100-40GB", "--model", "7b", "--micro-batch", "0"),
    ExitCode.ANSWER_NEEDED: ("plan", "--machine", "4xA100-40GB"),
    ExitCode.NOTHING_FITS: (
        *("plan", "--machine", "2xRTX4090", "--model", "13b"),
        *("--gradient-checkpointing", "--host-memory", "64GiB"),
    ),
    ExitCode.PREFLIGHT: ("launch", "--yes", "train.py"),
    ExitCode.CHECK_FOUND_ERRORS: ("check", CONFIG),
}
MISTAKE = '{"train_batch_size": 8, "zero_optimization": {"stage": 4}}'


def exit_example(number: int) -> str:
    """A command that ends with this exit code, and what it says."""
    words = ENDS[ExitCode(number)]
    with empty_desk():
        Path(CONFIG).write_text(MISTAKE, encoding="utf-8")
        result = run(*words)
    assert number == result.code
    _, error, message = result.stderr.rpartition("error: ")
    shown = code(error + (message or result.stdout), "text")
    return f"`zerowiz {' '.join(words)}` says:\n\n{shown}\n"


# What the page of command help is made of: what each `--help` prints.


def help_of(*words: str) -> str:
    return code(run(*words, "--help").stdout, "text")


def helps() -> str:
    with empty_desk():
        sections = [f"## {name}\n\n{help_of(name)}\n" for name in COMMANDS]
        return "\n".join([f"{help_of()}\n", *sections])
