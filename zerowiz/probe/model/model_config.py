"""Read the content of a model's config.json, where it lies here."""

from collections.abc import Mapping
from pathlib import Path

from zerowiz.probe.model.hf import parse_config


def read_config_json(text: str) -> Mapping[str, object]:
    """The config.json that `text` leads to, a file or its folder; empty where it is no path."""
    path = Path(text).expanduser()
    config_path = path if path.is_file() else path / "config.json"
    if not config_path.is_file():
        return {}
    return parse_config(f"`{config_path}`", config_path.read_bytes())
