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


def by_config(
    flag: str,
    config: Path | None,
    option: T | None,
    own: T | None,
    setting: Setting[T] | None = None,
) -> T | None:
    """What option, script and the person's own config say; none may contradict another.

    Args:
        flag: The option.
        config: The person's own.
        option: By the option.
        own: By the config.
        setting: By the script.
    """
    said = by_script(flag, option, setting)
    if said is None or own is None or said == own:
        return said if own is None else own
    drop = (f"drop `{flag} {said}`",) if option is not None else ()
    if setting is None:
        raise UsageError(f"`{flag} {said}` disagrees with `{config}`, which says {own}", *drop)
    raise UsageError(
        f"the script disagrees with `{config}`: {setting.said_by} says {said}, the config {own}",
        "; ".join((setting.change_to(own), *drop)),
    )
