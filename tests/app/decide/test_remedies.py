"""What a person reads before the menu of remedies."""

from collections.abc import Sequence

import pytest

from zerowiz.app.decide.remedies import decide_with
from zerowiz.app.options import Options
from zerowiz.app.reporter import SILENT
from zerowiz.core.decision.questions import Question
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import MachineSource
from zerowiz.core.values import replace
from zerowiz.errors import DeclinedError
from zerowiz.probe.machine.gpu_table import read_gpu_table

HERE = replace(parse_spec("4xA100-40GB", read_gpu_table()), source=MachineSource.NVML)


class Declining:
    """Somebody who reads all, and takes nothing."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def tell(self, lines: Sequence[str]) -> None:
        self.read += lines

    def ask(self, question: Question, *, can_go_back: bool = False) -> object:
        assert not can_go_back
        self.read += [each.title for each in question.choices]
        return question.choices[-1].value


def test_other_hardware_is_not_said_to_need_another_script() -> None:
    person = Declining()
    with pytest.raises(DeclinedError):
        decide_with(person, Options(model="7b"), HERE, None, (), SILENT)  # type: ignore[arg-type]
    menu = person.read.index("--gradient-checkpointing")
    assert "Not in the menu below, as this machine cannot change:" == person.read[0]
    assert all("--machine" in each for each in person.read[1:menu])
    assert not [each for each in person.read[menu:] if "--machine" in each]
    assert not [each for each in person.read if "edit your script" in each]
