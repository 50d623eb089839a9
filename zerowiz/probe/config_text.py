"""Read the text of the configs to check: JSON, YAML, a script, a folder."""

import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from msgspec import Struct

from zerowiz.core import shell
from zerowiz.core.dsconfig.accelerate import AccelerateFile, is_accelerate, read_accelerate
from zerowiz.core.dsconfig.hjson import (
    DEEPEST_LEVEL,
    Array,
    JsonTextError,
    KeyToken,
    Member,
    Node,
    Object,
    Scalar,
    Span,
    parse,
)
from zerowiz.core.lint.config import ConfigText, render
from zerowiz.core.script.programs import read_program
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration
from zerowiz.errors import UsageError, ZerowizError, did_you_mean
from zerowiz.probe.files import read_beginning

# Find the DeepSpeed config in a YAML file, with the line and column of each key.

# A YAML file is one of three: Accelerate's own (`core/dsconfig/accelerate.py`); that of a program
# around the Trainer (Axolotl, LLaMA-Factory), with the key `deepspeed`; or the config itself.

# A config has a few hundred nodes; aliases of aliases can make millions.
_MOST_NODES = 100_000
# PyYAML reads some 50,000 characters a second.
_LONGEST = 250_000


class NamedFile(Struct, frozen=True, kw_only=True):
    """A config in another file, whose path the YAML file holds."""

    path: str
    integration: Integration
    accelerate: AccelerateFile | None = None
    """The rest of the file, where it is Accelerate's."""


def read_yaml(file: ConfigText, known: Collection[str]) -> ConfigText | NamedFile:
    """The config in a YAML file.

    Args:
        file: The file, read as text.
        known: The keys at the top level of a config.

    Raises:
        UsageError: PyYAML is not installed, or there is no config in the file.
    """
    try:
        root = _YamlReader(file.path, file.text).root()
    except JsonTextError as fault:
        return replace(file, text="", fault=fault)
    members = root.members if isinstance(root, Object) else ()
    values = {member.key.name: member.value for member in members}
    if isinstance(root, Object) and is_accelerate(values):
        return _of_accelerate(file.path, root)
    inline = values.get("deepspeed")
    if isinstance(inline, Object):
        return render(file.path, inline, Integration.HF)
    if isinstance(inline, Scalar) and isinstance(inline.value, str) and inline.value:
        return NamedFile(path=inline.value, integration=Integration.HF)
    if "deepspeed" in values:
        # Axolotl's examples end with it, and train without DeepSpeed.
        raise UsageError(
            f"there is no DeepSpeed config in `{file.path}`: its `deepspeed` is empty",
            "write the path of a config behind it, to train with DeepSpeed",
        )
    scalars = {
        name: value.value if isinstance(value, Scalar) else None for name, value in values.items()
    }
    if read_program(file.path, scalars):
        raise UsageError(
            f"there is no DeepSpeed config in `{file.path}`: it has no `deepspeed`",
            f"choose a stage and write one: `zerowiz init {shell.quote(file.path)}`",
        )
    if values.keys() & set(known):
        return render(file.path, root, None)
    raise UsageError(
        f"there is no DeepSpeed config in `{file.path}`",
        (
            "zerowiz looks under `deepspeed_config` (Accelerate) and `deepspeed`, or for a "
            "config alone"
        ),
    )


def _of_accelerate(path: str, root: Object) -> ConfigText | NamedFile:
    """The file that Accelerate's own names, else the config that Accelerate builds of it."""
    read, reader = read_accelerate(path, root), Integration.ACCELERATE
    if read.config_file is not None:
        return NamedFile(path=read.config_file, integration=reader, accelerate=read)
    return replace(render(path, read.config, reader), accelerate=read)


def load_yaml(path: str, text: str) -> object:
    """The value of a YAML text, as a program has it that loads it by PyYAML.

    Args:
        path: What the error calls the file.
        text: What is in it.

    Raises:
        UsageError: PyYAML cannot parse the text.
        ZerowizError: It is not installed.
    """
    yaml = _import_yaml(path)
    try:
        return _load(yaml, text)
    except JsonTextError as error:
        where = f"line {error.line} column {error.column}"
        raise UsageError(f"`{path}` is not YAML: {error.reason} at {where}") from None


