"""Read an answers file as settings of a job: each key is a long option, each value checked."""

import os
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

from msgspec import Struct

from zerowiz.app.options import Options, choices_of, kinds, lasting, of_one_run, rows
from zerowiz.core.answers_file import Statement, read_statements
from zerowiz.core.settings import SettingRow
from zerowiz.core.synonyms import canonical_choice
from zerowiz.errors import UsageError, did_you_mean
from zerowiz.probe.answers_file import read_answers_text
from zerowiz.words import _, listing

SCRIPT, SCRIPT_ARGS, MODULE = "script", "script-args", "module"
"""The keys that are no settings: which job they are for."""

MAY_BE_PATHS = frozenset({"model", "machine"})
"""The settings whose text may name a file or a folder."""


class AnswersFile(Struct, frozen=True, kw_only=True):
    """What a file says of a job; its paths are as seen from the working folder."""

    name: str
    """Its path, for messages."""
    statements: tuple[Statement, ...]
    script: str | None = None
    """The script that the settings are for; None: for any."""
    script_args: tuple[str, ...] = ()
    is_module: bool = False
    values: Mapping[str, object] = {}
    """The settings, by the names of their fields."""
    lines: Mapping[str, int] = {}
    """Where each of them is said."""

    def place(self, name: str) -> str:
        """Where a setting is said."""
        return _("{name} line {lines}", name=self.name, lines=self.lines[name])


def read_answers_file(path: Path) -> AnswersFile:
    """The settings in a file.

    Raises:
        ZerowizError: It cannot be read.
        UsageError: A key or a value is none that it can have.
    """
    name = os.path.relpath(path)
    statements = read_statements(read_answers_text(path, name), name)
    values: dict[str, object] = {}
    lines: dict[str, int] = {}
    for each in (each for each in statements if each.key is not None):
        try:
            field, value = _read(str(each.key), each.value)
        except UsageError as error:
            where = _(
                "`{name}` line {line}: {message}", name=name, line=each.line, message=error.message
            )
            raise UsageError(where, *error.hints) from None
        values[field], lines[field] = value, each.line
    script, words = values.pop(SCRIPT, None), values.pop(SCRIPT_ARGS, ())
    is_module = values.pop(MODULE, False) is True
    _check_together(values, lines, name)
    here = {field: _from_here(field, value, path.parent) for field, value in values.items()}
    if script is not None and not is_module:
        script = _path_from_here(str(script), path.parent)
    return AnswersFile(
        name=name,
        statements=statements,
        script=None if script is None else str(script),
        script_args=tuple(words) if isinstance(words, list) else (),
        is_module=is_module,
        values=here,
        lines=lines,
    )


def _read(key: str, value: object) -> tuple[str, object]:
    """The field that a key means, and its value."""
    if key == SCRIPT:
        return key, _text(key, value)
    if key == MODULE:
        return key, _typed(key, bool, rows()["module"], value)
    if key == SCRIPT_ARGS:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise UsageError(
                _("`{key}` takes a list of texts, not {kind_of}", key=key, kind_of=_kind_of(value)),
                '`script-args = ["--output_dir", "out"]`',
            )
        return key, value
    name = lasting().get(key)
    if name is None:
        raise _unknown(key, value)
    return name, _typed(key, kinds()[name], rows()[name], value)


def _unknown(key: str, value: object) -> UsageError:
    from difflib import get_close_matches  # noqa: PLC0415 - few keys are wrong

    if isinstance(value, dict):
        return UsageError(
            _("there are no tables, and `{key}` is one", key=key),
            _("write each option in a line of its own: `seq-len = 2048`"),
        )
    if key in of_one_run():
        return UsageError(
            _("`{key}` is for one run, so it cannot stand in a file", key=key),
            _("set it on the command line: `--{key}`", key=key),
        )
    plain = key.lower().replace("_", "-").removeprefix("no-")
    known = [SCRIPT, SCRIPT_ARGS, MODULE, *lasting()]
    near = [each for each in known if plain == each] or get_close_matches(plain, known, n=2)
    return UsageError(
        _("there is no setting `{key}`", key=key),
        *did_you_mean(near),
        _("the keys are the long options of `zerowiz plan`"),
    )


def _typed(key: str, kind: type, row: SettingRow, value: object) -> object:
    """The value that a setting has."""
    choices = choices_of(kind, row)
    if choices:
        return _choice(key, kind, row, choices, value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and is_number and isinstance(value, int):
        return value
    if kind is float and is_number:
        return float(str(value))
    if kind in {bool, int, float}:
        raise UsageError(
            _(
                "`{key}` takes {kinds}, not {kind_of}",
                key=key,
                kinds=_KINDS[kind],
                kind_of=_kind_of(value),
            )
        )
    text = str(value) if is_number and kind is str else _text(key, value)
    return Path(text) if issubclass(kind, Path) else text


def _choice(key: str, kind: type, row: SettingRow, choices: Sequence[str], value: object) -> object:
    said = str(value) if type(value) is int else _text(key, value)
    word = canonical_choice(row.key, said, choices)
    if word not in choices:
        from difflib import get_close_matches  # noqa: PLC0415 - few words are wrong

        near = get_close_matches(word, choices)
        hints = [_('did you mean `{key} = "{each}"`?', key=key, each=each) for each in near]
        listed = _("{choices} or {last}", choices=listing(choices[:-1]), last=choices[-1])
        raise UsageError(
            _("`{key}` is {listed}, not `{said}`", key=key, listed=listed, said=said), *hints
        )
    return kind(word) if issubclass(kind, Enum) else word


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(_("`{key}` takes text, not {kind_of}", key=key, kind_of=_kind_of(value)))
    if not value:
        raise UsageError(_("`{key}` is empty", key=key))
    return value


_KINDS: Mapping[type, str] = {
    bool: _("true or false"),
    int: _("a whole number"),
    float: _("a number"),
    list: _("a list"),
    dict: _("a table"),
}


def _kind_of(value: object) -> str:
    """What a value of TOML is called."""
    if isinstance(value, str):
        return _('text (`"{value}"`)', value=value)
    return _KINDS.get(type(value)) or _("a date")


_NAMED = re.compile(r"\$([a-z_]+)")


def _check_together(values: Mapping[str, object], lines: Mapping[str, int], name: str) -> None:
    """Refuse values that contradict each other, or that no job can have."""
    try:
        Options(**values)  # type: ignore[arg-type]
    except UsageError as error:
        said = [lines[each] for each in _NAMED.findall(error.message) if each in lines]
        where = _(" line {said}", said=said[0]) if said else ""
        raise UsageError(f"`{name}`{where}: {error.message}", *error.hints) from None


def _from_here(name: str, value: object, folder: Path) -> object:
    """A path in the file, which is relative to the file's folder, as seen from here."""
    if isinstance(value, Path):
        return Path(_path_from_here(str(value), folder))
    is_path = name in MAY_BE_PATHS and os.path.exists(os.path.join(folder, str(value)))  # noqa: PTH110, PTH118 - no text makes them raise
    return _path_from_here(str(value), folder) if is_path else value


def _path_from_here(path: str, folder: Path) -> str:
    here = Path.cwd()
    is_near = Path(path).is_absolute() or folder == here
    return path if is_near else os.path.relpath(folder / path, here)
