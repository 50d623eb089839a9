"""Ask a person at a terminal."""

import sys
from collections.abc import Mapping
from typing import Any

from zerowiz.core.questions import Question
from zerowiz.errors import InterruptedByUserError


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


def ask(question: Question) -> str:
    """The person's answer; only one that the question takes is let through."""
    import questionary

    if question.choices:
        prompt = questionary.select(
            question.text,
            choices=list(question.choices),
            default=question.default,
            output=_stderr(),
        )
    else:
        prompt = questionary.text(
            question.text,
            default=question.default or "",
            validate=lambda text: question.problem(text) or True,
            output=_stderr(),
        )
    return str(_ask(prompt))


def confirm(text: str, *, default: bool = True) -> bool:
    """A yes or no."""
    import questionary

    return bool(_ask(questionary.confirm(text, default=default, output=_stderr())))
