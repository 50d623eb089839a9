"""Fix a text with the edits of its findings."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from zerowiz.core.dsconfig.lint.finding import ConfigFinding, Edit
from zerowiz.core.rule import errors_of
from zerowiz.words import _

# A fix can make room for another: a renamed key turns out to have a wrong value. More rounds than
# a key can have mistakes mean that one fix undoes another.
_ROUNDS = 10


class OverlapError(ValueError):
    """Two edits change the same characters."""


class FixedText(Struct, frozen=True, kw_only=True):
    """A text after its fixes."""

    text: str
    findings: tuple[ConfigFinding, ...]
    """The findings in it."""
    fixed: tuple[ConfigFinding, ...]
    """The findings that are gone, in the order of the rounds."""


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """The text with every edit in it.

    Raises:
        OverlapError: Two of them change the same characters, or insert at the same place.
    """
    pieces: list[str] = []
    done = 0
    for edit in sorted(edits, key=_span):
        if edit.start < done or (pieces and edit.start == edit.end == done):
            raise OverlapError(_("two edits at character {start}", start=edit.start))
        pieces += [text[done : edit.start], edit.text]
        done = edit.end
    return "".join([*pieces, text[done:]])


def fix_text(text: str, check: Callable[[str], tuple[ConfigFinding, ...]]) -> FixedText:
    """Apply every edit that can be, and look again, until there is none.

    A finding is fixed whole or not at all. A round after which there are more errors than before
    is taken back.

    Args:
        text: What was checked.
        check: What finds mistakes in a text.
    """
    findings = check(text)
    fixed: tuple[ConfigFinding, ...] = ()
    for _round in range(_ROUNDS):
        chosen = _together(findings)
        if not chosen:
            break
        changed = apply_edits(text, [edit for finding in chosen for edit in finding.edits])
        found = check(changed)
        if len(errors_of(found)) > len(errors_of(findings)):
            break
        text, findings, fixed = changed, found, (*fixed, *chosen)
    return FixedText(text=text, findings=findings, fixed=fixed)


def _together(findings: Sequence[ConfigFinding]) -> tuple[ConfigFinding, ...]:
    """The findings, from the first on, whose edits do not overlap."""
    chosen: list[ConfigFinding] = []
    taken: list[Edit] = []
    for finding in findings:
        try:
            apply_edits("", [*taken, *finding.edits])
        except OverlapError:
            continue
        if finding.edits:
            chosen.append(finding)
            taken += finding.edits
    return tuple(chosen)


def _span(edit: Edit) -> tuple[int, int]:
    return edit.start, edit.end
