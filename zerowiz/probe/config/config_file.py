"""Read a person's own DeepSpeed config."""

from pathlib import Path

from zerowiz.core.dsconfig.hjson import Object, parse, plain
from zerowiz.core.dsconfig.hjson_tokens import Dialect, JsonTextError
from zerowiz.core.dsconfig.lint.source import ConfigText
from zerowiz.core.dsconfig.user_config import UserConfig, read_own_config
from zerowiz.core.workload import Integration
from zerowiz.errors import UsageError
from zerowiz.probe.config.config_text import decode_config

_HINT = "a DeepSpeed config is one JSON object, such as those that `zerowiz init` writes"


def read_config_file(path: Path, integration: Integration | None = None) -> UserConfig:
    """The config in a file, parsed as the program that trains with it parses it.

    Args:
        path: The file.
        integration: What reads the config; DeepSpeed itself, where None.

    Raises:
        UsageError: The file cannot be read, or holds no JSON object.
    """
    text = read_config_text(path)
    lenient = integration in {None, Integration.DEEPSPEED}
    try:
        if text.fault is not None:
            raise text.fault
        root = parse(text.text, Dialect.HJSON if lenient else Dialect.JSON)
    except JsonTextError as error:
        where = f"{error.reason} at line {error.line} column {error.column}"
        raise UsageError(f"config `{path}` is not JSON: {where}", _HINT) from None
    if not isinstance(root, Object):
        raise UsageError(f"config `{path}` holds no JSON object", _HINT)
    values = _values(root)
    if {"machine", "schema_version"} <= values.keys():
        raise UsageError(f"`{path}` is a machine, not a config", f"say `$machine {path}`")
    return read_own_config(values)


def read_config_values(path: Path) -> dict[str, object]:
    """The values of a config as DeepSpeed itself parses it; empty where it is no JSON object.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        root = parse(read_config_text(path).text, Dialect.HJSON)
    except JsonTextError:
        return {}
    return _values(root) if isinstance(root, Object) else {}


def read_config_text(path: Path) -> ConfigText:
    """The text of a config, or why its bytes are no text.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        return decode_config(str(path), path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"config `{path}` does not exist", _HINT) from None
    except OSError as error:
        raise UsageError(f"config `{path}` cannot be read: {error.strerror}", _HINT) from None


def _values(root: Object) -> dict[str, object]:
    return {member.key.name: plain(member.value) for member in root.members}
