"""Held against hjson itself, which is what DeepSpeed reads its config with, and against json."""

import json
import re
from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zerowiz.core.dsconfig.hjson import (
    DEEPEST_LEVEL,
    Array,
    Dialect,
    JsonTextError,
    KeyToken,
    Node,
    Object,
    Scalar,
    Span,
    parse,
    plain,
    repeated,
)

hjson = pytest.importorskip("hjson")

# What hjson raises: its own error, and what comes of its oddities.
GIVES_UP = (ValueError, IndexError, OverflowError, RecursionError)


def as_loaded(load: Callable[[str], object], text: str) -> str | None:
    """The value with its types and the order of its keys; None where the text is refused."""
    try:
        return repr(load(text))
    except GIVES_UP:
        return None


def by_hjson(text: str) -> str | None:
    return as_loaded(lambda t: hjson.loads(t, object_pairs_hook=dict), text)


def by_json(text: str) -> str | None:
    return as_loaded(json.loads, text)


READERS = {Dialect.HJSON: by_hjson, Dialect.JSON: by_json}


def as_parsed(text: str, dialect: Dialect = Dialect.HJSON) -> str | None:
    try:
        return repr(plain(parse(text, dialect)))
    except JsonTextError:
        return None


def fault(text: str, dialect: Dialect = Dialect.HJSON) -> tuple[int, int, str]:
    with pytest.raises(JsonTextError) as caught:
        parse(text, dialect)
    return caught.value.line, caught.value.column, caught.value.reason


def placed(node: Node) -> Iterator[KeyToken | Node]:
    """Every key and every value of a tree."""
    yield node
    if isinstance(node, Array):
        for item in node.items:
            yield from placed(item)
    elif isinstance(node, Object):
        for member in node.members:
            yield member.key
            yield from placed(member.value)


