"""Find what would end a launch, from facts that the probes gathered."""

from zerowiz.core.finding import Rule
from zerowiz.core.preflight import rules
from zerowiz.core.preflight.checks import examine
from zerowiz.core.preflight.finding import Finding, failures
from zerowiz.core.preflight.found import Found
from zerowiz.core.preflight.situation import Planned, Situation

__all__ = ["Finding", "Found", "Planned", "Rule", "Situation", "examine", "failures", "rules"]
