"""The plan file of a config: why it is as it is, the command that makes it again, what has changed.

What has changed is a person's edit of the file, or the machine since an earlier plan.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from zerowiz.core.command_words import spell_change
from zerowiz.core.launch.secrets import hide_secrets, join_words
from zerowiz.core.machine.names import decode_machine
from zerowiz.core.machine.types import Machine, MachineSource
from zerowiz.core.plan_json import SCHEMA_VERSION
from zerowiz.core.structs import encode, parse_json, replace
from zerowiz.core.workload import Workload
from zerowiz.errors import UsageError
from zerowiz.translation import N_

_CONFIG_SUFFIX, _PLAN_SUFFIX = ".json", ".plan.json"


class PlannedFile(Struct, frozen=True, kw_only=True):
    """A file to write, whole."""

    path: str
    text: str
    own_folder: bool = False
    """Whether it lies in the folder of this run, which holds no person's work and is private."""
    copy_of: str | None = None
    """A person's own file, whose permissions it gets: it may hold a secret."""
    shown: str | None = None
    """What a person is shown of it, where that is not its text."""
    elsewhere: str = ""
    """The hint where it cannot be written; empty: another folder."""
    takes_over: bytes | None = None
    """A content with a person's edits, all of which are in the text."""
    conflicts: tuple[str, ...] = ()
    """What a person's edits and the plan say of the same keys, one clause each."""

    @property
    def content(self) -> bytes:
        """The bytes of the text; it may name a path that is no UTF-8."""
        return self.text.encode("utf-8", "surrogateescape")


LIBRARIES = ("deepspeed", "torch", "transformers", "accelerate")
"""The libraries whose releases decide what a config does."""


class Provenance(Struct, frozen=True, kw_only=True):
    """The facts of a plan file that are not part of the plan."""

    config: PlannedFile
    written: Mapping[str, object]
    """The config without a person's edits."""
    argv: tuple[str, ...]
    """The command that makes the same plan, with every answer as an option; its secrets are
    not written."""
    versions: Mapping[str, str | None]
    """The release of each of LIBRARIES and of zerowiz; None where it is not installed."""


def plan_path(config_path: str) -> str:
    """The path of a config's plan file, in the same folder."""
    return config_path.removesuffix(_CONFIG_SUFFIX) + _PLAN_SUFFIX


def is_unchanged_plan(plan: bytes) -> bool:
    """Whether the content of a plan file is as `render_plan` made it, by the hash inside."""
    match = re.search(rb'"plan_sha256": "([0-9a-f]{64})"', plan)
    if match is None:
        return False
    blank = plan[: match.start(1)] + plan[match.end(1) :]
    return _sha256(blank).encode() == match[1]


def is_config_of_plan(name: str, config: bytes, plan: bytes) -> bool:
    """Whether a plan file says that zerowiz wrote this config.

    Args:
        name: The config's, without its folder.
        config: Its content.
        plan: The content of its plan file.
    """
    noted = _noted_config(plan)
    return noted.get("name") == name and noted.get("sha256") == _sha256(config)


def _noted_config(plan: bytes) -> Mapping[str, object]:
    """What a plan file says of its config; empty where it is no plan file."""
    try:
        content = parse_json(plan)
    except ValueError:
        return {}
    noted = content.get("config") if isinstance(content, dict) else None
    return noted if isinstance(noted, dict) else {}


def written_config(plan: bytes) -> tuple[str, Mapping[str, object]] | None:
    """The name of the config of a plan file, and what zerowiz wrote into it; None where unsaid.

    Args:
        plan: The content of the plan file.
    """
    noted = _noted_config(plan)
    name, values = noted.get("name"), noted.get("written")
    if isinstance(name, str) and isinstance(values, dict) and is_unchanged_plan(plan):
        return name, values
    return None


def is_plan_path(path: str) -> bool:
    """Whether a file of this name is the plan of a config; no program reads plans."""
    return path.endswith(_PLAN_SUFFIX)


