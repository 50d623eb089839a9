"""Read a model's config.json from this host."""

from collections.abc import Mapping
from pathlib import Path

from zerowiz.probe.model.hf import parse_config, unreadable_refused
from zerowiz.probe.named_file import read_named


def read_config_json(text: str) -> Mapping[str, object]:
    """The content of the config.json that a path leads to; empty where `text` is no path.

    Args:
        text: The file, or its folder.

    Raises:
        UsageError: The file cannot be read, or is no JSON object.
    """
    with unreadable_refused(text):
        path = Path(text).expanduser()
        config_path = path if path.is_file() else path / "config.json"
        return (
            parse_config(f"`{config_path}`", read_named(config_path))
            if config_path.is_file()
            else {}
        )
