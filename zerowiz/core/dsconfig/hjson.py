"""Parse the text of a config, as its reader does, into a tree of values with their places."""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from enum import StrEnum

from msgspec import Struct

from zerowiz.errors import UsageError

# Read the tokens of a config's text, as its reader does: strings, numbers, words and keys.

# Theory. DeepSpeed reads a config with hjson, which takes nearly every JSON text and much more:
# comments, single quotes, ''' blocks, text without quotes, a root without braces, no commas.
# Accelerate and the Trainer read it with json. Neither tells where a value stands.
# This module reads what hjson 3.1.0 reads (decoder.py), with hjson's peculiarities, because a check
# has to report what DeepSpeed will see.


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
    quote: str
    """What encloses a string: `"`, `'`, `'''`; empty for text without quotes and all else."""


class KeyToken(Struct, frozen=True, kw_only=True):
    """The name of a member."""

    place: Span
    name: str
    quote: str


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


class CrashError(JsonTextError):
    """hjson fails here with an error that is not its own, and tries nothing else."""


_SHOWN_CHARACTERS = 40

_LINE_END = re.compile(r"\r\n|\r|\n")
_REST_OF_LINE = re.compile(r"[^\r\n]*+")
# getNext: four kinds of blank, three kinds of comment. No group is possessive here: Python 3.11.2
# then takes an open comment for a closed one.
_BLANK = re.compile(r"(?:[ \t\r\n]++|(?:#|//)[^\r\n]*+|/\*.*?\*/)*", re.DOTALL)
_BLANK_BEGINS = " \t\r\n#/"
_BLOCK_INDENT = " \t\r"
# scanKeyName.
_KEY = re.compile(r"([^ \t\r\n{}\[\],:]++)([ \t\r\n]*+)(:?)")
# scantfnns: where a number or a literal may end, and where text without quotes ends.
_TOKEN = re.compile(r"(?:[^\r\n,}\]#/]++|/(?![/*]))*")
# Any digits of Unicode, in hjson as here.
_NUMBER = re.compile(r"(-?(?:0|[1-9]\d*+))(\.\d++)?([eE][-+]?\d++)?")
_PUNCTUATION = "{}[],:"
# scanstring.
_UNESCAPED = {'"': re.compile(r'[^"\\\x00-\x1f]*+'), "'": re.compile(r"[^'\\\x00-\x1f]*+")}
_ESCAPES = dict(zip("\"'\\/bfnrt", "\"'\\/\b\f\n\r\t", strict=True))
_CODE_UNIT = re.compile(r".[^xX]..", re.DOTALL)
# Unicode 16.0, section 23.6: the halves of a pair.
_HIGH = range(0xD800, 0xDC00)
_LOW = range(0xDC00, 0xE000)
_BLOCK = "'''"
# raw_decode: UTF-8's mark as it is, and as it looks when it was read as Latin-1.
_BYTE_ORDER_MARKS = ("\ufeff", "\xef\xbb\xbf")

