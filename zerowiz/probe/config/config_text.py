"""Read the configs that `zerowiz check` is to check."""

import difflib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from glob import glob
from pathlib import Path

from zerowiz.core import shell
from zerowiz.core.dsconfig.accelerate import AccelerateFile
from zerowiz.core.dsconfig.hjson import Object, parse
from zerowiz.core.dsconfig.hjson_tokens import JsonTextError
from zerowiz.core.dsconfig.lint.source import ConfigText
from zerowiz.core.values import replace
from zerowiz.errors import UsageError, ZerowizError, did_you_mean
from zerowiz.probe.config.config_yaml import NamedFile, read_yaml
from zerowiz.probe.named_file import read_beginning
from zerowiz.words import _

STDIN = "-"
"""On the command line: the config comes through stdin, as JSON."""

# A config with every key that DeepSpeed 0.19.8 knows takes some 20 kB.
LARGEST_BYTES = 250_000

_YAML = frozenset({".yaml", ".yml"})
# File names of configs, as in `.pre-commit-hooks.yaml`; the plan of a config is none.
_CONFIG_NAME = re.compile(r"(.*(ds_config|deepspeed|ds_z[0-3])|(.*[^a-z])?zero).*(?<!\.plan)\.json")
# Folders below a folder that are not a person's own.
_NO_CONFIGS = re.compile(r"\..*|__pycache__|node_modules|site-packages")
# Other JSON files in such folders have fewer keys of a config: a Trainer's state has
# `train_batch_size` alone.
_ENOUGH_KEYS = 2
_SECTION = "zero_optimization"
# More than a person keeps configs among: a home, a disk or a data set is not walked to its end.
MOST_FOLDERS = 20_000
MOST_FILES = 10_000

_PATTERN = "*/ds_config*.json"

_LINE_END = re.compile(r"\r\n|\r|\n")
# The byte order marks of UTF-16, which PowerShell writes.
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def _unseen(_counted: str) -> None:
    """Nobody looks."""


def read_configs(
    word: str, known: Collection[str], at: Callable[[str], None] = _unseen
) -> Iterator[ConfigText | AccelerateFile | ZerowizError]:
    """The configs that one argument of the command line means, or why there is none.

    Before a config that a file of Accelerate names, that file comes, which has mistakes of its own.
    Of a folder and what is below it, these are the JSON files that are named like a config, or that
    hold `zero_optimization` or two other keys of a config. Hidden folders and those of packages are
    not read.

    Args:
        word: A file, a folder, a pattern as a shell has it, or `-` for stdin.
        known: The keys at the top level of a config.
        at: Hears how many folders have been read.
    """
    if word == STDIN:
        yield decode_config(word, sys.stdin.buffer.read(LARGEST_BYTES + 1))
        return
    names = _matches(word)
    if not names:
        yield UsageError(
            _("no file matches `{word}`", word=word), _("`**` stands for folders in folders")
        )
    for name in names:
        path = Path(name)
        if path.is_dir():
            yield from _read_folder(path, known, at)
        else:
            hint = _("pass a file, a folder, or `-` for stdin")
            yield from _read_file(path, known, hint)


def _read_file(
    path: Path, known: Collection[str], hint: str
) -> Iterator[ConfigText | AccelerateFile | ZerowizError]:
    try:
        read = _read_here(path, known, hint)
        if isinstance(read, NamedFile):
            if read.accelerate is not None:
                yield read.accelerate
            read = _read_named(path, read)
        yield read
    except ZerowizError as error:
        yield error


def _matches(word: str) -> list[str]:
    if not any(letter in word for letter in "*?[") or Path(word).exists():
        return [word]
    # Path.glob wants a folder to begin with, and has no absolute patterns.
    return sorted(glob(word, recursive=True))  # noqa: PTH207


def _or_error(read: Callable[[], ConfigText]) -> ConfigText | ZerowizError:
    try:
        return read()
    except ZerowizError as error:
        return error


def _read_folder(
    folder: Path, known: Collection[str], at: Callable[[str], None]
) -> Iterator[ConfigText | ZerowizError]:
    is_empty = True
    for path in _json_files(folder, at):
        if isinstance(path, ZerowizError):
            read: ConfigText | ZerowizError = path
        else:
            read = _or_error(partial(_read_json, path))
        if isinstance(read, ZerowizError) or _is_config(read, known):
            is_empty = False
            yield read
    if is_empty:
        yield UsageError(
            _("there is no DeepSpeed config in the folder `{folder}`", folder=folder),
            _("to check a file whatever it holds, pass it by name"),
        )


def _json_files(folder: Path, at: Callable[[str], None]) -> Iterator[Path | ZerowizError]:
    """The JSON files of a folder and of those in it; an error where some are not read."""
    errors: list[OSError] = []
    count_files = 0
    walk = os.walk(folder, onerror=errors.append)
    for count_folders, (parent, folders, names) in enumerate(walk):
        if count_folders >= MOST_FOLDERS or count_files >= MOST_FILES:
            yield UsageError(
                _(
                    "`{folder}` is too large: {files:,} JSON files in {folders:,} of its folders"
                    " were read, and the others were not",
                    folder=folder,
                    files=count_files,
                    folders=count_folders,
                ),
                _("pass the folder of your configs, or a pattern such as `{glob}`", glob=_PATTERN),
            )
            break
        at(_("{count:,} folders", count=count_folders))
        folders[:] = sorted(each for each in folders if not _NO_CONFIGS.fullmatch(each))
        paths = (Path(parent, name) for name in sorted(names) if name.endswith(".json"))
        for path in (path for path in paths if path.is_file()):
            count_files += 1
            yield path
    for error in errors:
        reason = (error.strerror or str(error)).lower()
        yield UsageError(
            _(
                "the folder `{filename}` cannot be read: {reason}",
                filename=error.filename,
                reason=reason,
            )
        )


