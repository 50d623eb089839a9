"""Read the file that `measure --cases` names."""

import json
from pathlib import Path

from zerowiz.errors import UsageError


def read_cases(path: Path) -> object:
    """The JSON of a cases file.

    Raises:
        UsageError: The file cannot be read, or is no JSON.
    """
    hint = 'write a JSON list: `[{"model": "7b", "stage": 2, "gpus": 2}]`'
    try:
        values: object = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise UsageError(f"cases `{path}` is not JSON: {error.msg} at {where}", hint) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cases `{path}` cannot be read: {reason}", hint) from None
    return values
