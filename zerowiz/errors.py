"""Errors of the user's world: what went wrong, where, and what to do next.

The exit code belongs to the cause, so each cause is a class. `cli.main` is the one place that
prints them.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command's exit status means; scripts depend on these numbers."""

    OK = 0
    FAILED = 1
    USAGE = 2
    ANSWER_NEEDED = 3
    NOTHING_FITS = 4
    PREFLIGHT = 5
    CHECK_FOUND_ERRORS = 6
    INTERRUPTED = 130


class ZerowizError(Exception):
    """A known failure, said in one line, with hints on what to do next.

    Args:
        message: One line, without a full stop; literal values in backticks.
        hints: What the person can do, one line each.
    """

    exit_code = ExitCode.FAILED

    def __init__(self, message: str, *hints: str) -> None:
        super().__init__(message)
        self.message = message
        self.hints = hints


class UsageError(ZerowizError):
    """The command line or a value on it makes no sense."""

    exit_code = ExitCode.USAGE


class AnswerNeededError(ZerowizError):
    """A question has no answer and nobody can be asked."""

    exit_code = ExitCode.ANSWER_NEEDED


class NothingFitsError(ZerowizError):
    """No strategy, or not the one that was asked for, fits the machine."""

    exit_code = ExitCode.NOTHING_FITS


class PreflightError(ZerowizError):
    """Something that the launch needs is missing: NVML, a GPU, `deepspeed`, the script."""

    exit_code = ExitCode.PREFLIGHT


class InterruptedByUserError(ZerowizError):
    """The person pressed Ctrl-C; nothing was written."""

    exit_code = ExitCode.INTERRUPTED
