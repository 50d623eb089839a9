"""Read the text of the configs to check: JSON, YAML, a script, a folder."""

import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from zerowiz.core import shell
from zerowiz.core.dsconfig.accelerate import (
    NO_PRECISION,
    AccelerateFile,
    NotForDeepSpeedError,
    is_accelerate,
    read_accelerate,
)
from zerowiz.core.dsconfig.accelerate import PARALLEL_KEYS as PARALLEL_KEYS_OF_FILE
from zerowiz.core.dsconfig.hjson import (
    DEEPEST_LEVEL,
    LINE_END,
    Array,
    Dialect,
    JsonTextError,
    KeyToken,
    Member,
    Node,
    Object,
    Scalar,
    Span,
    parse,
    plain,
)
from zerowiz.core.dsconfig.merge import ZERO
from zerowiz.core.dsconfig.own_config import UserConfig, read_base, read_own_config
from zerowiz.core.dsconfig.schema import (
    PARALLEL_KEYS,
    PLANNED_KEYS,
    may_hold_more,
    shares_work,
    uncounted_keys,
)
from zerowiz.core.lint.config import ConfigText
from zerowiz.core.script.arguments import YAML_SUFFIXES, SettingsFile
from zerowiz.core.script.programs import ProgramFile, read_program
from zerowiz.core.settings import not_planned
from zerowiz.core.structs import parse_json, replace
from zerowiz.core.workload import PRECISIONS, Integration, Precision, Uncounted
from zerowiz.errors import UsageError, ZerowizError, did_you_mean
from zerowiz.probe.files import read_beginning, read_ds_schema, read_version, require_text

# Find the DeepSpeed config in a YAML file, with the line and column of each key.
# A YAML file is one of three: Accelerate's own (`core/dsconfig/accelerate.py`); that of a program
# around the Trainer (Axolotl, LLaMA-Factory), with the key `deepspeed`; or the config itself.
# A config has a few hundred nodes; aliases of aliases can make millions.

_MOST_NODES = 100_000
# PyYAML reads some 50,000 characters a second.
_LONGEST = 250_000


def read_yaml(file: ConfigText, known: Collection[str]) -> ConfigText:
    """The config that a YAML file holds or names.

    Args:
        file: The file, read as text.
        known: The keys at the top level of a config.

    Raises:
        NotForDeepSpeedError: There is no config in the file.
        ZerowizError: PyYAML is not installed.
    """
    path = file.path
    try:
        root = _YamlReader(path, file.text).root()
    except JsonTextError as fault:
        return replace(file, fault=fault)
    if not isinstance(root, Object):
        root = Object(place=root.place, members=())
    values = {member.key.name: member.value for member in root.members}
    if is_accelerate(values):
        # The file that Accelerate's own names, else the config that Accelerate builds of it.
        read = read_accelerate(path, file.text, root)
        file = replace(file, integration=Integration.ACCELERATE, accelerate=read)
        if read.config_file is not None:
            return replace(file, named=read.config_file)
        return replace(file, root=read.config)
    inline = values.get("deepspeed")
    if isinstance(inline, Object):
        return replace(file, root=inline, integration=Integration.HF)
    if isinstance(inline, Scalar) and isinstance(inline.value, str) and inline.value:
        return replace(file, named=inline.value, integration=Integration.HF)
    if "deepspeed" in values:
        # Axolotl's examples end with it, and train without DeepSpeed.
        why = ": its `deepspeed` is empty"
        hint = "write the path of a config behind it, to train with DeepSpeed"
    elif read_program(path, {name: plain(value) for name, value in values.items()}):
        why = ": it has no `deepspeed`"
        hint = f"choose a stage and write one: `zerowiz init {shell.quote(path)}`"
    elif values.keys() & set(known):
        return replace(file, root=root)
    else:
        why = ""
        hint = (
            "zerowiz looks under `deepspeed_config` (Accelerate) and `deepspeed`, or for a config"
            " alone"
        )
    raise NotForDeepSpeedError(f"there is no DeepSpeed config in `{path}`{why}", hint)


