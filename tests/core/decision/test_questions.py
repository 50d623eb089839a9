"""The wizard's questions: data, each with a way to answer it on the command line."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.app.options import choices_of, kinds, rows
from zerowiz.core.decision.questions import (
    ALL_QUESTIONS,
    CHANGEABLE,
    QUESTIONS,
    AnswerKind,
    Answers,
    Choice,
    Question,
    answer_or_default,
    next_question,
)
from zerowiz.errors import AnswerNeededError, ExitCode

# Answers are a stack: going back takes the latest, and changing one keeps the others.

KEYS = st.sampled_from(["script", "model", "goal", "micro_batch", "sequence_tokens"])
GIVEN = st.lists(st.tuples(KEYS, st.text(min_size=1)), unique_by=lambda each: each[0])
SOME_GIVEN = GIVEN.filter(bool)


def of(given_answers: list[tuple[str, str]]) -> Answers:
    answers = Answers()
    for key, answer in given_answers:
        answers = answers.with_answer(key, answer)
    return answers


@given(GIVEN, KEYS, st.text(min_size=1))
def test_going_back_undoes_the_last_answer(
    before: list[tuple[str, str]], key: str, answer: str
) -> None:
    fresh = [each for each in before if each[0] != key]
    undone = of(fresh).with_answer(key, answer).back()
    assert tuple(fresh) == undone.given
    assert answer == undone.before[key]


@given(SOME_GIVEN, st.data())
def test_changing_one_answer_keeps_all_others_and_their_order(
    before: list[tuple[str, str]], data: st.DataObject
) -> None:
    key, _ = data.draw(st.sampled_from(before))
    changed = of(before).with_answer(key, "new")
    assert [k for k, _ in before] == [k for k, _ in changed.given]
    others = {k: v for k, v in before if k != key}
    assert {**others, key: "new"} == changed.by_key


@given(GIVEN, st.sets(KEYS))
def test_what_does_not_matter_any_more_is_remembered(
    before: list[tuple[str, str]], keys: set[str]
) -> None:
    kept = of(before).only(keys)
    assert {k: v for k, v in before if k in keys} == kept.by_key
    assert dict(before) == dict(kept.before)


def test_a_global_batch_is_learned_from_whatever_steps_a_remedy_made_of_the_one_before() -> None:
    remedied = Answers().taking({"micro_batch": 2, "accumulation_steps": 2})
    assert {"micro_batch": 2} == remedied.with_answer("global_batch", "64").settings


each_question = pytest.mark.parametrize("question", ALL_QUESTIONS, ids=lambda q: q.key)
ALL_OPEN = dict.fromkeys(question.key for question in QUESTIONS)


def test_questions_are_asked_in_their_order_until_none_is_open() -> None:
    answers: dict[str, str | None] = dict(ALL_OPEN)
    asked = []
    while (question := next_question(answers)) is not None:
        asked.append(question)
        answers[question.key] = "own"
    assert list(QUESTIONS) == asked


@pytest.mark.parametrize(
    ("answers", "key"),
    [
        # What is known is not asked, nor what does not matter to a command.
        ({**ALL_OPEN, "machine": "4xA100-40GB", "script": "train.py"}, "config"),
        ({"sequence_tokens": None}, "sequence_tokens"),
        ({}, None),
        # A micro-batch is asked of who wants an own one.
        ({"goal": "flowchart", "micro_batch": None}, None),
        ({"goal": "fastest", "micro_batch": None}, None),
        ({"goal": "own", "micro_batch": None}, "micro_batch"),
    ],
)
def test_the_next_question_is_one_that_is_open(
    answers: dict[str, str | None], key: str | None
) -> None:
    question = next_question(answers)
    assert key == (question and question.key)


def test_what_is_told_where_it_is_asked_for_was_not_said_before() -> None:
    for question in ALL_QUESTIONS:
        before, more = (re.split(r"(?<=[.:]) ", text) for text in (question.why, question.more))
        assert not {*before} & {*more} - {""}, question.key


def test_no_key_and_no_flag_is_used_twice() -> None:
    for names in ([q.key for q in ALL_QUESTIONS], [q.flag for q in ALL_QUESTIONS]):
        assert sorted(set(names)) == sorted(names)


@each_question
def test_without_a_person_the_default_is_taken_or_the_flag_is_named(question: Question) -> None:
    assert question.flag.removeprefix("$") in {*rows(), "SCRIPT"}
    assert question.text.partition(" (")[0].endswith("?")
    if question.default is not None:
        assert question.problem(question.default) is None
        assert question.default == answer_or_default(question)
        return
    with pytest.raises(AnswerNeededError) as caught:
        answer_or_default(question)
    assert ExitCode.ANSWER_NEEDED == caught.value.exit_code
    assert (f"set it with `{question.flag}`",) == caught.value.hints


YES_NO = (Choice(value="no", title="no"), Choice(value="yes", title="yes"))


@pytest.mark.parametrize(
    ("kind", "choices", "answer", "problem"),
    [
        *(
            (AnswerKind.COUNT, (), answer, "a whole number from 1 on")
            for answer in ("", " ", "0", "-1", "1.5", "two", "²", "1 2")
        ),
        (AnswerKind.COUNT, (), "12", None),
        (AnswerKind.TEXT, (), "  ", "an answer is needed"),
        (AnswerKind.TEXT, (), "7b", None),
        (AnswerKind.CHOICE, YES_NO, "maybe", "one of no, yes"),
        (AnswerKind.CHOICE, YES_NO, "yes", None),
    ],
)
def test_an_answer_is_of_the_kind_that_was_asked(
    kind: AnswerKind, choices: tuple[Choice, ...], answer: str, problem: str | None
) -> None:
    question = Question(key="k", flag="--k", text="?", kind=kind, choices=choices)
    assert problem == question.problem(answer)


@pytest.mark.parametrize(
    "question", [each for each in CHANGEABLE if each.choices], ids=lambda each: each.key
)
def test_what_may_be_changed_has_every_value_of_its_option(question: Question) -> None:
    values = choices_of(kinds()[question.key], rows()[question.key]) or ("no", "yes")
    assert [*values] == [choice.value for choice in question.choices]
