"""Read a file of prices: TOML or JSON, the price of an hour by the name of a machine."""

from pathlib import Path

from zerowiz.core.codec import parse_json
from zerowiz.errors import UsageError
from zerowiz.probe.named_file import read_named_text
from zerowiz.words import _

_AS = _('`"H100-80GB" = "2.50/gpu-hour"` in TOML, `{"H100-80GB": "2.50/gpu-hour"}` in JSON')


def read_price_file(path: Path) -> dict[str, str]:
    """The prices by the names in the file.

    Raises:
        UsageError: It cannot be read, or holds something else.
    """
    import tomllib  # noqa: PLC0415 - JSON needs none

    try:
        text = read_named_text(path)
        content = tomllib.loads(text) if path.suffix == ".toml" else parse_json(text)
    except OSError as error:
        raise UsageError(
            _("`{path}` cannot be read: {strerror}", path=path, strerror=error.strerror)
        ) from None
    except (ValueError, RecursionError) as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise UsageError(
            _("`{path}` is not {kind}: {error}", path=path, kind=kind, error=error),
            _AS,
        ) from None
    if not isinstance(content, dict) or not all(isinstance(v, str) for v in content.values()):
        raise UsageError(
            _("`{path}` is not a list of prices", path=path),
            _AS,
        )
    return content