def load_yaml(path: str, text: str) -> object:
    """The value of a YAML text, as a program has it that loads it by PyYAML.

    A type that JSON lacks, such as a date, is its text.

    Args:
        path: What the error calls the file.
        text: What is in it.

    Raises:
        UsageError: PyYAML cannot parse the text.
        ZerowizError: It is not installed.
    """
    try:
        return plain(_YamlReader(path, text).root())
    except JsonTextError as error:
        where = f"line {error.line} column {error.column}"
        raise UsageError(f"`{path}` is not YAML: {error.reason} at {where}") from None


class _YamlReader:
    """Parses a YAML text to a tree of values; PyYAML decides what a scalar is, as for a trainer.

    Raises:
        ZerowizError: PyYAML is not installed.
    """

    def __init__(self, path: str, text: str) -> None:
        try:
            # It has no types.
            self.yaml: Any = importlib.import_module("yaml")
        except ImportError:
            raise ZerowizError(
                f"`{path}` is YAML, and PyYAML is not installed", "`pip install pyyaml`"
            ) from None
        self.text = text
        self.nodes = 0

    def root(self) -> Node:
        """The root of the tree; null for an empty text.

        Raises:
            JsonTextError: PyYAML cannot parse the text, or it is no plain tree.
        """
        if len(self.text) > _LONGEST:
            raise JsonTextError(f"more than {_LONGEST} characters", 1, 1)
        try:
            self.loader = self.yaml.SafeLoader(self.text)
            root = self.loader.get_single_node()
            return Scalar(place=_START, value=None) if root is None else self.node(root, 1)
        except self.yaml.YAMLError as error:
            # In one line.
            mark = getattr(error, "problem_mark", None)
            reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
            line, column = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
            said = " ".join(str(reason).split())
            raise JsonTextError(f"syntax error: {said}", line, column) from None
        except RecursionError:
            raise JsonTextError("too many levels", 1, 1) from None

    def node(self, node: Any, level: int) -> Node:  # noqa: ANN401 - PyYAML has no types
        """A value with its members or items; of equal keys the last one counts."""
        place = _place(node)
        self.nodes += 1
        if level > DEEPEST_LEVEL or self.nodes > _MOST_NODES:
            raise JsonTextError("too many levels or aliases", place.line, place.column)
        if isinstance(node, self.yaml.MappingNode):
            self.loader.flatten_mapping(node)
            members = (
                Member(
                    key=KeyToken(place=_place(name), name=str(name.value)),
                    value=self.node(value, level + 1),
                )
                for name, value in node.value
            )
            last = {member.key.name: member for member in members}
            return Object(place=place, members=tuple(last.values()))
        if isinstance(node, self.yaml.SequenceNode):
            items = tuple(self.node(item, level + 1) for item in node.value)
            return Array(place=place, items=items)
        try:
            value = self.loader.construct_object(node)
            if isinstance(value, int):
                str(value)  # a hexadecimal number can have more digits than Python writes
        except (ValueError, OverflowError) as error:
            # Python converts no more digits than sys.get_int_max_str_digits().
            is_long = "digits" in str(error)
            reason = "a number has too many digits" if is_long else str(error)
            raise JsonTextError(reason, place.line, place.column) from None
        is_json = isinstance(value, str | int | float | None)
        return Scalar(place=place, value=value if is_json else str(node.value))


def _place(node: Any) -> Span:  # noqa: ANN401 - PyYAML has no types
    mark = node.start_mark
    return Span(start=mark.index, end=mark.index, line=mark.line + 1, column=mark.column + 1)


_START = Span(start=0, end=0, line=1, column=1)

# Find the configs that a word of the command line means.

STDIN = "-"
"""On the command line: the config comes through stdin, as JSON."""

# A config with every key that DeepSpeed 0.19.8 knows takes some 20 kB.
LARGEST_BYTES = 250_000

