"""Run every check, in the order in which a job would meet what they look at."""

from collections.abc import Callable, Iterator

from zerowiz.core.launch.doctor import builds, environment, gpus, host, network
from zerowiz.core.launch.doctor.finding import PreflightFinding
from zerowiz.core.launch.doctor.situation import Situation

Check = Callable[[Situation], Iterator[PreflightFinding]]

# Rule: a check says nothing of what it cannot know.
CHECKS: tuple[Check, ...] = (
    *environment.CHECKS,
    *gpus.CHECKS,
    *builds.CHECKS,
    *host.CHECKS,
    *network.CHECKS,
)


def examine(situation: Situation) -> tuple[PreflightFinding, ...]:
    """Everything that stands in the job's way, or is worth knowing before it starts."""
    return tuple(finding for check in CHECKS for finding in check(situation))
