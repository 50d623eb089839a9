"""Ask a person, and hold each answer against the world before it is taken."""

import os
from collections.abc import Callable, Mapping

from zerowiz.app.ask.answers import Ask
from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.app.resolve.model import check_model
from zerowiz.app.resolve.script import read_reachable
from zerowiz.core.values import replace
from zerowiz.ui.ask import ask


def asker(options: Options) -> Ask:
    """How questions are asked; an answer that would fail later is asked again now."""
    checks: Mapping[str, Callable[[str], object]] = {
        "machine": lambda answer: find_machine(replace(options, machine=answer), os.environ),
        "script": lambda answer: read_reachable(answer, (), options),
        "model": lambda answer: check_model(answer, os.environ, trace=options.trace),
    }
    return lambda question: ask(question, checks.get(question.key))
