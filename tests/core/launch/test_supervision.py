"""Whether zerowiz becomes the job or stays with it."""

import pytest

from zerowiz.core.launch.plan import LaunchEnvironment, why_supervised
from zerowiz.core.structs import replace

TERMINAL = LaunchEnvironment(in_foreground=True)


def test_at_a_terminal_a_person_ends_the_job() -> None:
    assert why_supervised(TERMINAL, None) is None


@pytest.mark.parametrize(
    ("environment", "scheduler", "expected"),
    [
        (replace(TERMINAL, in_foreground=False), None, "no terminal in the foreground"),
        (replace(TERMINAL, survives_hangup=True), None, "nohup"),
        (replace(TERMINAL, runs_ci=True), None, "CI"),
        (replace(TERMINAL, container="container"), None, "container"),
        (TERMINAL, "SLURM", "SLURM"),
    ],
)
def test_everywhere_else_zerowiz_stays_with_it(
    environment: LaunchEnvironment, scheduler: str | None, expected: str
) -> None:
    assert expected == why_supervised(environment, scheduler)
