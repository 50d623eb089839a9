"""Read what was said of a script once, and holds for each of its jobs."""

import posixpath
from collections.abc import Mapping
from pathlib import Path

from zerowiz.core.codec import parse_json
from zerowiz.probe.named_file import read_named

SCHEMA_VERSION = 1


def kept_path(folder: Path) -> Path:
    """The path of the file that remembers it."""
    return folder / ".zerowiz" / "scripts.json"


def read_kept(folder: Path) -> dict[str, Mapping[str, object]]:
    """What was said of each script, by its path; nothing where the file cannot be read.

    Args:
        folder: Where configs are written.

    Returns:
        Plain values, by the keys of their rows.
    """
    try:
        content = parse_json(read_named(kept_path(folder)))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        return {}
    scripts = content.get("scripts")
    if not isinstance(scripts, dict):
        return {}
    return {path: said for path, said in scripts.items() if isinstance(said, dict)}


def script_key(script: str) -> str:
    """The name under which a script is remembered."""
    return posixpath.normpath(script)
