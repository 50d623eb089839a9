"""Decide whether zerowiz becomes the job, or stays and watches over it."""

from collections.abc import Callable, Mapping

from msgspec import Struct


class LaunchEnvironment(Struct, frozen=True, kw_only=True):
    """What a launch was started from."""

    in_foreground: bool
    """A person sits at a terminal, and this process has it."""
    survives_hangup: bool = False
    """Started by `nohup`, or so that the end of the terminal does not end it."""
    runs_ci: bool = False
    container: str | None = None
    """What shows it."""


# Each that holds keeps zerowiz with its job, and says why.
_REASONS: Mapping[str, Callable[[LaunchEnvironment], bool]] = {
    "no terminal in the foreground": lambda s: not s.in_foreground,
    "nohup": lambda s: s.survives_hangup,
    "CI": lambda s: s.runs_ci,
}


def why_supervised(surroundings: LaunchEnvironment, scheduler: str | None) -> str | None:
    """What keeps zerowiz with its job; None where a person can end it at the terminal.

    Args:
        surroundings: What the launch was started from.
        scheduler: What gave the job its machine, if anything did.
    """
    reasons = [why for why, holds in _REASONS.items() if holds(surroundings)]
    return next(filter(None, (scheduler, *reasons, surroundings.container)), None)
