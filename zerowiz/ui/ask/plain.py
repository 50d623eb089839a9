"""Ask line by line, at a terminal that can only print: choices have numbers, nothing is redrawn."""

import sys
from collections.abc import Callable

from zerowiz.core.decision.questions import AnswerKind, Back, Choice, Question
from zerowiz.core.flags import spell
from zerowiz.ui.ask.menu import MUST_CHOOSE, choices_of
from zerowiz.ui.ask.paths import as_answer
from zerowiz.ui.text.cells import cells
from zerowiz.ui.text.fold import columns, fold
from zerowiz.ui.text.plain import plain
from zerowiz.words import _, joined, listing

_BACK, _MORE = "<", "?"
# Of a menu in which what is typed is an answer, too; a longer one would push the question away.
_MOST_LISTED = 12
# The prompt has a line of its own where it leaves less for the answer.
_NARROWEST_ANSWER_COLUMNS = 12


def show(question: Question) -> None:
    """The question, and its choices with their numbers."""
    sys.stderr.write("\n")
    if question.why:
        say(question.why)
    say(f"? {question.text}")
    listed = _listed(question)
    for number, choice in enumerate(listed, 1):
        detail = f" - {choice.detail}" if choice.detail else ""
        say(f"{number}) {choice.title}{detail}", indent=2)
    if len(listed) < len(question.choices):
        say(
            _("and {choices} more: type a name", choices=len(question.choices) - len(listed)),
            indent=2,
        )


def _listed(question: Question) -> tuple[Choice, ...]:
    """The choices that have a number."""
    if question.kind in MUST_CHOOSE:
        return question.choices
    return question.choices[:_MOST_LISTED]


def read_answer(question: Question, *, can_go_back: bool) -> str | Back:
    """One line of a person; a number means the choice before which it stands.

    Raises:
        KeyboardInterrupt: Ctrl-C.
        EOFError: The input ended.
    """
    while True:
        line = _read(_prompt(question, can_go_back=can_go_back))
        if line == _BACK and can_go_back:
            return Back.BACK
        if line != _MORE or not question.more:
            return _answer(question, line)
        say(question.more, indent=2)


def answer_problem(question: Question, answer: str) -> str | None:
    """Why this answer cannot be taken, in the words of what is seen: numbers."""
    if question.kind is AnswerKind.CHOICE and question.problem(answer):
        return _("a number from 1 to {choices}", choices=len(question.choices))
    return question.problem(answer)


def show_consequence(answer: str, consequence: Callable[[str], str]) -> None:
    """What the answer leads to, once it is given."""
    if leads_to := consequence(answer):
        say(f"-> {leads_to}", indent=2)


def say(text: str, *, indent: int = 0) -> None:
    """Text on stderr; what would steer a terminal is shown as `?`."""
    for line in spell(text).splitlines():
        shown = " " * indent + plain(line)
        sys.stderr.write(fold(shown, sys.stderr, hang=indent + 2, in_parts=False) + "\n")


def _prompt(question: Question, *, can_go_back: bool) -> str:
    parts = {
        _("Enter: {answer}", answer=_default(question)): question.default is not None,
        _("yes or no"): question.kind is AnswerKind.CONFIRM,
        _("{key}: more", key=_MORE): bool(question.more),
        _("{key}: back", key=_BACK): can_go_back,
    }
    keys = listing(part for part, is_known in parts.items() if is_known)
    words = {
        _("number"): bool(question.choices),
        _("answer"): question.kind is not AnswerKind.CHOICE,
    }
    what = joined(_(" or "), (word for word, is_known in words.items() if is_known))
    return f"  {what} ({keys}): " if keys else f"  {what}: "


def _default(question: Question) -> str:
    """The default as it would be typed."""
    values = [choice.value for choice in _listed(question)]
    if question.default in values:
        return str(values.index(question.default) + 1)
    return plain(question.default or "")


def _read(prompt: str) -> str:
    width = columns(sys.stderr)
    is_long = width is not None and width - cells(prompt) < _NARROWEST_ANSWER_COLUMNS
    sys.stderr.write(f"{prompt.rstrip()}\n  > " if is_long else prompt)
    sys.stderr.flush()
    line = ""
    try:
        line = sys.stdin.readline()
    finally:
        if not line.endswith("\n"):
            sys.stderr.write("\n")
    if not line:
        raise EOFError
    return line.strip()


def _answer(question: Question, line: str) -> str:
    """What a line means: its number, the beginning of one choice where one is taken, or itself."""
    if not line:
        return question.default or ""
    numbered = _listed(question)
    if line.isdecimal() and 0 < int(line) <= len(numbered):
        return numbered[int(line) - 1].value
    if question.kind is AnswerKind.PATH:
        return as_answer(line)
    if question.kind not in MUST_CHOOSE:
        return line
    beginning = line.casefold()
    titles = {each.value: each.title.casefold() for each in choices_of(question)}
    meant = [value for value, title in titles.items() if title.startswith(beginning)]
    return meant[0] if len(meant) == 1 else line