# File names of configs, as in `.pre-commit-hooks.yaml`; the plan of a config is none.
_CONFIG_NAME = re.compile(r"(.*(ds_config|deepspeed|ds_z[0-3])|(.*[^a-z])?zero).*(?<!\.plan)\.json")
_ENDINGS = (".json", *YAML_SUFFIXES)
# The YAML of Accelerate for DeepSpeed.
_OF_DEEPSPEED = re.compile(r"^[\"']?distributed_type[\"']?\s*:\s*[\"']?DEEPSPEED\b", re.MULTILINE)
# Folders below a folder that are not a person's own.
_NO_CONFIGS = re.compile(r"\..*|__pycache__|node_modules|site-packages")
# Other JSON files in such folders have fewer keys of a config: a Trainer's state has
# `train_batch_size` alone.
_ENOUGH_KEYS = 2
_KEY = re.compile(r"[{,\s]\"(\w+)\"\s*:")
# A data set has an object in each line.
_OBJECTS = re.compile(r"\s*[{\[].*[}\]],?[ \t]*\r?\n\s*[{\[]")
# More than a person keeps configs among: a home, a disk or a data set is not walked to its end.
MOST_FOLDERS = 20_000
MOST_FILES = 10_000
# What people pass in the place of a config.
_SCRIPTS = frozenset({".py", ".ipynb", ".sh"})
# ms-swift, swift/llm/argument/train_args.py, _init_deepspeed: the configs that it brings.
_OF_SWIFT = re.compile(r"zero([0-3]|[23]_offload)")

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
    hold `zero_optimization` or two other keys of a config, and what Accelerate has for DeepSpeed in
    YAML. Of a pattern, YAML that is not for DeepSpeed is left out. Hidden folders and those of
    packages are not read.

    Args:
        word: A file, a folder, a pattern as a shell has it, or `-` for stdin.
        known: The keys at the top level of a config.
        at: Hears how many folders have been read.
    """
    if word == STDIN:
        yield decode_config(word, sys.stdin.buffer.read(LARGEST_BYTES + 1))
        return
    names = [word]
    if any(letter in word for letter in "*?[") and not Path(word).exists():
        # Path.glob wants a folder to begin with, and has no absolute patterns.
        names = sorted(glob(word, recursive=True))  # noqa: PTH207
    is_empty = True
    for path in map(Path, names):
        for read in _read_folder(path, known, at) if path.is_dir() else _read_file(path, known):
            if names == [word] or not isinstance(read, NotForDeepSpeedError):
                is_empty = False
                yield read
    if is_empty and names:
        yield UsageError(
            f"no file that `{word}` matches has a DeepSpeed config",
            "to see why, pass one of the files by its name",
        )
    elif is_empty:
        yield UsageError(f"no file matches `{word}`", "`**` stands for folders in folders")


def _read_file(
    path: Path, known: Collection[str]
) -> Iterator[ConfigText | AccelerateFile | ZerowizError]:
    try:
        read = _read_here(path, known, "pass a file, a folder, or `-` for stdin")
        if read.named is not None and read.accelerate is not None:
            yield read.accelerate
        yield _read_named(read)
    except ZerowizError as error:
        yield error


def _read_folder(
    folder: Path, known: Collection[str], at: Callable[[str], None]
) -> Iterator[ConfigText | AccelerateFile | ZerowizError]:
    """The configs in a folder and in those below it; an error where some are not read."""
    errors: list[OSError] = []
    count_files, is_empty = 0, True
    walk = os.walk(folder, onerror=errors.append)
    for count_folders, (parent, folders, names) in enumerate(walk):
        if count_folders >= MOST_FOLDERS or count_files >= MOST_FILES:
            is_empty = False
            yield UsageError(
                f"`{folder}` is too large: {count_files:,} JSON and YAML files in"
                f" {count_folders:,} of its folders were read, and the others were not",
                "pass the folder of your configs, or a pattern such as `*/ds_config*.json`",
            )
            break
        at(f"{count_folders:,} folders")
        folders[:] = sorted(name for name in folders if not _NO_CONFIGS.fullmatch(name))
        paths = (Path(parent, name) for name in sorted(names) if name.endswith(_ENDINGS))
        for path in filter(Path.is_file, paths):
            count_files += 1
            for config in _read_if_config(path, known):
                is_empty = False
                yield config
    for failed in errors:
        is_empty = False
        reason = (failed.strerror or str(failed)).lower()
        yield UsageError(f"the folder `{failed.filename}` cannot be read: {reason}")
    if is_empty:
        yield UsageError(
            f"there is no DeepSpeed config in the folder `{folder}`",
            "to check a file whatever it holds, pass it by name",
        )


def _read_if_config(
    path: Path, known: Collection[str]
) -> Iterator[ConfigText | AccelerateFile | ZerowizError]:
    """What a file of a folder has, if it is one of DeepSpeed's."""
    try:
        read = decode_config(str(path), _read_bytes(path))
    except ZerowizError as error:
        yield error
        return
    if not is_yaml(path):
        if _CONFIG_NAME.fullmatch(path.name) or looks_like_config(read.text, known):
            yield read
    elif _OF_DEEPSPEED.search(read.text):
        yield from _read_file(path, known)


