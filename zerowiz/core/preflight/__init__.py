"""Find what would end a launch, from facts that the probes gathered."""

from zerowiz.core.preflight import rules
from zerowiz.core.preflight.checks import examine
from zerowiz.core.preflight.finding import Finding, failures
from zerowiz.core.preflight.found import Found
from zerowiz.core.preflight.situation import Planned, Situation
from zerowiz.core.rule import Rule

__all__ = ["Finding", "Found", "Planned", "Rule", "Situation", "examine", "failures", "rules"]
