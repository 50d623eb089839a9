"""Read the file of values that a script takes its arguments from."""

import json
from collections.abc import Mapping
from pathlib import Path

from zerowiz.core.dsconfig.hjson_tokens import JsonTextError
from zerowiz.core.script import YAML_SUFFIXES, SettingsFile
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.config.config_yaml import load_yaml


def read_settings_file(named: str, script: str, *, is_whole: bool) -> SettingsFile:
    """The values in a settings file, as the script gets them.

    Args:
        named: The file.
        script: What takes its arguments from it, for messages.
        is_whole: Whether it holds all arguments, instead of defaults for the words.

    Raises:
        PreflightError: The file does not exist, or cannot be read.
        UsageError: It holds no values by their names.
        ZerowizError: It is YAML, and PyYAML is not installed.
    """
    # A parser's defaults are YAML, whatever the file is called.
    is_yaml = not is_whole or named.endswith(YAML_SUFFIXES)
    text = _read(named, script)
    content = (_parse_yaml if is_yaml else _parse_json)(named, text)
    if not isinstance(content, Mapping):
        raise UsageError(f"`{named}` has no named values, but {script} reads its arguments from it")
    values = {str(key): value for key, value in content.items()}
    return SettingsFile(path=named, values=values, is_whole=is_whole)


def _read(name: str, script: str) -> str:
    path = Path(name)
    try:
        if path.exists() and not path.is_file():
            raise PreflightError(
                f"`{name}` is not a file, but {script} reads its arguments from it"
            )
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PreflightError(
            f"there is no file `{name}`, from which {script} reads its arguments"
        ) from None
    except OSError as error:
        raise PreflightError(f"`{name}` cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"`{name}` is not UTF-8 text (byte {error.start})") from None


def _parse_json(name: str, text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise UsageError(f"`{name}` is not JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise UsageError(f"`{name}` has too many levels") from None


def _parse_yaml(name: str, text: str) -> object:
    try:
        return load_yaml(name, text)
    except JsonTextError as error:
        where = f"line {error.line} column {error.column}"
        raise UsageError(f"`{name}` is not YAML: {error.reason} at {where}") from None
