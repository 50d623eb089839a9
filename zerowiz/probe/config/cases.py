"""Read the file that `measure --cases` names."""

from pathlib import Path

from zerowiz.core.codec import parse_json
from zerowiz.errors import UsageError
from zerowiz.probe.named_file import read_named
from zerowiz.words import _


def read_cases(path: Path) -> object:
    """The JSON of a cases file.

    Raises:
        UsageError: The file cannot be read, or is no JSON.
    """
    hint = _('write a JSON list: `[{"model": "7b", "stage": 2, "gpus": 2}]`')
    try:
        return parse_json(read_named(path))
    except OSError as error:
        reason = error.strerror
        raise UsageError(
            _("cases `{path}` cannot be read: {reason}", path=path, reason=reason), hint
        ) from None
    except ValueError as error:
        raise UsageError(
            _("cases `{path}` is not JSON: {error}", path=path, error=error), hint
        ) from None
