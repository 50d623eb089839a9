"""Settle what an option says and a script, or a config, says too; they may not disagree."""

from pathlib import Path
from typing import TypeVar

from zerowiz.core.script.bindings import Setting
from zerowiz.errors import UsageError
from zerowiz.words import _, joined

T = TypeVar("T")


def as_typed(name: str, value: object) -> str:
    """The option as one types it."""
    if isinstance(value, bool):
        return f"${name}" if value else f"$no_{name}"
    return f"${name} {value}"


def by_script(name: str, option: T | None, setting: Setting[T] | None) -> T | None:
    """The option or the script's setting.

    Args:
        name: Of the setting.
        option: By the option.
        setting: By the script.

    Raises:
        UsageError: They contradict each other.
    """
    if option is None or setting is None or option == setting.value:
        return setting.value if setting is not None else option
    words = as_typed(name, option)
    raise UsageError(
        _(
            "`{words}` conflicts with the script: {source} says {setting}",
            words=words,
            source=setting.source,
            setting=setting.value,
        ),
        setting.change_to(option),
        _("or remove `{words}`", words=words),
    )


def by_config(
    name: str,
    config: Path | None,
    option: T | None,
    own: T | None,
    setting: Setting[T] | None = None,
) -> T | None:
    """What option, script and the user's own config say.

    Args:
        name: Of the setting.
        config: The user's own.
        option: By the option.
        own: By the config.
        setting: By the script.

    Raises:
        UsageError: One contradicts another.
    """
    said = by_script(name, option, setting)
    if said is None or own is None or said == own:
        return said if own is None else own
    words = as_typed(name, said)
    drop = (_("remove `{words}`", words=words),) if option is not None else ()
    if setting is None:
        raise UsageError(
            _(
                "`{words}` conflicts with `{config}`, which says {own}",
                words=words,
                config=config,
                own=own,
            ),
            *drop,
        )
    raise UsageError(
        _(
            "the script conflicts with `{config}`: {source} says {said}, the config {own}",
            config=config,
            source=setting.source,
            said=said,
            own=own,
        ),
        joined("; ", (setting.change_to(own), *drop)),
    )
