"""Find what a version of DeepSpeed makes of a config: other defaults, and known faults."""

from collections.abc import Iterator

from zerowiz.core.dsconfig.lint.config import ZERO, Config
from zerowiz.core.dsconfig.lint.finding import ConfigFinding, found_at
from zerowiz.core.dsconfig.schema import Schema, SchemaKey
from zerowiz.core.rule import Rule, Severity
from zerowiz.core.workload.choices import Precision
from zerowiz.words import _

DEFAULT_CHANGED = Rule(
    code="ZW604",
    name="default-changed",
    severity=Severity.WARNING,
    why=_("the config does not set the key, so it trains with another value than before"),
)

# A file of Accelerate has few keys.
_IN_ANOTHER_FILE = _(", in a file that `deepspeed_config_file` names")


def check_versions(config: Config) -> Iterator[ConfigFinding]:
    """What is known against this version, and what was another default in the one before."""
    yield from _bad_releases(config)
    yield from _defaults(config)


BAD_RELEASE = Rule(
    code="ZW605",
    name="bad-release",
    severity=Severity.ERROR,
    why=_("the job trains wrongly, and ends without an error"),
)


def _bad_releases(config: Config) -> Iterator[ConfigFinding]:
    entry = config.last.get(f"{ZERO}.stage") or config.last.get(ZERO)
    for row in config.context.bad_releases:
        is_other = row.precision is Precision.BF16 and config.truth("bf16.enabled") is False
        if entry is None or config.stage not in row.stages or is_other:
            continue
        yield entry.found(
            BAD_RELEASE,
            _(
                "DeepSpeed from {since} until {until}: {words}",
                since=row.since,
                until=row.until,
                words=row.words,
            ),
            severity=row.severity,
            fix=_("install DeepSpeed {upgrade}, or write another stage", upgrade=row.upgrade),
        )


def _defaults(config: Config) -> Iterator[ConfigFinding]:
    before = config.context.before
    if before is None:
        return
    for key in config.schema.keys.values():
        old = before.keys.get(key.path)
        if old is not None and _has_changed(old, key) and _counts(config, key):
            yield _changed(config, before, old, key)


def _has_changed(old: SchemaKey, new: SchemaKey) -> bool:
    gone = old.removed or new.removed or new.deprecated
    return not gone and None not in (old.default, new.default) and old.default != new.default


def _counts(config: Config, key: SchemaKey) -> bool:
    """Whether the config has its section, and leaves the key to DeepSpeed."""
    return key.path not in config.last and (not key.section or key.section in config.last)


def _changed(config: Config, before: Schema, old: SchemaKey, new: SchemaKey) -> ConfigFinding:
    section = config.last.get(new.section)
    where = _(" in `{section}`", section=new.section) if section else ""
    write = _(
        'write `"{new}": {default}`{where} to keep what it was',
        new=new.name,
        default=old.default,
        where=where,
    )
    return found_at(
        section.member.key.place if section else config.root.place,
        DEFAULT_CHANGED,
        _(
            "the default of `{new}`{where} was {default} in DeepSpeed {version}, and is "
            "{new_default} in {schema_version}",
            new=new.name,
            where=where,
            default=old.default,
            version=before.version,
            new_default=new.default,
            schema_version=config.schema.version,
        ),
        key=new.path,
        fix=write + (_IN_ANOTHER_FILE if config.context.file_keys else ""),
    )
