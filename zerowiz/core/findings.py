"""Describe what `check` and `doctor` share: rules, their severity, and findings."""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.dsconfig.merge import section_of, truth_of
from zerowiz.core.strategy_types import ZeroKey
from zerowiz.errors import BY_DOCTOR, LineEdit, page_of


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    """DeepSpeed or the integration raises, or trains something else than was asked."""
    WARNING = "warning"
    """Ignored, deprecated or surprising."""
    INFO = "info"
    """Advice."""


class Rule(Struct, frozen=True, kw_only=True):
    """One kind of finding.

    A code never changes its meaning, and is never given to another rule.
    """

    code: str
    """Stable: `ZW101`."""
    name: str
    """The same in words: `unknown-key`."""
    severity: Severity
    """Mostly; a finding can be milder or worse."""
    why: str
    """What happens if nobody fixes it."""
    when: str = ""
    """In which cases it is found; the guide of `doctor` lists it."""

    @property
    def url(self) -> str:
        """Its place on the page of errors."""
        return page_of(self.code)


class Edit(Struct, frozen=True, kw_only=True):
    """The characters from `start` up to `end` of a text, and what stands there afterwards."""

    start: int
    end: int
    text: str


class Finding(Struct, frozen=True, kw_only=True):
    """One mistake in a config, or one obstacle of a job."""

    rule: Rule
    severity: Severity
    message: str
    """What was seen, in one line."""
    fixes: tuple[str, ...] = ()
    """What to do, in words, commands and lines; one of them is enough."""
    because: str | None = None
    """Why this very case matters; None where what the rule says of all of them is enough."""
    key: str = ""
    """Dotted path of the key that it is about; empty for a whole file, and outside of files."""
    line: int = 0
    """From 1; 0 for what is in no file."""
    column: int = 0
    edits: tuple[Edit, ...] = ()
    """What `--fix` does, where that is safe."""
    line_edits: tuple[LineEdit, ...] = ()
    """What `doctor --fix` writes into the script."""
    of_launcher: bool = False
    """Whether only `accelerate launch` meets it: zerowiz passes the ranks what they get itself."""

    @property
    def why(self) -> str:
        """Why it matters; empty where the message says it all."""
        return self.rule.why if self.because is None else self.because

    @property
    def fix(self) -> str | None:
        """The first of its fixes; None where there is none."""
        return self.fixes[0] if self.fixes else None

    @property
    def named(self) -> str:
        """What was seen, with the rule that says so."""
        return f"{self.message} ({self.rule.code} {self.rule.name})"

    def in_short(self, path: str | None = None) -> str:
        """It in a sentence, for a command that does something else."""
        if path is None:
            return f"{self.named}: {self.rule.why}"
        line = f" line {self.line}" if self.line else ""
        return f"{path}{line}: {self.named}"


def found(
    rule: Rule,
    message: str,
    *fixes: str,
    severity: Severity | None = None,
    edits: tuple[LineEdit, ...] = (),
) -> Finding:
    """A finding of this rule, with the severity of the rule unless another one is given."""
    severity = severity or rule.severity
    fixes += (BY_DOCTOR,) if edits and BY_DOCTOR not in fixes else ()
    return Finding(rule=rule, severity=severity, message=message, fixes=fixes, line_edits=edits)


def errors_of(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings that are errors."""
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)


def rules_of(
    modules: Iterable[object], tables: Iterable[Mapping[Rule, object]] = ()
) -> tuple[Rule, ...]:
    """Every rule that is a name of one of these modules, or has rows in a table, by its code."""
    names = (value for module in modules for value in vars(module).values())
    rules = {value for value in names if isinstance(value, Rule)}.union(*tables)
    return tuple(sorted(rules, key=lambda rule: rule.code))


def size(size_bytes: int) -> str:
    """A size in a sentence: `3.1 GiB`, `64 MiB`."""
    whole = size_bytes >= 2**30
    return f"{size_bytes / 2**30:.1f} GiB" if whole else f"{size_bytes / 2**20:.0f} MiB"


def dotted(version: Sequence[int]) -> str:
    """A version in a sentence: `13.0`."""
    return ".".join(map(str, version))


# Name the releases of libraries with which a job trains wrongly, or loses its weights.

# A step of more micro-batches meets the same rows.
MOST_MICRO_BATCHES = 3
# Of an incomplete version such as 0.18 it is not known which release it is.
_RELEASE = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", re.ASCII)


class BadRelease(Struct, frozen=True, kw_only=True):
    """One row of `data/bad_releases.json`."""

    library: str
    since: str
    until: str
    """The first release without the fault."""
    when: Mapping[str, tuple[bool | int | str, ...]]
    """The jobs that it harms: of each condition, the values that meet it."""
    harm: str
    """What it does to a job: `ZeRO-2 computes wrong gradients`."""
    severity: Severity
    """An error where a job of this kind surely meets it."""
    upgrade: str
    """The release to install."""
    instead: str = "choose another stage"
    """What to do without another release."""
    sources: tuple[str, ...]

    def affects(self, library: str, version: str | None) -> bool:
        """Whether it happens with this release of a library."""
        release, since, until = map(parse_release, (version, self.since, self.until))
        return library == self.library and since <= release < until

    def severity_for(self, job: Mapping[str, object]) -> Severity | None:
        """How much it matters to a job; None for a job that it does not harm.

        Args:
            job: The values of conditions; where one is None or missing, nobody can see whether the
                job meets it, and the row is only good to know.
        """
        seen = {name: job.get(name) for name in self.when}
        if any(value not in (None, *self.when[name]) for name, value in seen.items()):
            return None
        return Severity.INFO if None in seen.values() else self.severity

    @property
    def requirement(self) -> str:
        """What pip has to install: the fault may be in all releases since."""
        is_later = parse_release(self.upgrade) >= parse_release(self.until)
        return f"{self.library}{'>=' if is_later else '=='}{self.upgrade}"

    @property
    def words(self) -> str:
        """What happens, and who says so."""
        return f"{self.harm} ({', '.join(self.sources)})"


def shown_by(config: Mapping[str, object]) -> Mapping[str, object]:
    """The conditions of bad releases that the values of a config show."""
    names = ("zero_optimization", "data_types", "optimizer", "scheduler")
    zero, types, optimizer, scheduler = (section_of(config, name) for name in names)
    by_muon = str(optimizer.get("type")).lower() == "muon"
    return {
        "hpz": zero.get(ZeroKey.HPZ_PARTITION_SIZE, 1) != 1,
        "overlap_comm": truth_of(zero.get("overlap_comm", False)),
        "scattered_muon": by_muon and truth_of(zero.get("reduce_scatter", True)),
        "fp32_accumulation": types.get("grad_accum_dtype") == "fp32",
        "other_comm_dtype": config.get("communication_data_type") is not None,
        "configured_optimizer": config.get("optimizer") is not None,
        "open_peak": scheduler.get("type") == "WarmupLR"
        and section_of(scheduler, "params").get("warmup_max_lr") is None,
    }


def parse_release(version: str | None) -> tuple[int, ...]:
    """The three numbers of a release; none where there are not three."""
    match = _RELEASE.match(version or "")
    return () if match is None else tuple(int(part) for part in match.groups())
