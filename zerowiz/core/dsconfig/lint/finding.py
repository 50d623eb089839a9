"""Describe one mistake in a config: where it is, how bad, and what fixes it."""

from msgspec import Struct

from zerowiz.core.dsconfig.hjson_tokens import Span
from zerowiz.core.rule import Finding, Rule, Severity


class Edit(Struct, frozen=True, kw_only=True):
    """The characters from `start` up to `end` of the text, and what stands there afterwards."""

    start: int
    end: int
    text: str


class ConfigFinding(Finding, frozen=True, kw_only=True):
    """One mistake in one file."""

    key: str = ""
    """Dotted path of the key that it is about; empty for the whole file."""
    line: int
    column: int
    because: str | None = None
    """Why this very case matters; None where what the rule says of all of them is enough."""
    fix: str | None = None
    """What to do, in words."""
    edits: tuple[Edit, ...] = ()
    """What `--fix` does, where that is safe."""
    of_launcher: bool = False
    """Whether only `accelerate launch` meets it: zerowiz passes the ranks what they get itself."""

    @property
    def why(self) -> str:
        """Why it matters; empty where the message says it all."""
        return self.rule.why if self.because is None else self.because


def found_at(
    place: Span,
    rule: Rule,
    message: str,
    *,
    key: str = "",
    severity: Severity | None = None,
    because: str | None = None,
    fix: str | None = None,
    edits: tuple[Edit, ...] = (),
    of_launcher: bool = False,
) -> ConfigFinding:
    """A finding of this rule, with the severity of the rule unless another one is given."""
    return ConfigFinding(
        rule=rule,
        severity=severity or rule.severity,
        key=key,
        line=place.line,
        column=place.column,
        message=message,
        because=because,
        fix=fix,
        edits=edits,
        of_launcher=of_launcher,
    )
