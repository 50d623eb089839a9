"""Describe one mistake in a config: where it is, how bad, and what fixes it."""

from dataclasses import dataclass

from zerowiz.core.rule import Rule, Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """The characters from `start` up to `end` of the text, and what stands there afterwards."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigFinding:
    """One mistake in one file."""

    rule: Rule
    severity: Severity
    key: str
    """Dotted path of the key that it is about; empty for the whole file."""
    line: int
    column: int
    message: str
    fix: str | None = None
    """What to do, in words."""
    edits: tuple[Edit, ...] = ()
    """What `--fix` does, where that is safe."""
