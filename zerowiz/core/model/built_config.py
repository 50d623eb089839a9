"""A model config that a script makes in its code: its family, and the values that it changes."""

from collections.abc import Mapping

from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.family import Family

_SUFFIX = "Config"


def family_of_class(name: str) -> str | None:
    """The family of a config class of transformers; None for any other class.

    Source: transformers 5.23, models/auto/configuration_auto.py, CONFIG_MAPPING_NAMES.

    Example:
        >>> family_of_class("GPTNeoXConfig")
        'gpt_neox'
    """
    if not name.endswith(_SUFFIX):
        return None
    wanted = name.removesuffix(_SUFFIX).lower()
    return next((each for each in FAMILIES if each.replace("_", "") == wanted), None)


def _spellings(family: Family) -> list[tuple[str, ...]]:
    """The keys of a family's config.json; those that mean the same together."""
    keys = (*family.defaults, *family.switches)
    return [family.spellings.get(key, (key,)) for key in keys]


def sizes(family_name: str | None) -> frozenset[str]:
    """The keys that decide how large a model of a family is, or of any family.

    Args:
        family_name: A key of FAMILIES; any other name is a family that is not known.
    """
    known = FAMILIES.get(family_name or "")
    rows = [*FAMILIES.values()] if known is None else [known]
    return frozenset(name for row in rows for names in _spellings(row) for name in names)


def change_config(
    config: Mapping[str, object], values: Mapping[str, object]
) -> Mapping[str, object]:
    """A config with other values, whichever of its names they have.

    Args:
        config: The content of a config.json, with its `model_type`.
        values: By their keys.

    Example:
        >>> change_config({"model_type": "gpt2", "n_embd": 768}, {"hidden_size": 512})
        {'model_type': 'gpt2', 'hidden_size': 512}
    """
    family = FAMILIES.get(str(config.get("model_type")))
    alike = [] if family is None else _spellings(family)
    replaced = {name for names in alike if values.keys() & {*names} for name in names}
    kept = {key: value for key, value in config.items() if key not in replaced}
    return {**kept, **values}