def without_identities(
    machine: Machine, rename: Callable[[str], str], *, names_hosts: bool = False
) -> Machine:
    """The machine without processes and UUIDs, as a recording has it.

    UUIDs are hashed, so that GPUs can still be distinguished.

    Args:
        machine: As it was read.
        rename: Hashes every UUID in a text.
        names_hosts: Whether its notes name hosts; then they are removed.
    """
    notes = () if names_hosts else tuple(map(rename, machine.notes))
    gpus = tuple(
        replace(
            gpu,
            uuid=gpu.uuid and rename(gpu.uuid),
            # It contains the UUID of its cluster in hex, and is only compared with others.
            clique=gpu.clique and _sha256(gpu.clique.encode())[:16],
            processes=(),
        )
        for gpu in machine.gpus
    )
    return replace(machine, gpus=gpus, notes=notes)


def render_plan(plan: Mapping[str, object], provenance: Provenance) -> str:
    """The text of the plan file. It holds no time: the same input gives the same bytes.

    Args:
        plan: The decision as `plan --json` prints it.
        provenance: What stands at the beginning, for a person who opens the file.

    Returns:
        JSON that ends in a newline.
    """
    config = provenance.config
    first = {
        "schema_version": plan["schema_version"],
        "zerowiz_version": plan["zerowiz_version"],
        "config": {
            "name": config.path.rpartition("/")[2],
            "sha256": _sha256(config.content),
            "written": dict(provenance.written),
        },
        "plan_sha256": "",
        "chosen": plan["chosen"],
        "reasons": plan["reasons"],
        "reproduce": {
            "shell": join_words(provenance.argv),
            "argv": hide_secrets(provenance.argv),
        },
        "versions": dict(provenance.versions),
    }
    text = json.dumps({**first, **plan}, indent=2) + "\n"
    digest = _sha256(text.encode())
    return text.replace('"plan_sha256": ""', f'"plan_sha256": "{digest}"', 1)


def _sha256(content: bytes) -> str:
    from hashlib import sha256  # noqa: PLC0415 - 4 ms that `plan` seldom needs

    return sha256(content).hexdigest()


# Compare an existing file line by line with the text that would be written.

# A plan of eight GPUs takes 45 kB in 1,700 lines. difflib is slowest for texts with few different
# lines: it takes 14 s for 125,000 lines against 190, and 1 s for as many lines as this limit.
_LARGEST_BYTES = 250_000
_MOST_LINES = 10_000


def difference(
    path: str, there: bytes, wanted: str, new_path: str | None = None
) -> tuple[str, ...] | str:
    """A unified diff from the existing content to the new one; line ends do not count.

    Args:
        path: The name of the file in the first two lines.
        there: The existing content.
        wanted: The new content.
        new_path: The name of the file that gets it; None for the same.

    Returns:
        Lines without their ends and without control characters; or why there are none, in words.
    """
    both = (there, wanted.encode("utf-8", "surrogateescape"))
    if any(len(part) > _LARGEST_BYTES or part.count(b"\n") > _MOST_LINES for part in both):
        return N_("it is too large to compare")
    try:
        text = there.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return N_("it is not UTF-8 text, so zerowiz shows no diff")
    before, after = _lines(text), _lines(wanted)
    if before == after:
        return N_("only its line endings differ (CRLF)")
    new = f"{new_path or path} (by zerowiz)"
    lines = difflib.unified_diff(before, after, path, new, lineterm="")
    return tuple(
        "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in part)
        for line in lines
        for part in line.split("\n")
    )


def _lines(text: str) -> list[str]:
    """The lines of a text; a last line without an end is marked as by `diff`."""
    *lines, last = text.replace("\r\n", "\n").split("\n")
    return [*lines, f"{last}\n\\ No newline at end of file"] if last else lines


# Compare the machine of an earlier plan with that of today, and say what becomes of the batch.


class ChangedFact(Struct, frozen=True, kw_only=True):
    """A fact of the machine that is not what it was."""

    fact: str
    """As the machine's JSON calls it."""
    before: int | str
    now: int | str


