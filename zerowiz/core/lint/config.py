"""A parsed config matched with the schema, so that a rule can ask for a key by its path."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field

from zerowiz.core.dsconfig.accelerate import AccelerateFile
from zerowiz.core.dsconfig.hjson import (
    Dialect,
    JsonTextError,
    KeyToken,
    Member,
    Node,
    Object,
    Span,
    parse,
    plain,
)
from zerowiz.core.dsconfig.merge import BATCH_KEYS, ZERO, truth_of, whole_of
from zerowiz.core.dsconfig.schema import (
    Kind,
    Schema,
    SchemaKey,
    Unknown,
    join_path,
    kind_of,
)
from zerowiz.core.findings import BadRelease, Edit, Finding, Rule, Severity
from zerowiz.core.structs import MOST_COUNT, replace
from zerowiz.core.workload import Integration

if TYPE_CHECKING:
    from zerowiz.core.machine.types import Machine

T = TypeVar("T")

# Describe the run that a config is checked for.


class Context(Struct, frozen=True, kw_only=True):
    """What is known of the run; None is what is not known."""

    integration: Integration | None = None
    world_size: int | None = None
    settings: object = None
    """The `ScriptSettings` of the training script: to load that module is to load the planner."""
    passed: frozenset[str] = frozenset()
    """The arguments of `deepspeed.initialize` with which the script replaces sections."""
    gpu_bytes: int | None = None
    """Memory of the smallest GPU."""
    compute_capability: tuple[int, int] | None = None
    """The lowest of the GPUs."""
    on_cpu: bool = False
    """Whether the ranks compute on the CPU."""
    bad_releases: tuple[BadRelease, ...] = ()
    """What is known against the DeepSpeed that will read the config."""
    file_keys: Mapping[str, str] = field(default_factory=dict)
    """What the file calls keys of the config, where the config is built of a file of Accelerate."""
    select: tuple[str, ...] = ("",)
    """How the codes begin that are looked for."""
    ignore: tuple[str, ...] = ()
    """How the codes begin that are not; of two that fit, the longer one counts."""

    def takes(self, code: str) -> bool:
        """Whether a code is looked for.

        Example:
            >>> context = Context(select=("ZW3", "ZW101"), ignore=("ZW1",))
            >>> context.takes("ZW301"), context.takes("ZW101"), context.takes("ZW102")
            (True, True, False)
        """
        selected, ignored = (
            max((len(start) for start in starts if code.startswith(start)), default=-1)
            for starts in (self.select, self.ignore)
        )
        return selected > ignored


def on_machine(context: Context, machine: "Machine") -> Context:
    """The same run on this machine; a given number of ranks counts more than its own."""
    context = replace(context, world_size=context.world_size or machine.world_size)
    if machine.accelerator.row.on_host:
        return replace(context, on_cpu=True)
    return replace(
        context, gpu_bytes=machine.total_bytes, compute_capability=machine.compute_capability
    )


AUTO = "auto"
_SHOWN_CHARACTERS = 40
# The sections of which DeepSpeed builds an object, unless a script passes this argument to
# `deepspeed.initialize`.
_BUILT: Mapping[str, str] = {"optimizer": "optimizer", "scheduler": "lr_scheduler"}


class Entry(Struct, frozen=True, kw_only=True):
    """A member, wherever it stands, with what DeepSpeed knows of it."""

    path: str
    """As it is written; empty for the whole config."""
    known_path: str
    """The same in the schema's names."""
    member: Member
    holder: Object
    section: SchemaKey | None
    """What holds it; None where DeepSpeed does not know that either."""
    key: SchemaKey | None
    value: object
    file_key: str | None = None
    """Dotted path in the file, where the config is built of one with other keys."""

    @property
    def name(self) -> str:
        """The last word of the path."""
        return self.member.key.name

    @property
    def label(self) -> str:
        """What the file calls it, for a message: short and on one line."""
        return shown(self.name if self.file_key is None else self.file_key.rpartition(".")[2])

    @property
    def shown(self) -> str:
        """The value as a message quotes it."""
        return shown(self.value)

    @property
    def kind(self) -> Kind:
        """What the value looks like."""
        return kind_of(self.value)

    @property
    def number(self) -> float | None:
        """A number, which a truth is not; None for anything else."""
        value = self.value
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    @property
    def in_strict_section(self) -> bool:
        """Whether its section refuses keys that it does not know, and converts values."""
        return self.section is not None and self.section.unknown is Unknown.REFUSED

    def found(
        self,
        rule: Rule,
        message: str,
        *fixes: str,
        severity: Severity | None = None,
        because: str | None = None,
        edits: tuple[Edit, ...] = (),
    ) -> Finding:
        """A finding at the key."""
        place = self.member.key.place
        return Finding(
            rule=rule,
            severity=severity or rule.severity,
            message=message,
            fixes=fixes,
            because=because,
            key=self.file_key or self.path,
            line=place.line,
            column=place.column,
            edits=edits,
        )


