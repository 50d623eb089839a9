"""Errors of the user's world: what went wrong, where, and what to do next.

The exit code belongs to the cause, so each cause is a class. `cli.main` is the one place that
prints them.
"""

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from errno import ENAMETOOLONG

from msgspec import Struct

DOCUMENTATION = "https://zerowiz.example/"
"""Where the site of docs/ is; pyproject.toml and mkdocs.yml say the same."""
# RFC 2606, section 2: no site is ever there.
HAS_SITE = not DOCUMENTATION.endswith(".example/")
"""Whether a person can be sent there; `zerowiz check --explain CODE` needs no site."""


def page_of(anchor: str) -> str:
    """The address of a place on the page of errors: of a code, or of an exit code."""
    return f"{DOCUMENTATION}reference/errors/#{anchor.lower()}"


def in_python(text: str) -> str:
    """The text with the names that settings have in Python, and with values as keywords.

    Example:
        >>> in_python("use `$stage 3 $offload all`, or remove `$micro_batch`")
        'use `stage="3", offload="all"`, or remove `micro_batch`'
    """
    # What begins with a setting is typed: `$stage 3 $offload all`.
    keywords = re.sub(r"`(\$[a-z][^`]*)`", _as_keywords, text)
    return re.sub(r"\$([a-z][a-z_]*)", r"\1", keywords)


def _as_keywords(typed: re.Match[str]) -> str:
    with_values = re.sub(r"\$([a-z][a-z_]*) ([^\s$]+)", _as_keyword, typed[1])
    return "`" + re.sub(r"(?<=[\w\"]) (?=[a-z_]+=)", ", ", with_values) + "`"


def _as_keyword(typed: re.Match[str]) -> str:
    name, value = typed.groups()
    is_number = name != "stage" and re.fullmatch(r"-?\d+(\.\d+)?", value)
    return f"{name}={value}" if is_number else f'{name}="{value}"'


def did_you_mean(near: Iterable[object]) -> tuple[str, ...]:
    """A hint for each of what somebody may have meant."""
    return tuple(f"did you mean `{each}`?" for each in near)


BY_DOCTOR = "`zerowiz doctor --fix`, with the same words, writes that into the script"
"""The hint of what has a LineEdit."""


class LineEdit(Struct, frozen=True, kw_only=True):
    """What to write in a script at one call, where that is exact."""

    path: str
    line: int
    """One that the call stands in, from 1."""
    call: str = ""
    """The last name of what is called; empty for any."""
    func: str = ""
    """What is called instead; empty for the same."""
    keyword: str = ""
    code: str = ""
    """What the keyword gets; empty if it is removed."""


_LONGEST = 800


def _shorten(message: str) -> str:
    """A message that can be read: what is cut of it was quoted, or stands in its middle."""
    # What it quotes is somebody's, and may be a whole file in one line.
    message = re.sub(r"`([^`]{100})[^`]{60,}([^`]{30})`", r"`\1…\2`", message)
    if len(message) <= _LONGEST:
        return message
    return f"{message[: _LONGEST // 2]}…{message[-_LONGEST // 2 :]}"


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
        message: One line, without a full stop; literal values in backticks. A setting is named by
            its field, after a dollar sign: `$micro_batch 0`. What prints the error spells it as
            an option (`core/command_words.py`).
        hints: What the person can do, one line each, in the same form.

    Example:
        >>> str(ZerowizError("`$micro_batch` must be at least 1, not 0"))
        '`micro_batch` must be at least 1, not 0'
    """

    exit_code = ExitCode.FAILED
    edits: tuple[LineEdit, ...] = ()
    """What `doctor --fix` writes into the script."""

    def __init__(self, message: str, *hints: str) -> None:
        message = _shorten(message)
        super().__init__(message)
        self.message = message
        self.hints = hints
        for hint in hints:
            # A traceback shows it, in a notebook too.
            self.add_note("hint: " + in_python(hint))

    def __str__(self) -> str:
        """The message with the names that settings have in Python."""
        return in_python(self.message)


class LostEdit(Struct, frozen=True, kw_only=True):
    """What writing a file would lose: somebody's work."""

    path: str
    there: bytes
    """What is in it; only its beginning where it is larger than anything that zerowiz writes."""
    wanted: str
    """What would be written."""
    copy_of: str | None = None
    """The person's own file, where this is a copy of it with more in it."""
    new_path: str | None = None
    """Where it is written to another file."""
    conflicts: tuple[str, ...] = ()
    """What the person and the plan say of the same keys, one clause each."""


class HandEditedError(ZerowizError):
    """A file that is to be written holds somebody's work.

    Args:
        message: As of every error.
        hints: As of every error.
        losses: What differs, file by file; empty where nobody wants to see it.
    """

    def __init__(self, message: str, *hints: str, losses: tuple[LostEdit, ...]) -> None:
        super().__init__(message, *hints)
        self.losses = losses


class UsageError(ZerowizError):
    """The command line or a value on it makes no sense."""

    exit_code = ExitCode.USAGE


def refuse_any(given: Mapping[str, object], why: str, hint: str) -> None:
    """Refuse what is given of these.

    Args:
        given: By how it is typed; None, False or empty is not given.
        why: What is wrong with each of them: `has no effect here`.
        hint: What to do about it.

    Raises:
        UsageError: One is given.
    """
    for typed in (typed for typed, value in given.items() if value):
        raise UsageError(f"`{typed}` {why}", hint)


class AnswerNeededError(ZerowizError):
    """A question has no answer and nobody can be asked."""

    exit_code = ExitCode.ANSWER_NEEDED


class NothingFitsError(ZerowizError):
    """No strategy, or not the one that was asked for, fits the machine."""

    exit_code = ExitCode.NOTHING_FITS


class ConfigMistakeError(ZerowizError):
    """A config holds a mistake that ends or changes the run."""

    exit_code = ExitCode.CHECK_FOUND_ERRORS


class PreflightError(ZerowizError):
    """Something that the launch needs is missing: NVML, a GPU, `deepspeed`, the script."""

    exit_code = ExitCode.PREFLIGHT
    login_node_of: str | None = None
    """The scheduler whose login node this computer looks like; then the first hint says so."""


class UnreachableScriptError(PreflightError):
    """A script takes no config that zerowiz can see; a person may say how it does."""


class NoGpuHereError(PreflightError):
    """There is no NVIDIA driver on this computer, so it has no GPU for a job."""


class DeclinedError(ZerowizError):
    """The person wants nothing of what was offered; that is no failure."""

    exit_code = ExitCode.OK


class InterruptedByUserError(ZerowizError):
    """The person pressed Ctrl-C; nothing was written."""

    exit_code = ExitCode.INTERRUPTED


def from_system(error: OSError, without_name: str) -> ZerowizError:
    """An error of the system as one of the user's world.

    Args:
        error: What the system said.
        without_name: What cannot be used, where the error names no file.
    """
    # No program makes such a name: a person typed it.
    kind = UsageError if error.errno == ENAMETOOLONG else ZerowizError
    return kind(
        "{what} cannot be used: {strerror}".format(
            what=f"`{error.filename}`" if error.filename else without_name,
            strerror=(error.strerror or str(error)).lower(),
        )
    )