def looks_like_config(text: str, known: Collection[str]) -> bool:
    """Whether a text is a JSON object with keys that few files but DeepSpeed configs have.

    So is one that is cut off, or holds both sides of a merge: the finding is that it is no JSON.

    Args:
        text: The content of a file.
        known: The keys at the top level of a config.
    """
    # To parse all of a data set takes long.
    if ZERO not in text and sum(name in text for name in known) < _ENOUGH_KEYS:
        return False
    try:
        root = parse(text)
    except JsonTextError:
        names = set() if _OBJECTS.match(text) else set(_KEY.findall(text))
    else:
        names = {member.key.name for member in root.members} if isinstance(root, Object) else set()
    return ZERO in names or len(names.intersection(known)) >= _ENOUGH_KEYS


def is_yaml(path: Path | str) -> bool:
    """Whether a file of this name is read as YAML: it is no script."""
    return str(path).lower().endswith(YAML_SUFFIXES)


def read_config(path: Path, known: Collection[str], *hints: str) -> ConfigText:
    """The config that a file is, holds or names.

    Args:
        path: The file.
        known: The keys at the top level of a config.
        hints: What to do where there is none of this name, nor of a similar one.

    Raises:
        UsageError: There is no such file, or no config in it.
    """
    return _read_named(_read_here(path, known, *hints))


def _read_here(path: Path, known: Collection[str], *hints: str) -> ConfigText:
    """What a file is, holds or names."""
    data = _read_bytes(path, otherwise=hints)
    if path.suffix in _SCRIPTS:
        command = f"zerowiz check --script {shell.quote(path)} ds_config.json"
        compare = [f"compare a config with the script: `{command}`"]
        raise UsageError(
            f"`{path}` is a script, not a DeepSpeed config",
            "check the configs of this folder: `zerowiz check .`",
            *(compare if path.suffix == ".py" else ()),
        )
    config = decode_config(str(path), data)
    return read_yaml(config, known) if is_yaml(path) and config.fault is None else config


def _read_named(read: ConfigText) -> ConfigText:
    """The config that a YAML file names; any other file is the config.

    A job starts somewhere above its YAML file, and the name is of there: it is looked for here,
    then beside the file, then in each folder above.
    """
    if read.named is None:
        return read
    folders = Path(read.path).absolute().parents
    places = (Path(read.named), *(folder / read.named for folder in folders))
    named = next((place for place in places if place.is_file()), Path(read.named))
    if named.is_relative_to(Path.cwd()):
        named = named.relative_to(Path.cwd())
    if _OF_SWIFT.fullmatch(read.named) and not named.exists():
        raise UsageError(
            f"`{read.path}` names ms-swift's own config `{read.named}`, which is in its package",
            "to check it, pass the file: it is in the folder `ds_config` of `swift`",
        )
    config = decode_config(str(named), _read_bytes(named, f"`{read.path}` names it"))
    return replace(config, integration=read.integration, accelerate=read.accelerate)