class Config(Struct, frozen=True, kw_only=True):
    """What the rules read."""

    text: str
    schema: Schema
    context: Context
    root: Entry
    """The whole config."""
    entries: tuple[Entry, ...]
    """In the order of the text."""
    last: Mapping[str, Entry]
    """By their known paths, the root too; of equal keys, the last one counts."""

    def get(self, path: str) -> object:
        """The value of a key, None where it is not set."""
        entry = self.last.get(path)
        return None if entry is None else entry.value

    def truth(self, path: str, *, default: bool = False) -> bool | None:
        """What DeepSpeed makes of a switch; None where it is not known yet."""
        value = self.get(path)
        return default if value is None else truth_of(value)

    def number(self, path: str) -> int | None:
        """A whole number up to MOST_COUNT; None where it is not set, or anything else."""
        value = whole_of(self.get(path))
        return None if value is None or abs(value) > MOST_COUNT else value

    def word(self, path: str) -> str | None:
        """A word; None where it is not set, or anything else."""
        value = self.get(path)
        return value if isinstance(value, str) else None

    def label(self, path: str) -> str:
        """What the file calls a key, whether it is set or not, for a message."""
        return self.context.file_keys.get(path, path).rpartition(".")[2]

    @property
    def stage(self) -> int | None:
        """The stage of ZeRO; None where it is not known yet."""
        zero = self.get(ZERO)
        # runtime/zero/config.py, read_zero_config_deprecated: true is stage 1.
        if not isinstance(zero, dict):
            return int(zero is True)
        word = self.word(f"{ZERO}.stage")
        if word in {"0", "1", "2", "3"}:
            return int(word)
        return 0 if zero.get("stage") is None else self.number(f"{ZERO}.stage")

    @property
    def is_stage_3(self) -> bool:
        """Whether the parameters are sharded."""
        return self.stage == 3  # noqa: PLR2004 - the stage itself

    def device(self, part: str) -> str | None:
        """Where `offload_optimizer` or `offload_param` puts things: `cpu`, `nvme`, or nowhere."""
        device = self.word(f"{ZERO}.{part}.device")
        return device if device in {"cpu", "nvme"} else None

    @property
    def offloads(self) -> bool | None:
        """Whether the optimizer goes to the CPU or further; None where it is not known yet."""
        # runtime/zero/config.py: cpu_offload becomes an offload_optimizer.
        if self.device("offload_optimizer") or self.truth(f"{ZERO}.cpu_offload"):
            return True
        return None if self.get(f"{ZERO}.offload_optimizer.device") == AUTO else False

    @property
    def by_accelerate(self) -> bool:
        """Whether the Trainer or Accelerate hands the config over.

        DeepSpeed by itself does not take `auto` for a batch key (runtime/config.py).
        """
        if self.context.integration is not None:
            return not self.context.integration.row.as_written
        return any(self.get(key) == AUTO for key in BATCH_KEYS)

    @property
    def by_deepspeed(self) -> bool:
        """Whether DeepSpeed is known to read the config by itself."""
        return self.context.integration is not None and self.context.integration.row.as_written

    def if_built(self, finding: Finding) -> Finding:
        """An error of a section that DeepSpeed may not build; any other finding is as it was.

        The Trainer and Accelerate pass none of their own where such a section exists. What a script
        passes to `deepspeed.initialize` takes precedence, and DeepSpeed then ignores the section
        (runtime/engine.py, _configure_optimizer and _configure_lr_scheduler).
        """
        argument = _BUILT.get(finding.key.partition(".")[0])
        if argument is None or finding.severity is not Severity.ERROR:
            return finding
        if self.by_deepspeed and argument in self.context.passed:
            because = f"DeepSpeed ignores it, because the script passes its own `{argument}`"
            return replace(finding, severity=Severity.WARNING, because=because)
        if self.context.integration is None and not self.by_accelerate:
            message = (
                f"{finding.message}: an error unless the script passes its own `{argument}` to"
                " `deepspeed.initialize`"
            )
            return replace(finding, severity=Severity.WARNING, message=message)
        return finding


def read_config(text: str, root: Object, schema: Schema, context: Context) -> Config:
    """Look up every key in the schema."""
    whole = Entry(
        path="",
        known_path="",
        member=Member(key=KeyToken(place=root.place, name=""), value=root),
        holder=root,
        section=None,
        key=schema.keys[""],
        value=plain(root),
    )
    entries = tuple(
        replace(entry, file_key=context.file_keys.get(entry.known_path))
        for entry in _entries(root, schema.names(), whole)
    )
    # runtime/precision_config.py, get_bfloat16_config: `bf16` comes before `bfloat16`.
    named = {entry.known_path: entry for entry in entries if entry.path == entry.known_path}
    return Config(
        text=text,
        schema=schema,
        context=context,
        root=whole,
        entries=entries,
        last={"": whole} | {entry.known_path: entry for entry in entries} | named,
    )


