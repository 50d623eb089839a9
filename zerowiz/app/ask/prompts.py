"""Check each answer of a person against the world before it is taken."""

import os
from collections.abc import Callable, Mapping

from zerowiz.app.ask.answers import Ask
from zerowiz.app.ask.person import Person
from zerowiz.app.ask.script import read_as_said, require_reachable
from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.app.resolve.model import check_model
from zerowiz.core.decision.questions import Back, Question
from zerowiz.core.values import replace


def asker(person: Person, options: Options) -> Ask:
    """How questions are asked; an answer that would fail later is asked again now."""
    checks: Mapping[str, Callable[[str], object]] = {
        "machine": lambda answer: find_machine(replace(options, machine=answer), os.environ),
        "script": lambda answer: require_reachable(read_as_said(answer, (), options), (), options),
        "model": lambda answer: check_model(answer, os.environ, trace=options.trace),
    }

    def ask_person(question: Question, *, can_go_back: bool) -> str | Back:
        return person.ask(question, check=checks.get(question.key), can_go_back=can_go_back)

    return ask_person
