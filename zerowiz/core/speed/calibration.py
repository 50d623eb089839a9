"""Learn from the steps that were measured on one machine."""

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from zerowiz.core.machine.host import Host
from zerowiz.core.speed.terms import StepTime, Term, TermKind
from zerowiz.core.values import replace

# How many measured steps it takes to move a factor half of the way: a prior of a fifth, in
# logarithms, against a measured step that repeats within a fifth. Chosen on the fitted side of
# tests/measured, each machine's steps predicted from its others: trusting steps more was worse.
_PRIOR, _REPEAT = 0.2, 0.2
_ROUNDS, _SETTLED = 20, 1e-6


class MeasuredStep(Struct, frozen=True, kw_only=True):
    """What was predicted of a setting without calibration, and what it really took."""

    predicted: StepTime
    measured_seconds: float


class Calibration(Struct, frozen=True, kw_only=True):
    """Factors on the terms of a prediction, of one machine."""

    factors: Mapping[TermKind, float]
    """One that is not here is 1."""
    measured_steps: int
    """How many settings were measured."""
    python_call_seconds: float | None = None
    """The mean of what was read of the host beside those steps; None where nobody read it."""

    def apply(self, term: Term) -> Term:
        """The term as this machine takes it."""
        factor = self.factors.get(term.kind, 1.0)
        return replace(term, exposed_seconds=term.exposed_seconds * factor)

    def describe(self, host: Host) -> Host:
        """The host, as fast as it was on average: what is read in one moment may be off by two."""
        call_seconds = self.python_call_seconds or host.python_call_seconds
        return replace(host, python_call_seconds=call_seconds)


def calibrate(
    measured: Sequence[MeasuredStep], python_call_seconds: float | None = None
) -> Calibration | None:
    """The factors that explain these steps with the least change; None where none was measured.

    Theory: the logarithm of each factor has a normal prior around 0, and each measured time is off
    by a repeat's spread. So few steps move the factors little, and one kind of term that no step
    depends on stays as it is. Solved by Gauss and Newton.

    Args:
        measured: Steps of one machine.
        python_call_seconds: Of its host, on average: what they were predicted with.
    """
    steps = [each for each in measured if each.measured_seconds > 0]
    if not steps:
        return None
    kinds = sorted({term.kind for each in steps for term in each.predicted.terms})
    logs = dict.fromkeys(kinds, 0.0)
    for _ in range(_ROUNDS):
        changes = _newton(steps, kinds, logs)
        for kind, change in zip(kinds, changes, strict=True):
            logs[kind] += change
        if max(map(abs, changes)) < _SETTLED:
            break
    return Calibration(
        factors={kind: math.exp(log) for kind, log in logs.items()},
        measured_steps=len(steps),
        python_call_seconds=python_call_seconds,
    )


def _newton(
    steps: Sequence[MeasuredStep], kinds: Sequence[TermKind], logs: Mapping[TermKind, float]
) -> list[float]:
    """How each logarithm has to change."""
    size = len(kinds)
    matrix = [[1 / _PRIOR**2 if i == j else 0.0 for j in range(size)] for i in range(size)]
    vector = [-logs[kind] / _PRIOR**2 for kind in kinds]
    for each in steps:
        seconds = dict.fromkeys(kinds, 0.0)
        for term in each.predicted.terms:
            seconds[term.kind] += term.exposed_seconds * math.exp(logs[term.kind])
        total = sum(seconds.values())
        shares = [seconds[kind] / total for kind in kinds]
        missing = math.log(each.measured_seconds / total)
        for i, share in enumerate(shares):
            vector[i] += share * missing / _REPEAT**2
            for j, other in enumerate(shares):
                matrix[i][j] += share * other / _REPEAT**2
    return _solve(matrix, vector)


def _solve(matrix: list[list[float]], vector: list[float]) -> list[float]:
    """By elimination; the matrix is symmetric and positive, so no pivot is 0."""
    size = len(vector)
    rows = [[*row, value] for row, value in zip(matrix, vector, strict=True)]
    for i in range(size):
        for j in range(i + 1, size):
            factor = rows[j][i] / rows[i][i]
            rows[j] = [a - factor * b for a, b in zip(rows[j], rows[i], strict=True)]
    solved = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solved[j] for j in range(i + 1, size))
        solved[i] = (rows[i][size] - known) / rows[i][i]
    return solved
