"""Ask a person at a terminal."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, TextIO

from zerowiz.core.decision.questions import Back, Question
from zerowiz.core.flags import spell
from zerowiz.core.values import replace
from zerowiz.errors import InterruptedByUserError, ZerowizError, from_system
from zerowiz.ui.ask import plain
from zerowiz.ui.ask.counted import counted
from zerowiz.ui.ask.transcript import Transcript
from zerowiz.ui.text.progress import TerminalWait
from zerowiz.words import _

if TYPE_CHECKING:
    from zerowiz.ui.ask.drawn import Screen

# What TERM is where a cursor cannot be moved.
_DUMB = frozenset({"", "dumb", "unknown"})

_Check = Callable[[str], object]
_Consequence = Callable[[str], str]


def find_person(environ: Mapping[str, str], *, yes: bool) -> "TerminalPerson | None":
    """Who can be asked: both ends are terminals, and nothing says otherwise."""
    quiet = yes or any(environ.get(name) for name in ("CI", "ZEROWIZ_NO_INPUT"))
    if quiet or not sys.stdin.isatty() or not sys.stderr.isatty():
        return None
    return TerminalPerson(is_dumb=environ.get("TERM", "") in _DUMB)


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

    @cached_property
    def stream(self) -> TextIO:
        """Where others say something between questions: it is taken off with the answer before."""
        return sys.stderr if self._is_dumb else counted(self._transcript.add)

    def tell(self, lines: Sequence[str]) -> None:
        """Lines of plain text; those after a question go with its answer."""
        if self._is_dumb:
            for line in lines:
                plain.say(line)
        else:
            self._transcript.add(self._screen.show(lines))

    def _ask_plainly(
        self,
        question: Question,
        check: _Check | None,
        consequence: _Consequence,
        *,
        can_go_back: bool,
    ) -> str | Back:
        plain.show(question)
        while True:
            answer = plain.read_answer(question, can_go_back=can_go_back)
            if isinstance(answer, Back):
                return answer
            problem = plain.answer_problem(question, answer) or _refused(answer, check)
            if problem is None:
                plain.show_consequence(answer, consequence)
                return answer
            plain.say(f"! {problem}", indent=2)
            question = _without_default(question, answer)

    def _ask_drawn(
        self,
        question: Question,
        check: _Check | None,
        consequence: _Consequence,
        *,
        can_go_back: bool,
    ) -> str | Back:
        from zerowiz.ui.ask.drawn import DrawnQuestion  # noqa: PLC0415 - see there

        problem: str | None = None
        typed = ""
        # The person goes back to it, or chose it in a menu of what to change.
        if self._went_back or self._last_answer == question.key:
            self._take_back(question)
        while True:
            prompt = DrawnQuestion(
                self._screen,
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
                self._transcript.add(self._screen.show_answer(question, answer), question.key)
                problem = _refused(answer, check)
                if problem is None:
                    self._last_answer = answer
                    return answer
                self._take_back(question)
                question = _without_default(question, answer)

    def _take_back(self, question: Question) -> None:
        self._screen.erase(self._transcript.take_back(question.key))

    @cached_property
    def _screen(self) -> "Screen":
        from zerowiz.ui.ask.drawn import Screen  # noqa: PLC0415 - see there

        return Screen()


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