# What each rule of Hjson makes of a text.
READ: dict[str, tuple[str, object]] = {
    "an empty text": ("", {}),
    "nothing but blanks and comments": (" \t\r\n# a\n// b\n/* c\n*/", {}),
    "an empty object": ("{}", {}),
    "an empty array": ("[ ]", []),
    "a root without braces": ('a: 1\n"b": {c: 2}', {"a": 1, "b": {"c": 2}}),
    "a byte order mark": ('\ufeff{"a": 1}', {"a": 1}),
    "CRLF": ("{\r\n  a: b\r\n  c: 1\r\n}\r\n", {"a": "b", "c": 1}),
    "CR alone": ("{\r  a: b\r  c: 1 // d\r}\r", {"a": "b", "c": 1}),
    "tabs": ('{\t"a"\t:\t1\t,\t"b"\t:\t2\t}', {"a": 1, "b": 2}),
    "comments around keys": ("{/**/'a'/**/\n://\n1#\n//\n'b' # c\n: 2}", {"a": 1, "b": 2}),
    "comments around values": (
        "{a:/*:*/1/*}*/,//\nb: [#\n2// x\n, 3 /* y */]}#",
        {"a": 1, "b": [2, 3]},
    ),
    "no comment in a key": ("{a/**/\n: 1}", {"a/**/": 1}),
    "no commas": ("{a: {}'b': ['x' 'y'{}[]]c: 'z'}", {"a": {}, "b": ["x", "y", {}, []], "c": "z"}),
    "no commas, a value to a line": ("{a: 1\nb: [1\n2\n[3]{}]}", {"a": 1, "b": [1, 2, [3], {}]}),
    "commas at the end": ("{a: [1, 2,], b: 3,}", {"a": [1, 2], "b": 3}),
    "quoteless keys of any letters": ("{a.b/c-d#e'\": 1}", {"a.b/c-d#e'\"": 1}),
    "a key before its colon's line": ("{a \n : 1}", {"a": 1}),
    "an empty key": ('{"": 1}', {"": 1}),
    "equal keys": ('{"a": 1, "b": 2, "a": 3}', {"a": 3, "b": 2}),
    "single quotes": ("{'a': 'it\"s'}", {"a": 'it"s'}),
    "every escape": (r'["\"\'\\\/\b\f\n\r\t\u0041"]', ["\"'\\/\b\f\n\r\tA"]),
    "a pair of surrogates": (r'["\ud83d\ude00"]', ["\U0001f600"]),
    "lone surrogates": (r'["\ud83dA", "\ude00\ud83d"]', ["\ud83dA", "\ude00\ud83d"]),
    "half a pair before another escape": (r'["\ud83d\u0041"]', ["\ud83dA"]),
    "DEL and C1 in a string": ('["\x7f\x85"]', ["\x7f\x85"]),
    "text without quotes": ("{a: b, c # d\n}", {"a": "b, c # d"}),
    "text that begins like a number": (
        "{a: 1 + 2\nb: 013\nc: 0x14\nd: -\n}",
        {"a": "1 + 2", "b": "013", "c": "0x14", "d": "-"},
    ),
    "text that begins like a literal": (
        "{a: truth\nb: True,\nc: nul\nd: null x\n}",
        {"a": "truth", "b": "True,", "c": "nul", "d": "null x"},
    ),
    "text with a slash": ("{a: /local_nvme\n}", {"a": "/local_nvme"}),
    "text between odd blanks": ("[\xa0a\u2028\n]", ["a"]),
    "a literal before an odd blank": ("[true\xa0\n]", [True]),
    "a literal behind an odd blank": ("[\xa0true\n]", ["true"]),
    "numbers": ("[0, -0, -1, 1.5, 2E3, 1e-3]", [0, 0, -1, 1.5, 2000, 0.001]),
    "whole floats": ("[5e8, 9999999999.0, 1e10, -0.0]", [500000000, 9999999999, 1e10, 0]),
    "a float too small for a float": ("[1e-999]", [0]),
    "a long integer": ("[" + "9" * 400 + "]", [int("9" * 400)]),
    "digits of another script": ("[1\u0663]", [13]),
    "no constants": ("[NaN\nInfinity\n-Infinity\n]", ["NaN", "Infinity", "-Infinity"]),
    "a constant takes the comma": ('{"a": NaN,\n"b": 1}', {"a": "NaN,", "b": 1}),
}


NEVER = "is never closed"
GREEDY = "; the unquoted text on line 1 runs to the end of that line"
# Texts that hjson refuses: line and column of the cause, and what is said.
REFUSED: dict[str, tuple[str, tuple[int, int, str]]] = {
    "an open object": ('{"a": {\n"b": 1', (1, 7, f"this `{{` {NEVER}")),
    "an open array": ("\n [1, ", (2, 2, f"this `[` {NEVER}")),
    "an open object with a value to come": ('{"a":', (1, 1, f"this `{{` {NEVER}")),
    "a Python word on one line": ('{"a": True}', (1, 1, f"this `{{` {NEVER}{GREEDY}")),
    "NaN on one line": ('{"a": [NaN]}', (1, 7, f"this `[` {NEVER}{GREEDY}")),
    "a root that ends too early": ("a: 1\nb:", (2, 3, "the text ends too early")),
    "a mark and nothing else": ("\ufeff", (1, 1, "the text ends too early")),
    "a second root": ("{}\n{}", (2, 1, "the config ends before this")),
    "a bracket too many": ("[1]]", (1, 4, "the config ends before this")),
    "two commas": ("[1,,2]", (1, 4, "`,` is not a value")),
    "a comma first": ("{,}", (1, 2, "`,` is not a key")),
    "a value that is missing": ('{"a": }', (1, 7, "`}` is not a value")),
    "the wrong bracket": ("{a: 1 ]", (1, 7, "`]` is not a key")),
    "a colon without a key": ("{: 1}", (1, 2, "`:` is not a key")),
    "a key without a colon": ('{"a" 1}', (1, 6, "there is no `:` after the key `a`")),
    "a bare key without a colon": (
        "{\n a b: 1}",
        (2, 2, "there is no `:` after the key `a`"),
    ),
    "an open string": ('{"a": "b,\n"c": 1}', (1, 7, "this string is not closed on its line")),
    "an open key": ('{"a: 1}', (1, 2, "this string is not closed on its line")),
    "a tab in a string": ('["a\tb"]', (1, 4, "`\\t` in a string must be escaped")),
    "an escape that is none": (r'["a\x15"]', (1, 4, r"`\x` is not an escape")),
    "a long key without a colon": (
        "{" + "k" * 90,
        (1, 2, f"there is no `:` after the key `{'k' * 40}`"),
    ),
    # Here hjson fails with a ValueError, IndexError or OverflowError.
    "an escape of no digits": (r'["\uzzzz"]', (1, 3, r"`\u` is not an escape")),
    "an open comment": ("a: 1 /* b", (1, 6, f"this comment {NEVER}")),
    "a comment that a slash does not close": ("{}/*/", (1, 3, f"this comment {NEVER}")),
    "a number out of range": (
        "a: -1e999",
        (1, 4, "this number is too large, or has too many digits"),
    ),
    "too many digits": (
        "a: " + "9" * 5000,
        (1, 4, "this number is too large, or has too many digits"),
    ),
}


