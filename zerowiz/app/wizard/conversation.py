"""Ask what is open, one question after the other; Esc goes back to the one before."""

from collections.abc import Mapping

from zerowiz.app.ask.person import Person
from zerowiz.app.wizard.wizard import Wizard
from zerowiz.core.decision.answers import Answers
from zerowiz.core.decision.questions import (
    QUESTIONS,
    AnswerKind,
    Back,
    Choice,
    Question,
    is_relevant,
    next_question,
)
from zerowiz.core.values import replace


def ask_open(person: Person, wizard: Wizard, answers: Answers) -> Answers:
    """The answers, once nothing is open.

    Args:
        person: Answers.
        wizard: Knows what is open.
        answers: Those that were given before.
    """
    while (question := next_question(wizard.known(answers))) is not None:
        answer = _ask(person, wizard, question, answers, can_go_back=bool(answers.given))
        if isinstance(answer, Back):
            answers = answers.back()
        else:
            answers = _answered(wizard, answers, question, answer)
    return answers


def change_one(person: Person, wizard: Wizard, answers: Answers) -> Answers:
    """The answers, one of which the person has changed, or none."""
    while True:
        known = wizard.known(answers)
        listed = [
            Choice(value=question.key, title=f"{_NAMES[question.key]}: {_shown(question, known)}")
            for question in QUESTIONS
            if is_relevant(question, known)
        ]
        key = person.ask(replace(_WHICH, choices=(*listed, _NOTHING)))
        if isinstance(key, Back) or key == _NOTHING.value:
            return answers
        question = next(each for each in QUESTIONS if each.key == key)
        answer = _ask(person, wizard, question, answers, can_go_back=True)
        if not isinstance(answer, Back):
            return _answered(wizard, answers, question, answer)


_NAMES = {
    "machine": "machine",
    "script": "script",
    "model": "model",
    "method": "trained parameters",
    "goal": "goal",
    "micro_batch": "micro-batch",
    "sequence_tokens": "tokens per sequence",
    "gradient_checkpointing": "gradient checkpointing",
}
_WHICH = Question(key="change", flag="$yes", text="Change which answer?", kind=AnswerKind.CHOICE)
_NOTHING = Choice(value="nothing", title="nothing, go on")


def _shown(question: Question, known: Mapping[str, str | None]) -> str:
    """An answer, as a menu names it."""
    answer = known[question.key] or ""
    return next((each.title for each in question.choices if each.value == answer), answer)


def _answered(wizard: Wizard, answers: Answers, question: Question, answer: str) -> Answers:
    """With this answer, and without those that do not matter after it."""
    now = answers.with_answer(question.key, answer)
    known = wizard.known(now)
    return now.only({each.key for each in QUESTIONS if is_relevant(each, known)})


def _ask(
    person: Person, wizard: Wizard, question: Question, answers: Answers, *, can_go_back: bool
) -> str | Back:
    return person.ask(
        wizard.question(question, answers),
        check=wizard.check(question.key, answers),
        consequence=wizard.consequence(question, answers),
        can_go_back=can_go_back,
    )
