"""Read the record that an earlier `zerowiz init` left."""

import json
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from zerowiz.errors import ZerowizError

SCHEMA_VERSION = 1


class Record(Struct, frozen=True, kw_only=True):
    """The script and the options at the end of `init`, as plain JSON values."""

    script: str
    script_args: tuple[str, ...] = ()
    """The words after it; records of older versions have none."""
    options: Mapping[str, object]


def record_path(folder: Path) -> Path:
    """The path of the record that `init` writes."""
    return folder / ".zerowiz" / "init.json"


def parse_record(text: str, name: str) -> Record:
    """The record in a text.

    Args:
        text: The content of the file.
        name: What errors call the file.

    Raises:
        ZerowizError: It is no record of this version.
    """
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if (
        isinstance(content, dict)
        and content.get("schema_version") == SCHEMA_VERSION
        and isinstance(content.get("script"), str)
        and isinstance(content.get("options"), dict)
    ):
        words = content.get("script_args", [])
        return Record(
            script=content["script"],
            script_args=tuple(map(str, words)) if isinstance(words, list) else (),
            options=content["options"],
        )
    raise ZerowizError(
        f"`{name}` was not written by `zerowiz init` of this version",
        "run `zerowiz init` again, or pass the script: `zerowiz launch train.py`",
    )


def read_record(folder: Path) -> Record | None:
    """The record of an earlier `init` in a folder; None if there is none.

    Raises:
        ZerowizError: There is one, and this version cannot read it.
    """
    path = record_path(folder)
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ZerowizError(f"`{path}` cannot be read: {error.strerror}") from None
    return parse_record(text, str(path))
