"""Read a model's config.json from this host."""

from collections.abc import Mapping
from pathlib import Path

from zerowiz.probe.model.hf import parse_config
from zerowiz.probe.named_file import read_named


def read_config_json(text: str) -> Mapping[str, object]:
    """The content of the config.json that a path leads to; empty where `text` is no path.

    Args:
        text: The file, or its folder.

    Raises:
        UsageError: The file is no JSON object.
    """
    path = Path(text).expanduser()
    config_path = path if path.is_file() else path / "config.json"
    if not config_path.is_file():
        return {}
    return parse_config(f"`{config_path}`", read_named(config_path))
