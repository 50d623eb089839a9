"""The row of a setting: how it is said on a command line, described, and shown.

A setting is a field of a typed class, and its row stands in the field's annotation. So the class is
the table: options, help, JSON, assumptions and comparison rows are made from it.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import get_args


class Panel(StrEnum):
    """The headings under which `--help` lists options."""

    MODEL = "Model"
    MACHINE = "Machine"
    JOB = "Training step"
    CHOICE = "Choice"
    OUTPUT = "Output"


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingRow:
    """What everybody needs to know of one setting, beside its type and its default."""

    flag: str
    """On zerowiz's command line; a switch that can be off has both: `--packing/--no-packing`."""
    help: str
    panel: Panel
    short: str | None = None
    """A second spelling of one letter: `-y`."""
    assumed: str | None = None
    """How a plan says that nobody said it: `micro-batch {value}`; None where it says nothing."""

    @property
    def key(self) -> str:
        """Its name in a record of answers: `--seq-len` is `seq_len` there."""
        return self.on.removeprefix("--").replace("-", "_")

    @property
    def on(self) -> str:
        """The spelling that sets it, or switches it on."""
        return self.flag.partition("/")[0]

    @property
    def off(self) -> str:
        """The spelling that switches it off; empty where there is none."""
        return self.flag.partition("/")[2]


def row_of(kind: type, name: str) -> SettingRow:
    """The row in the annotation of a field.

    Args:
        kind: The class that has the field.
        name: Of the field.

    Example:
        >>> from zerowiz.core.workload import Workload
        >>> row_of(Workload, "micro_batch").flag
        '--micro-batch'
    """
    return read_row(kind.__annotations__[name])


def read_row(annotation: object) -> SettingRow:
    """The row in an annotation.

    Raises:
        TypeError: There is none.
    """
    for each in get_args(annotation):
        if isinstance(each, SettingRow):
            return each
    raise TypeError(f"{annotation} has no SettingRow")
