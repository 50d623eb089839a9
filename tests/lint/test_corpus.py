"""The check finds the mistake of every broken config, and none in a good one."""

from collections import Counter

import pytest
from lint.cases import BROKEN, BROKEN_CASES, FILE_CASES, GOOD_CASES, SEVERITIES, Case

from zerowiz.core.findings import Severity
from zerowiz.core.lint.config import ConfigFinding
from zerowiz.core.lint.linter import RULES, lint
from zerowiz.probe.package_data import read_ds_schema

# The configs are those of the DeepSpeed whose truth is tested.
VERSION = "0.19.8"

each_broken = pytest.mark.parametrize("case", BROKEN_CASES, ids=str)


def findings(case: Case) -> tuple[ConfigFinding, ...]:
    return lint(case.text, read_ds_schema(VERSION), case.context)


@each_broken
def test_the_mistake_is_found_on_its_line_and_as_badly_as_it_is(case: Case) -> None:
    severities = {
        found.severity
        for found in findings(case)
        if (case.rule, case.line) == (found.rule.name, found.line)
    }
    assert severities
    assert severities <= SEVERITIES[case.truth]


@each_broken
def test_nothing_else_is_called_an_error(case: Case) -> None:
    errors = [found for found in findings(case) if found.severity is Severity.ERROR]
    assert [] == [(found.rule.name, found.line) for found in errors if found.rule.name != case.rule]


@pytest.mark.parametrize("case", GOOD_CASES, ids=str)
def test_a_good_config_has_neither_errors_nor_warnings(case: Case) -> None:
    found = [(each.rule.name, each.line, each.severity) for each in findings(case)]
    assert [] == [each for each in found if each[2] is not Severity.INFO]


def test_every_broken_file_is_in_the_table_once() -> None:
    assert Counter(path.name for path in BROKEN.iterdir()) == Counter(
        case.path.name for case in FILE_CASES
    )


def test_every_broken_config_has_a_name_of_its_own() -> None:
    assert len(BROKEN_CASES) == len({case.path.name for case in BROKEN_CASES})


def test_every_rule_has_a_broken_config_that_is_trained() -> None:
    assert {rule.name for rule in RULES} == {case.rule for case in BROKEN_CASES}
