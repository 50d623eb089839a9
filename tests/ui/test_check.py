"""What a person sees of findings."""

import io
import re

import pytest
from ui.streams import TerminalStream

from zerowiz.core.findings import Finding, Rule, Severity
from zerowiz.core.lint.report import FileReport
from zerowiz.core.structs import replace
from zerowiz.ui import check

RULE = Rule(
    code="ZW101",
    name="unknown-key",
    severity=Severity.ERROR,
    why="DeepSpeed refuses an unknown key in this section, and the job ends before its first step",
)
FOUND = Finding(
    rule=RULE,
    severity=Severity.ERROR,
    key="zero_optimization.stagee",
    line=12,
    column=5,
    message="`zero_optimization.stagee`, did you mean `zero_optimization.stage`?",
    fixes=("rename it to `stage`",),
)


def shown(*findings: Finding, stream: io.StringIO | None = None, files: int = 1) -> str:
    stream = stream or io.StringIO()
    clean = [FileReport(path="other.json", findings=()) for _ in range(files - 1)]
    check.reports([FileReport(path="ds.json", findings=findings), *clean], "0.19.8", stream)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_finding_is_a_line_that_editors_jump_to_then_why_and_fix() -> None:
    assert [
        f"ds.json:12:5 error ZW101 unknown-key: {FOUND.message}",
        f"    why: {RULE.why}",
        "    fix: rename it to `stage`",
        "1 error, for DeepSpeed 0.19.8",
        "for an example and the way out: `zerowiz check --explain ZW101`",
    ] == shown(FOUND).splitlines()


def test_a_finding_without_a_why_or_a_fix_has_no_line_of_it() -> None:
    bare = replace(FOUND, rule=replace(RULE, why=""), fixes=())
    assert [f"ds.json:12:5 error ZW101 unknown-key: {FOUND.message}"] == shown(bare).splitlines()[
        :-2
    ]


def test_the_first_error_is_the_one_that_is_explained() -> None:
    other = replace(RULE, code="ZW102")
    mild = replace(FOUND, severity=Severity.WARNING)
    for findings in ((mild, replace(FOUND, rule=other)), (replace(mild, rule=other), mild)):
        assert shown(*findings).endswith("--explain ZW102`\n")


def test_a_terminal_has_80_columns_and_colours() -> None:
    text = shown(FOUND, stream=TerminalStream())
    assert "\x1b[31merror ZW101\x1b[0m" in text
    lines = re.sub(r"\x1b\[\d+m", "", text).splitlines()
    assert max(map(len, lines)) <= 80
    assert shown(FOUND).split() == " ".join(lines).split()


def test_nobody_who_wants_no_colour_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in shown(FOUND, stream=TerminalStream())


def test_another_command_says_a_finding_in_one_line() -> None:
    said = "ds.json line 12: `a` (ZW101 unknown-key)"
    assert said == replace(FOUND, message="`a`").in_short("ds.json")


def test_nothing_found_is_one_line() -> None:
    assert "no findings\n" == shown()


def test_why_is_said_once_for_each_rule_of_a_file() -> None:
    assert 1 == shown(FOUND, replace(FOUND, line=13)).count("why: ")


def test_a_line_counts_by_severity_and_file() -> None:
    mild = replace(FOUND, severity=Severity.WARNING)
    hint = replace(FOUND, severity=Severity.INFO)
    counts = shown(FOUND, FOUND, mild, hint, files=3).splitlines()[-2]
    assert "2 errors, 1 warning, 1 piece of advice in 1 of 3 files, for DeepSpeed 0.19.8" == counts


def test_quiet_shows_errors_alone() -> None:
    stream = io.StringIO()
    mild = replace(FOUND, severity=Severity.WARNING)
    check.errors([FileReport(path="ds.json", findings=(mild, FOUND))], stream)
    assert ["ds.json:12:5 error", "    why:", "    fix:"] == [
        line[: len(start)]
        for line, start in zip(
            stream.getvalue().splitlines(),
            ("ds.json:12:5 error", "    why:", "    fix:"),
            strict=True,
        )
    ]


def test_what_would_steer_a_terminal_is_not_passed_on() -> None:
    assert "\x1b" not in shown(replace(FOUND, message="\x1b[2J"))
