"""Run every preflight check, in the order in which a job would meet what they find."""

from collections.abc import Iterator
from typing import Protocol

from zerowiz.core.launch.doctor import (
    builds,
    checkpoint,
    environment,
    gpus,
    host,
    network,
    refused,
    script,
)
from zerowiz.core.launch.doctor.finding import PreflightFinding
from zerowiz.core.launch.doctor.inputs import PreflightInput
from zerowiz.core.rule import rules_of


class _CheckFamily(Protocol):
    """A module of preflight checks: the rows of its rules, and the function that reports them."""

    def check(self, inputs: PreflightInput) -> Iterator[PreflightFinding]:
        """Find what breaks the rules of this family."""


# A check reports nothing where a fact is not known.
_FAMILIES: tuple[_CheckFamily, ...] = (
    script,
    checkpoint,
    environment,
    gpus,
    builds,
    host,
    network,
)

RULES = rules_of((refused, *_FAMILIES))


def examine(inputs: PreflightInput) -> tuple[PreflightFinding, ...]:
    """Everything that stands in the job's way, or is worth knowing before it starts."""
    return tuple(finding for family in _FAMILIES for finding in family.check(inputs))
