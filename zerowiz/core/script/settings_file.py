"""Understand a file of values that a script takes its arguments from, and write a copy of it."""

import json
import posixpath
from collections.abc import Callable, Mapping

import msgspec.yaml
from msgspec import Struct

from zerowiz.core.script.arguments import (
    BY_ARCHITECTURE,
    Given,
    Option,
    Reads,
    Scalar,
    ScriptParser,
    read_word,
)

YAML_SUFFIXES = (".yaml", ".yml")


class SettingsFile(Struct, frozen=True, kw_only=True):
    """A file of values by the names of arguments, as a person hands it to a script."""

    path: str
    """As the person wrote it."""
    values: Mapping[str, object]
    is_whole: bool
    """Whether it holds all arguments (HfArgumentParser), or defaults for the words (TrlParser)."""


class SettingsCopy(Struct, frozen=True, kw_only=True):
    """A settings file with what was settled, to be handed over instead of the person's own."""

    path: str
    of: str
    """The person's own."""
    values: Mapping[str, object]


def read_values(parser: ScriptParser, file: SettingsFile) -> dict[str, Given]:
    """The options that a settings file gives a value, by their `dest`."""
    return {
        option.dest: _given(option, key, file)
        for key in file.values
        for option in _options(parser, key)
    }


def _options(parser: ScriptParser, key: str) -> tuple[Option, ...]:
    """The option that a key names, also by another name of its field."""
    return tuple(o for o in parser.options if f"--{key}" in o.flags)[:1] or parser.of(key)[:1]


def _given(option: Option, key: str, file: SettingsFile) -> Given:
    written = file.values[key]
    # A dataclass takes a value as it is; argparse reads the text of a default as it reads a word.
    is_word = isinstance(written, str) and not file.is_whole and option.reads is not Reads.WORDS
    value = read_word(option.reads, str(written)) if is_word else _READERS[option.reads](written)
    expected = _EXPECTED.get(option.reads)
    fault = None
    if value is None and written is not None and expected is not None:
        shown = json.dumps(written, default=str, ensure_ascii=False)
        fault = f"`{key}` in {file.path} is {shown}, and not {expected}"
    return Given(
        written=(key,),
        value=value,
        where=f"in {file.path}",
        fault=fault,
        is_null=written is None,
        in_file=True,
    )


def _number(value: object) -> Scalar:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _truth(value: object) -> Scalar:
    return value if isinstance(value, bool) else None


def _text(value: object) -> Scalar:
    """A text, or a switch in its place, such as `"fsdp": true`."""
    return value if isinstance(value, str | bool) else None


def _names(value: object) -> Scalar:
    """A list of names, as one text with commas; none leaves the choice to peft."""
    if value is None:
        return BY_ARCHITECTURE
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return ",".join(value)
    return _text(value)


_READERS: Mapping[Reads, Callable[[object], Scalar]] = {
    Reads.INT: lambda value: None if isinstance(value, float) else _number(value),
    Reads.FLOAT: _number,
    Reads.STR: _text,
    Reads.TRUTH: _truth,
    Reads.WORDS: _names,
    Reads.NONEMPTY: _truth,
    Reads.UNSEEN: lambda _: None,
}
# What a value has to be; fields of text have values of other types too, such as dicts.
_EXPECTED: Mapping[Reads, str] = {
    Reads.INT: "a whole number",
    Reads.FLOAT: "a number",
    Reads.TRUTH: "true or false",
    Reads.WORDS: "a list of names",
}


def copy_values(
    parser: ScriptParser, file: SettingsFile, given: Mapping[str, Given]
) -> dict[str, object]:
    """The values of a settings file, with those of words instead or beside them.

    Args:
        parser: Of the script.
        file: The person's own.
        given: What the words give, by `dest`; values that are not known are left out.
    """
    values = dict(file.values)
    for dest, word in given.items():
        if word.value is None:
            continue
        names = (key for key in file.values if any(o.dest == dest for o in _options(parser, key)))
        several = any(option.reads is Reads.WORDS for option in parser.of(dest))
        value = str(word.value).split(",") if several else word.value
        values[next(names, dest)] = value
    return values


def render_values(path: str, values: Mapping[str, object]) -> str:
    """The text of a settings file: YAML where its name says so, else JSON."""
    if path.endswith(YAML_SUFFIXES):
        return msgspec.yaml.encode(values).decode()
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def copy_path(folder: str, path: str, config_path: str) -> str:
    """Where the copy of a settings file for a run with this config lies.

    Its name holds both paths, so that jobs in one folder do not take each other's copies.

    Args:
        folder: Where zerowiz writes.
        path: The person's own file.
        config_path: The config.

    Example:
        >>> copy_path("", "runs/args.json", "ds_config_zero2.json")
        'runs-args.ds_config_zero2.json'
    """
    parts = posixpath.normpath(path).split("/")
    stem, suffix = posixpath.splitext("-".join(part for part in parts if part not in {"", ".."}))
    config = posixpath.splitext(posixpath.basename(config_path))[0]
    return posixpath.join(folder, f"{stem}.{config}{suffix}")