def _entries(holder: Object, known: Mapping[str, SchemaKey], above: Entry) -> Iterator[Entry]:
    for member in holder.members:
        name, section = member.key.name, above.key
        # A dot in a name must not make a path of it.
        is_known = section is not None and name and "." not in name
        key = known.get(join_path(section.path, name)) if section and is_known else None
        entry = Entry(
            path=join_path(above.path, name),
            known_path=key.path
            if key
            else join_path(above.known_path, name.replace(".", "/") or "/"),
            member=member,
            holder=holder,
            section=section,
            key=key,
            value=plain(member.value),
        )
        yield entry
        if isinstance(member.value, Object) and not (key and key.removed):
            yield from _entries(member.value, known, entry)


def shown(value: object) -> str:
    """A value as a message quotes it."""
    line = repr(value if isinstance(value, str) else json.dumps(value))[1:-1]
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}..."


# Find what shows only where keys are held against each other, or against the run.

Text = str | Callable[[Config, Entry], str]
"""A text of every finding, or one that is made of this config and of the key."""


class Relation(Struct, frozen=True, kw_only=True):
    """One way to break a rule: a key, and what has to be true beside it."""

    at: str | Callable[[Config], str]
    """The known path of the key where it is found; a config without the key does not break it."""
    when: Callable[[Config, Entry], object]
    """Whether the rule is broken."""
    says: Text
    """What is wrong, in one line."""
    fix: Text
    because: Text | None = None
    severity: Severity | Callable[[Config, Entry], Severity] | None = None
    """That of the rule, if it is not said."""
    if_built: bool = True
    """Whether it fails only if DeepSpeed builds the optimizer or scheduler that the key is of."""


def find_broken(config: Config, relations: Mapping[Rule, Sequence[Relation]]) -> Iterator[Finding]:
    """A finding for each relation that the config breaks."""
    for rule, row in ((rule, row) for rule, rows in relations.items() for row in rows):
        entry = config.last.get(row.at(config) if callable(row.at) else row.at)
        if entry is None or not row.when(config, entry):
            continue
        finding = entry.found(
            rule,
            _told(row.says, config, entry),
            _told(row.fix, config, entry),
            because=_told(row.because, config, entry),
            severity=_told(row.severity, config, entry),
        )
        yield config.if_built(finding) if row.if_built else finding


def _told(said: T | Callable[[Config, Entry], T], config: Config, entry: Entry) -> T:
    return said(config, entry) if callable(said) else said


# Make the edits that change one member of a config.

# What may be removed together with a member: a comment may not.
_GAP = re.compile(r"[\s,]*")


def rename(text: str, entry: Entry, name: str) -> tuple[Edit, ...]:
    """Give the key another name, in the quotes that it has."""
    place = entry.member.key.place
    quote = text[place.start] if text[place.start] in "\"'" else ""
    return (_over(place, f"{quote}{name}{quote}"),)


def put(entry: Entry, value: object) -> tuple[Edit, ...]:
    """Give the key another value."""
    return (_over(entry.member.value.place, json.dumps(value)),)


def drop(text: str, entry: Entry) -> tuple[Edit, ...]:
    """Remove the member, unless something other than a comma stands between it and the next."""
    members = entry.holder.members
    at = members.index(entry.member)
    start, end = entry.member.key.place.start, entry.member.value.place.end
    if at + 1 < len(members):
        gap, end = text[end : members[at + 1].key.place.start], members[at + 1].key.place.start
    elif at:
        gap, start = text[members[at - 1].value.place.end : start], members[at - 1].value.place.end
    else:
        return ()
    return (Edit(start=start, end=end, text=""),) if _GAP.fullmatch(gap) else ()


def _over(place: Span, text: str) -> Edit:
    return Edit(start=place.start, end=place.end, text=text)


class ConfigText(Struct, frozen=True, kw_only=True):
    """The file of a config."""

    path: str
    """As it was given on the command line."""
    text: str = ""
    root: Object | None = None
    """The config in the text, where that is no JSON."""
    integration: Integration | None = None
    """The integration, where only one reads such a file."""
    fault: JsonTextError | None = None
    """Why nothing can be read of it."""
    accelerate: AccelerateFile | None = None
    """What else a file of Accelerate says, where the config comes from one."""
    named: str | None = None
    """The path of the config, where the file only names one."""

    def parsed(self, dialect: Dialect) -> Node:
        """The config, as a reader of this dialect has it.

        Raises:
            JsonTextError: That reader refuses it.
        """
        if self.fault is not None:
            raise self.fault
        return parse(self.text, dialect) if self.root is None else self.root
