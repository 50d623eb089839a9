"""Ask a person at a terminal."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zerowiz.core.decision.questions import AnswerKind, Back, Question
from zerowiz.core.flags import spell
from zerowiz.errors import InterruptedByUserError, ZerowizError
from zerowiz.ui.text.fold import fold


def can_ask(environ: Mapping[str, str], *, yes: bool) -> bool:
    """Whether there is a person: both ends are terminals, and nothing says otherwise."""
    quiet = yes or any(environ.get(name) for name in ("CI", "ZEROWIZ_NO_INPUT"))
    return not quiet and sys.stdin.isatty() and sys.stderr.isatty()


def _ask(prompt: Any) -> Any:  # noqa: ANN401 - questionary's questions carry no type
    """Questions go to stderr; Ctrl-C and end of input end the program, never become an answer."""
    try:
        return prompt.unsafe_ask()
    except (KeyboardInterrupt, EOFError):
        raise InterruptedByUserError("interrupted; nothing was written") from None


def _stderr() -> Any:  # noqa: ANN401 - prompt_toolkit's Output
    from prompt_toolkit.output import create_output

    return create_output(stdout=sys.stderr)


def _problem(question: Question, answer: str, check: Callable[[str], object] | None) -> str | None:
    """Why this answer cannot be taken, by the question itself, then by the world."""
    problem = question.problem(answer)
    if problem is None and check is not None:
        try:
            check(answer)
        except ZerowizError as error:
            return spell("\n".join((error.message, *(f"  {hint}" for hint in error.hints))))
    return problem


def ask(
    question: Question,
    *,
    check: Callable[[str], object] | None = None,
    consequence: Callable[[str], str] | None = None,
    can_go_back: bool = True,
) -> str | Back:
    """The person's answer; asked again until it is one that can be used.

    Args:
        question: What to ask; an empty answer means its default.
        check: Raises a ZerowizError for an answer that the world does not bear out.
        consequence: One line of what an answer leads to, shown while it is given.
        can_go_back: Whether Esc goes back to the question before.

    Raises:
        InterruptedByUserError: Ctrl-C, or the end of the input.
    """
    if question.why:
        sys.stderr.write("\n" + fold(question.why, sys.stderr) + "\n")
    while True:
        answer = _answer(question, consequence, can_go_back=can_go_back)
        if isinstance(answer, Back):
            return answer
        problem = _problem(question, answer, check)
        if problem is None:
            return answer
        lines = problem.splitlines()
        sys.stderr.writelines(fold(f"  {line}", sys.stderr, hang=4) + "\n" for line in lines)


def _answer(
    question: Question, consequence: Callable[[str], str] | None, *, can_go_back: bool
) -> str | Back:
    prompt = _prompt(question, consequence)
    if can_go_back:
        _go_back_on_escape(prompt)
    answer = _ask(prompt)
    if isinstance(answer, Back):
        return answer
    if question.kind is AnswerKind.CONFIRM:
        return "yes" if answer else "no"
    return str(answer).strip() or question.default or ""


def _prompt(question: Question, consequence: Callable[[str], str] | None) -> Any:  # noqa: ANN401
    import questionary

    if question.kind is AnswerKind.CONFIRM:
        return questionary.confirm(
            question.text, default=question.default != "no", output=_stderr()
        )
    if question.kind is AnswerKind.CHOICE:
        choices = [
            questionary.Choice(choice.title, value=choice.value, description=choice.detail or None)
            for choice in question.choices
        ]
        return questionary.select(
            question.text, choices=choices, default=question.default, output=_stderr()
        )
    instruction = None if question.default is None else f"({question.default})"

    def toolbar() -> str:
        if consequence is None:
            return ""
        return consequence(prompt.application.current_buffer.text or question.default or "")

    live: Any = {} if consequence is None else {"bottom_toolbar": toolbar}
    prompt = questionary.text(question.text, instruction=instruction, output=_stderr(), **live)
    return prompt


def _go_back_on_escape(prompt: Any) -> None:  # noqa: ANN401
    from prompt_toolkit.key_binding import KeyBindings, merge_key_bindings

    keys = KeyBindings()

    keys.add("escape")(lambda event: event.app.exit(result=Back.BACK))
    application = prompt.application
    application.key_bindings = merge_key_bindings([application.key_bindings, keys])


def tell(lines: Sequence[str]) -> None:
    """Lines of plain text, on stderr."""
    sys.stderr.writelines(fold(spell(line), sys.stderr, hang=2) + "\n" for line in lines)
