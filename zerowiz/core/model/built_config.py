"""A model config that a script makes in its code: its family, and the values that it changes."""

from collections.abc import Iterable, Mapping
from itertools import chain

from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.family import Family

_SUFFIX = "Config"


def family_of_class(name: str, others: Iterable[str] = ()) -> str | None:
    """The family, or another `model_type`, of a config class of transformers.

    Source: transformers 5.23, models/auto/configuration_auto.py, CONFIG_MAPPING_NAMES.

    Args:
        name: The class.
        others: Types beside FAMILIES: the folders of an installed transformers.

    Returns:
        None for any other class.

    Example:
        >>> family_of_class("GPTNeoXConfig")
        'gpt_neox'
    """
    if not name.endswith(_SUFFIX):
        return None
    wanted = _squeeze(name.removesuffix(_SUFFIX))
    return next((each for each in chain(FAMILIES, others) if _squeeze(each) == wanted), None)


def _squeeze(name: str) -> str:
    return name.replace("_", "").lower()


# transformers 5.23, configuration_utils.py, and the arguments of `from_pretrained`.
_OF_NO_SIZE = frozenset(
    {
        *("attn_implementation", "cache_dir", "code_revision", "dtype", "force_download"),
        *("local_files_only", "name_or_path", "output_attentions", "output_hidden_states"),
        *("return_dict", "revision", "subfolder", "token", "torch_dtype", "trust_remote_code"),
        *("use_auth_token", "use_cache"),
    }
)


def may_decide_size(family_name: str | None, key: str) -> bool:
    """Whether a key may decide how large a model is.

    Args:
        family_name: A `model_type`; None where it is not known, as that of a base.
        key: Of its config.
    """
    if family_name is None or family_name in FAMILIES:
        return key in sizes(family_name)
    return key not in _OF_NO_SIZE and not key.endswith("_token_id")


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
