"""Run every preflight check, in the order in which a job would meet what they find."""

from collections.abc import Callable, Iterator

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

# A check reports nothing where a fact is not known.
_CHECKS: tuple[Callable[[PreflightInput], Iterator[PreflightFinding]], ...] = (
    script.check_script,
    checkpoint.check_checkpoint,
    environment.check_environment,
    gpus.check_gpus,
    builds.check_builds,
    host.check_host,
    network.check_network,
)

RULES = rules_of((refused, script, checkpoint, environment, gpus, builds, host, network))


def examine(inputs: PreflightInput) -> tuple[PreflightFinding, ...]:
    """Everything that stands in the job's way, or is worth knowing before it starts."""
    return tuple(finding for check in _CHECKS for finding in check(inputs))
