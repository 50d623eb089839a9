"""Read the file of values that a script takes its arguments from."""

from collections.abc import Mapping
from pathlib import Path

from zerowiz.core.codec import parse_json
from zerowiz.core.script.settings_file import YAML_SUFFIXES, SettingsFile
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.config.config_yaml import load_yaml
from zerowiz.probe.named_file import require_text
from zerowiz.words import _


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
    content = (load_yaml if is_yaml else _parse_json)(named, text)
    if not isinstance(content, Mapping):
        raise UsageError(
            _(
                "`{named}` has no named values, but {script} reads its arguments from it",
                named=named,
                script=script,
            )
        )
    values = {str(key): value for key, value in content.items()}
    return SettingsFile(path=named, values=values, is_whole=is_whole)


def _read(name: str, script: str) -> str:
    try:
        return require_text(Path(name))
    except FileNotFoundError:
        raise PreflightError(
            _(
                "there is no file `{name}`, from which {script} reads its arguments",
                name=name,
                script=script,
            )
        ) from None


def _parse_json(name: str, text: str) -> object:
    try:
        return parse_json(text)
    except ValueError as error:
        raise UsageError(_("`{name}` is not JSON: {error}", name=name, error=error)) from None