def _read_bytes(path: Path, *hints: str, otherwise: Sequence[str] = ()) -> bytes:
    """The beginning of a file, one byte more than a config may have.

    Raises:
        UsageError: It does not exist, or cannot be read.
    """
    try:
        return read_beginning(path, LARGEST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        try:
            siblings = sorted(child.name for child in path.parent.iterdir() if child.is_file())
        except OSError:
            siblings = []
        names = difflib.get_close_matches(path.name, siblings, n=2)
        near = did_you_mean(path.parent / name for name in names) or otherwise
        raise UsageError(f"config `{path}` does not exist", *hints, *near) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"config `{path}` cannot be read: {reason}", *hints) from None


def decode_config(path: str, data: bytes) -> ConfigText:
    """The text of a file. A byte order mark stays in it, because a rule of `check` reports it.

    Args:
        path: What findings call the file.
        data: The bytes of the file.
    """
    line, column = 1, 1
    if len(data) > LARGEST_BYTES:
        reason = f"the file has more than {LARGEST_BYTES} bytes, which is too large for a config"
    elif data.startswith(_UTF16_MARKS):
        reason = "the file is UTF-16, not UTF-8"
    else:
        try:
            return ConfigText(path=path, text=data.decode())
        except UnicodeDecodeError as error:
            lines = LINE_END.split(data[: error.start].decode())
            reason = f"the byte {data[error.start]:#04x} is not UTF-8"
            line, column = len(lines), len(lines[-1]) + 1
    return ConfigText(path=path, fault=JsonTextError(reason, line, column))


# Read a person's own DeepSpeed config, or the YAML file that holds or names it.

_HINT = "a DeepSpeed config must be one JSON object, like those of `zerowiz init`"
_WITHOUT = "remove `$config` to let zerowiz write the config"


def read_config_file(
    path: Path, integration: Integration | None = None, *, is_base: bool = False
) -> UserConfig:
    """The config in a file, parsed as the program that trains with it parses it.

    Args:
        path: The file.
        integration: What reads the config; DeepSpeed itself, where None.
        is_base: Whether another config is built on it, which that program reads instead.

    Raises:
        UsageError: The file cannot be read, or holds no JSON object.
    """
    text = read_config_text(path)
    as_written = integration in {None, Integration.DEEPSPEED} and text.root is None
    try:
        values = plain(text.parsed(Dialect.HJSON if as_written or is_base else Dialect.JSON))
    except JsonTextError as error:
        where = f"{error.reason} at line {error.line} column {error.column}"
        form = "YAML" if is_yaml(text.path) else "JSON"
        raise UsageError(
            f"config `{text.path}` is not {form}: {where}",
            _HINT,
        ) from None
    if not isinstance(values, dict):
        raise UsageError(f"config `{text.path}` holds no JSON object", _HINT)
    if {"machine", "schema_version"} <= values.keys():
        raise UsageError(
            f"`{path}` is a machine, not a config",
            f"use `$machine {shell.quote(path)}`",
        )
    if "distributed_type" in values:
        raise UsageError(
            f"`{path}` is a config of Accelerate in JSON, which zerowiz reads as YAML only",
            f"rename it: `mv {shell.quote(path)} {shell.quote(path.with_suffix('.yaml'))}`",
        )
    for key, kind in PARALLEL_KEYS.items():
        if key not in PLANNED_KEYS and shares_work(values, key):
            raise not_planned(f"`{path}` has `{key}`", kind)
    config = (read_base if is_base else read_own_config)(values, fills_in=not as_written)
    if is_base:
        values = {key: value for key, value in values.items() if key != ZERO}
    of_schema = uncounted_keys(values, read_ds_schema(read_version("deepspeed")))
    uncounted = tuple(dict.fromkeys((*of_schema, *config.uncounted)))
    more = (Uncounted.CONFIG,) if may_hold_more(uncounted, values) else ()
    config = replace(config, uncounted=uncounted, besides=(*config.besides, *more))
    return config if text.accelerate is None else _with_accelerate(path, config, text.accelerate)


