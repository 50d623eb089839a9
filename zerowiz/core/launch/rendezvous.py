"""The files by which the zerowiz processes of several nodes meet and agree on a launch.

The leader on node 0 plans, and the followers on the other nodes do as it says. Files of an earlier
job may lie in the same folder, because a launcher need not give each job a name of its own. Clocks
are not trusted. So each side proves by a random word that its file is new:

1. The leader opens a rendezvous: it makes a folder that is named by a new word, and writes the word
   to `call.json`.
2. Every follower joins each rendezvous that it sees: it writes `hello-RANK.json` to that folder,
   with a new word of its own and the machine of its node.
3. Once every node has joined, the leader writes `attempt-1.json` to the folder, with their words.
4. A follower accepts only an attempt that has its own word. Before it joins another rendezvous, it
   looks for an attempt in the folders of those that it has joined.

A later attempt is `attempt-2.json` and so on. Each one is a launch, or the end of the job.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from zerowiz.core.codec import decode, encode, parse_json
from zerowiz.core.launch.node import slots_of
from zerowiz.core.launch.plan import EntryPoint
from zerowiz.core.machine.types import Machine
from zerowiz.core.values import Count
from zerowiz.errors import UsageError, ZerowizError
from zerowiz.words import _

SCHEMA_VERSION = 1

OPEN_FILE = "call.json"
"""Holds an OpenRendezvous."""

_Value = TypeVar("_Value")


class OpenRendezvous(Struct, frozen=True, kw_only=True):
    """The leader waits for the other nodes."""

    word: str
    """The name of the folder in which it waits."""


class Join(Struct, frozen=True, kw_only=True):
    """A node joins a rendezvous."""

    rank: Count
    """The node's."""
    host: str
    word: str
    """Random; proves that a later file is for this process."""
    zerowiz_version: str
    machine: Machine


class LaunchSpec(Struct, frozen=True, kw_only=True):
    """All that a node needs to start its own ranks."""

    zerowiz_version: str
    entry: EntryPoint
    script_args: tuple[str, ...]
    """With the words that pass the config to the script."""
    env: Mapping[str, str]
    """Variables that pass the config to the script."""
    sha256_by_path: Mapping[str, str]
    """The files that the ranks read, which have to be the same on each node."""
    strategy: str
    master_addr: str
    master_port: Count
    slots: tuple[tuple[Count, ...], ...]
    """The devices of each node, by its rank, as DeepSpeed calls them."""
    hostfile: str
    run_folder: str


class AttemptSpec(Struct, frozen=True, kw_only=True):
    """What the leader says of an attempt: a launch, or the end of the job."""

    heard: tuple[str, ...]
    """The words of the nodes that it is for."""
    spec: LaunchSpec | None = None
    """None ends the job."""
    end: Count | None = None
    """The exit status of every node's zerowiz."""
    why: str = ""
    """Why the job ends, in one sentence."""


def job_folder(output_dir: str, job_key: str) -> str:
    """The folder in which the nodes of this job meet."""
    return f"{output_dir or '.'}/.zerowiz/jobs/{job_key}"


def join_name(rank: int) -> str:
    """The name of the file by which a node joins."""
    return f"hello-{rank}.json"


def attempt_name(number: int) -> str:
    """The name of an attempt's file; attempts count from 1."""
    return f"attempt-{number}.json"


def encode_file(value: OpenRendezvous | Join | AttemptSpec) -> str:
    """The text of its file."""
    content = {"schema_version": SCHEMA_VERSION, "value": encode(value)}
    return json.dumps(content, indent=2) + "\n"


def decode_file(kind: type[_Value], text: str, name: str) -> _Value:
    """The value in a file.

    Args:
        kind: The class of the value.
        text: The content of the file.
        name: What errors call the file.

    Raises:
        UsageError: Another version of zerowiz wrote it, or it holds no such value.
    """
    try:
        content = parse_json(text)
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(
            _("`{name}` was written by another version of zerowiz", name=name),
            _("install the same version on every node"),
        )
    return decode(kind, content.get("value"), name)


def refuse_unlike(joins: Sequence[Join]) -> None:
    """Refuse nodes that cannot train together.

    DeepSpeed numbers the ranks of a node by `rank % ranks of the node`, which is wrong where nodes
    have different counts (deepspeed/launcher/launch.py, main, 0.19.8).

    Raises:
        ZerowizError: The nodes have different releases of zerowiz, different accelerators, or
            different counts of devices.
    """
    first = joins[0]
    for other in joins[1:]:
        if other.zerowiz_version != first.zerowiz_version:
            raise ZerowizError(
                _(
                    "zerowiz is {zerowiz_version} on `{host}`, {other_zerowiz_version} on "
                    "`{other_host}`",
                    zerowiz_version=first.zerowiz_version,
                    host=first.host,
                    other_zerowiz_version=other.zerowiz_version,
                    other_host=other.host,
                ),
                _("install the same version on every node"),
            )
        if other.machine.accelerator is not first.machine.accelerator:
            raise ZerowizError(
                _(
                    "`{host}` trains on {accelerator}, `{other_host}` on {machine_accelerator}",
                    host=first.host,
                    accelerator=first.machine.accelerator,
                    other_host=other.host,
                    machine_accelerator=other.machine.accelerator,
                ),
                _("choose one with `$accelerator cpu` or `$accelerator cuda`"),
            )
        own, others = len(slots_of(first.machine)), len(slots_of(other.machine))
        if own != others:
            raise ZerowizError(
                _(
                    "`{host}` has {own} devices for the job, `{other_host}` has {others}",
                    host=first.host,
                    own=own,
                    other_host=other.host,
                    others=others,
                ),
                _("use the same number on every node: select fewer with `$gpus 0,1`"),
            )
