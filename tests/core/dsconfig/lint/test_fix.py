"""A fixed text has every edit that can be, and nothing else changed."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.findings import Rule, Severity
from zerowiz.core.lint.config import ConfigFinding, Edit
from zerowiz.core.lint.linter import OverlapError, apply_edits, fix_text

RULE = Rule(code="ZW101", name="unknown-key", severity=Severity.ERROR, why="it is refused")


def finding(*edits: Edit, severity: Severity = Severity.ERROR) -> ConfigFinding:
    return ConfigFinding(
        rule=RULE, severity=severity, key="k", line=1, column=1, message="m", edits=edits
    )


def edit(start: int, end: int, text: str) -> Edit:
    return Edit(start=start, end=end, text=text)


def upper_case(text: str) -> tuple[ConfigFinding, ...]:
    """Every lower case `x` is a mistake, and is fixed by a capital."""
    return tuple(finding(edit(m.start(), m.end(), "X")) for m in re.finditer("x", text))


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ((), "abcdef"),
        ((edit(0, 1, "A"),), "Abcdef"),
        ((edit(4, 6, ""), edit(0, 0, ">")), ">abcd"),
        ((edit(1, 3, "-"), edit(3, 4, "+")), "a-+ef"),
        ((edit(6, 6, "g"),), "abcdefg"),
    ],
)
def test_edits_are_of_the_old_text_in_any_order(edits: tuple[Edit, ...], expected: str) -> None:
    assert expected == apply_edits("abcdef", edits)
    assert expected == apply_edits("abcdef", edits[::-1])


@pytest.mark.parametrize(
    "edits",
    [
        (edit(0, 3, "x"), edit(2, 4, "y")),
        (edit(1, 2, "x"), edit(1, 2, "x")),
        (edit(2, 2, "x"), edit(2, 2, "y")),
        (edit(0, 4, ""), edit(1, 2, "y")),
    ],
)
def test_edits_of_the_same_characters_are_refused(edits: tuple[Edit, ...]) -> None:
    with pytest.raises(OverlapError):
        apply_edits("abcdef", edits)


@given(st.text(alphabet="xyz\r\n\ufeff"))
def test_what_no_edit_touches_stays(text: str) -> None:
    fixed = fix_text(text, upper_case)
    assert text.replace("x", "X") == fixed.text
    assert () == fixed.findings
    assert text.count("x") == len(fixed.fixed)


def test_a_finding_in_the_way_of_another_is_fixed_in_the_next_round() -> None:
    def doubled(text: str) -> tuple[ConfigFinding, ...]:
        return tuple(
            finding(edit(m.start(), m.start() + 2, "a")) for m in re.finditer("(?=aa)", text)
        )

    assert "a" == fix_text("aaaaa", doubled).text


def test_a_finding_is_fixed_whole_or_not_at_all() -> None:
    def two(text: str) -> tuple[ConfigFinding, ...]:
        if "b" not in text:
            return ()
        return (finding(edit(0, 1, "A")), finding(edit(0, 1, "B"), edit(2, 3, "C")))

    assert "Abc" == fix_text("abc", lambda text: two(text) if text == "abc" else ()).text


def test_a_fix_that_makes_an_error_is_taken_back() -> None:
    def worse(text: str) -> tuple[ConfigFinding, ...]:
        milder = finding(edit(0, 1, "!"), severity=Severity.WARNING)
        return (finding(),) if text == "!" else (milder,)

    fixed = fix_text("?", worse)
    assert "?" == fixed.text
    assert () == fixed.fixed
    assert 1 == len(fixed.findings)


def test_two_fixes_that_undo_each_other_end() -> None:
    def back_and_forth(text: str) -> tuple[ConfigFinding, ...]:
        return (finding(edit(0, 1, "b" if text == "a" else "a")),)

    assert 10 == len(fix_text("a", back_and_forth).fixed)


def test_what_has_no_edits_is_left_to_the_person() -> None:
    fixed = fix_text("a", lambda _: (finding(),))
    assert "a" == fixed.text
    assert (finding(),) == fixed.findings
