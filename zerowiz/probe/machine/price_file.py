"""Read a file of prices: TOML or JSON, the price of an hour by the name of a machine."""

import json
from pathlib import Path

from zerowiz.errors import UsageError


def read_price_file(path: Path) -> dict[str, str]:
    """The prices by the names in the file.

    Raises:
        UsageError: It cannot be read, or holds something else.
    """
    import tomllib  # noqa: PLC0415 - JSON needs none

    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise UsageError(f"`{path}` cannot be read: {error.strerror}") from None
    except ValueError as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise UsageError(f"`{path}` is not {kind}: {error}") from None
    if not isinstance(content, dict) or not all(isinstance(v, str) for v in content.values()):
        raise UsageError(
            f"`{path}` is not a list of prices",
            '`"H100-80GB" = "2.50/gpu-hour"` in TOML, `{"H100-80GB": "2.50/gpu-hour"}` in JSON',
        )
    return content