def test_text_of_several_lines_is_refused_with_its_place() -> None:
    reason = "zerowiz does not read text between ''': write it in quotes"
    assert (2, 6, reason) == fault("{\n  a: '''b'''\n}")
    with pytest.raises(JsonTextError) as caught:
        parse("{\n  ]")
    assert caught.value.message == "line 2, column 3: `]` is not a key"


@pytest.mark.parametrize("text", pytest.importorskip("hjson.tests.test_fail").JSONDOCS)
def test_what_hjsons_own_tests_refuse_is_refused(text: str) -> None:
    assert as_parsed(text) is None


@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_hjsons_own_tests_read_is_read(number: int) -> None:
    text = pytest.importorskip(f"hjson.tests.test_pass{number}").JSON
    assert as_parsed(text) is not None
    assert by_hjson(text) == as_parsed(text)


# What json reads in its own way: numbers, and words that hjson takes for text.
READ_AS_JSON = {
    "floats stay floats": ("[1.0, 5e8, -0.0, -0]", "[1.0, 500000000.0, -0.0, 0]"),
    "constants": ('{"a": NaN, "b": [Infinity, -Infinity]}', "{'a': nan, 'b': [inf, -inf]}"),
    "a number out of range": ("[1e999]", "[inf]"),
    "equal keys": ('{"a": 1, "a": 2}', "{'a': 2}"),
    "a lone string": (' "a" ', "'a'"),
    "a lone constant": ("NaN", "nan"),
}


READ_BY: list[tuple[Dialect, str, str]] = [
    *((Dialect.HJSON, text, repr(value)) for text, value in READ.values()),
    *((Dialect.JSON, text, value) for text, value in READ_AS_JSON.values()),
]


@pytest.mark.parametrize(("dialect", "text", "value"), READ_BY, ids=[*READ, *READ_AS_JSON])
def test_a_text_is_read_as_its_reader_reads_it(dialect: Dialect, text: str, value: str) -> None:
    assert value == READERS[dialect](text)
    assert value == as_parsed(text, dialect)


LAST_COMMA = "JSON allows no comma after the last value"
REFUSED_AS_JSON: dict[str, tuple[str, tuple[int, int, str]]] = {
    "a comment": ('{\n  "a": 1, // b\n}', (2, 11, "JSON allows no comments")),
    "a comment before all": ("# a\n{}", (1, 1, "JSON allows no comments")),
    "a last comma": ('{\n"a": 1 ,\n}', (2, 8, LAST_COMMA)),
    "a last comma in an array": ("[1,]", (1, 3, LAST_COMMA)),
    "single quotes": ("{'a': 1}", (1, 2, "JSON allows no single quotes")),
    "a Python word": (
        '{"a": True}',
        (1, 7, "JSON has `true`, `false` and `null`, not `True`, `False` and `None`"),
    ),
    "a byte order mark": ("\ufeff{}", (1, 1, "JSON allows no byte order mark")),
    "a key without a colon": (
        '{\n"a" 1}',
        (2, 5, "syntax error: Expecting ':' delimiter"),
    ),
    "an empty text": ("", (1, 1, "syntax error: Expecting value")),
    "too many digits": (
        "[" + "9" * 5000 + "]",
        (1, 2, "this number is too large, or has too many digits"),
    ),
}


