"""Settle what an option says and a script, or a config, says too; they may not disagree."""

from pathlib import Path
from typing import TypeVar

from zerowiz.core.script import Setting
from zerowiz.errors import UsageError

T = TypeVar("T")


def by_script(flag: str, option: T | None, setting: Setting[T] | None) -> T | None:
    """The option or the script's setting; one that contradicts the other is an error."""
    if option is None or setting is None or option == setting.value:
        return setting.value if setting is not None else option
    words = f"{flag} {option}" if not isinstance(option, bool) else flag
    raise UsageError(
        f"`{words}` disagrees with the script: {setting.said_by} says {setting.value}",
        setting.change_to(option),
        f"or drop `{words}`",
    )


def by_config(flag: str, config: Path | None, option: T | None, own: T | None) -> T | None:
    """The option or what the person's own config says; they may not disagree."""
    if option is not None and own is not None and option != own:
        raise UsageError(f"`{flag} {option}` disagrees with `{config}`, which says {own}")
    return option if own is None else own
