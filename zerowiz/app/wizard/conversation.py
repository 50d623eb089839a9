"""Ask what is open, one question after the other; Esc goes back to the one before."""

from collections.abc import Iterator, Mapping

from zerowiz.app.ask.person import Person
from zerowiz.app.reporter import Reporter
from zerowiz.app.wizard.wizard import Wizard
from zerowiz.core.decision.answers import Answers
from zerowiz.core.decision.questions import (
    ALL_QUESTIONS,
    QUESTIONS,
    AnswerKind,
    Back,
    Choice,
    Question,
    is_relevant,
    next_question,
)
from zerowiz.core.values import replace
from zerowiz.errors import ZerowizError
from zerowiz.ui import remedies
from zerowiz.words import _, listing


def ask_open(person: Person, wizard: Wizard, answers: Answers) -> Iterator[Answers]:
    """The answers after each question, until nothing is open: a refusal loses none of them.

    Args:
        person: Answers.
        wizard: Knows what is open.
        answers: Those that were given before.

    Raises:
        ZerowizError: What the answers name cannot be used, or cannot be read any more.
    """
    while True:
        wizard.prepare(answers)
        known = wizard.known(answers)
        # What does not matter after the latest answer is not kept.
        answers = answers.only({each.key for each in ALL_QUESTIONS if is_relevant(each, known)})
        yield answers
        question = next_question(known)
        if question is None:
            return
        answers = _ask(person, wizard, question, answers, can_go_back=bool(answers.given))
        yield answers


def change_one(person: Person, wizard: Wizard, answers: Answers) -> Answers:
    """The answers, one of which the person has changed, or none."""
    while True:
        undoable = _taken(answers)
        listed = (*_listed(wizard, answers, wizard.planned(answers)), *undoable, _NOTHING)
        key = person.ask(replace(_WHICH, choices=listed, default=listed[0].value))
        if isinstance(key, Back) or key == _NOTHING.value:
            return answers
        taken = [each.value for each in undoable]
        if key in taken:
            return answers.without_taken(taken.index(key))
        question = next(each for each in ALL_QUESTIONS if each.key == key)
        changed = _change(person, wizard, question, answers)
        if changed is not None:
            return changed


def can_change(wizard: Wizard, answers: Answers) -> bool:
    """Whether an answer could be another one; not where what is open cannot be read."""
    try:
        return bool(_listed(wizard, answers, {}) or answers.taken)
    except ZerowizError:
        return False


def note_spared(wizard: Wizard, answers: Answers, reporter: Reporter) -> None:
    """Say which answers nobody was asked for."""
    spared = wizard.spared(answers)
    took = [f"{_NAMES[q.key]} ({_shown(q, spared)})" for q in QUESTIONS if q.key in spared]
    if took:
        reporter.note(
            _(
                "not asked: {took}; choose `change something` for another one",
                took=listing(took),
            )
        )


def ask_other_script(person: Person, wizard: Wizard, answers: Answers) -> Answers:
    """The answers with a script that the person names now; as they were where they go back."""
    question = next(each for each in QUESTIONS if each.key == "script")
    return _change(person, wizard, question, answers) or answers


def _taken(answers: Answers) -> list[Choice]:
    """The remedies that were taken, as a menu."""
    return [
        Choice(
            value=f"remedy {index}",
            title=remedies.options(change),
            detail=_("you chose this change; Enter undoes it"),
        )
        for index, change in enumerate(answers.taken)
    ]


def _listed(wizard: Wizard, answers: Answers, planned: Mapping[str, str]) -> list[Choice]:
    """The answers that matter, and what else the plan could have otherwise, as a menu."""
    known = wizard.known(answers)
    relevant = {q.key: known[q.key] for q in ALL_QUESTIONS if is_relevant(q, known)}
    shown = {**planned, **relevant}
    return [
        Choice(value=question.key, title=f"{_NAMES[question.key]}: {_shown(question, shown)}")
        for question in ALL_QUESTIONS
        if question.key in shown
    ]


_NAMES = {
    "machine": _("machine"),
    "script": _("script"),
    "model": _("model"),
    "method": _("trained parameters"),
    "goal": _("goal"),
    "micro_batch": _("micro-batch"),
    "sequence_tokens": _("tokens per sequence"),
    "gradient_checkpointing": _("gradient checkpointing"),
    "global_batch": _("global batch"),
    "precision": _("precision"),
    "optimizer": _("optimizer"),
    "attention": _("attention"),
}
_WHICH = Question(key="change", flag="$yes", text=_("Change which answer?"), kind=AnswerKind.CHOICE)
_NOTHING = Choice(value="nothing", title=_("nothing, go on"))


def _shown(question: Question, known: Mapping[str, str | None]) -> str:
    """An answer, as a menu names it."""
    answer = known[question.key] or ""
    return next((each.title for each in question.choices if each.value == answer), answer)


def _change(person: Person, wizard: Wizard, question: Question, answers: Answers) -> Answers | None:
    """The answers with another one to this question; None where the person goes back."""
    answer = _answer(person, wizard, question, answers, can_go_back=True)
    return None if isinstance(answer, Back) else wizard.with_answer(question.key, answer, answers)


def _ask(
    person: Person, wizard: Wizard, question: Question, answers: Answers, *, can_go_back: bool
) -> Answers:
    """The answers with one to this question, or without the one before."""
    answer = _answer(person, wizard, question, answers, can_go_back=can_go_back)
    if isinstance(answer, Back):
        return answers.back()
    return answers.with_answer(question.key, answer)


def _answer(
    person: Person, wizard: Wizard, question: Question, answers: Answers, *, can_go_back: bool
) -> str | Back:
    return person.ask(
        wizard.question(question, answers),
        check=wizard.check(question.key, answers),
        consequence=wizard.consequence(question, answers),
        can_go_back=can_go_back,
    )
