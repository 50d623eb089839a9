"""Find what would end a launch, from facts that the probes gathered."""

from zerowiz.core.launch.doctor import rules
from zerowiz.core.launch.doctor.checks import examine
from zerowiz.core.launch.doctor.finding import PreflightFinding, failures
from zerowiz.core.launch.doctor.found import Found
from zerowiz.core.launch.doctor.situation import Planned, Situation
from zerowiz.core.rule import Rule

__all__ = [
    "Found",
    "Planned",
    "PreflightFinding",
    "Rule",
    "Situation",
    "examine",
    "failures",
    "rules",
]
