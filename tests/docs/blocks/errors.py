"""What the page of errors is made of: the rules, and what the tests have zerowiz find."""

import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from core.launch.doctor.cases import CASES
from docs.blocks.desk import empty_desk, run
from docs.blocks.markdown import code
from lint.rows import FOUND
from recorded import put_under_pynvml

from zerowiz.core.findings import Rule, Severity
from zerowiz.core.lint.config import ConfigFinding
from zerowiz.core.lint.linter import RULES as CHECK_RULES
from zerowiz.core.lint.linter import lint
from zerowiz.core.lint.report import FileReport
from zerowiz.core.preflight.examine import RULES as PREFLIGHT_RULES
from zerowiz.core.preflight.examine import examine
from zerowiz.errors import ExitCode
from zerowiz.probe.package_data import read_ds_schema
from zerowiz.probe.recording import Replay
from zerowiz.ui import check as show_check
from zerowiz.ui import doctor as show_doctor

CONFIG = "ds_config.json"


def table(rules: Iterable[Rule], words: Callable[[Rule], str], heading: str) -> str:
    head = f"| code | name | severity | {heading} |\n|---|---|---|---|\n"
    return head + "".join(
        f"| [{r.code}](#{r.code.lower()}) | `{r.name}` | {r.severity} | {words(r)} |\n"
        for r in rules
    )


def section(rule: Rule, *parts: str) -> str:
    return "\n\n".join([f"### {rule.code}", *parts]) + "\n"


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


def check_codes() -> str:
    return table(CHECK_RULES, lambda rule: rule.why, "if it stays")


def check_examples() -> str:
    return "\n".join(map(check_section, CHECK_RULES))


def by_earlier_steps() -> dict[str, str]:
    """What `doctor` shows where an earlier step of a launch refuses the job."""
    cpu = ("--accelerator", "cpu", "--gpus-per-node", "2", "--host-memory", "8GiB")
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
        show_doctor.findings(found, stream)
        yield case.rule, stream.getvalue()


def preflight_codes() -> str:
    return table(PREFLIGHT_RULES, lambda rule: rule.when, "found if")


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