REFUSED_BY: list[tuple[Dialect, str, tuple[int, int, str]]] = [
    *((Dialect.HJSON, *row) for row in REFUSED.values()),
    *((Dialect.JSON, *row) for row in REFUSED_AS_JSON.values()),
]


@pytest.mark.parametrize(("dialect", "text", "said"), REFUSED_BY, ids=[*REFUSED, *REFUSED_AS_JSON])
def test_a_text_that_its_reader_refuses_is_refused_at_its_place(
    dialect: Dialect, text: str, said: tuple[int, int, str]
) -> None:
    assert READERS[dialect](text) is None
    assert said == fault(text, dialect)


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_a_text_is_read_down_to_the_deepest_level(
    opening: str, closing: str, dialect: Dialect
) -> None:
    """The one difference: hjson and json go on, to where Python's stack ends."""
    text = opening * DEEPEST_LEVEL + "[]" + closing * DEEPEST_LEVEL
    column = DEEPEST_LEVEL * len(opening) + 1
    assert by_hjson(text) is not None
    assert (1, column, f"more than {DEEPEST_LEVEL} levels") == fault(text, dialect)
    text = text.replace("[]", "0", 1) if opening != "[" else text.replace("[[]]", "[0]")
    assert by_hjson(text) == as_parsed(text, dialect)


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("text", ["[" * 10**5, "[" * 10**5 + "]" * 10**5, '{"a":' * 10**5])
def test_no_depth_ends_the_stack(text: str, dialect: Dialect) -> None:
    assert as_parsed(text, dialect) is None


def test_every_repeated_key_is_told_with_the_first_one() -> None:
    text = '{"a": 1, "b": [{c: 1, c: 2}],\n"a": {"d": 1, "d": 2}, "a": 3}'
    told = [
        (earlier.key.place.start, later.key.place.line, later.key.place.column, later.key.name)
        for earlier, later in repeated(parse(text))
    ]
    assert [(16, 1, 23, "c"), (1, 2, 1, "a"), (36, 2, 15, "d"), (1, 2, 24, "a")] == told
    # A byte order mark takes no column.
    assert Span(start=1, end=3, line=1, column=1) == parse("\ufeff{}").place


LINE_END = re.compile(r"\r\n|\r|\n")
MARK = re.compile("^\ufeff")


def spelling(text: str, part: KeyToken | Node) -> str:
    """The part's own characters, found by its line and column."""
    lines = LINE_END.split(MARK.sub("", text))
    found = text[part.place.start : part.place.end]
    first_line = LINE_END.split(found)[0]
    assert lines[part.place.line - 1][part.place.column - 1 :].startswith(first_line)
    return found


NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
INNER = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
# A lone scalar is no config.
VALUES = st.lists(INNER) | st.dictionaries(st.text(), INNER)
WRITERS: tuple[Callable[[object], str], ...] = (
    json.dumps,
    lambda value: json.dumps(value, indent=4, ensure_ascii=False),
    lambda value: json.dumps(value, indent="\t", separators=(" ,", "\t:")),
    hjson.dumps,
)
WRITTEN = st.builds(
    lambda value, write, line_end: write(value).replace("\n", line_end),
    VALUES,
    st.sampled_from(WRITERS),
    st.sampled_from(["\n", "\r\n"]),
)


@given(WRITTEN)
def test_a_written_value_is_read_as_hjson_reads_it(text: str) -> None:
    """But for text of several lines, which hjson writes between three quotes."""
    assert by_hjson(text) == as_parsed(text) or "'''" in text


