"""Read a person's own ds_config."""

import json
from pathlib import Path

from zerowiz.core.ownconfig import OwnConfig, read_own_config
from zerowiz.errors import UsageError


def read_config_file(path: Path) -> OwnConfig:
    """The person's own ds_config.

    Raises:
        UsageError: There is none, or it is no JSON object.
    """
    hint = "a DeepSpeed config is one JSON object, such as those that `zerowiz init` writes"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"config `{path}` does not exist", hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"config `{path}` cannot be read: {error}", hint) from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise UsageError(f"config `{path}` is not JSON: {error.msg} at {where}", hint) from None
    if not isinstance(values, dict):
        raise UsageError(f"config `{path}` holds no JSON object", hint)
    if "machine" in values and "schema_version" in values:
        raise UsageError(f"`{path}` is a machine, not a config", f"say `--machine {path}`")
    return read_own_config(values)
