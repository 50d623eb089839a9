"""The page of errors is made of the rules, and of what the tests have zerowiz find."""

import io
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from cli.harness import Run
from core.launch.doctor.cases import CASES
from lint.rows import FOUND
from page_tables import Block
from paths import ROOT

from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.lint.linter import RULES as CHECK_RULES
from zerowiz.core.dsconfig.lint.linter import lint
from zerowiz.core.dsconfig.lint.report import FileReport
from zerowiz.core.launch.doctor.examine import RULES as PREFLIGHT_RULES
from zerowiz.core.launch.doctor.examine import examine
from zerowiz.core.rule import Rule, Severity
from zerowiz.errors import DOCUMENTATION, ExitCode, page_of
from zerowiz.probe.config.ds_schema import read_ds_schema
from zerowiz.probe.recording.tape import Replay
from zerowiz.ui import check as show_check
from zerowiz.ui import doctor as show_doctor

PAGE = ROOT / "docs" / "reference" / "errors.md"
CONFIG = "ds_config.json"


def table(rules: Iterable[Rule], words: Callable[[Rule], str], heading: str) -> str:
    head = f"| code | name | severity | {heading} |\n|---|---|---|---|\n"
    return head + "".join(
        f"| [{r.code}](#{r.code.lower()}) | `{r.name}` | {r.severity} | {words(r)} |\n"
        for r in rules
    )


def section(rule: Rule, *parts: str) -> str:
    return "\n\n".join([f"### {rule.code}", *parts]) + "\n"


def code(text: str, language: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def example_of(rule: Rule) -> tuple[str, ConfigFinding]:
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


def test_each_check_code_has_its_mistake_and_its_fix_on_the_page(golden_block: Block) -> None:
    golden_block(PAGE, "check codes", table(CHECK_RULES, lambda rule: rule.why, "if it stays"))
    golden_block(PAGE, "check examples", "\n".join(map(check_section, CHECK_RULES)))


@pytest.fixture
def by_earlier_steps(
    here: Run, driver: Callable[[object], None], monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """What `doctor` shows where an earlier step of a launch refuses the job."""
    # Not every CPU computes bf16, and what fits differs by that.
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    cpu = ("--accelerator", "cpu", "--gpus-per-node", "2", "--host-memory", "8GiB")
    versions_differ = 18
    driver(Replay({"nvmlInitWithFlags(0)": {"err": versions_differ}}))
    shown = {
        "script-refused": here("doctor", *cpu, "missing.py").stdout,
        "plan-refused": here("doctor", *cpu, "--precision", "fp32", "--model", "70b").stdout,
        "no-plan": here("doctor", *cpu).stdout,
        "no-machine": here("doctor").stdout,
    }
    monkeypatch.setattr(sys, "executable", "/env/bin/python")
    monkeypatch.setenv("PATH", "/nowhere")
    return {**shown, "no-deepspeed": here("doctor", *cpu, "--model", "10m").stdout}


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
        show_doctor.findings(found, stream)
        yield case.rule, stream.getvalue()


def test_each_preflight_code_has_its_finding_and_its_fix_on_the_page(
    golden_block: Block, by_earlier_steps: dict[str, str]
) -> None:
    shown = {**dict(of_cases()), **by_earlier_steps}
    sections = [
        preflight_section(rule, finding_in(shown[rule.name], rule)) for rule in PREFLIGHT_RULES
    ]
    golden_block(
        PAGE, "preflight codes", table(PREFLIGHT_RULES, lambda rule: rule.when, "found if")
    )
    golden_block(PAGE, "preflight examples", "\n".join(sections))


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


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.name)
def test_each_exit_code_has_a_command_that_ends_with_it(
    end: ExitCode, here: Run, folder: Path, golden_block: Block
) -> None:
    (folder / CONFIG).write_text(MISTAKE, encoding="utf-8")
    result = here(*ENDS[end])
    assert end == result.code
    _, error, message = result.stderr.rpartition("error: ")
    shown = f"`zerowiz {' '.join(ENDS[end])}` says:\n\n{code(error + (message or result.stdout), 'text')}"
    golden_block(PAGE, f"exit {end}", f"{shown}\n")


@pytest.mark.parametrize(
    "words", [("check", "--explain", "zw204"), ("doctor", "--explain", "PF402")]
)
def test_a_code_is_explained_as_the_page_does(words: tuple[str, ...], here: Run) -> None:
    result = here(*words)
    assert 0 == result.code
    code = words[-1].upper()
    section = PAGE.read_text(encoding="utf-8").partition(f"### {code}\n")[2].partition("\n### ")[0]
    assert f"{code}\n\n{section.strip()}\n\n{page_of(code)}\n" == result.stdout


def test_a_code_that_is_none_is_a_usage_error(here: Run) -> None:
    result = here("check", "--explain", "ZW1010")
    assert (2, "there is no code `ZW1010`") == (result.code, result.problem)


def test_the_address_of_the_site_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    site = re.search(r"^site_url: (\S+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert site is not None
    assert {DOCUMENTATION} == {project["urls"]["Documentation"], site[1]}


def test_each_exit_code_has_a_place_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [f"{int(end)}" for end in ExitCode] == re.findall(
        r"^### Exit (\d+)$", page, re.MULTILINE
    )
