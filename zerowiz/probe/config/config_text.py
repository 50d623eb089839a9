"""Read the configs that `zerowiz check` is to check."""

import difflib
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from zerowiz.core.dsconfig.hjson import Object, parse
from zerowiz.core.dsconfig.hjson_tokens import JsonTextError
from zerowiz.core.dsconfig.lint.source import ConfigText
from zerowiz.core.values import replace
from zerowiz.errors import UsageError
from zerowiz.probe.config.config_yaml import read_yaml

STDIN = "-"
"""On the command line: the config comes through stdin, as JSON."""

# A config with every key that DeepSpeed 0.19.8 knows takes some 20 kB.
LARGEST_BYTES = 250_000

_YAML = frozenset({".yaml", ".yml"})
# File names of configs, as in `.pre-commit-hooks.yaml`; the plan of a config is none.
_CONFIG_NAME = re.compile(r"(.*(ds_config|deepspeed|ds_z[0-3])|(.*[^a-z])?zero).*(?<!\.plan)\.json")
# Other JSON files in such folders have fewer keys of a config: a Trainer's state has
# `train_batch_size` alone.
_ENOUGH_KEYS = 2
_SECTION = "zero_optimization"

_LINE_END = re.compile(r"\r\n|\r|\n")
# The byte order marks of UTF-16, which PowerShell writes.
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def read_configs(word: str, known: Collection[str]) -> tuple[ConfigText, ...]:
    """The configs that one argument of the command line means.

    Of a folder, these are the JSON files in it that are named like a config, or that hold
    `zero_optimization` or two other keys of a config. Its subfolders are not read.

    Args:
        word: A file, a folder, or `-` for stdin.
        known: The keys at the top level of a config.

    Raises:
        UsageError: There is no such file, or no config in it.
    """
    if word == STDIN:
        return (decode_config(word, sys.stdin.buffer.read(LARGEST_BYTES + 1)),)
    path = Path(word)
    if path.is_dir():
        return _read_folder(path, known)
    return (read_config(path, known, "pass a file, a folder, or `-` for stdin"),)


def _read_folder(folder: Path, known: Collection[str]) -> tuple[ConfigText, ...]:
    paths = (path for path in sorted(folder.glob("*.json")) if path.is_file())
    read = (decode_config(str(path), _read_bytes(path)) for path in paths)
    found = tuple(config for config in read if _is_config(config, known))
    if not found:
        raise UsageError(
            f"there is no DeepSpeed config in the folder `{folder}`",
            "to check a file whatever it holds, pass it by name",
        )
    return found


def _is_config(config: ConfigText, known: Collection[str]) -> bool:
    has_name = _CONFIG_NAME.fullmatch(Path(config.path).name) is not None
    return has_name or looks_like_config(config.text, known)


def looks_like_config(text: str, known: Collection[str]) -> bool:
    """Whether a text is a JSON object with keys that few files but DeepSpeed configs have.

    Args:
        text: The content of a file.
        known: The keys at the top level of a config.
    """
    try:
        root = parse(text)
    except JsonTextError:
        return False
    names = {member.key.name for member in root.members} if isinstance(root, Object) else set()
    return _SECTION in names or len(names.intersection(known)) >= _ENOUGH_KEYS


def is_yaml(path: Path) -> bool:
    """Whether a config of this name is read as YAML."""
    return path.suffix.lower() in _YAML


def read_config(path: Path, known: Collection[str], *hints: str) -> ConfigText:
    """The config that a file is, holds or names.

    Args:
        path: The file.
        known: The keys at the top level of a config.
        hints: What to do where there is none of this name, nor of a similar one.

    Raises:
        UsageError: There is no such file, or no config in it.
    """
    config = decode_config(str(path), _read_bytes(path, otherwise=hints))
    if not is_yaml(path) or config.fault is not None:
        return config
    read = read_yaml(config, known)
    if isinstance(read, ConfigText):
        return read
    named = decode_config(read.path, _read_bytes(Path(read.path), f"`{path}` names it"))
    return replace(named, integration=read.integration, accelerate=read.accelerate)


def _read_bytes(path: Path, *hints: str, otherwise: Sequence[str] = ()) -> bytes:
    """The beginning of a file, one byte more than a config may have.

    Raises:
        UsageError: It does not exist, or cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return stream.read(LARGEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        near = near_names(path) or otherwise
        raise UsageError(f"config `{path}` does not exist", *hints, *near) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"config `{path}` cannot be read: {reason.lower()}", *hints) from None


def near_names(path: Path) -> tuple[str, ...]:
    """Hints that name files of a file's folder with a similar name."""
    try:
        siblings = sorted(child.name for child in path.parent.iterdir() if child.is_file())
    except OSError:
        siblings = []
    names = difflib.get_close_matches(path.name, siblings, n=2)
    return tuple(f"did you mean `{path.parent / name}`?" for name in names)


def decode_config(path: str, data: bytes) -> ConfigText:
    """The text of a file. A byte order mark stays in it, because a rule of `check` reports it.

    Args:
        path: What findings call the file.
        data: The bytes of the file.
    """
    if len(data) > LARGEST_BYTES:
        reason = f"the file has more than {LARGEST_BYTES} bytes, which is too large for a config"
        return ConfigText(path=path, fault=JsonTextError(reason, 1, 1))
    if data.startswith(_UTF16_MARKS):
        reason = "the file is UTF-16, not UTF-8"
        return ConfigText(path=path, fault=JsonTextError(reason, 1, 1))
    try:
        return ConfigText(path=path, text=data.decode())
    except UnicodeDecodeError as error:
        lines = _LINE_END.split(data[: error.start].decode())
        reason = f"the byte {data[error.start]:#04x} is not UTF-8"
        fault = JsonTextError(reason, len(lines), len(lines[-1]) + 1)
        return ConfigText(path=path, fault=fault)
