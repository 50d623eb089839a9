"""The text of an answers file: TOML without tables, kept by statements, so that comments stay."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from zerowiz.errors import UsageError, ZerowizError
from zerowiz.words import _

_PLACE = re.compile(r" \(at line (\d+), column \d+\)$")


class NotTextError(ZerowizError):
    """A value that no TOML can hold, such as a path that is not UTF-8."""


class Statement(Struct, frozen=True, kw_only=True):
    """One `key = value`, or a line without one."""

    text: str
    """All its lines, with the line break at the end."""
    line: int
    """The number of the first, from 1."""
    key: str | None = None
    """None for a comment or a blank line."""
    value: object = None


def read_statements(text: str, name: str) -> tuple[Statement, ...]:
    r"""The statements of a file, in its order.

    Args:
        text: Its content.
        name: What errors call it.

    Raises:
        UsageError: It is not TOML.

    Example:
        >>> [(each.key, each.value) for each in read_statements("# mine\nnodes = 2\n", "a.toml")]
        [(None, None), ('nodes', 2)]
    """
    try:
        tomllib.loads(text)
    except RecursionError:
        raise UsageError(
            _("`{name}` is not an answers file: it has too many levels", name=name)
        ) from None
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        where = _(" line {place}", place=place[1]) if place else ""
        what = _PLACE.sub("", str(error))
        raise UsageError(
            _(
                "`{name}`{where} is not TOML: {what}",
                name=name,
                where=where,
                what=what[:1].lower() + what[1:],
            ),
            _("write each option in a line of its own: `seq-len = 2048`"),
        ) from None
    return tuple(_split(text))


def _split(text: str) -> Iterator[Statement]:
    """A statement ends with the line after which what was read so far is TOML."""
    lines = text.split("\n")
    begun, start = "", 1
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not line and not begun:
            return
        begun += f"{line}\n"
        try:
            table = tomllib.loads(begun)
        except tomllib.TOMLDecodeError:
            continue
        key = next(iter(table), None)
        yield Statement(text=begun, line=start, key=key, value=table.get(key) if key else None)
        begun, start = "", number + 1


def rewrite(statements: Sequence[Statement], wanted: Mapping[str, object]) -> str:
    r"""The text with these values: what is right stays as it is written, comments stay in any case.

    Args:
        statements: Of the file as it is.
        wanted: Every value by its key: text, a whole number, a number, a truth, or a list of texts.

    Raises:
        NotTextError: TOML cannot hold a value.

    Example:
        >>> found = read_statements("# mine\nnodes = 2  # all\ngpus = '0'\n", "a.toml")
        >>> rewrite(found, {"nodes": 4, "model": "7b"})
        '# mine\nnodes = 4  # all\nmodel = "7b"\n'
    """
    left = dict(wanted)
    text = ""
    for statement in statements:
        if statement.key is None:
            text += statement.text
        elif statement.key in left:
            value = left.pop(statement.key)
            same = type(value) is type(statement.value) and value == statement.value
            text += (
                statement.text
                if same
                else f"{_render(statement.key, value)}{_comment(statement)}\n"
            )
    return text + "".join(f"{_render(key, value)}\n" for key, value in left.items())


def _comment(statement: Statement) -> str:
    """What stands behind the value."""
    line = statement.text.rstrip("\r\n")
    for place in (match.start() for match in re.finditer(r"\s*#", line)):
        try:
            before = tomllib.loads(line[:place])
        except tomllib.TOMLDecodeError:
            continue
        if before:
            return line[place:]
    return ""


def _render(key: str, value: object) -> str:
    return f"{key} = {_value(value)}"


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            return _quote(str(value))


def _quote(text: str) -> str:
    """A basic string; toml.io/en/v1.0.0, String: quotes, backslashes and controls are escaped."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        shown = text.encode("ascii", "backslashreplace").decode()
        raise NotTextError(f"`{shown}` is not UTF-8, so it cannot be written as TOML")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    controls = re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\u{ord(match[0]):04x}", escaped)
    return f'"{controls}"'
