"""Find texts that are no config: they cannot be read, are no object, or repeat a key."""

from collections.abc import Iterator

from zerowiz.core.dsconfig.hjson import Node, repeated
from zerowiz.core.dsconfig.hjson_tokens import JsonTextError
from zerowiz.core.dsconfig.lint.config import Config, shown
from zerowiz.core.dsconfig.lint.finding import ConfigFinding, found_at
from zerowiz.core.rule import Rule, Severity

UNREADABLE = Rule(
    code="ZW001",
    name="unreadable",
    severity=Severity.ERROR,
    why="no library can read the config",
)


def unreadable(fault: JsonTextError, severity: Severity = Severity.ERROR) -> ConfigFinding:
    """What is found where a reader stops."""
    return ConfigFinding(
        rule=UNREADABLE,
        severity=severity,
        line=fault.line,
        column=fault.column,
        message=fault.reason,
        fix="write valid JSON" if severity is Severity.INFO else None,
    )


NOT_AN_OBJECT = Rule(
    code="ZW003",
    name="not-an-object",
    severity=Severity.ERROR,
    why="DeepSpeed needs an object with keys",
)


def not_an_object(root: Node) -> ConfigFinding:
    """What is found of an array or a lone scalar."""
    return found_at(root.place, NOT_AN_OBJECT, "a config must be an object, `{...}`")


DUPLICATE_KEY = Rule(
    code="ZW002",
    name="duplicate-key",
    severity=Severity.ERROR,
    why="DeepSpeed rejects a duplicate key; the Trainer and Accelerate use the last one",
)


def check(config: Config) -> Iterator[ConfigFinding]:
    """Every key that its object has had before."""
    # runtime/config_utils.py, dict_raise_error_on_duplicate_keys; json takes the last one.
    severity = Severity.WARNING if config.by_accelerate else Severity.ERROR
    paths = {id(entry.member): entry for entry in config.entries}
    for earlier, member in repeated(config.root):
        entry = paths.get(id(member))
        yield found_at(
            member.key.place,
            DUPLICATE_KEY,
            f"`{shown(member.key.name)}` is a duplicate of the key on line"
            f" {earlier.key.place.line}",
            key=entry.path if entry else member.key.name,
            severity=severity,
            fix="remove one of them",
        )
