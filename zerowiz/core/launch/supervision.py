"""Decide whether zerowiz supervises a job, or is replaced by it."""

from collections.abc import Callable, Mapping

from msgspec import Struct


class LaunchEnvironment(Struct, frozen=True, kw_only=True):
    """What a launch was started from."""

    in_foreground: bool
    """Whether it runs in the foreground of a terminal, where a person can end it."""
    survives_hangup: bool = False
    """Whether the end of the terminal does not end it, as with `nohup`."""
    runs_ci: bool = False
    container: str | None = None
    """The reason to name where it runs in a container."""


# The reasons for supervising a job, each with its condition.
_REASONS: Mapping[str, Callable[[LaunchEnvironment], bool]] = {
    "no terminal in the foreground": lambda s: not s.in_foreground,
    "nohup": lambda s: s.survives_hangup,
    "CI": lambda s: s.runs_ci,
}


def why_supervised(environment: LaunchEnvironment, scheduler: str | None) -> str | None:
    """Why zerowiz supervises the job; None where a person can end it at the terminal.

    Args:
        environment: What the launch was started from.
        scheduler: The scheduler that gave the job its machine, if there is one.
    """
    reasons = [why for why, holds in _REASONS.items() if holds(environment)]
    return next(filter(None, (scheduler, *reasons, environment.container)), None)
