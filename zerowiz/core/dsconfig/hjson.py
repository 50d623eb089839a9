"""Parse the text of a config, as its reader does, into a tree of values with their places."""

import json
import re
from collections.abc import Callable, Iterator

from msgspec import Struct

from zerowiz.core.dsconfig.hjson_tokens import (
    CrashError,
    Dialect,
    JsonTextError,
    KeyToken,
    Scalar,
    Span,
    TokenReader,
)
from zerowiz.words import _

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
    (re.compile(r"#|//|/\*"), _("JSON allows no comments")),
    (re.compile(r"'"), _("JSON allows no single quotes")),
    (re.compile(r",[ \t\r\n]*[}\]]"), _("JSON allows no comma after the last value")),
    (
        re.compile(r"True|False|None"),
        _("JSON has `true`, `false` and `null`, not `True`, `False` and `None`"),
    ),
    (re.compile("\ufeff"), _("JSON allows no byte order mark")),
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
        return self.fault(_("syntax error: {msg}", msg=error.msg), at)

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
            raise self.fault(_("the config ends before this"), self.at)

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
        found = self.text[self.at : self.at + 1]
        if not found:
            raise self.unclosed(opener)
        return _READ_BY_FIRST.get(found, TokenReader.token)(self)

    def unclosed(self, opener: int) -> JsonTextError:
        found = self.text[opener : opener + 1]
        if found not in ("{", "["):
            return self.fault(_("the text ends too early"), self.at)
        reason = _("this `{found}` is never closed", found=found)
        if self.greedy is not None:
            line = self.place(self.greedy, self.greedy).line
            reason += _(
                "; the unquoted text on line {line} runs to the end of that line", line=line
            )
        return self.fault(reason, opener)

    def deeper(self) -> int:
        """Step into what opens here; where that is."""
        opener = self.at
        self.level += 1
        if self.level > DEEPEST_LEVEL:
            raise self.fault(
                _("more than {deepest_level} levels", deepest_level=DEEPEST_LEVEL),
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
        found = self.blank()
        while found != "}":
            members.append(self.member(opener))
            found = self.comma()
        return Object(place=self.close(opener), members=tuple(members))

    def brackets(self) -> Array:
        opener = self.deeper()
        items: list[Node] = []
        found = self.blank()
        while found != "]":
            items.append(self.value(opener))
            found = self.comma()
        return Array(place=self.close(opener), items=tuple(items))

    def member(self, opener: int) -> Member:
        key = self.key()
        if key is None:
            raise self.no_key(opener)
        self.at += 1
        self.blank()
        return Member(key=key, value=self.value(opener))

    def no_key(self, opener: int) -> JsonTextError:
        found = self.text[self.at : self.at + 1]
        if not found:
            return self.unclosed(opener)
        return self.fault(_("`{found}` is not a key", found=found), self.at)


_READ_BY_FIRST: dict[str, Callable[[_TreeReader], Node]] = {
    '"': _TreeReader.quoted,
    "'": _TreeReader.quoted,
    "{": _TreeReader.braces,
    "[": _TreeReader.brackets,
}
