"""Write into the text of a script what a finding asks for at one call."""

import ast
import re
from collections.abc import Iterable
from contextlib import suppress

from zerowiz.errors import LineEdit
from zerowiz.probe.script.source import last_name, parse_quietly

# Lines as Python counts them.
_LINE_END = re.compile(rb"\r\n|\r|\n")


def with_line_edits(text: bytes, edits: Iterable[LineEdit]) -> bytes:
    """The text of a script with those edits that can be made in it.

    Example:
        >>> edit = LineEdit(path="train.py", line=1, keyword="fsdp")
        >>> with_line_edits(b"args = TrainingArguments('out', fsdp='full_shard')", [edit])
        b"args = TrainingArguments('out')"
    """
    # From the last line on: an edit may take a line away.
    for edit in sorted(edits, key=lambda edit: edit.line, reverse=True):
        nodes = ast.walk(parse_quietly(text))
        calls = [node for node in nodes if isinstance(node, ast.Call) if _fits(node, edit)]
        # Of calls in each other, the inner one.
        for call in sorted(calls, key=lambda call: _span(text, call)[0])[-1:]:
            start, end, code = _change(text, call, edit)
            changed = b"".join((text[:start], code.encode(), text[end:]))
            with suppress(SyntaxError):
                parse_quietly(changed)
                text = changed
    return text


def _fits(call: ast.Call, edit: LineEdit) -> bool:
    is_there = call.lineno <= edit.line <= (call.end_lineno or call.lineno)
    has_keyword = any(word.arg == edit.keyword for word in call.keywords)
    return is_there and (last_name(call) == edit.call if edit.call else has_keyword)


def _span(text: bytes, node: ast.expr | ast.keyword) -> tuple[int, int]:
    """Where a node begins and ends, in bytes."""
    lines = [0, *(end.end() for end in _LINE_END.finditer(text))]
    last, end = node.end_lineno or node.lineno, node.end_col_offset or 0
    return lines[node.lineno - 1] + node.col_offset, lines[last - 1] + end


def _change(text: bytes, call: ast.Call, edit: LineEdit) -> tuple[int, int, str]:
    """The bytes of a call that are replaced, and by what."""
    if edit.func:
        return (*_span(text, call.func), edit.func)
    parts: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    spans = sorted(_span(text, part) for part in parts)
    word = next((word for word in call.keywords if word.arg == edit.keyword), None)
    if word is None:
        end = spans[-1][1] if spans else _span(text, call)[1] - 1
        return end, end, f"{', ' if spans else ''}{edit.keyword}={edit.code}"
    start, end = _span(text, word)
    if edit.code:
        return start, end, f"{edit.keyword}={edit.code}"
    at = spans.index((start, end))
    if at + 1 < len(spans):
        return start, spans[at + 1][0], ""
    return (spans[at - 1][1] if at else start), end, ""