@given(VALUES, st.sampled_from(WRITERS[:3]))
def test_a_value_written_as_json_comes_back_from_either_dialect(
    value: object, write: Callable[[object], str]
) -> None:
    text = write(value)
    assert value == plain(parse(text))
    assert repr(value) == as_parsed(text, Dialect.JSON)


CONFIG = """{
    // ZeRO-3, as a person may write it
    "train_batch_size": 32, "gradient_clipping": 1.0,
    optimizer: {type: "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.999,], 'eps': 1e-8}}
    "zero_optimization": {
        stage: 3 # three
        /* big */ "sub_group_size": 1e9, overlap_comm: true
        offload_param: {"device": "nvme", "nvme_path": "\\/local\\u005fnvme"}, x: null
        select: step # by step
    }
}
"""
FRAGMENTS = st.sampled_from(
    ["{", "}", "[", "]", ",", ":", "\n", "\r\n", "\r", " ", "\t", '"', "'", "'''", "\\", "\\u"]
    + ["#", "//", "/*", "*/", "/", "true", "false", "null", "True", "NaN", "-Infinity", "a", "b:"]
    + ["0", "-1", ".5", "e3", "1e999", "-0.0", "5e8", '"a":', "\\ud83d", "\\ude00", "\\u-123"]
    + ["\ufeff", "\xef\xbb\xbf", "\xa0", "\x0b", "\x85", "\u2028", "\u0663", "\x00", "\ud800"]
)
EDITS = st.lists(
    st.tuples(st.integers(0, len(CONFIG)), st.integers(0, 3), FRAGMENTS | st.just("")),
    max_size=4,
)


def edited(edits: list[tuple[int, int, str]]) -> str:
    text = CONFIG
    for start, characters, fragment in edits:
        text = text[:start] + fragment + text[start + characters :]
    return text


TEXTS = (
    st.lists(FRAGMENTS, max_size=12).map("".join)
    | EDITS.map(edited)
    | st.binary().map(lambda content: content.decode("latin-1"))
    | st.text()
)


@settings(max_examples=1000)
@given(TEXTS)
@example(CONFIG)
@example("\xa0\n:*/")
def test_any_text_is_read_as_hjson_and_json_read_it_or_refused(text: str) -> None:
    read, parsed = by_hjson(text), as_parsed(text)
    assert parsed in {None, read} or text.startswith("\xef\xbb\xbf")
    assert by_json(text) == as_parsed(text, Dialect.JSON)


def is_spelled(found: str, part: KeyToken | Node) -> bool:
    """Whether these characters, read alone, are this key or value."""
    match part:
        case Array():
            return found[0] + found[-1] == "[]"
        case Object():
            return found[0] + found[-1] == "{}"
        case KeyToken(name=value) | Scalar(value=value):
            return found == value or f"[{value!r}]" == as_parsed(f"[{found}\n]")


@settings(max_examples=100)
@given(WRITTEN.filter(as_parsed) | TEXTS.filter(as_parsed))
@example(CONFIG)
def test_every_key_and_value_stands_where_its_place_says(text: str) -> None:
    tree = parse(text)
    for part in placed(tree):
        found = spelling(text, part)
        assert part is tree or is_spelled(found, part)


def exchanged(node: Node, old: Node) -> object:
    """The plain value with "new" in the place of one node."""
    if node is old:
        return "new"
    match node:
        case Array():
            return [exchanged(item, old) for item in node.items]
        case Object():
            return {member.key.name: exchanged(member.value, old) for member in node.members}
        case Scalar():
            return node.value


@given(WRITTEN.filter(as_parsed))
@example(CONFIG)
def test_a_value_can_be_exchanged_where_it_stands(text: str) -> None:
    tree = parse(text)
    for node in placed(tree):
        if not isinstance(node, KeyToken) and node is not tree:
            new = text[: node.place.start] + '"new"' + text[node.place.end :]
            assert exchanged(tree, node) == plain(parse(new))
