"""Read what was learned of a machine by measuring on it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from zerowiz import __version__
from zerowiz.core.machine.types import Machine
from zerowiz.probe.machine.results import has_results, read_results, results_path

if TYPE_CHECKING:
    from zerowiz.core.speed.calibration import Calibration


def read_calibration(machine: Machine, environ: Mapping[str, str]) -> "Calibration | None":
    """The calibration of this machine; None where nothing was measured on it."""
    if not has_results(environ):
        return None
    from zerowiz.core.measure.machine_results import (  # noqa: PLC0415 - seldom needed
        formulas_of,
        machine_key,
    )

    kept = read_results(results_path(machine_key(machine), environ))
    return kept.calibration(formulas_of(__version__))
