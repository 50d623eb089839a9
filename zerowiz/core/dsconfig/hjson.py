"""Parse the text of a config, as its reader does, into a tree of values with their places."""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

from zerowiz.errors import UsageError

# Theory. DeepSpeed reads a config with hjson, which takes nearly every JSON text and much more:
# comments, single quotes, text without quotes, a root without braces, no commas. Accelerate and the
# Trainer read it with json. Neither tells where a value stands.
# This module reads what hjson 3.1.0 reads (decoder.py) of the texts that people write. What it
# refuses, and hjson reads: escapes of other digits than hexadecimal ones, a lone scalar, and text
# between ''', which may have several lines.
# A text that json accepts is read by the same code as hjson's: they differ in numbers alone.

T = TypeVar("T")


class Dialect(StrEnum):
    """Which library reads the text."""

    # deepspeed/runtime/config.py, DeepSpeedConfig.__init__ (0.19.8).
    HJSON = "hjson"
    # accelerate/utils/deepspeed.py, HfDeepSpeedConfig.__init__ (1.15.0).
    JSON = "json"


class Span(Struct, frozen=True, kw_only=True):
    """The characters from `start` up to `end`; line and column of the first one count from 1.

    A line ends with LF, CRLF or CR. A byte order mark is part of the text, but of no line.
    """

    start: int
    end: int
    line: int
    column: int


class Scalar(Struct, frozen=True, kw_only=True):
    """A string, a number, true, false or null."""

    place: Span
    value: str | float | bool | None


class Array(Struct, frozen=True, kw_only=True):
    """Values in their order."""

    place: Span
    items: tuple["Node", ...]


class Object(Struct, frozen=True, kw_only=True):
    """Members in their order, those with the same key included."""

    place: Span
    members: tuple["Member", ...]


Node = Scalar | Array | Object


class KeyToken(Struct, frozen=True, kw_only=True):
    """The name of a member; its place includes the quotes."""

    place: Span
    name: str


class Member(Struct, frozen=True, kw_only=True):
    """A key with its value."""

    key: KeyToken
    value: Node


class JsonTextError(UsageError):
    """The text cannot be read.

    Args:
        reason: What is wrong there, in one line without a full stop.
        line: Where, from 1.
        column: Where in that line, from 1, in characters.
    """

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {reason}")
        self.reason = reason
        self.line = line
        self.column = column


# DeepSpeed itself reads some 7 levels (data_efficiency's curriculum_metrics.*.schedule_config).
# hjson and json end with Python's stack, at some hundreds of levels. Up to this one a function may
# recurse over a tree.
DEEPEST_LEVEL = 100

_SHOWN_CHARACTERS = 40
_BYTE_ORDER_MARK = "\ufeff"
LINE_END = re.compile(r"\r\n|\r|\n")
# getNext: four kinds of blank, three kinds of comment. No group is possessive here: Python 3.11.2
# then takes an open comment for a closed one.
_BLANK = re.compile(r"(?:[ \t\r\n]++|(?:#|//)[^\r\n]*+|/\*.*?\*/)*", re.DOTALL)
# scanKeyName.
_KEY = re.compile(r"[^ \t\r\n{}\[\],:]++(?=[ \t\r\n]*+(:?))")
# scantfnns: where a number or a literal may end, and where text without quotes ends.
_TOKEN = re.compile(r"(?:[^\r\n,}\]#/]++|/(?![/*]))*")
_REST_OF_LINE = re.compile(r"[^\r\n]*+")
# Any digits of Unicode, in hjson as here.
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*+)((?:\.\d++)?(?:[eE][-+]?\d++)?)")
# scanstring; what is escaped means the same to json, but for quotes.
_ESCAPED = r"""\\(?:u[0-9a-fA-F]{4}|["'\\/bfnrt])"""
_STRING = {
    '"': re.compile(rf'"(?:[^"\\\x00-\x1f]++|{_ESCAPED})*+'),
    "'": re.compile(rf"'(?:[^'\\\x00-\x1f]++|{_ESCAPED})*+"),
}
_QUOTE = re.compile(r'\\.|"')
_QUOTES_OF_JSON = {"\\'": "'", '"': '\\"'}
_WORDS: dict[str, float | bool | None] = {"null": None, "true": True, "false": False}
_WORDS_OF = {
    Dialect.HJSON: _WORDS,
    # json/decoder.py, _CONSTANTS.
    Dialect.JSON: {
        **_WORDS,
        **{word: float(word) for word in ("NaN", "Infinity", "-Infinity")},
    },
}
# scantfnns: below this, a float that is whole becomes an int.
_WHOLE_BELOW = 1e10
# What people write that json refuses, by what stands where it stops.
_REFUSED_BY_JSON = (
    (re.compile(r"#|//|/\*"), "JSON allows no comments"),
    (re.compile(r"'"), "JSON allows no single quotes"),
    (re.compile(r",[ \t\r\n]*[}\]]"), "JSON allows no comma after the last value"),
    (
        re.compile(r"True|False|None"),
        "JSON has `true`, `false` and `null`, not `True`, `False` and `None`",
    ),
    (re.compile(_BYTE_ORDER_MARK), "JSON allows no byte order mark"),
)