def _with_accelerate(path: Path, config: UserConfig, file: AccelerateFile) -> UserConfig:
    """The config of a file of Accelerate, as Accelerate takes it.

    Raises:
        UsageError: It trains in a format that is not planned.
    """
    if file.mixed_precision not in {row.mixed_precision for row in PRECISIONS.values()}:
        raise UsageError(
            (
                f"`{path}` has `mixed_precision: {file.mixed_precision}`, which zerowiz does "
                "not support"
            ),
            "write `bf16`, `fp16` or `'no'`",
        )
    for member in file.parallel:
        said = f"`{path}` has `{member.key.name}: {plain(member.value)}`"
        raise not_planned(said, PARALLEL_KEYS_OF_FILE[member.key.name])
    config = replace(config, sequence_parallel=file.sequence_parallel)
    if file.config_file is not None or file.mixed_precision != NO_PRECISION:
        return config
    return replace(config, precision=None, fallback_precision=Precision.FP32)


def read_config_values(path: Path) -> dict[str, object]:
    """The values of a config as DeepSpeed itself parses it; empty where it is no JSON object.

    Those of a YAML file are of the config that it holds or names.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        values = plain(read_config_text(path).parsed(Dialect.HJSON))
    except JsonTextError:
        return {}
    return values if isinstance(values, dict) else {}


def read_config_text(path: Path) -> ConfigText:
    """The text of a config, or why its bytes are no text.

    One that a YAML file names is read in its place.

    Raises:
        UsageError: The file cannot be read, or is YAML without a config.
    """
    return read_config(path, read_ds_schema(read_version("deepspeed")).top_names, _WITHOUT)


# Read the file of a program that starts its own ranks.


def read_program_file(path: str) -> ProgramFile:
    """What the file says of a job.

    Raises:
        PreflightError: It cannot be read.
        UsageError: It is no YAML, or of no program that zerowiz plans for.
    """
    text = require_text(Path(path), f"there is no file `{path}`")
    values = load_yaml(path, text)
    file = read_program(path, values) if isinstance(values, Mapping) else None
    if file is None:
        of_trl = (
            f"for a file of TRL: `zerowiz launch -m trl.scripts.sft --config {shell.quote(path)}`"
        )
        is_of_trl = isinstance(values, Mapping) and "model_name_or_path" in values
        raise UsageError(
            f"`{path}` is neither a training script nor a file of axolotl (`base_model`),"
            " LLaMA-Factory (`model_name_or_path` and `stage`) or ms-swift (`model` and"
            " `tuner_type`)",
            "pass the script that trains: `zerowiz init train.py`",
            *((of_trl,) if is_of_trl else ()),
            f"for a DeepSpeed config: `zerowiz check {shell.quote(path)}`",
        )
    return file


# Read the file of values that a script takes its arguments from.


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
    is_parsed_as_yaml = not is_whole or is_yaml(named)
    missing = f"there is no file `{named}`, from which {script} reads its arguments"
    text = require_text(Path(named), missing)
    content = (load_yaml if is_parsed_as_yaml else _parse_json)(named, text)
    if not isinstance(content, Mapping):
        raise UsageError(
            f"`{named}` has no named values, but {script} reads its arguments from it",
            "write a line for each: `learning_rate: 1e-5`",
        )
    values = {str(key): value for key, value in content.items()}
    return SettingsFile(path=named, values=values, is_whole=is_whole)


def _parse_json(name: str, text: str) -> object:
    try:
        return parse_json(text)
    except ValueError as error:
        raise UsageError(f"`{name}` is not JSON: {error}") from None
