"""What is said of a job's settings, and by what: one list, and the fold that decides each."""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.structs import shows
from zerowiz.errors import UsageError
from zerowiz.translation import N_, _, joined


class Origin(StrEnum):
    """What can say a setting; what stands later counts more."""

    DEFAULT = N_("default")
    DETECTED = "detected"
    SCRIPT = "script"
    """Its code, or a word after it."""
    CONFIG = "config"
    """A DeepSpeed config of the person's own."""
    FILE = "file"
    """`zerowiz.toml`."""
    ENVIRONMENT = "environment"
    OPTION = "option"
    """Also an answer of a person, which stands for an option."""
    CHOSEN = N_("chosen")
    """By a search, among what nobody decided."""


@shows("name", "value", "origin")
class SettingValue(Struct, frozen=True, kw_only=True):
    """A value that something says for a setting."""

    name: str
    """The field of the setting."""
    value: object
    origin: Origin
    source: str
    """What says it, for messages: a line of the script, the path of a file."""
    change_to: Callable[[object], str] | None = None
    """What to do where a script is to have another value; None elsewhere."""


GivesWay = Callable[[SettingValue, SettingValue], bool]
"""Whether a value of the script stands back for one that counts more."""


def fold(values: Iterable[SettingValue], gives_way: GivesWay) -> dict[str, SettingValue]:
    """The value that counts, for each setting that anything is said of.

    Args:
        values: All that is said, in any order.
        gives_way: Whether a value of the script stands back for another one.

    Raises:
        UsageError: Script, config and option contradict each other.

    Example:
        >>> said = dict(name="micro_batch", source="")
        >>> script = SettingValue(value=8, origin=Origin.SCRIPT, **said)
        >>> option = SettingValue(value=4, origin=Origin.OPTION, **said)
        >>> fold([option, script], lambda script, other: True)["micro_batch"].value
        4
    """
    by_name: dict[str, dict[Origin, SettingValue]] = {}
    for value in values:
        by_name.setdefault(value.name, {})[value.origin] = value
    return {name: _settle(of_one, gives_way) for name, of_one in by_name.items()}


_ORDER = tuple(Origin)


def strongest(values: Iterable[SettingValue]) -> dict[str, SettingValue]:
    """Of each setting what counts most, and of two that count as much the later one.

    Example:
        >>> said = dict(name="packing", value=True, source="")
        >>> option = SettingValue(origin=Origin.OPTION, **said)
        >>> strongest([option, SettingValue(origin=Origin.FILE, **said)])["packing"].origin
        <Origin.OPTION: 'option'>
    """
    by_name: dict[str, SettingValue] = {}
    for value in values:
        other = by_name.get(value.name)
        if other is None or _ORDER.index(other.origin) <= _ORDER.index(value.origin):
            by_name[value.name] = value
    return by_name


def _settle(values: Mapping[Origin, SettingValue], gives_way: GivesWay) -> SettingValue:
    by_strength = [values[origin] for origin in reversed(_ORDER) if origin in values]
    winner = by_strength[0]
    script, config = values.get(Origin.SCRIPT), values.get(Origin.CONFIG)
    if winner.origin is Origin.CHOSEN or len(by_strength) == 1:
        return winner
    option = None if winner.origin in {Origin.CONFIG, Origin.SCRIPT} else winner
    wanted = option or config
    if script is not None and wanted is not None and gives_way(script, wanted):
        script = None
    if script is not None and option is not None and option.value != script.value:
        raise _script_against_option(script, option)
    if config is not None and script is not None and config.value != script.value:
        raise _script_against_config(script, config, option)
    if config is not None and option is not None and config.value != option.value:
        words = as_typed(option.name, option.value)
        raise UsageError(
            _(
                "`{words}` conflicts with `{config}`, which says {own}",
                words=words,
                config=config.source,
                own=config.value,
            ),
            _("remove `{words}`", words=words),
        )
    return winner


def as_typed(name: str, value: object) -> str:
    """A value as one types it: `$packing`, `$no_packing`, `$micro_batch 4`.

    Example:
        >>> as_typed("packing", False)
        '$no_packing'
    """
    if isinstance(value, bool):
        return f"${name}" if value else f"$no_{name}"
    return f"${name} {value}"


def _script_against_option(script: SettingValue, option: SettingValue) -> UsageError:
    words = as_typed(option.name, option.value)
    hint = () if script.change_to is None else (script.change_to(option.value),)
    return UsageError(
        _(
            "`{words}` conflicts with the script: {source} says {setting}",
            words=words,
            source=script.source,
            setting=script.value,
        ),
        *hint,
        _("or remove `{words}`", words=words),
    )


def _script_against_config(
    script: SettingValue, config: SettingValue, option: SettingValue | None
) -> UsageError:
    hints = () if script.change_to is None else (script.change_to(config.value),)
    drop = (
        ()
        if option is None
        else (_("remove `{words}`", words=as_typed(option.name, option.value)),)
    )
    return UsageError(
        _(
            "the script conflicts with `{config}`: {source} says {said}, the config {own}",
            config=config.source,
            source=script.source,
            said=script.value,
            own=config.value,
        ),
        joined("; ", (*hints, *drop)),
    )
