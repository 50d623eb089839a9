"""Ask for the arguments that the script requires, and that nobody has passed."""

import shlex

from zerowiz.app.ask.person import Person
from zerowiz.app.wizard.outcome import InitPlan
from zerowiz.core.decision.questions import Back, Question
from zerowiz.core.script.bindings import Words
from zerowiz.core.script.delivery import add_words
from zerowiz.core.values import replace
from zerowiz.errors import UsageError
from zerowiz.words import _, listing


def ask_words(person: Person, planned: InitPlan) -> Words | Back:
    """The words that a person types after the script; they give it all that it requires."""
    question = Question(
        key="words",
        flag="ARGS",
        text=_("Which arguments does {path} get?", path=planned.script),
        why=_("It requires {names}.", names=_names(planned)),
        more=_("Type them as in a shell: `{words}`", words=_usage(planned)),
    )
    answer = person.ask(question, check=lambda text: _check(planned, text))
    return answer if isinstance(answer, Back) else _split(answer)


def _names(planned: InitPlan) -> str:
    return listing(f"`{each.name}`" for each in planned.missing)


def _usage(planned: InitPlan) -> str:
    return " ".join(each.usage for each in planned.missing)


def _split(text: str) -> Words:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(
            _("not words of a shell: {error}", error=error),
            _("type them as in a shell, each quote closed: `--name 'my data'`"),
        ) from None


def _check(planned: InitPlan, text: str) -> None:
    """See that nothing is missing any more.

    Raises:
        UsageError: Something is, or a quote has no end.
    """
    after = replace(planned, script_args=add_words(planned.script_args, _split(text)))
    if after.missing:
        raise UsageError(
            _("{path} also requires {names}", path=planned.script, names=_names(after)),
            _("type `{words}` too", words=_usage(after)),
        )