def parse(text: str, dialect: Dialect = Dialect.HJSON) -> Node:
    """Read a whole text.

    Raises:
        JsonTextError: The dialect's own library does not take it, or it is nested too deeply.
    """
    reader = _Reader(text, dialect)
    if dialect is Dialect.JSON:
        reader.refuse_what_json_refuses()
    return reader.document()


def plain(node: Node) -> object:
    """The value that the dialect's own library returns: of equal keys, the last one counts."""
    match node:
        case Scalar():
            return node.value
        case Array():
            return [plain(item) for item in node.items]
        case Object():
            return {member.key.name: plain(member.value) for member in node.members}


def repeated(node: Node) -> Iterator[tuple[Member, Member]]:
    """Every member whose key its object has had before, after the first one with that key.

    DeepSpeed refuses these (runtime/config_utils.py, dict_raise_error_on_duplicate_keys).
    """
    if isinstance(node, Array):
        for item in node.items:
            yield from repeated(item)
    elif isinstance(node, Object):
        first: dict[str, Member] = {}
        for member in node.members:
            earlier = first.setdefault(member.key.name, member)
            if earlier is not member:
                yield earlier, member
            yield from repeated(member.value)


class _Reader:
    """A text and the position up to which it has been read."""

    def __init__(self, text: str, dialect: Dialect) -> None:
        self.text = text
        self.dialect = dialect
        self.at = len(_BYTE_ORDER_MARK) if text.startswith(_BYTE_ORDER_MARK) else 0
        self.lines = [self.at, *(end.end() for end in LINE_END.finditer(text))]
        # Where the brackets are that are open here.
        self.open: list[int] = []
        # The start of the last text without quotes that holds a bracket.
        self.greedy: int | None = None

    def place(self, start: int, end: int) -> Span:
        line = bisect_right(self.lines, start)
        return Span(start=start, end=end, line=line, column=start - self.lines[line - 1] + 1)

    def fault(self, reason: str, at: int) -> JsonTextError:
        """An error to raise for the character at `at`."""
        place = self.place(max(at, self.lines[0]), at)
        return JsonTextError(reason, place.line, place.column)

    def refuse_what_json_refuses(self) -> None:
        """Ask json itself; too many levels and too many digits are found on the way."""
        try:
            json.loads(self.text)
        except json.JSONDecodeError as error:
            # The first cause with a name, at its place: json may stop right behind a comma.
            text, at = self.text, error.pos
            comma = len(text[:at].rstrip(" \t\r\n")) - 1
            for start in (at, comma) if text[comma : comma + 1] == "," else (at,):
                for cause, reason in _REFUSED_BY_JSON:
                    if cause.match(text, start):
                        raise self.fault(reason, start) from None
            raise self.fault(f"syntax error: {error.msg}", at) from None
        except (RecursionError, ValueError):
            return

    def document(self) -> Node:
        """The root: an object with or without braces, an array, or what json takes alone."""
        start, first = self.at, self.next()
        if start and not first:
            raise self.unclosed()
        if first not in ("{", "[") and self.dialect is Dialect.HJSON:
            members = self.until("", self.member)
            return Object(place=self.place(start, self.at), members=members)
        root = self.value()
        if self.next():
            raise self.fault("the config ends before this", self.at)
        return root

    def next(self) -> str:
        """Skip blanks and comments; the character behind them, or nothing at the end."""
        self.at += len(_matched(_BLANK, self.text, self.at))
        if self.text.startswith("/*", self.at):
            raise self.fault("this comment is never closed", self.at)
        return self.text[self.at : self.at + 1]

    def until(self, closing: str, read: Callable[[], T]) -> tuple[T, ...]:
        """What stands up to a closing bracket, which is skipped too."""
        parts = []
        char = self.next()
        while char != closing:
            if not char:
                raise self.unclosed()
            parts.append(read())
            char = self.next()
            if char == ",":
                self.at += 1
                char = self.next()
        self.at += len(closing)
        return tuple(parts)

    def unclosed(self) -> JsonTextError:
        """The text ends inside of something."""
        if not self.open:
            return self.fault("the text ends too early", self.at)
        reason = f"this `{self.text[self.open[-1]]}` is never closed"
        if self.greedy is not None:
            line = self.place(self.greedy, self.greedy).line
            reason += f"; the unquoted text on line {line} runs to the end of that line"
        return self.fault(reason, self.open[-1])

    def member(self) -> Member:
        start = self.at
        if self.text[start] in _STRING:
            name = self.string()
        else:
            word = _KEY.match(self.text, start)
            if word is None:
                raise self.fault(f"`{self.text[start]}` is not a key", start)
            if not word[1]:
                raise self.fault(_no_colon(word[0]), start)
            self.at = word.end()
            # hjson/decoder.py, scanKeyName: with blanks before the colon, rstrip takes more.
            ends_in_blanks = self.text[self.at : self.at + 1] != ":"
            name = word[0].rstrip() if ends_in_blanks else word[0]
        key = KeyToken(place=self.place(start, self.at), name=name)
        if self.next() != ":":
            raise self.fault(_no_colon(name), self.at)
        self.at += 1
        if not self.next():
            raise self.unclosed()
        return Member(key=key, value=self.value())

    def value(self) -> Node:
        start, char = self.at, self.text[self.at]
        if char in "{[":
            return self.inside(char)
        value: str | float | bool | None
        if self.text.startswith("'''", start):
            # No key of DeepSpeed has a text of several lines.
            raise self.fault("zerowiz does not read text between ''': write it in quotes", start)
        if char in _STRING:
            value = self.string()
        elif char in "}],:":
            raise self.fault(f"`{char}` is not a value", start)
        else:
            value = self.unquoted()
        end = start + len(self.text[start : self.at].rstrip())
        return Scalar(place=self.place(start, end), value=value)

    def inside(self, bracket: str) -> Node:
        """The object or array that begins here."""
        start = self.at
        self.open.append(start)
        if len(self.open) > DEEPEST_LEVEL:
            raise self.fault(f"more than {DEEPEST_LEVEL} levels", start)
        self.at += 1
        node: Node
        if bracket == "{":
            members = self.until("}", self.member)
            node = Object(place=self.place(start, self.at), members=members)
        else:
            items = self.until("]", self.value)
            node = Array(place=self.place(start, self.at), items=items)
        self.open.pop()
        return node

    def string(self) -> str:
        """The string between two quotes of a kind that begins here."""
        start, quote = self.at, self.text[self.at]
        body = _matched(_STRING[quote], self.text, start)
        end = start + len(body)
        char, following = self.text[end : end + 1], self.text[end + 1 : end + 2]
        if (following if char == "\\" else char) in ("", "\r", "\n"):
            raise self.fault("this string is not closed on its line", start)
        if char == "\\":
            raise self.fault(f"`\\{_shown(following)}` is not an escape", end)
        if char != quote:
            raise self.fault(f"`{_shown(char)}` in a string must be escaped", end)
        self.at = end + 1
        inside = _QUOTE.sub(lambda part: _QUOTES_OF_JSON.get(part[0], part[0]), body[1:])
        text: str = json.loads(f'"{inside}"')
        return text

    def unquoted(self) -> str | float | bool | None:
        """A number, a literal, or else text without quotes, which takes its whole line."""
        start = self.at
        token = _matched(_TOKEN, self.text, start)
        word = token.rstrip()
        number = _NUMBER.fullmatch(token.rstrip(" \t"))
        self.at += len(token)
        if word in _WORDS_OF[self.dialect]:
            return _WORDS_OF[self.dialect][word]
        if number is not None:
            try:
                return self.number(number)
            except (ValueError, OverflowError):
                raise self.fault(
                    "this number is too large, or has too many digits", start
                ) from None
        line = _matched(_REST_OF_LINE, self.text, start)
        self.at = start + len(line)
        if "}" in line or "]" in line:
            self.greedy = start
        return line.strip()

    def number(self, number: re.Match[str]) -> float:
        if not number[1]:
            return int(number[0])
        value = float(number[0])
        # What json cannot count is infinite, and hjson fails on it.
        is_whole = self.dialect is Dialect.HJSON and int(value) == value
        return int(value) if is_whole and abs(value) < _WHOLE_BELOW else value


def _matched(pattern: re.Pattern[str], text: str, at: int) -> str:
    match = pattern.match(text, at)
    return match[0] if match else ""


def _shown(text: str) -> str:
    """A piece of the text, short and on one line, for a message."""
    return repr(text[:_SHOWN_CHARACTERS])[1:-1]


def _no_colon(name: str) -> str:
    return f"there is no `:` after the key `{_shown(name)}`"
