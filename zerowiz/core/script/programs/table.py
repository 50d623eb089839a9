"""The programs whose files zerowiz plans for."""

from collections.abc import Callable, Mapping

from zerowiz.core.script.programs.axolotl import AXOLOTL, is_axolotl, read_axolotl
from zerowiz.core.script.programs.file import Program, ProgramFile, ProgramJob
from zerowiz.core.script.programs.llama_factory import (
    LLAMA_FACTORY,
    is_llama_factory,
    read_llama_factory,
)
from zerowiz.core.script.programs.ms_swift import (
    MS_SWIFT,
    MS_SWIFT_RLHF,
    is_rlhf,
    is_swift,
    read_swift,
)

_Values = Mapping[str, object]
_READERS: tuple[tuple[Program, Callable[[_Values], bool], Callable[[_Values], ProgramJob]], ...] = (
    (AXOLOTL, is_axolotl, read_axolotl),
    (LLAMA_FACTORY, is_llama_factory, read_llama_factory),
    (MS_SWIFT_RLHF, is_rlhf, read_swift),
    (MS_SWIFT, is_swift, read_swift),
)


def read_program(path: str, values: Mapping[str, object]) -> ProgramFile | None:
    """What a YAML file says of a job; None where it is no file of these programs.

    Args:
        path: The file.
        values: Its keys and values.
    """
    for program, is_its, read in _READERS:
        if is_its(values):
            return ProgramFile(path=path, program=program, job=read(values))
    return None
