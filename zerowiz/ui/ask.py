"""Ask a person at a terminal."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zerowiz.core.decision.questions import Question
from zerowiz.core.flags import spell
from zerowiz.errors import InterruptedByUserError, ZerowizError
from zerowiz.ui.text.fold import fold

# Why a question is asked, in a line above it; by its key.
_WHY: Mapping[str, str] = {
    "machine": "A plan needs no GPU here, only to know which ones the job will run on.",
    "script": "It is read, never run: how it takes a config, its batch, its precision.",
    "model": "Its shape decides what every GPU has to hold; weights are not downloaded.",
    "micro_batch": "Activations grow with it; gradient accumulation makes up for a small one.",
    "sequence_tokens": "The longest sequence that the script feeds; activations grow with it.",
    "gradient_checkpointing": "It recomputes activations instead of keeping them.",
}


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


def ask(question: Question, check: Callable[[str], object] | None = None) -> str:
    """The person's answer; asked again until it is one that can be used.

    Args:
        question: What to ask; an empty answer means its default.
        check: Raises a ZerowizError for an answer that the world does not bear out.
    """
    why = _WHY.get(question.key)
    if why is not None:
        sys.stderr.write("\n" + fold(why, sys.stderr) + "\n")
    while True:
        answer = _answer(question)
        problem = _problem(question, answer, check)
        if problem is None:
            return answer
        lines = problem.splitlines()
        sys.stderr.writelines(fold(f"  {line}", sys.stderr, hang=4) + "\n" for line in lines)


def _answer(question: Question) -> str:
    import questionary

    if question.choices:
        choices, default = list(question.choices), question.default
        prompt = questionary.select(
            question.text, choices=choices, default=default, output=_stderr()
        )
    else:
        instruction = None if question.default is None else f"({question.default})"
        prompt = questionary.text(question.text, instruction=instruction, output=_stderr())
    return str(_ask(prompt)).strip() or question.default or ""


def choose(text: str, choices: Sequence[str]) -> int:
    """Which of these, by arrows and Enter."""
    import questionary

    listed = [questionary.Choice(title, value=index) for index, title in enumerate(choices)]
    return int(_ask(questionary.select(text, choices=listed, output=_stderr())))


def confirm(text: str, *, default: bool = True) -> bool:
    """A yes or no."""
    import questionary

    return bool(_ask(questionary.confirm(text, default=default, output=_stderr())))