def _read_json(path: Path) -> ConfigText:
    return decode_config(str(path), _read_bytes(path))


def _is_config(config: ConfigText, known: Collection[str]) -> bool:
    has_name = _CONFIG_NAME.fullmatch(Path(config.path).name) is not None
    return has_name or looks_like_config(config.text, known)


def looks_like_config(text: str, known: Collection[str]) -> bool:
    """Whether a text is a JSON object with keys that few files but DeepSpeed configs have.

    Args:
        text: The content of a file.
        known: The keys at the top level of a config.
    """
    # To parse all of a data set takes long.
    if _SECTION not in text and sum(name in text for name in known) < _ENOUGH_KEYS:
        return False
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
    read = _read_here(path, known, *hints)
    return read if isinstance(read, ConfigText) else _read_named(path, read)


def _read_here(path: Path, known: Collection[str], *hints: str) -> ConfigText | NamedFile:
    """The config that a file is or holds, else what it names."""
    data = _read_bytes(path, otherwise=hints)
    if path.suffix in _SCRIPTS:
        raise _refuse_script(path)
    config = decode_config(str(path), data)
    return read_yaml(config, known) if is_yaml(path) and config.fault is None else config


def _refuse_script(path: Path) -> UsageError:
    hints = [_("check the configs of this folder: `zerowiz check .`")]
    if path.suffix == ".py":
        hints.append(
            _(
                "compare a config with the script: `zerowiz check --script {path} ds_config.json`",
                path=shell.quote(path),
            )
        )
    return UsageError(_("`{path}` is a script, not a DeepSpeed config", path=path), *hints)


def _read_named(path: Path, read: NamedFile) -> ConfigText:
    found = _named_by(path, read.path)
    if _OF_SWIFT.fullmatch(read.path) and not found.exists():
        raise UsageError(
            _(
                "`{path}` names ms-swift's own config `{read_path}`, which is in its package",
                path=path,
                read_path=read.path,
            ),
            _("to check it, pass the file: it is in the folder `ds_config` of `swift`"),
        )
    named = decode_config(str(found), _read_bytes(found, _("`{path}` names it", path=path)))
    return replace(named, integration=read.integration, accelerate=read.accelerate)


def _named_by(path: Path, name: str) -> Path:
    """The file of a name in a YAML file.

    A job starts somewhere above its YAML file, and the name is of there: it is looked for here,
    then beside the file, then in each folder above.
    """
    above = path.absolute().parents
    places = (Path(name), *(each / name for each in above))
    found = next((each for each in places if each.is_file()), Path(name))
    here = Path.cwd()
    return found.relative_to(here) if found.is_relative_to(here) else found


# Rule: what people pass in the place of a config.
_SCRIPTS = frozenset({".py", ".ipynb", ".sh"})
# ms-swift, swift/llm/argument/train_args.py, _init_deepspeed: the configs that it brings.
_OF_SWIFT = re.compile(r"zero([0-3]|[23]_offload)")


def _read_bytes(path: Path, *hints: str, otherwise: Sequence[str] = ()) -> bytes:
    """The beginning of a file, one byte more than a config may have.

    Raises:
        UsageError: It does not exist, or cannot be read.
    """
    try:
        return read_beginning(path, LARGEST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        near = near_names(path) or otherwise
        raise UsageError(_("config `{path}` does not exist", path=path), *hints, *near) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            _("config `{path}` cannot be read: {reason}", path=path, reason=reason), *hints
        ) from None


def near_names(path: Path) -> tuple[str, ...]:
    """Hints that name files of a file's folder with a similar name."""
    try:
        siblings = sorted(child.name for child in path.parent.iterdir() if child.is_file())
    except OSError:
        siblings = []
    names = difflib.get_close_matches(path.name, siblings, n=2)
    return did_you_mean(path.parent / name for name in names)


def decode_config(path: str, data: bytes) -> ConfigText:
    """The text of a file. A byte order mark stays in it, because a rule of `check` reports it.

    Args:
        path: What findings call the file.
        data: The bytes of the file.
    """
    if len(data) > LARGEST_BYTES:
        reason = _(
            "the file has more than {largest_bytes} bytes, which is too large for a config",
            largest_bytes=LARGEST_BYTES,
        )
        return ConfigText(path=path, fault=JsonTextError(reason, 1, 1))
    if data.startswith(_UTF16_MARKS):
        reason = _("the file is UTF-16, not UTF-8")
        return ConfigText(path=path, fault=JsonTextError(reason, 1, 1))
    try:
        return ConfigText(path=path, text=data.decode())
    except UnicodeDecodeError as error:
        lines = _LINE_END.split(data[: error.start].decode())
        reason = _("the byte {byte:#04x} is not UTF-8", byte=data[error.start])
        fault = JsonTextError(reason, len(lines), len(lines[-1]) + 1)
        return ConfigText(path=path, fault=fault)