_WORDS: dict[str, float | bool | None] = {"null": None, "true": True, "false": False}
_WORDS_OF: dict[Dialect, dict[str, float | bool | None]] = {
    Dialect.HJSON: _WORDS,
    # json/decoder.py, _CONSTANTS.
    Dialect.JSON: _WORDS
    | {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")},
}

# scantfnns: below this, a float that is whole becomes an int.
_WHOLE_BELOW = 1e10


def _hjson_number(integer: str, rest: str) -> float:
    if not rest:
        return int(integer)
    number = float(integer + rest)
    whole = int(number)
    return whole if whole == number and abs(number) < _WHOLE_BELOW else number


def _json_number(integer: str, rest: str) -> float:
    return float(integer + rest) if rest else int(integer)


_NUMBER_OF = {Dialect.HJSON: _hjson_number, Dialect.JSON: _json_number}


def _shown(text: str) -> str:
    """A piece of the text, short and on one line, for a message."""
    return repr(text[:_SHOWN_CHARACTERS])[1:-1]


class TokenReader:
    """A text and the position up to which it has been read.

    Args:
        text: The whole text of a config.
        dialect: Which library's numbers and words are read.
    """

    __slots__ = ("at", "greedy", "lines", "number", "text", "words")

    def __init__(self, text: str, dialect: Dialect) -> None:
        self.text = text
        self.words = _WORDS_OF[dialect]
        self.number = _NUMBER_OF[dialect]
        # The start of the last text without quotes that holds a bracket.
        self.greedy: int | None = None
        self.at = next((len(m) for m in _BYTE_ORDER_MARKS if text.startswith(m)), 0)
        self.lines = [self.at, *(end.end() for end in _LINE_END.finditer(text))]

    def place(self, start: int, end: int) -> Span:
        """The place of these characters."""
        line = bisect_right(self.lines, start)
        return Span(start=start, end=end, line=line, column=start - self.lines[line - 1] + 1)

    def fault(
        self, reason: str, at: int, error: type[JsonTextError] = JsonTextError
    ) -> JsonTextError:
        """An error to raise for the character at `at`."""
        place = self.place(max(at, self.lines[0]), at)
        return error(reason, place.line, place.column)

    def blank(self) -> str:
        """Skip blanks and comments; the character behind them, or nothing at the end."""
        text = self.text
        char = text[self.at : self.at + 1]
        if char not in _BLANK_BEGINS:
            return char
        self.at += len(_matched(_BLANK, text, self.at))
        char = text[self.at : self.at + 1]
        if char == "/" and text.startswith("/*", self.at):
            raise self.fault("this comment is never closed", self.at, CrashError)
        return char

    def comma(self) -> str:
        """Skip what may stand between two values, as `blank` does."""
        char = self.blank()
        if char == ",":
            self.at += 1
            char = self.blank()
        return char

    def key(self) -> KeyToken | None:
        """The key that begins here, up to its `:`; None where none begins."""
        is_quoted = self.text[self.at : self.at + 1] in _UNESCAPED
        return self._quoted_key() if is_quoted else self._bare_key()

    def _quoted_key(self) -> KeyToken:
        start = self.at
        name = self._string()
        key = KeyToken(place=self.place(start, self.at), name=name, quote=self.text[start])
        if self.blank() != ":":
            raise self.fault(f"there is no `:` after the key `{_shown(name)}`", self.at)
        return key

    def _bare_key(self) -> KeyToken | None:
        start = self.at
        match = _KEY.match(self.text, start)
        if match is None:
            return None
        word, gap, colon = match.groups()
        if not colon:
            raise self.fault(f"there is no `:` after the key `{_shown(word)}`", start)
        self.at = match.end() - 1
        name = word.rstrip() if gap else word
        return KeyToken(place=self.place(start, start + len(name)), name=name, quote="")

    def quoted(self) -> Scalar:
        """The string that begins here with a quote."""
        start = self.at
        if self.text.startswith(_BLOCK, start):
            return self._block()
        value = self._string()
        return Scalar(place=self.place(start, self.at), value=value, quote=self.text[start])

    def _string(self) -> str:
        """A string between two quotes of a kind."""
        text, start = self.text, self.at
        quote = text[start]
        unescaped = _UNESCAPED[quote]
        parts: list[str] = []
        end = start + 1
        while True:
            parts.append(_matched(unescaped, text, end))
            end += len(parts[-1])
            if text[end : end + 1] != "\\":
                break
            part, end = self._escape(end)
            parts.append(part)
        char = text[end : end + 1]
        if char in ("", "\r", "\n"):
            raise self.fault("this string is not closed on its line", start)
        if char != quote:
            raise self.fault(f"`{_shown(char)}` in a string must be escaped", end)
        self.at = end + 1
        return "".join(parts)

    def _escape(self, at: int) -> tuple[str, int]:
        """What the escape here stands for, and where it ends."""
        letter = self.text[at + 1 : at + 2]
        if letter != "u":
            if letter not in _ESCAPES:
                raise self.fault(f"`\\{_shown(letter)}` is not an escape", at)
            return _ESCAPES[letter], at + 2
        high = self._code_unit(at)
        if high in _HIGH and self.text.startswith("\\u", at + 6):
            low = self._code_unit(at + 6)
            if low in _LOW:
                return chr(0x10000 + ((high - _HIGH.start) << 10) + low - _LOW.start), at + 12
        return chr(high), at + 6

    def _code_unit(self, at: int) -> int:
        """The number in an escape; hjson takes every four characters that `int` takes."""
        sequence = "\\" + _shown(self.text[at + 1 : at + 6])
        try:
            unit = int(_matched(_CODE_UNIT, self.text, at + 2), 16)
        except ValueError:
            raise self.fault(f"`{sequence}` is not an escape", at) from None
        if unit < 0:
            raise self.fault(f"`{sequence}` is not an escape", at, CrashError)
        return unit

    def _block(self) -> Scalar:
        """A string between ''', less the indent of its first quote."""
        text, start = self.text, self.at
        indent = self._block_indent()
        body = start + len(_BLOCK)
        while text[body : body + 1] in (" ", "\t", "\r"):
            body += 1
        if body == len(text):
            raise self.fault("this ''' is never closed", start, CrashError)
        end = text.find(_BLOCK, body)
        if end < 0:
            raise self.fault("this ''' is never closed", start)
        first, *others = text[body:end].split("\n")
        lines = [line[:indent].lstrip(_BLOCK_INDENT) + line[indent:] for line in others]
        value = "\n".join(lines if others and not first else [first, *lines]).replace("\r", "")
        self.at = end + len(_BLOCK)
        return Scalar(
            place=self.place(start, self.at), value=value.removesuffix("\n"), quote=_BLOCK
        )

    def _block_indent(self) -> int:
        """The column of a ''', from 0; on the first line hjson counts on from the last LF."""
        before = self.text.rfind("\n", 0, self.at)
        if before >= 0:
            return self.at - 1 - before
        last = self.text.rfind("\n")
        if last < 0:
            raise self.fault(
                "hjson fails on a ''' in a text without a line break", self.at, CrashError
            )
        return self.at - 1 - last + len(self.text)

    def token(self) -> Scalar:
        """A number, a literal, or else text without quotes, which takes its whole line."""
        text, start = self.text, self.at
        if text[start] in _PUNCTUATION:
            raise self.fault(f"`{text[start]}` is not a value", start)
        token = _matched(_TOKEN, text, start)
        word = token.rstrip()
        if word in self.words:
            self.at = start + len(token)
            return self._unquoted(start, word, self.words[word])
        digits = token.rstrip(" \t")
        if number := _NUMBER.fullmatch(digits):
            value = self._count(number)
            self.at = start + len(token)
            return self._unquoted(start, digits, value)
        line = _matched(_REST_OF_LINE, text, start)
        self.at = start + len(line)
        bare = line.strip()
        if "}" in bare or "]" in bare:
            self.greedy = start
        return self._unquoted(start + len(line) - len(line.lstrip()), bare, bare)

    def _unquoted(self, start: int, token: str, value: str | float | bool | None) -> Scalar:
        return Scalar(place=self.place(start, start + len(token)), value=value, quote="")

    def _count(self, number: re.Match[str]) -> float:
        integer, fraction, exponent = number.groups("")
        try:
            return self.number(integer, fraction + exponent)
        except OverflowError:
            raise self.fault(f"`{_shown(number[0])}` is too large", self.at, CrashError) from None
        except ValueError:
            raise self.fault("this number has too many digits", self.at, CrashError) from None


def _matched(pattern: re.Pattern[str], text: str, at: int) -> str:
    match = pattern.match(text, at)
    return match[0] if match else ""


# Theory. The JSON dialect accepts what json itself accepts. Such a text is then read by the same
# code as hjson's, because the two differ only in its numbers.


class Array(Struct, frozen=True, kw_only=True):
    """Values in their order."""

    place: Span
    items: tuple["Node", ...]


class Object(Struct, frozen=True, kw_only=True):
    """Members in their order, those with the same key included."""

    place: Span
    members: tuple["Member", ...]


Node = Scalar | Array | Object


class Member(Struct, frozen=True, kw_only=True):
    """A key with its value."""

    key: KeyToken
    value: Node


def parse(text: str, dialect: Dialect = Dialect.HJSON) -> Node:
    """Read a whole text.

    Raises:
        JsonTextError: The dialect's own library does not take it, or it is nested too deeply.
    """
    reader = _TreeReader(text, dialect)
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


# DeepSpeed itself reads some 7 levels (data_efficiency's curriculum_metrics.*.schedule_config).
# hjson and json end with Python's stack, at some hundreds of levels. Up to this one a function may
# recurse over a tree.
DEEPEST_LEVEL = 100

# What people write that json refuses, by what stands where it stops.
_REFUSED_BY_JSON = (
    (re.compile(r"#|//|/\*"), "JSON allows no comments"),
    (re.compile(r"'"), "JSON allows no single quotes"),
    (re.compile(r",[ \t\r\n]*[}\]]"), "JSON allows no comma after the last value"),
    (
        re.compile(r"True|False|None"),
        "JSON has `true`, `false` and `null`, not `True`, `False` and `None`",
    ),
    (re.compile("\ufeff"), "JSON allows no byte order mark"),
)


class _TreeReader(TokenReader):
    """Builds the tree of one text."""

    __slots__ = ("level",)

    def __init__(self, text: str, dialect: Dialect) -> None:
        super().__init__(text, dialect)
        self.level = 0

    def refuse_what_json_refuses(self) -> None:
        """Ask json itself.

        Too many levels and too many digits are left to be found on the way.

        Raises:
            JsonTextError: json does not take the text.
        """
        try:
            json.loads(self.text)
        except json.JSONDecodeError as error:
            raise self.json_fault(error) from None
        except (RecursionError, ValueError):
            return

    def json_fault(self, error: json.JSONDecodeError) -> JsonTextError:
        """The first cause with a name, at its place: json may stop right behind a comma."""
        text, at = self.text, error.pos
        comma = len(text[:at].rstrip(" \t\r\n")) - 1
        for start in (at, comma) if text[comma : comma + 1] == "," else (at,):
            for cause, reason in _REFUSED_BY_JSON:
                if cause.match(text, start):
                    return self.fault(reason, start)
        return self.fault(f"syntax error: {error.msg}", at)

    def document(self) -> Node:
        """The root: an object with or without braces, an array, or one lone scalar."""
        start = self.at
        first = self.blank()
        if not first and not start:
            return Object(place=self.place(0, 0), members=())
        if first in ("{", "["):
            root = self.value(self.at)
            self.end()
            return root
        return self.root_without_braces()

    def end(self) -> None:
        if self.blank():
            raise self.fault("the config ends before this", self.at)

    def root_without_braces(self) -> Node:
        start = self.at
        try:
            return self.bare_object(start)
        except CrashError:
            raise
        except JsonTextError:
            root = self.lone_scalar(start)
            if root is None:
                raise
            return root

    def bare_object(self, start: int) -> Object:
        members = [self.member(start)]
        while self.comma():
            members.append(self.member(start))
        end = members[-1].value.place.end
        return Object(place=self.place(start, end), members=tuple(members))

    def lone_scalar(self, start: int) -> Node | None:
        self.at = start
        try:
            root = self.value(start)
            self.end()
        except JsonTextError:
            return None
        return root

    def value(self, opener: int) -> Node:
        """The value that begins here, in what began at `opener`."""
        char = self.text[self.at : self.at + 1]
        if not char:
            raise self.unclosed(opener)
        return _READ_BY_FIRST.get(char, TokenReader.token)(self)

    def unclosed(self, opener: int) -> JsonTextError:
        bracket = self.text[opener : opener + 1]
        if bracket not in ("{", "["):
            return self.fault("the text ends too early", self.at)
        reason = f"this `{bracket}` is never closed"
        if self.greedy is not None:
            line = self.place(self.greedy, self.greedy).line
            reason += f"; the unquoted text on line {line} runs to the end of that line"
        return self.fault(reason, opener)

    def deeper(self) -> int:
        """Step into what opens here; where that is."""
        opener = self.at
        self.level += 1
        if self.level > DEEPEST_LEVEL:
            raise self.fault(
                f"more than {DEEPEST_LEVEL} levels",
                opener,
                CrashError,
            )
        self.at += 1
        return opener

    def close(self, opener: int) -> Span:
        self.at += 1
        self.level -= 1
        return self.place(opener, self.at)

    def braces(self) -> Object:
        opener = self.deeper()
        members: list[Member] = []
        char = self.blank()
        while char != "}":
            members.append(self.member(opener))
            char = self.comma()
        return Object(place=self.close(opener), members=tuple(members))

    def brackets(self) -> Array:
        opener = self.deeper()
        items: list[Node] = []
        char = self.blank()
        while char != "]":
            items.append(self.value(opener))
            char = self.comma()
        return Array(place=self.close(opener), items=tuple(items))

    def member(self, opener: int) -> Member:
        key = self.key()
        if key is None:
            raise self.no_key(opener)
        self.at += 1
        self.blank()
        return Member(key=key, value=self.value(opener))

    def no_key(self, opener: int) -> JsonTextError:
        char = self.text[self.at : self.at + 1]
        if not char:
            return self.unclosed(opener)
        return self.fault(f"`{char}` is not a key", self.at)


_READ_BY_FIRST: dict[str, Callable[[_TreeReader], Node]] = {
    '"': _TreeReader.quoted,
    "'": _TreeReader.quoted,
    "{": _TreeReader.braces,
    "[": _TreeReader.brackets,
}
