"""Ask a person: by a drawn menu at a terminal, else line by line."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TextIO

from zerowiz.core.command_words import spell
from zerowiz.core.decision.questions import AnswerKind, Back, Choice, Question
from zerowiz.core.structs import replace
from zerowiz.errors import InterruptedByUserError, ZerowizError, from_system
from zerowiz.translation import _, listing
from zerowiz.ui.progress import TerminalWait
from zerowiz.ui.prompt_menu import MUST_CHOOSE, as_answer, choices_of
from zerowiz.ui.text import Colour, cells, columns, is_dumb, plain, say

# Ask line by line, at a terminal that can only print: choices have numbers, nothing is redrawn.

_BACK, _MORE = "<", "?"
# Of a menu in which what is typed is an answer, too; a longer one would push the question away.
_MOST_LISTED = 12
# The prompt has a line of its own where it leaves less for the answer.
_NARROWEST_ANSWER_COLUMNS = 12


def show(question: Question) -> None:
    """The question, and its choices with their numbers."""
    sys.stderr.write("\n")
    if question.why:
        _say(_(question.why))
    _say(f"? {_(question.text)}")
    if question.heading:
        _say(question.heading, indent=5)
    listed = _listed(question)
    for number, choice in enumerate(listed, 1):
        detail = f" - {_(choice.detail)}" if choice.detail else ""
        _say(f"{number}) {_(choice.title)}{detail}", indent=2)
    if len(listed) < len(question.choices):
        _say(
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
        _say(_(question.more), indent=2)


def answer_problem(question: Question, answer: str) -> str | None:
    """Why this answer cannot be taken, in the words of what is seen: numbers."""
    if question.kind is AnswerKind.CHOICE and question.problem(answer):
        return _("a number from 1 to {choices}", choices=len(question.choices))
    return question.problem(answer)


def _say(text: str, *, indent: int = 0, stream: TextIO | None = None) -> None:
    """Text on stderr, or a stream before it; what would steer a terminal is shown as `?`."""
    lines = (" " * indent + line for line in text.splitlines())
    say(stream or sys.stderr, *lines, hang=indent + 2, in_parts=False)


def show_answer(question: Question, answer: str, stream: TextIO) -> None:
    """A line for what was answered."""
    titles = {choice.value: _(choice.title) for choice in choices_of(question)}
    shown = plain(spell(titles.get(answer, answer)))
    marks = {r"^\?": Colour.DOUBT, f"{re.escape(shown)}$": Colour.DOUBT}
    say(stream, f"? {_(question.text)} {shown}", hang=2, in_parts=False, marks=marks)


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
    what = _(" or ").join((word for word, is_known in words.items() if is_known))
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
    titles = {choice.value: _(choice.title).casefold() for choice in choices_of(question)}
    meant = [value for value, title in titles.items() if title.startswith(beginning)]
    return meant[0] if len(meant) == 1 else line


# What stands on the screen since each answer, so that going back takes it off.


class Transcript:
    """Stderr, for what is shown between two questions, which knows the rows since each answer."""

    def __init__(self) -> None:
        self._blocks: list[tuple[str, int]] = []

    def write(self, text: str) -> int:
        """As that of a stream."""
        if self._blocks:
            key, rows = self._blocks.pop()
            self._blocks.append((key, rows + text.count("\n")))
        return sys.stderr.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """As that of a stream."""
        self.write("".join(lines))

    def __getattr__(self, name: str) -> object:
        """What else a stream has is that of stderr."""
        attribute: object = getattr(sys.stderr, name)
        return attribute

    def open(self, key: str) -> None:
        """What follows begins with the answer to the question of this key."""
        self._blocks.append((key, 0))

    def forget(self) -> None:
        """What was written is not to be taken back any more."""
        self._blocks.clear()

    def take_back(self, key: str) -> int:
        """How many rows were written since this question was open last; they are forgotten."""
        places = [place for place, (opened, _rows) in enumerate(self._blocks) if opened == key]
        taken = self._blocks[places[-1] :] if places else []
        del self._blocks[len(self._blocks) - len(taken) :]
        return sum(rows for _key, rows in taken)


_Check = Callable[[str], object]
_Consequence = Callable[[str], str]


def find_person(environ: Mapping[str, str], *, yes: bool) -> "TerminalPerson | None":
    """Who can be asked: both ends are terminals, and nothing says otherwise."""
    quiet = yes or any(environ.get(name) for name in ("CI", "ZEROWIZ_NO_INPUT"))
    if quiet or not sys.stdin.isatty() or not sys.stderr.isatty():
        return None
    return TerminalPerson(is_dumb=is_dumb())


class TerminalPerson:
    """Answers at the terminal; questions go to stderr.

    Going back leaves no trace: what was shown since the question that is asked again is taken off
    the screen, as far as it was shown by this class.

    Args:
        is_dumb: Whether the terminal can only print.
    """

    def __init__(self, *, is_dumb: bool) -> None:
        self._is_dumb = is_dumb
        self._transcript = Transcript()
        self._went_back = False
        self._last_answer = ""

    def ask(
        self,
        question: Question,
        *,
        check: _Check | None = None,
        consequence: _Consequence | None = None,
        can_go_back: bool = True,
    ) -> str | Back:
        """An answer that the question and `check` take; until then it is asked again.

        Args:
            question: What to ask; an empty answer means its default.
            check: Raises a ZerowizError for an answer that the world does not bear out.
            consequence: One line of what an answer leads to, shown while it is given.
            can_go_back: Whether Esc goes back to the question before.

        Raises:
            InterruptedByUserError: Ctrl-C, or the end of the input.
        """
        leads_to = cache(consequence or (lambda _answer: ""))
        ask = self._ask_plainly if self._is_dumb else self._ask_drawn
        try:
            return ask(question, check, leads_to, can_go_back=can_go_back)
        except (KeyboardInterrupt, EOFError):
            raise InterruptedByUserError(_("interrupted; nothing was written")) from None

    @property
    def stream(self) -> TextIO:
        """Where others say something between questions: it is taken off with the answer before."""
        stream: object = sys.stderr if self._is_dumb else self._transcript
        return stream  # type: ignore[return-value]

    def tell(self, lines: Sequence[str]) -> None:
        """Lines of plain text; those after a question go with its answer."""
        if not self._is_dumb:
            _erase(0)
        for line in lines:
            _say(line, stream=self.stream)

    def _ask_plainly(
        self,
        question: Question,
        check: _Check | None,
        consequence: _Consequence,
        *,
        can_go_back: bool,
    ) -> str | Back:
        show(question)
        while True:
            answer = read_answer(question, can_go_back=can_go_back)
            if isinstance(answer, Back):
                return answer
            problem = answer_problem(question, answer) or _refused(answer, check)
            if problem is None:
                if leads_to := consequence(answer):
                    _say(f"-> {leads_to}", indent=2)
                return answer
            _say(f"! {problem}", indent=2)
            question = _without_default(question, answer)

    def _ask_drawn(
        self,
        question: Question,
        check: _Check | None,
        consequence: _Consequence,
        *,
        can_go_back: bool,
    ) -> str | Back:
        from zerowiz.ui.prompt_drawn import DrawnQuestion  # noqa: PLC0415 - see there

        problem: str | None = None
        typed = ""
        # The person goes back to it, or chose it in a menu of what to change.
        if self._went_back or self._last_answer == question.key:
            self._take_back(question)
        while True:
            _erase(0)
            prompt = DrawnQuestion(
                question,
                consequence,
                can_go_back=can_go_back,
                problem=problem or "",
                typed=typed,
            )
            answer = prompt.run()
            if prompt.was_suspended:
                # What stands above is the shell's now.
                self._transcript.forget()
            self._went_back = isinstance(answer, Back)
            if isinstance(answer, Back):
                return answer
            problem, typed = question.problem(answer), answer
            if problem is None:
                # The check may take its time: meanwhile the answer stands there.
                self._transcript.open(question.key)
                show_answer(question, answer, self.stream)
                problem = _refused(answer, check)
                if problem is None:
                    self._last_answer = answer
                    return answer
                self._take_back(question)
                question = _without_default(question, answer)

    def _take_back(self, question: Question) -> None:
        _erase(self._transcript.take_back(question.key))


def _erase(rows: int) -> None:
    """Take the last rows off, and what a terminal echoed of keys that nobody waited for."""
    sys.stderr.write(f"\x1b[{rows}A\r\x1b[J" if rows else "\r\x1b[J")
    sys.stderr.flush()


def _without_default(question: Question, refused: str) -> Question:
    """The question asked again: Enter alone does not give once more what was refused."""
    values = [choice.value for choice in question.choices]
    if refused != question.default or refused not in values:
        return question
    return replace(question, default=values[(values.index(refused) + 1) % len(values)])


def _refused(answer: str, check: _Check | None) -> str | None:
    """Why the world does not bear out this answer, and what to do."""
    try:
        if check is not None:
            with TerminalWait(_("checking `{answer}`", answer=answer), sys.stderr):
                check(answer)
    except ZerowizError as error:
        return _in_lines(error)
    except OSError as error:
        # Such as a name that is too long: the conversation goes on.
        return _in_lines(from_system(error, f"`{answer}`"))
    return None


def _in_lines(error: ZerowizError) -> str:
    return spell("\n".join((error.message, *error.hints)))
