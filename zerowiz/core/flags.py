"""Spell the settings that a text names as options of the command line.

Errors, findings and notes name a setting by its field, after a dollar sign: `$micro_batch 0`. What
prints them spells it: `--micro-batch 0`. To Python, `str(error)` names the field.
"""

import re
from collections.abc import Mapping
from functools import cache

from zerowiz.core import settings
from zerowiz.core.settings import SettingRow
from zerowiz.core.workload.workload import SETTINGS
from zerowiz.words import edited

_NAMED = re.compile(r"\$([a-z][a-z_]*)")


def spell(text: str) -> str:
    """The text with the option of each setting that it names; other words stay.

    Example:
        >>> spell("`$micro_batch 0`: `$no_hpz` helps nobody in $HOME")
        '`--micro-batch 0`: `--no-hpz` helps nobody in $HOME'
    """
    return edited(text, _spelled)


def _spelled(text: str) -> str:
    return _NAMED.sub(lambda found: flags().get(found[1], found[0]), text)


@cache
def flags() -> Mapping[str, str]:
    """The spelling of each setting by its name; `no_hpz` is the one that switches it off."""
    rows = {**SETTINGS, **_other_rows()}
    off = {f"no_{name}": row.off for name, row in rows.items() if row.off}
    return {**{name: row.on for name, row in rows.items()}, **off}


def _other_rows() -> Mapping[str, SettingRow]:
    """Those that stand in `core/settings.py`."""
    constants = vars(settings).items()
    return {name.lower(): row for name, row in constants if isinstance(row, SettingRow)}
