"""The check finds the mistake of every broken config, and none in a good one."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from lint.cases import (
    ARGUMENTS,
    BROKEN,
    BROKEN_CASES,
    DEEPSPEED,
    FILE_CASES,
    GOOD_CASES,
    SEVERITIES,
    Case,
    ask_readers,
)
from lint.rows import Truth

from zerowiz.core.dsconfig.hjson import Dialect, parse, plain
from zerowiz.core.findings import Finding, Severity
from zerowiz.core.lint.linter import RULES, lint
from zerowiz.probe.files import read_ds_schema

# The configs are those of the DeepSpeed whose truth is tested.
VERSION = "0.19.8"

each_broken = pytest.mark.parametrize("case", BROKEN_CASES, ids=str)


def findings(case: Case) -> tuple[Finding, ...]:
    return lint(case.text, read_ds_schema(VERSION), case.context)


@each_broken
def test_the_mistake_is_found_on_its_line_as_badly_as_it_is_and_nothing_else_is_an_error(
    case: Case,
) -> None:
    found = findings(case)
    meant = {
        each.severity for each in found if (case.rule, case.line) == (each.rule.name, each.line)
    }
    assert meant
    assert meant <= SEVERITIES[case.truth]
    errors = [each for each in found if each.severity is Severity.ERROR]
    assert [] == [(each.rule.name, each.line) for each in errors if each.rule.name != case.rule]


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


# What DeepSpeed, the Trainer and Accelerate really make of every config of the tables.

Answer = Mapping[str, Any]
PATIENCE_SECONDS = 1500
SHOWN_CHARACTERS = 150

# What each raises with the versions of constraints.txt: a mistake has to fail for its own reason.
# `pytest --truth --update-golden tests/lint` rewrites it; read the diff.
RAISED = Path(__file__).with_name("raised.json")


def first_words(raised: str | None) -> str | None:
    """The error's type and how its message begins; pydantic's names the key on its second line."""
    return raised and " ".join(raised.split())[:SHOWN_CHARACTERS]


def of_truth(*truths: Truth) -> pytest.MarkDecorator:
    cases = [case for case in BROKEN_CASES if case.truth in truths]
    return pytest.mark.parametrize("case", cases, ids=str)


def question(name: str, path: Path, case: Case, *, own: bool = False) -> dict[str, Any]:
    return {
        "id": name,
        "path": str(path),
        "asked": "config" if case.config_only else case.integration,
        "world_size": case.world_size or 1,
        "arguments": dict(ARGUMENTS),
        "own": own,
        "compute_capability": case.compute_capability,
    }


def without(case: Case) -> str:
    """The config without the key that is said to be ignored; of equal keys, with the last one."""
    dialect = Dialect.HJSON if case.integration is DEEPSPEED else Dialect.JSON
    config: Any = plain(parse(case.text, dialect))
    if case.key:
        *sections, name = case.key.split(".")
        holder = config
        for section in sections:
            holder = holder[section]
        del holder[name]
    return json.dumps(config)


def file_of(case: Case, folder: Path) -> Path:
    """The file of a config; that of a row is written first."""
    if case.row_text is None:
        return case.path
    path = folder / case.path.name
    path.write_text(case.row_text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Answer]:
    """Every file, and every file without what is ignored in it, asked once."""
    folder = tmp_path_factory.mktemp("truth")
    files = {case.path: file_of(case, folder) for case in (*BROKEN_CASES, *GOOD_CASES)}
    questions = [
        question(str(case.path), files[case.path], case) for case in (*BROKEN_CASES, *GOOD_CASES)
    ]
    for case in BROKEN_CASES:
        if case.truth is Truth.IGNORED:
            reduced = folder / f"without {case.path.name}"
            reduced.write_text(without(case), encoding="utf-8")
            questions.append(question(f"without {case.path}", reduced, case))
        if case.truth is Truth.DEPENDS:
            questions.append(question(f"own {case.path}", files[case.path], case, own=True))
    return ask_readers(questions, folder, PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def raised(request: pytest.FixtureRequest, answers: Mapping[str, Answer]) -> Mapping[str, str]:
    """How the error of each config begins that cannot be trained."""
    if request.config.getoption("--update-golden"):
        fails = [case for case in BROKEN_CASES if case.truth in {Truth.RAISES, Truth.DEPENDS}]
        found = {case.path.name: first_words(answers[str(case.path)]["raised"]) for case in fails}
        text = json.dumps(found, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        RAISED.write_text(text, encoding="utf-8")
    expected: Mapping[str, str] = json.loads(RAISED.read_text(encoding="utf-8"))
    return expected


@pytest.mark.deepspeed
@pytest.mark.truth
@of_truth(Truth.RAISES)
def test_what_is_said_to_raise_does(
    case: Case, answers: Mapping[str, Answer], raised: Mapping[str, str]
) -> None:
    assert raised[case.path.name] == first_words(answers[str(case.path)]["raised"])


@pytest.mark.deepspeed
@pytest.mark.truth
@of_truth(Truth.TRAINS_SOMETHING_ELSE)
def test_what_is_said_to_train_something_else_does(
    case: Case, answers: Mapping[str, Answer]
) -> None:
    assert case.asked is not None
    fact, value = case.asked
    found = answers[str(case.path)]
    assert found["raised"] is None
    assert value != found["facts"][fact]


@pytest.mark.deepspeed
@pytest.mark.truth
@of_truth(Truth.IGNORED)
def test_what_is_said_to_be_ignored_makes_no_difference(
    case: Case, answers: Mapping[str, Answer]
) -> None:
    found, reduced = answers[str(case.path)], answers[f"without {case.path}"]
    assert found["raised"] is None
    assert reduced["raised"] is None
    facts = {**reduced["facts"], **found["facts"]}
    differ = [f for f in facts if found["facts"].get(f) != reduced["facts"].get(f)]
    assert [] == [fact for fact in differ if not is_that_of(case.key or "", fact)]


# deepspeed/runtime/config.py, DeepSpeedConfig._initialize_params.
ATTRIBUTES = {"fp16": "float16_config", "flops_profiler": "flops_profiler_config"}


def is_that_of(key: str, fact: str) -> bool:
    """Whether a fact is the very field that a key, or a key of that section, is kept in."""
    name = key.rpartition(".")[2]
    return ATTRIBUTES.get(name, name.removeprefix("stage3_")) in fact.split(".")


@pytest.mark.deepspeed
@pytest.mark.truth
@of_truth(Truth.DEPRECATED)
def test_of_what_is_deprecated_deepspeed_warns(case: Case, answers: Mapping[str, Answer]) -> None:
    found = answers[str(case.path)]
    assert found["raised"] is None
    assert [] != found["warned"]


@pytest.mark.deepspeed
@pytest.mark.truth
@of_truth(Truth.DEPENDS)
def test_what_is_said_to_depend_on_the_script_does(
    case: Case, answers: Mapping[str, Answer], raised: Mapping[str, str]
) -> None:
    assert raised[case.path.name] == first_words(answers[str(case.path)]["raised"])
    assert answers[f"own {case.path}"]["raised"] is None


@pytest.mark.deepspeed
@pytest.mark.truth
@of_truth(Truth.WORKS)
def test_what_is_said_to_work_does(case: Case, answers: Mapping[str, Answer]) -> None:
    assert answers[str(case.path)]["raised"] is None


@pytest.mark.deepspeed
@pytest.mark.truth
@pytest.mark.parametrize("case", GOOD_CASES, ids=str)
def test_a_good_config_trains_and_nothing_is_said_to_be_deprecated(
    case: Case, answers: Mapping[str, Answer]
) -> None:
    found = answers[str(case.path)]
    assert (None, []) == (found["raised"], found["warned"])