class BatchChange(Struct, frozen=True, kw_only=True):
    """A global batch that is not what it was, or not what the script would have by itself."""

    before: int
    now: int
    accumulation_steps: int | None = None
    """What keeps it; None where no whole number does, or nothing would fit."""
    by_script: bool = False
    """Whether only the script, or a config of the person's, can say so."""

    @property
    def words(self) -> str:
        """From what to what it changes, and how to keep it."""
        moves = "falls" if self.now < self.before else "rises"
        changes = f"the global batch {moves} from {self.before} to {self.now}"
        steps = self.accumulation_steps
        if steps is None:
            return changes
        if self.by_script:
            return f"{changes}; an accumulation of {steps} in your script keeps it"
        return f"{changes}; keep it with `{spell_change({'accumulation_steps': steps})}`"


class MachineChange(Struct, frozen=True, kw_only=True):
    """What has changed since an earlier plan of the same script."""

    plan_path: str
    """The file of the earlier plan."""
    facts: tuple[ChangedFact, ...]
    """At least one."""
    global_batch: BatchChange | None = None


class EarlierPlan(Struct, frozen=True, kw_only=True):
    """What a plan file says of the job that it was made for."""

    path: str
    machine: Machine
    global_batch: int


def read_earlier_plan(path: str, content: bytes, script: str | None) -> EarlierPlan | None:
    """The plan in a plan file; None where it is not one of this script.

    Args:
        path: Of the file.
        content: Its bytes, which anybody may have edited.
        script: As it is named in the command; None for a config without a script.
    """
    try:
        match parse_json(content):
            case {
                "schema_version": int(version),
                "machine": machine,
                "workload": {"global_batch": int(batch)},
                "reproduce": {"argv": list(argv)},
            } if version == SCHEMA_VERSION and (script or "--no-script") in argv and batch > 0:
                return EarlierPlan(path=path, machine=decode_machine(machine), global_batch=batch)
    except (ValueError, UsageError):
        return None
    return None


def compare_machines(before: Machine, now: Machine) -> tuple[ChangedFact, ...]:
    """What has changed.

    Example:
        8 GPUs and now 4 of them: one fact, `gpus_per_node`, from 8 to 4.
    """
    old, new = _summary(before), _summary(now)
    # A spec has the names of the table, a driver its own.
    by_spec = {machine.source is MachineSource.SPEC for machine in (before, now)}
    return tuple(
        ChangedFact(fact=fact, before=was, now=new[fact])
        for fact, was in old.items()
        if was != new[fact] and (fact != "gpu_names" or len(by_spec) == 1)
    )


def _summary(machine: Machine) -> Mapping[str, int | str]:
    return {
        "nodes": machine.nodes,
        "gpus_per_node": len(machine.gpus),
        "gpu_names": " + ".join(sorted({gpu.name for gpu in machine.gpus})),
    }


def change_batch(before: int, step: Workload, machine: Machine) -> BatchChange | None:
    """The change from a global batch to that of a step; None if there is none.

    Example:
        128 sequences, and now 1 x 8 on each of 4 GPUs: to 32, and 32 micro-steps would keep it.
    """
    ranks = step.replicas(machine.world_size)
    now = step.micro_batch * step.accumulation_steps * ranks
    if now == before:
        return None
    steps, rest = divmod(before, step.micro_batch * ranks)
    return BatchChange(before=before, now=now, accumulation_steps=None if rest else steps)


def encode_machine_change(change: MachineChange) -> dict[str, object]:
    """As JSON values; names and sizes as in `machine`, a batch in samples of all ranks."""
    batch = change.global_batch
    return {
        "plan_path": change.plan_path,
        "facts": [encode(fact) for fact in change.facts],
        "global_batch": None
        if batch is None
        else {
            "before": batch.before,
            "now": batch.now,
            "keep_with_accumulation_steps": batch.accumulation_steps,
        },
    }
