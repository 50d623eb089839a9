"""Ask the questions of a JSON file at this terminal, as the wizard does; print the answers.

An answer that starts with "bad" is refused. Going back asks the question before.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import msgspec

from zerowiz.core.decision.questions import Back, Question
from zerowiz.errors import ExitCode, ZerowizError
from zerowiz.ui.prompt import find_person


def check(answer: str) -> None:
    time.sleep(float(os.environ.get("CHECK_SECONDS", "0")))
    if answer.startswith("bad"):
        raise ZerowizError(f"`{answer}` is bad", "say `good`")


def lead(answer: str) -> str:
    time.sleep(float(os.environ.get("CONSEQUENCE_SECONDS", "0")))
    return f"leads to <{answer}>"


def main() -> None:
    questions = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=list[Question])
    person = find_person(os.environ, yes=False)
    assert person is not None
    person.tell(["a line before"])
    answers: list[str] = []
    while len(answers) < len(questions):
        question = questions[len(answers)]
        answer = person.ask(
            question,
            check=check,
            consequence=lead,
            can_go_back=bool(answers),
        )
        if isinstance(answer, Back):
            answers.pop()
            continue
        answers.append(answer)
        person.tell([f"told after {question.key}"])
    sys.stdout.write(json.dumps(answers) + "\n")


def interrupt_at(names: list[str]) -> None:
    """Ctrl-C as a signal, as the last of these functions begins after those before it."""

    def called(frame: FrameType, event: str, _argument: object) -> None:
        is_there = event == "call" and frame.f_code.co_name == waited[0]
        if is_there and waited.pop(0) and not waited:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    waited = names
    sys.setprofile(called)


if "INTERRUPT_AT" in os.environ:
    interrupt_at(os.environ["INTERRUPT_AT"].split())
try:
    main()
except ZerowizError as error:
    sys.stderr.write(f"error: {error}\n")
    sys.exit(error.exit_code)
except KeyboardInterrupt:
    # Between two questions nothing reads keys, and Ctrl-C is a signal; `zerowiz` ends so too.
    sys.exit(ExitCode.INTERRUPTED)
finally:
    # The person has answered: what is left is Python's own end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