def _load(yaml: Any, text: str) -> object:  # noqa: ANN401 - PyYAML has no types
    if len(text) > _LONGEST:
        raise JsonTextError(f"more than {_LONGEST} characters", 1, 1)
    try:
        return yaml.load(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _fault(error) from None
    except RecursionError:
        raise JsonTextError("too many levels", 1, 1) from None
    except (ValueError, OverflowError) as error:
        raise JsonTextError(str(error), 1, 1) from None


# PyYAML has no types.
def _import_yaml(path: str) -> Any:  # noqa: ANN401
    try:
        return importlib.import_module("yaml")
    except ImportError:
        raise ZerowizError(
            f"`{path}` is YAML, and PyYAML is not installed", "`pip install pyyaml`"
        ) from None


class _YamlReader:
    """Parses a YAML text to a tree of values; PyYAML decides what a scalar is, as for a trainer."""

    def __init__(self, path: str, text: str) -> None:
        self.yaml = _import_yaml(path)
        self.text = text
        self.nodes = 0

    def root(self) -> Node:
        """The root of the tree.

        Raises:
            JsonTextError: PyYAML cannot parse the text, or it is no plain tree.
        """
        try:
            self.loader = self.yaml.SafeLoader(self.text)
            root = self.loader.get_single_node()
            return Object(place=_START, members=()) if root is None else self.node(root, 1)
        except self.yaml.YAMLError as error:
            raise _fault(error) from None
        except RecursionError:
            raise JsonTextError("too many levels", 1, 1) from None

    # PyYAML has no types.
    def node(self, node: Any, level: int) -> Node:  # noqa: ANN401
        """A value with its members or items."""
        place = _place(node)
        self.nodes += 1
        if level > DEEPEST_LEVEL or self.nodes > _MOST_NODES:
            raise JsonTextError("too many levels or aliases", place.line, place.column)
        if isinstance(node, self.yaml.MappingNode):
            self.loader.flatten_mapping(node)
            return Object(place=place, members=self.members(node.value, level))
        if isinstance(node, self.yaml.SequenceNode):
            items = tuple(self.node(item, level + 1) for item in node.value)
            return Array(place=place, items=items)
        return Scalar(place=place, value=self.scalar(node))

    def members(self, pairs: Sequence[tuple[Any, Any]], level: int) -> tuple[Member, ...]:
        """The members of an object; of equal keys the last one counts, as for a trainer."""
        last: dict[str, Member] = {}
        for name, value in pairs:
            key = KeyToken(place=_place(name), name=str(name.value))
            last[key.name] = Member(key=key, value=self.node(value, level + 1))
        return tuple(last.values())

    def scalar(self, node: Any) -> str | float | bool | None:  # noqa: ANN401
        """A scalar; a type that JSON lacks, such as a date, becomes its text."""
        try:
            value = self.loader.construct_object(node)
            if isinstance(value, int):
                str(value)  # a hexadecimal number can have more digits than Python writes
        except (ValueError, OverflowError) as error:
            place = _place(node)
            raise JsonTextError(str(error), place.line, place.column) from None
        return value if isinstance(value, str | int | float | None) else str(node.value)


def _place(node: Any) -> Span:  # noqa: ANN401
    mark = node.start_mark
    return Span(start=mark.index, end=mark.index, line=mark.line + 1, column=mark.column + 1)


_START = Span(start=0, end=0, line=1, column=1)


def _fault(error: Any) -> JsonTextError:  # noqa: ANN401
    """PyYAML's error, in one line."""
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
    line, column = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
    return JsonTextError(f"syntax error: {' '.join(str(reason).split())}", line, column)


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
        yield UsageError(f"no file matches `{word}`", "`**` stands for folders in folders")
    for name in names:
        path = Path(name)
        if path.is_dir():
            yield from _read_folder(path, known, at)
        else:
            hint = "pass a file, a folder, or `-` for stdin"
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


def _read_folder(
    folder: Path, known: Collection[str], at: Callable[[str], None]
) -> Iterator[ConfigText | ZerowizError]:
    is_empty = True
    for path in _json_files(folder, at):
        read: ConfigText | ZerowizError
        if isinstance(path, ZerowizError):
            read = path
        else:
            try:
                read = decode_config(str(path), _read_bytes(path))
            except ZerowizError as error:
                read = error
        if isinstance(read, ZerowizError) or _is_config(read, known):
            is_empty = False
            yield read
    if is_empty:
        yield UsageError(
            f"there is no DeepSpeed config in the folder `{folder}`",
            "to check a file whatever it holds, pass it by name",
        )


def _json_files(folder: Path, at: Callable[[str], None]) -> Iterator[Path | ZerowizError]:
    """The JSON files of a folder and of those in it; an error where some are not read."""
    errors: list[OSError] = []
    count_files = 0
    walk = os.walk(folder, onerror=errors.append)
    for count_folders, (parent, folders, names) in enumerate(walk):
        if count_folders >= MOST_FOLDERS or count_files >= MOST_FILES:
            yield UsageError(
                (
                    f"`{folder}` is too large: {count_files:,} JSON files in "
                    f"{count_folders:,} of its folders were read, and the others were not"
                ),
                f"pass the folder of your configs, or a pattern such as `{_PATTERN}`",
            )
            break
        at(f"{count_folders:,} folders")
        folders[:] = sorted(name for name in folders if not _NO_CONFIGS.fullmatch(name))
        paths = (Path(parent, name) for name in sorted(names) if name.endswith(".json"))
        for path in (path for path in paths if path.is_file()):
            count_files += 1
            yield path
    for error in errors:
        reason = (error.strerror or str(error)).lower()
        yield UsageError(f"the folder `{error.filename}` cannot be read: {reason}")


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
    hints = ["check the configs of this folder: `zerowiz check .`"]
    if path.suffix == ".py":
        hints.append(
            "compare a config with the script: `zerowiz check --script "
            f"{shell.quote(path)} ds_config.json`"
        )
    return UsageError(f"`{path}` is a script, not a DeepSpeed config", *hints)


def _read_named(path: Path, read: NamedFile) -> ConfigText:
    named_path = _named_by(path, read.path)
    if _OF_SWIFT.fullmatch(read.path) and not named_path.exists():
        raise UsageError(
            f"`{path}` names ms-swift's own config `{read.path}`, which is in its package",
            "to check it, pass the file: it is in the folder `ds_config` of `swift`",
        )
    named = decode_config(str(named_path), _read_bytes(named_path, f"`{path}` names it"))
    return replace(named, integration=read.integration, accelerate=read.accelerate)


def _named_by(path: Path, name: str) -> Path:
    """The file of a name in a YAML file.

    A job starts somewhere above its YAML file, and the name is of there: it is looked for here,
    then beside the file, then in each folder above.
    """
    above = path.absolute().parents
    places = (Path(name), *(folder / name for folder in above))
    file = next((place for place in places if place.is_file()), Path(name))
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file


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
        raise UsageError(f"config `{path}` does not exist", *hints, *near) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"config `{path}` cannot be read: {reason}", *hints) from None


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
