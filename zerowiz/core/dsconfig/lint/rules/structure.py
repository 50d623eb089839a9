"""Find texts that are no config: they cannot be read, are no object, or repeat a key."""

from collections.abc import Iterator

from zerowiz.core.dsconfig.hjson import Node, repeated
from zerowiz.core.dsconfig.hjson_tokens import JsonTextError
from zerowiz.core.dsconfig.lint.config import Config, shown
from zerowiz.core.dsconfig.lint.finding import ConfigFinding, found_at
from zerowiz.core.rule import Rule, Severity
from zerowiz.words import _

UNREADABLE = Rule(
    code="ZW001",
    name="unreadable",
    severity=Severity.ERROR,
    why=_("a strict JSON reader refuses the whole config"),
)


def unreadable(
    fault: JsonTextError, severity: Severity = Severity.ERROR, *, is_yaml: bool = False
) -> ConfigFinding:
    """What is found where a reader stops.

    Args:
        fault: Where, and why.
        severity: Of the finding.
        is_yaml: Whether the file is one of YAML.
    """
    return ConfigFinding(
        rule=UNREADABLE,
        severity=severity,
        line=fault.line,
        column=fault.column,
        message=fault.reason,
        because=_("a YAML reader refuses the whole file") if is_yaml else None,
        fix=_("write valid JSON") if severity is Severity.INFO else None,
    )


NOT_AN_OBJECT = Rule(
    code="ZW003",
    name="not-an-object",
    severity=Severity.ERROR,
    why=_("DeepSpeed needs an object with keys"),
)


def not_an_object(root: Node) -> ConfigFinding:
    """What is found of an array or a lone scalar."""
    return found_at(
        root.place,
        NOT_AN_OBJECT,
        _("a config must be an object, `{...}`"),
        fix=_("put the keys of the config in braces"),
    )


DUPLICATE_KEY = Rule(
    code="ZW002",
    name="duplicate-key",
    severity=Severity.ERROR,
    why=_("DeepSpeed rejects a duplicate key; the Trainer and Accelerate use the last one"),
)


def check_structure(config: Config) -> Iterator[ConfigFinding]:
    """Every key that its object has had before."""
    # runtime/config_utils.py, dict_raise_error_on_duplicate_keys; json takes the last one.
    severity = Severity.WARNING if config.by_accelerate else Severity.ERROR
    paths = {id(entry.member): entry for entry in config.entries}
    for earlier, member in repeated(config.root):
        entry = paths.get(id(member))
        yield found_at(
            member.key.place,
            DUPLICATE_KEY,
            _(
                "`{key}` is a duplicate of the key on line {line}",
                key=shown(member.key.name),
                line=earlier.key.place.line,
            ),
            key=entry.path if entry else member.key.name,
            severity=severity,
            fix=_("remove one of them"),
        )
